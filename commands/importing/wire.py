"""A connection to a daemon on which requests are pipelined: many are sent before the first answer.

The daemon answers in the order of the requests, and stores what they produce in that order.
(``commands/client/http.py`` has one request at a time, and repeats it; here nothing is repeated.)

Lifecycle: opened -> lost, when either end closes it. What has no answer by then never gets one.
Callbacks are called from the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import httptools

from compaction.access.connection import DaemonAddress

ANSWER_BYTES_MAX = 1 << 20  # an answer to a produce request names at most 1,000 partitions
CONNECT_S = 10.0


class WireAnswer(NamedTuple):
    """An answer; ``latency_s`` is since its request was handed to the connection."""

    status: int
    retry_after: str | None
    body: bytes
    latency_s: float


class Wire(asyncio.Protocol):
    """One connection; see the head of the module. ``now`` is monotonic, in seconds."""

    def __init__(
        self,
        address: DaemonAddress,
        now: Callable[[], float],
        answered: Callable[[WireAnswer], None],
        lost: Callable[[str], None],
    ) -> None:
        self._address = address
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in address.headers.items())
        self._now = now
        self._answered = answered
        self._lost: Callable[[str], None] | None = lost
        self._transport: asyncio.Transport | None = None
        self._sent_at: deque[float] = deque()
        self._answered_at = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._retry_after: str | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._is_paused = False
        self._closes = False

    @classmethod
    async def open(
        cls,
        address: DaemonAddress,
        now: Callable[[], float],
        answered: Callable[[WireAnswer], None],
        lost: Callable[[str], None],
    ) -> Wire:
        """A connection that is open. Raises OSError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_S):
            _, wire = await loop.create_connection(
                lambda: cls(address, now, answered, lost), address.host, address.port,
                ssl=address.tls,
            )  # fmt: skip
        return wire

    @property
    def is_writable(self) -> bool:
        """Whether the connection takes more requests now."""
        return self._transport is not None and not self._is_paused and not self._closes

    def post(self, path: str, pieces: list[bytes]) -> None:
        """Sends a request with a JSON body in pieces."""
        assert self._transport is not None
        length = sum(map(len, pieces))
        host = self._address.host
        host = f"[{host}]" if ":" in host else host
        head = (
            f"POST {self._address.base}{path} HTTP/1.1\r\nHost: {host}:{self._address.port}\r\n"
            f"{self._fields}"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
        self._sent_at.append(self._now())
        self._transport.writelines([head.encode(), *pieces])

    def silent_s(self) -> float:
        """How long nothing was answered while something was waited for."""
        if not self._sent_at:
            return 0.0
        return self._now() - max(self._sent_at[0], self._answered_at)

    def close(self, reason: str = "closed here") -> None:
        """Ends the connection; what has no answer is lost."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close(f"the answer is not HTTP: {error}")

    def eof_received(self) -> None:
        self._end("the daemon closed the connection")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the connection was closed")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False

    # --- httptools ---

    def on_message_begin(self) -> None:
        self._retry_after = None
        self._body = []
        self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes <= ANSWER_BYTES_MAX:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if not self._sent_at or self._lost is None:
            return
        self._closes = self._closes or not self._parser.should_keep_alive()
        self._answered_at = self._now()
        latency_s = self._answered_at - self._sent_at.popleft()
        status = self._parser.get_status_code()
        self._answered(WireAnswer(status, self._retry_after, b"".join(self._body), latency_s))

    def _end(self, reason: str) -> None:
        lost, self._lost = self._lost, None
        if self._transport is not None:
            self._transport.close()
        if lost is not None:
            lost(reason)
