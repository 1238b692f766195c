"""KEDA's external scaler over gRPC: from ``/v0/scaling`` to the answers of the contract.

    what went wrong                     gRPC status           what KEDA does
    the trigger's metadata              INVALID_ARGUMENT      shows it; keeps the replicas
    there is no such subscription       NOT_FOUND             the same
    the daemon does not answer          UNAVAILABLE           the same, and asks again

So a daemon that is restarted never costs a consumer. A stream tells whether consumers are to run
when that changes; it outlives a daemon that does not answer for a time.

Needs the extra ``grpc``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
import grpc.aio

from commands.keda import contract
from commands.keda.signals import NoSignal, Signals
from commands.keda.trigger import (
    METRIC,
    SubscriptionGone,
    Trigger,
    TriggerRefused,
    trigger_of,
)
from commands.shell.grpc_service import GrpcService
from daemon.schemas.api import SubscriptionScaling

STREAM_EVERY_S = 1.0
CALLS_MAX = 1_024  # simultaneous ones, streams included: one for each subscription there may be
REQUEST_BYTES_MAX = 64 << 10  # metadata of a ScaledObject is a few hundred bytes
DRAIN_S = 1.0


class ScalerServer(GrpcService):
    """The server; ``stream_every_s`` is how often a stream looks."""

    def __init__(self, signals: Signals, *, stream_every_s: float = STREAM_EVERY_S) -> None:
        self._signals = signals
        self._stream_every_s = stream_every_s
        server = grpc.aio.server(
            maximum_concurrent_rpcs=CALLS_MAX,
            options=[
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                ("grpc.so_reuseport", 0),  # two scalers at one port is a mistake
            ],
        )
        super().__init__(server, DRAIN_S)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(contract.SERVICE, self._methods()),)
        )

    def _methods(self) -> dict[str, Any]:
        reference, unary = contract.ScaledObjectRef, grpc.unary_unary_rpc_method_handler
        return {
            "IsActive": unary(
                self._is_active,
                request_deserializer=reference.FromString,
                response_serializer=contract.IsActiveResponse.SerializeToString,
            ),
            "StreamIsActive": grpc.unary_stream_rpc_method_handler(
                self._stream_is_active,
                request_deserializer=reference.FromString,
                response_serializer=contract.IsActiveResponse.SerializeToString,
            ),
            "GetMetricSpec": unary(
                self._metric_spec,
                request_deserializer=reference.FromString,
                response_serializer=contract.GetMetricSpecResponse.SerializeToString,
            ),
            "GetMetrics": unary(
                self._metrics,
                request_deserializer=contract.GetMetricsRequest.FromString,
                response_serializer=contract.GetMetricsResponse.SerializeToString,
            ),
        }

    async def _is_active(self, reference: Any, context: Any) -> Any:
        trigger, row = await self._row(reference, context)
        return contract.IsActiveResponse(result=trigger.is_active(row))

    async def _stream_is_active(self, reference: Any, context: Any) -> AsyncIterator[Any]:
        trigger, row = await self._row(reference, context)
        told = None
        while True:
            if (active := trigger.is_active(row)) is not told:
                told = active
                yield contract.IsActiveResponse(result=active)
            await asyncio.sleep(self._stream_every_s)
            try:
                row = trigger.row(await self._signals.scaling())
            except NoSignal:
                continue  # what was told holds
            except SubscriptionGone as error:
                await _refuse(context, grpc.StatusCode.NOT_FOUND, error)

    async def _metric_spec(self, reference: Any, context: Any) -> Any:
        trigger, row = await self._row(reference, context)
        target = trigger.target(row)
        spec = contract.MetricSpec(metricName=METRIC, targetSize=target, targetSizeFloat=target)
        return contract.GetMetricSpecResponse(metricSpecs=[spec])

    async def _metrics(self, request: Any, context: Any) -> Any:
        _, row = await self._row(request.scaledObjectRef, context)
        if request.metricName != METRIC:
            error = TriggerRefused(f"the metric is {METRIC!r}, got {request.metricName!r}")
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, error)
        lag = row.drainable_lag
        value = contract.MetricValue(metricName=METRIC, metricValue=lag, metricValueFloat=lag)
        return contract.GetMetricsResponse(metricValues=[value])

    async def _row(self, reference: Any, context: Any) -> tuple[Trigger, SubscriptionScaling]:
        try:
            trigger = trigger_of(reference.scalerMetadata)
            return trigger, trigger.row(await self._signals.scaling())
        except TriggerRefused as error:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, error)
        except SubscriptionGone as error:
            await _refuse(context, grpc.StatusCode.NOT_FOUND, error)
        except NoSignal as error:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, error)


async def _refuse(context: Any, status: Any, error: Exception) -> NoReturn:
    await context.abort(status, str(error))
    raise AssertionError("unreachable: abort raises")
