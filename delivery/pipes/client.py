"""Pipes to the owners: what a shard asks of others, and the streams that it passes on to clients.

    ask: numbered -> sent, or kept until there is a connection -> the answer; or the connection is
    lost: ``PipeBroken``
    open: sent with its credit -> writes are passed on to the outlet, credit is given back once the
    client has taken them -> the owner ends it, or the client goes
    the connection is lost -> RECONNECT_S -> all streams are opened again, at the owner's successor

One connection to each owner is made when it is first needed, and stays. It may wait in the backlog
of the owner's socket while the owner is being restarted. What is opened again is the same request;
only whole writes are passed on, so the client sees no seam.

Rules (``check_invariants``): a request waits for an answer only while there is a connection, or one
is being made; a stream's outlet is open; what streams were opened with is within its bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from delivery.pipes.addresses import connected
from delivery.pipes.buffers import PipeBuffers
from delivery.pipes.connection import PipeConnection
from delivery.pipes.credit import OwedCredit
from delivery.pipes.errors import (
    FrameTooLarge,
    PipeBroken,
    PipeBusy,
    PipeError,
    PipeFailed,
    PipeRefused,
)
from delivery.pipes.frames import FrameKind, PipeFrame, credit_of
from delivery.streams.outlet import Outlet

log = logging.getLogger("headgate.pipes")

ASKS_MAX = 8_192  # as many connections of clients as a shard has; each asks one thing
ASK_BYTES = 2 << 10  # of a request that waits, without its payload; measured: 1.3 KiB
# An acknowledgment of 10,000 messages has at most 300 KB, another 200 KB with as many exceptions.
ASK_PAYLOAD_BYTES_MAX = 1 << 20
# What streams were opened with is kept, to open them again: 10,000 streams of 800 bytes. One takes
# 70 without filters, 66 KB with the longest.
OPENINGS_BYTES_MAX = 8 << 20
# A connection that is refused immediately must not be made in a tight loop.
RECONNECT_S = 0.1


class PassedStream:
    """A stream of an owner, passed on to the outlet of a client."""

    __slots__ = ("_owed", "_pipe", "number", "opening", "outlet")

    def __init__(self, pipe: OwnerPipe, number: int, opening: bytes, outlet: Outlet) -> None:
        self._pipe = pipe
        self.number = number
        self.opening = opening
        self.outlet = outlet
        self._owed = OwedCredit()
        outlet.drained = self._drained
        outlet.closed_by_peer = self._closed_by_peer

    def begin(self) -> bytes:
        """What is sent to open it."""
        return credit_of(self._owed.begin(writable=self.outlet.writable)) + self.opening

    def passed(self, data: bytes) -> None:
        """The owner has written."""
        self._owed.passed(len(data))
        self.outlet.write(data)
        if self.outlet.writable:
            self._drained()

    def _drained(self) -> None:
        due = self._owed.due()
        if due:
            self._pipe.give(self.number, due)

    def _closed_by_peer(self) -> None:
        self._pipe.close_stream(self.number)


class _Line(PipeConnection):
    """The connection of a pipe."""

    def __init__(self, pipe: OwnerPipe, buffers: PipeBuffers, frame_bytes_max: int) -> None:
        super().__init__(buffers, frame_bytes_max)
        self._pipe = pipe
        self.has_heard = False  # of the owner: the connection does not only wait in the backlog

    def opened(self) -> None:
        self._pipe.opened(self)

    def received(self, frame: PipeFrame) -> None:
        self.has_heard = True
        self._pipe.received(frame)

    def lost(self) -> None:
        self._pipe.lost()


class OwnerPipe:
    """What this shard asks of one owner."""

    def __init__(self, pipes: Pipes, name: bytes) -> None:
        self._pipes = pipes
        self._name = name
        self._line: _Line | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._queue: list[tuple[FrameKind, int, bytes]] = []
        self._queue_bytes = 0
        self.asks: dict[int, asyncio.Future[bytes]] = {}
        self.streams: dict[int, PassedStream] = {}

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection; it may wait in the owner's backlog."""
        return self._line is not None

    def ask(self, number: int, payload: bytes) -> asyncio.Future[bytes]:
        """Sends a request; the future has the answer, or a PipeError. Raises PipeBroken."""
        if self._line is None and self._pipes.draining:
            raise PipeBroken("the daemon is stopping")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.asks[number] = future
        self._send(FrameKind.ASK, number, payload)
        return future

    def forget(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        if self.asks.pop(number, None) is not None:
            self._send(FrameKind.CANCEL, number)

    def open(self, number: int, payload: bytes, outlet: Outlet) -> None:
        """Opens a stream."""
        stream = self.streams[number] = PassedStream(self, number, payload, outlet)
        if self._line is not None:
            self._line.send(FrameKind.OPEN, number, stream.begin())
        elif self._pipes.draining:
            self._end_streams()
        else:
            self._connect()  # which opens all streams

    def give(self, number: int, size_bytes: int) -> None:
        """Gives credit back. Without a connection, the stream is opened with what it is due."""
        if self._line is not None:
            self._line.send(FrameKind.CREDIT, number, credit_of(size_bytes))

    def close_stream(self, number: int) -> None:
        """A client has gone."""
        if self._forget_stream(number) is not None and self._line is not None:
            self._line.send(FrameKind.CLOSE, number)

    def opened(self, line: _Line) -> None:
        """The connection is there: sends what waits for it, and opens all streams."""
        self._line = line
        for kind, number, payload in self._take_queue():
            line.send(kind, number, payload)
        for stream in list(self.streams.values()):
            line.send(FrameKind.OPEN, stream.number, stream.begin())

    def received(self, frame: PipeFrame) -> None:
        """A frame of the owner. What it says of something that has ended here is dropped."""
        kind, number, payload = frame
        if kind is FrameKind.DATA:
            stream = self.streams.get(number)
            if stream is not None:
                stream.passed(payload)
        elif kind is FrameKind.END:
            ended = self._forget_stream(number)
            if ended is not None:
                ended.outlet.end(payload)
        else:
            future = self.asks.pop(number, None)
            if future is None or future.done():
                return
            if kind is FrameKind.ANSWER:
                future.set_result(payload)
            else:
                future.set_exception(_error_of(kind, payload))

    def lost(self) -> None:
        """The connection is lost: the owner has died, or will not serve this shard."""
        self._line = None
        self._break_asks()
        if self._pipes.draining:
            self._end_streams()
        elif self.streams:
            self._connect_later()

    def abort(self) -> None:
        """Gives up what waits for a connection."""
        self._break_asks()

    def drain(self) -> None:
        """No connection is made any more, and none is accepted of an owner that has died: nobody
        starts its successor."""
        if self._line is not None:
            if not self._line.has_heard:
                self._line.abort()
        else:
            self._stop_connecting()
            self._break_asks()
            self._end_streams()

    async def close(self) -> None:
        """Closes the connection."""
        connecting = self._connecting
        self._stop_connecting()
        if connecting is not None:
            await asyncio.gather(connecting, return_exceptions=True)
        if self._line is not None:
            self._line.abort()

    def check_invariants(self) -> None:
        """For tests."""
        reachable = self._line is not None or self._connecting is not None
        assert reachable or not self.asks
        assert reachable or self._timer is not None or not self.streams
        assert not (self._line is not None and self._queue)
        assert self._queue_bytes == sum(len(payload) for _, _, payload in self._queue)
        assert not any(stream.outlet.closed for stream in self.streams.values())

    def _send(self, kind: FrameKind, number: int, payload: bytes = b"") -> None:
        if self._line is not None:
            self._line.send(kind, number, payload)
            return
        self._queue.append((kind, number, payload))
        self._queue_bytes += len(payload)
        self._pipes.buffers.unsent.hold(self, self._queue_bytes)
        self._connect()

    def _connect(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is None and self._line is None:
            self._connecting = asyncio.get_running_loop().create_task(self._make_line())

    def _connect_later(self) -> None:
        if self._timer is None and self._connecting is None:
            self._timer = asyncio.get_running_loop().call_later(RECONNECT_S, self._connect)

    async def _make_line(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            line = _Line(self, self._pipes.buffers, self._pipes.frame_bytes_max)
            await loop.create_unix_connection(lambda: line, sock=connected(self._name))
        except OSError as error:
            log.warning("no connection to the shard of an owner: %s; it is tried again", error)
        self._connecting = None
        if self._line is None:  # not made, or lost already
            self._break_asks()
            if self.streams:
                self._connect_later()

    def _stop_connecting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None

    def _take_queue(self) -> list[tuple[FrameKind, int, bytes]]:
        queue, self._queue = self._queue, []
        self._queue_bytes = 0
        self._pipes.buffers.unsent.hold(self, 0)
        return queue

    def _break_asks(self) -> None:
        self._take_queue()
        asks, self.asks = self.asks, {}
        for future in asks.values():
            if not future.done():
                future.set_exception(PipeBroken("the owner is being restarted"))

    def _forget_stream(self, number: int) -> PassedStream | None:
        stream = self.streams.pop(number, None)
        if stream is not None:
            self._pipes.openings_bytes -= len(stream.opening)
        return stream

    def _end_streams(self) -> None:
        for number in list(self.streams):
            stream = self._forget_stream(number)
            if stream is not None:
                stream.outlet.end()


def _error_of(kind: FrameKind, payload: bytes) -> PipeError:
    if kind is FrameKind.REFUSED:
        return PipeRefused(payload)
    if kind is FrameKind.BUSY:
        return PipeBusy("the owner has too many requests under way")
    return PipeFailed("the owner failed; its log says why")


class Pipes:
    """The pipes of a shard to all others; ``names`` are those of their sockets, by shard."""

    def __init__(self, names: Sequence[bytes], buffers: PipeBuffers, frame_bytes_max: int) -> None:
        self.buffers = buffers
        self.frame_bytes_max = frame_bytes_max
        self._pipes = [OwnerPipe(self, name) for name in names]
        self._number = 0  # of the last request or stream
        self._asks = 0
        self.openings_bytes = 0
        self.draining = False

    async def ask(self, shard: int, payload: bytes) -> bytes:
        """The owner's answer. Raises PipeError. A request whose caller is cancelled is cancelled at
        the owner too."""
        if len(payload) > ASK_PAYLOAD_BYTES_MAX:
            raise FrameTooLarge(
                f"a request has {len(payload)} bytes; the limit is {ASK_PAYLOAD_BYTES_MAX}"
            )
        if self._asks >= ASKS_MAX or self.buffers.unsent.is_half_full:
            raise PipeBusy("this shard has too many requests to other shards under way")
        pipe, number = self.pipe_to(shard), self._next_number()
        self._asks += 1
        try:
            return await pipe.ask(number, payload)
        finally:
            self._asks -= 1
            pipe.forget(number)

    def pipe_to(self, shard: int) -> OwnerPipe:
        """The pipe to one owner."""
        return self._pipes[shard]

    def has_room(self, size_bytes: int) -> bool:
        """Whether a stream can be opened with this many bytes."""
        room = OPENINGS_BYTES_MAX - self.openings_bytes
        return size_bytes <= min(room, ASK_PAYLOAD_BYTES_MAX)

    def open(self, shard: int, payload: bytes, outlet: Outlet) -> None:
        """Opens a stream to the outlet, and again after each death of the owner. If there is no
        room for the payload, the outlet ends."""
        if not self.has_room(len(payload)):
            log.error("a stream ends: what streams are opened with is over %d bytes",
                      OPENINGS_BYTES_MAX)  # fmt: skip
            outlet.end()
            return
        self.openings_bytes += len(payload)
        self.pipe_to(shard).open(self._next_number(), payload, outlet)

    def drain(self) -> None:
        """From now on, no connection is made: what needs one has ended."""
        self.draining = True
        for pipe in self._pipes:
            pipe.drain()

    async def close(self) -> None:
        """Closes all connections."""
        self.drain()
        for pipe in self._pipes:
            await pipe.close()

    def check_invariants(self) -> None:
        """For tests."""
        self.buffers.unsent.check_invariants()
        self.buffers.large_frames.check_invariants()
        openings = 0
        for pipe in self._pipes:
            pipe.check_invariants()
            openings += sum(len(stream.opening) for stream in pipe.streams.values())
        assert openings == self.openings_bytes <= OPENINGS_BYTES_MAX

    def _next_number(self) -> int:
        self._number = self._number % 0xFFFF_FFFF + 1
        return self._number
