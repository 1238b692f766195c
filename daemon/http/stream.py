"""An answer without an end: bytes to one client until one side closes.

    asked (``Request.stream``) -> open: all earlier requests are answered, the head is written, and
    ``start`` is called with the stream -> closed: by ``end``, or by the client

If the client goes before the stream opens, ``start`` is never called. From the opening on,
the connection belongs to the stream: requests that were pipelined after it are dropped, and input
is thrown away within a bound. A client that closes its sending side has left: the stream closes.

A stream knows whether the transport's buffer is empty (``writable``). It decides nothing about
time; ``connection.py`` does.

Rules (``check_invariants``): a stream is among the shard's ``Streams`` from its opening until its
connection is lost; it is never writable once it is closed; what it was given and is not taken is
``unsent``, of which a shard has a budget.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from daemon.access.rights import EVERYTHING, Rights
from daemon.http.unsent import Unsent
from daemon.schemas.errors import ApiError
from daemon.tls.transport import TlsTransport
from delivery.streams.outlet import Outlet
from delivery.streams.wire import LAST_CHUNK

log = logging.getLogger(__name__)

Start = Callable[[Outlet], None]


def as_kept(data: bytes, tls: TlsTransport | None) -> bytes:
    """What a transport keeps of data that was written last and is not taken: by TLS, what it was
    encrypted to, which no two connections share."""
    if tls is None or tls.untaken is None:
        return data
    return tls.untaken


class Carrier(Protocol):
    """The connection of a stream."""

    transport: asyncio.Transport
    tls: TlsTransport | None

    @property
    def streams(self) -> Streams:
        """The streams of the shard."""

    def end(self) -> None:
        """Ends the connection after what was written."""


class Stream:
    """An ``Outlet`` (delivery/streams/outlet.py) that is a connection."""

    __slots__ = (
        "_carrier",
        "_is_full",
        "_is_paced",
        "_start",
        "_taken_bytes",
        "_written_bytes",
        "closed",
        "closed_by_peer",
        "content_type",
        "drained",
        "rights",
        "writable",
    )

    def __init__(
        self, carrier: Carrier, content_type: str, start: Start, rights: Rights = EVERYTHING
    ) -> None:
        self._carrier = carrier
        self._start: Start | None = start
        self.rights = rights
        self.content_type = content_type
        self.drained: Callable[[], None] | None = None
        self.closed_by_peer: Callable[[], None] | None = None
        self.writable = False
        self._is_full = True  # the transport has more than it should
        self._is_paced = False  # its limit is used up
        self.closed = False
        self._written_bytes = 0
        self._taken_bytes = 0

    def write(self, data: bytes) -> None:
        """Writes whole chunks (delivery/streams/wire.py), immediately if the socket takes them."""
        if self.closed:
            return
        self._written_bytes += len(data)
        self._carrier.transport.write(data)
        if self._is_full:
            self._carrier.streams.hold(self, as_kept(data, self._carrier.tls))
        tally = self.rights.tally
        if tally is not None:
            tally.bytes_out += len(data)
        allowance = self.rights.allowance
        if allowance is not None:
            wait_ns = allowance.charge_out(len(data))
            if wait_ns and not self._is_paced:
                self.writable, self._is_paced = False, True
                asyncio.get_running_loop().call_later(wait_ns / 1e9, self._pace_over)

    def _pace_over(self) -> None:
        self._is_paced = False
        if not (self._is_full or self.closed):
            self._may_write()

    def end(self, data: bytes = b"") -> None:
        """Writes ``data``, whole chunks too, and ends the stream and its connection."""
        if self.closed:
            return
        self._close()
        carrier = self._carrier
        data += LAST_CHUNK
        carrier.transport.write(data)
        if carrier.transport.get_write_buffer_size():
            carrier.streams.hold(self, as_kept(data, carrier.tls))
        carrier.end()

    # -- what the connection calls -------------------------------------------------------------

    def revoked(self) -> None:
        """Its sender's rights have ended: what the client has not taken does not go to it any more.
        Its owner is told as if the client had gone."""
        if self._carrier.transport.get_write_buffer_size():
            self.abort()
            return
        closed_by_peer = self.closed_by_peer
        self.end()
        if closed_by_peer is not None:
            self._guarded(closed_by_peer)

    def opened(self, *, writable: bool) -> None:
        """The head was written; ``writable`` if the socket took it."""
        start, self._start = self._start, None
        self.writable = writable
        self._is_full = not writable
        self._written_bytes = self._carrier.transport.get_write_buffer_size()
        self._taken_bytes = 0
        if start is not None:
            self._guarded(lambda: start(self))

    def held(self) -> None:
        """The transport's buffer is not empty."""
        self.writable = False
        self._is_full = True
        self._taken_bytes = self._taken()

    def taken(self) -> None:
        """The transport's buffer has become empty."""
        self._carrier.streams.unsent.release(self)
        self._is_full = False
        if not (self._is_paced or self.closed):
            self._may_write()

    def _may_write(self) -> None:
        self.writable = True
        if self.drained is not None:
            self._guarded(self.drained)

    def has_moved(self) -> bool:
        """Whether the socket took anything since the last call, or since ``held``."""
        before, self._taken_bytes = self._taken_bytes, self._taken()
        if self._taken_bytes == before:
            return False
        self._carrier.streams.unsent.moved(self)
        return True

    def abort(self) -> None:
        """Ends the connection immediately, with what was not taken; ``closed_by_peer`` follows."""
        self.writable = False
        self._carrier.transport.abort()

    def lost(self) -> None:
        """The client has gone, or the connection cannot go on."""
        if self.closed:
            return
        closed_by_peer = self.closed_by_peer
        self._close()
        if closed_by_peer is not None:
            self._guarded(closed_by_peer)

    def check_invariants(self) -> None:
        """For tests."""
        assert not (self.closed and self.writable)
        assert 0 <= self._taken_bytes <= self._written_bytes

    def _taken(self) -> int:
        tls = self._carrier.tls
        written_bytes = self._written_bytes if tls is None else tls.written_bytes
        return written_bytes - self._carrier.transport.get_write_buffer_size()

    def _close(self) -> None:
        self.closed = True
        self.writable = False
        self.drained = self.closed_by_peer = None

    def _guarded(self, function: Callable[[], None]) -> None:
        """A stream whose owner failed would stay silent forever; the client may connect again."""
        try:
            function()
        except Exception as error:  # the last resort of a callback: logged, and the stream ends
            log.error("a stream ends because of a bug", exc_info=error)
            self.abort()


