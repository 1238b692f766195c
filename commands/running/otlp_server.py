"""OTLP's logs over gRPC: ``LogsService.Export``, forwarded to the daemon's HTTP route as it came.

    the daemon's answer                  gRPC status
    200                                  OK, with its body
    503, 429, another 5xx                UNAVAILABLE with a RetryInfo: nothing is stored; senders
                                         repeat it
    none                                 the same, and nobody knows whether it is stored
    504                                  DEADLINE_EXCEEDED: it may be stored; senders repeat it
    401, 403, 404                        UNAUTHENTICATED, PERMISSION_DENIED, NOT_FOUND
    any other                            INVALID_ARGUMENT: it will never be taken

Messages are bytes here: nothing of them is decoded. Bounds: CALLS_MAX requests of
REQUEST_BYTES_MAX are forwarded at a time, until the daemon has answered each, whether its sender
still waits or not. More calls are UNAVAILABLE, too. gRPC receives a whole message before anything
here sees it, with a token or without: STREAMS_MAX messages of each of CONNECTIONS_MAX connections.
More calls wait at their sender, and more connections are closed.

Needs the extra ``grpc``.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
import grpc.aio
import msgspec

from commands.shell.grpc_service import GrpcService
from compaction.access.connection import (
    FAILURES,
    DaemonAddress,
    DaemonAnswer,
    DaemonConnection,
    reason_of,
)

SERVICE = "opentelemetry.proto.collector.logs.v1.LogsService"
CALLS_MAX = 32
REQUEST_BYTES_MAX = 4 << 20  # what servers of gRPC usually take
STREAMS_MAX = 4  # senders have one or a few requests on their way
CONNECTIONS_MAX = 32  # with the above, 512 MiB of messages; 0.8 GiB of memory, measured
TIMEOUT_S = 60.0  # more than ack_timeout_ms of most; senders give up a call sooner
RETRY_S = 1  # if the daemon does not say
DRAIN_S = 5.0
TOKENS = ("authorization", "x-api-key")  # metadata
PROTOBUF = "application/x-protobuf"
RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"
DETAILS = "grpc-status-details-bin"

_STATUS = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class LogsServer(GrpcService):
    """Forwards to the daemon at ``url``."""

    def __init__(self, url: str, address: DaemonAddress, topic: str) -> None:
        self._address = address._replace(headers={})
        self._own = address.headers  # of senders that give no token
        self._url = url
        self._target = f"/v0/otlp/{quote(topic, safe='')}/v1/logs"
        self._threads = ThreadPoolExecutor(CALLS_MAX, "forward")
        self._kept: list[DaemonConnection] = []  # of no request now
        self._under_way = 0
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
                ("grpc.max_concurrent_streams", STREAMS_MAX),
                ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
                ("grpc.so_reuseport", 0),
            ],
        )
        super().__init__(server, DRAIN_S)
        # Without serializers, messages are the bytes that came.
        export = grpc.unary_unary_rpc_method_handler(self._export)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Export": export}),)
        )

    async def stop(self) -> None:
        """Ends after the calls that are under way."""
        await super().stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for connection in self._kept:
            connection.close()

    async def _export(self, request: bytes, context: Any) -> bytes:
        headers = {"Content-Type": PROTOBUF, "Accept": PROTOBUF}
        given = context.invocation_metadata()
        tokens = {name: str(value) for name, value in given if name in TOKENS}
        headers.update(tokens or self._own)
        if self._under_way >= CALLS_MAX:
            text = f"{CALLS_MAX} requests are being forwarded, which is the limit"
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, text, RETRY_S)
        self._under_way += 1
        loop = asyncio.get_running_loop()
        connection = self._kept.pop() if self._kept else DaemonConnection(self._address)
        forwarded = loop.run_in_executor(self._threads, self._forward, connection, request, headers)
        forwarded.add_done_callback(partial(self._is_forwarded, connection))
        try:
            answer = await asyncio.shield(forwarded)
        except FAILURES as error:
            text = f"no answer from {self._url}: {reason_of(error)}"
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, text, RETRY_S)
        if answer.status != 200:
            other = (
                grpc.StatusCode.UNAVAILABLE
                if answer.status >= 500
                else grpc.StatusCode.INVALID_ARGUMENT
            )
            status = _STATUS.get(answer.status, other)
            said = answer.retry_after or ""
            retry_s = int(said) if said.isdecimal() and len(said) < 6 else RETRY_S
            await _refuse(context, status, _message(answer), retry_s)
        return answer.body

    def _is_forwarded(
        self, connection: DaemonConnection, forwarded: asyncio.Future[DaemonAnswer]
    ) -> None:
        self._under_way -= 1
        self._kept.append(connection)
        if not forwarded.cancelled():
            forwarded.exception()  # whose sender has gone

    def _forward(
        self, connection: DaemonConnection, request: bytes, headers: dict[str, str]
    ) -> DaemonAnswer:
        """In a thread. Raises one of FAILURES: the daemon may have the request, so its sender
        decides whether it is sent again."""
        connection.close_if_ended()  # the daemon ends what was silent
        return connection.ask("POST", self._target, request, lambda: TIMEOUT_S, headers)


async def _refuse(context: Any, status: grpc.StatusCode, message: str, retry_s: int) -> NoReturn:
    details: tuple[tuple[str, bytes], ...] = ()
    if status is grpc.StatusCode.UNAVAILABLE:
        details = ((DETAILS, retry_details(status.value[0], message, retry_s)),)
    await context.abort(status, message, details)
    raise AssertionError("unreachable: abort raises")


def retry_details(code: int, message: str, retry_s: int) -> bytes:
    """A google.rpc.Status that has a google.rpc.RetryInfo, in protobuf."""
    delay = _field(1, b"\x08" + _varint(retry_s))
    retry = _field(1, RETRY_INFO) + _field(2, delay)
    return b"\x08" + _varint(code) + _field(2, message.encode()) + _field(3, retry)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _message(answer: DaemonAnswer) -> str:
    """What the daemon says: a google.rpc.Status whose first field is the message."""
    body = answer.body
    if body[:1] == b"\x12":
        at = 1
        while at < len(body) and body[at] & 0x80:
            at += 1
        return body[at + 1 :].decode(errors="replace")
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return f"the daemon answered {answer.status}"
