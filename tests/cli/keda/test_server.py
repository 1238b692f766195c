"""The scaler over real gRPC, with a daemon at the other end whose answers are prepared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from commands.client.http import Client
from commands.keda import contract
from commands.keda.server import ScalerServer
from commands.keda.signals import MAX_AGE_NS, Signals
from commands.keda.trigger import METRIC
from tests.e2e.daemon import wait_until
from tests.scripted import Answer, Scripted, says, scripted

NAMED = {"topic": "orders", "subscription": "billing"}


class Daemon:
    """What the daemon says; a test changes ``lag``, and ``names`` the status of a failure."""

    def __init__(self) -> None:
        self.lag = 300
        self.status = 200
        self.name = "billing"

    def answer(self, _: object) -> Answer:
        if self.status != 200:
            refused = {"code": "starting", "message": "not yet", "detail": {}}
            return Answer(self.status, {"error": refused})
        row = {
            "topic": "orders", "subscription": self.name, "value": 0, "drainable_lag": self.lag,
            "lag": 9_000, "in_flight": 1, "blocked_keys": 0, "consumers": 1, "consumer_max": 100,
            "held": "",
        }  # fmt: skip
        document = {"value": 3, "inputs": {}, "left_out": {}, "shards": 1, "subscriptions": [row]}
        return Answer(200, document)


class Keda:
    """Calls the scaler as KEDA does, over a connection of its own; ``now`` is the scaler's clock,
    by default always too late for an answer that was given before."""

    def __init__(self, channel: Any, said: list[str]) -> None:
        self._channel = channel
        self.said = said

    async def ask(self, method: str, metadata: dict[str, str], metric: str = METRIC) -> Any:
        kind, answer = {
            "IsActive": (contract.ScaledObjectRef, contract.IsActiveResponse),
            "GetMetricSpec": (contract.ScaledObjectRef, contract.GetMetricSpecResponse),
            "GetMetrics": (contract.GetMetricsRequest, contract.GetMetricsResponse),
        }[method]
        call = self._channel.unary_unary(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=kind.SerializeToString,
            response_deserializer=answer.FromString,
        )
        reference = contract.ScaledObjectRef(name="w", namespace="n", scalerMetadata=metadata)
        if kind is contract.GetMetricsRequest:
            return await call(kind(scaledObjectRef=reference, metricName=metric))
        return await call(reference)

    def stream(self, metadata: dict[str, str]) -> Any:
        call = self._channel.unary_stream(
            "/externalscaler.ExternalScaler/StreamIsActive",
            request_serializer=contract.ScaledObjectRef.SerializeToString,
            response_deserializer=contract.IsActiveResponse.FromString,
        )
        return call(contract.ScaledObjectRef(name="w", scalerMetadata=metadata))

    async def lag(self) -> float:
        (value,) = (await self.ask("GetMetrics", NAMED)).metricValues
        assert value.metricName == METRIC and value.metricValue == value.metricValueFloat
        return float(value.metricValueFloat)

    async def refused(self, method: str, metadata: dict[str, str], metric: str = METRIC) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(method, metadata, metric)
        return f"{caught.value.code().name}: {caught.value.details()}"


@asynccontextmanager
async def keda(url: str, now_ns: Callable[[], int]) -> AsyncIterator[Keda]:
    said: list[str] = []
    with Client(url, timeout_s=60) as client:
        signals = Signals(client, now_ns, said.append)
        server = ScalerServer(signals, stream_every_s=0.01)
        port = await server.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Keda(channel, said)
        await server.stop()
        await signals.close()


class Later:
    """A clock by which every look is too late for the answer before."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 2 * MAX_AGE_NS
        return self.now_ns


def played(
    play: Callable[[Keda, Daemon, Scripted], Awaitable[None]], now_ns: Callable[[], int]
) -> None:
    daemon = Daemon()

    async def run(server: Scripted) -> None:
        async with keda(server.url, now_ns) as caller:
            await play(caller, daemon, server)

    with scripted(daemon.answer) as server:
        asyncio.run(run(server))