class Streams:
    """The open streams of a shard, at most ``limit``, and what they hold, at most ``bytes_max``."""

    def __init__(self, limit: int, bytes_max: int) -> None:
        self._limit = limit
        self._open: set[Stream] = set()
        self.unsent: Unsent[Stream] = Unsent(bytes_max, "streams whose clients took nothing")

    def __len__(self) -> int:
        return len(self._open)

    def refusal(self, rights: Rights, *, draining: bool) -> ApiError | None:
        """Why no stream can be opened now."""
        try:
            rights.check_live()  # it may have waited for long
            if rights.allowance is not None:
                rights.allowance.check_stream()
        except ApiError as error:
            return error
        if draining:
            return ApiError(
                503, "shutting_down", "the daemon is stopping; connect again", retry_after_s=1
            )
        if len(self._open) < self._limit:
            return None
        return ApiError(
            503,
            "too_many_streams",
            f"this shard has {self._limit} streams, the limit (streams_max); close some, raise the"
            " limit, or use more shards",
            {"limit": self._limit},
            retry_after_s=1,
        )

    def add(self, stream: Stream) -> None:
        """A stream opens."""
        self._open.add(stream)
        if stream.rights.allowance is not None:
            stream.rights.allowance.count_stream(1)

    def discard(self, stream: Stream) -> None:
        """The connection of a stream is lost."""
        if stream in self._open and stream.rights.allowance is not None:
            stream.rights.allowance.count_stream(-1)
        self._open.discard(stream)
        self.unsent.release(stream)

    def hold(self, stream: Stream, data: bytes) -> None:
        """A stream was given data that its client has not taken whole."""
        self.unsent.hold(stream, data)
        for stalled in self.unsent.shed():
            stalled.abort()

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self._open) <= self._limit
        self.unsent.check_invariants()
        assert not self.unsent.is_over
        for stream in self._open:
            stream.check_invariants()