def test_metric_target_and_activity_are_those_of_the_signal() -> None:
    async def play(caller: Keda, daemon: Daemon, _: Scripted) -> None:
        assert (await caller.ask("IsActive", NAMED)).result is True
        (spec,) = (await caller.ask("GetMetricSpec", NAMED)).metricSpecs
        assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == (METRIC, 100, 100.0)
        (spec,) = (await caller.ask("GetMetricSpec", NAMED | {"lagPerConsumer": "7"})).metricSpecs
        assert (spec.targetSize, spec.targetSizeFloat) == (7, 7.0)
        assert await caller.lag() == 300
        daemon.lag = 0
        assert await caller.lag() == 0
        assert (await caller.ask("IsActive", NAMED)).result is False

    played(play, Later())


def test_many_triggers_ask_the_daemon_once_a_second() -> None:
    now = 0

    async def play(caller: Keda, daemon: Daemon, server: Scripted) -> None:
        nonlocal now
        await asyncio.gather(*(caller.lag() for _ in range(20)))
        now = MAX_AGE_NS
        assert await caller.lag() == 300
        assert [call.path for call in server.calls] == ["/v0/scaling"]
        daemon.lag, now = 5, MAX_AGE_NS + 1
        assert await caller.lag() == 5
        assert (len(server.calls), server.connections) == (2, 1)

    played(play, lambda: now)


def test_a_stream_says_whether_consumers_are_to_run_when_that_changes() -> None:
    async def play(caller: Keda, daemon: Daemon, server: Scripted) -> None:
        stream = caller.stream(NAMED | {"activationLag": "10"})
        assert (await stream.read()).result is True
        daemon.lag = 11  # still above: nothing is said
        seen = len(server.calls)
        await asyncio.to_thread(wait_until, lambda: len(server.calls) >= seen + 3, "three looks")
        daemon.lag = 10
        assert (await stream.read()).result is False
        daemon.lag = 12
        assert (await stream.read()).result is True
        daemon.name = "another"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    played(play, Later())


def test_a_stream_outlives_a_daemon_that_does_not_answer() -> None:
    async def play(caller: Keda, daemon: Daemon, server: Scripted) -> None:
        stream = caller.stream(NAMED)
        assert (await stream.read()).result is True
        daemon.status = 0
        seen = len(server.calls)
        await asyncio.to_thread(wait_until, lambda: len(server.calls) >= seen + 3, "three looks")
        daemon.lag, daemon.status = 0, 200
        assert (await stream.read()).result is False
        assert len(caller.said) == 2, "one line when it fails, one when it answers again"
        assert caller.said[0].startswith("no scaling signal: no answer from http://")
        assert caller.said[1].endswith(" answers again")

    played(play, Later())


@pytest.mark.parametrize("method", ["IsActive", "GetMetricSpec", "GetMetrics"])
def test_without_an_answer_of_the_daemon_keda_is_told_so_and_keeps_the_replicas(
    method: str,
) -> None:
    async def play(caller: Keda, daemon: Daemon, _: Scripted) -> None:
        daemon.status = 503
        assert await caller.refused(method, NAMED) == "UNAVAILABLE: not yet"
        daemon.status = 0
        assert (await caller.refused(method, NAMED)).startswith("UNAVAILABLE: no answer from")
        daemon.name = "another"
        daemon.status = 200
        assert (await caller.refused(method, NAMED)).startswith(
            "NOT_FOUND: topic 'orders' has no subscription 'billing'"
        )

    played(play, Later())


async def test_another_program_at_the_address_of_the_daemon_is_said() -> None:
    with says(Answer(200, b"hello")) as server:
        async with keda(server.url, Later()) as caller:
            assert "UNAVAILABLE: an answer of" in await caller.refused("IsActive", NAMED)


def test_bad_requests_are_refused_and_others_go_on() -> None:
    async def play(caller: Keda, daemon: Daemon, _: Scripted) -> None:
        for metadata in ({}, {"topic": "orders"}, NAMED | {"lagPerConsumer": "many"}):
            for method in ("IsActive", "GetMetricSpec", "GetMetrics"):
                said = await caller.refused(method, metadata)
                assert said.startswith("INVALID_ARGUMENT: the trigger's"), said
        said = await caller.refused("GetMetrics", NAMED, "s0-other")
        assert said == f"INVALID_ARGUMENT: the metric is '{METRIC}', got 's0-other'"
        huge = NAMED | {"lagPerConsumer": "1" * 100_000}
        assert (await caller.refused("IsActive", huge)).startswith("RESOURCE_EXHAUSTED")
        assert await caller.lag() == 300

    played(play, Later())
