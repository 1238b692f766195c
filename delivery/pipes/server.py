"""The owner's end of the pipes: answers what other shards ask, and writes to their clients.

    a connection is accepted -> ASK: a task of the handler -> its answer, or a refusal
                             -> OPEN: the handler gets an outlet (``PipedOutlet``)
    CANCEL, or the connection is lost: the task is cancelled, and the ``Asker`` is gone, even if it
    was answered a moment ago
    CLOSE, or the connection is lost: ``closed_by_peer``

An outlet may be written to while its stream has credit (``credit.py``), its connection is taken,
and what all connections hold is within half of its limit (``buffers.py``). An outlet that said that
it is not writable says when it is: ``drained``.

Rules (``check_invariants``): each outlet is open; only such outlets wait for their connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast
from weakref import WeakValueDictionary

from delivery.pipes.addresses import BACKLOG, same_user
from delivery.pipes.buffers import PipeBuffers
from delivery.pipes.connection import PipeConnection
from delivery.pipes.credit import OwnersCredit
from delivery.pipes.errors import PipeRefused
from delivery.pipes.frames import CREDIT_BYTES, FrameKind, PipeFrame, credit_in
from delivery.streams.outlet import Outlet

log = logging.getLogger("headgate.pipes")

# Requests under way, of all shards: mostly polls that wait. Measured: 1.4 KiB for each, without
# what the handler keeps for it.
ANSWERING_MAX = 4_096
ANSWERING_BYTES = 4 << 10
# Their payloads: of what comes in a turn of the loop, and of what has to wait. A payload that is
# decoded is up to twenty times as large, because three of its bytes may be a tuple of three.
PAYLOADS_BYTES_MAX = 1 << 20
DECODED = 20
OUTLETS_MAX = 10_000  # as many streams as a shard has by default
OUTLET_BYTES = 1 << 10  # measured: 0.4 KiB


class Asker:
    """Who waits for the answer to one request. ``is_gone``: it has died, or gave up, so an answer
    that it was sent may be lost. Whoever wants to know that keeps it."""

    __slots__ = ("__weakref__", "is_gone")

    def __init__(self) -> None:
        self.is_gone = False


class PipeHandler(Protocol):
    """What an owner does for other shards."""

    def ask(self, payload: bytes, asker: Asker) -> Coroutine[Any, Any, bytes]:
        """Answers a request. Raises PipeRefused. It is cancelled if nobody waits any more."""

    def open(self, payload: bytes, outlet: Outlet) -> None:
        """Writes to the outlet until one side ends it."""


class PipedOutlet:
    """An ``Outlet`` (delivery/streams/outlet.py) whose client is at another shard."""

    __slots__ = ("_line", "_number", "closed", "closed_by_peer", "credit", "drained")

    def __init__(self, line: OwnersLine, number: int, credit_bytes: int) -> None:
        self._line = line
        self._number = number
        self.credit = OwnersCredit(credit_bytes)
        self.drained: Callable[[], None] | None = None
        self.closed_by_peer: Callable[[], None] | None = None
        self.closed = False

    @property
    def writable(self) -> bool:
        """Whether it may be written to. If not, ``drained`` says when."""
        if self.closed or not self.credit.may_write:
            return False
        if self._line.congested:
            self._line.wait(self)
            return False
        return True

    def write(self, data: bytes) -> None:
        """Writes whole chunks; a client gets them whole or not at all."""
        if self.closed:
            return
        if not self._line.fits(len(data)):
            log.error("a stream ends: a write has %d bytes, more than a pipe takes", len(data))
            self.end()
            return
        self.credit.spend(len(data))
        self._line.send(FrameKind.DATA, self._number, data)

    def end(self, data: bytes = b"") -> None:
        """Writes ``data``, whole chunks too, and ends the stream."""
        if self.closed:
            return
        self._close()
        self._line.forget(self._number, self)
        fitting = data if self._line.fits(len(data)) else b""
        self._line.send(FrameKind.END, self._number, fitting)

    # What the connection calls.

    def given(self, size_bytes: int) -> None:
        """Credit came back."""
        if self.credit.give(size_bytes) and self.writable:
            self.tell_drained()

    def tell_drained(self) -> None:
        """It may be written to again."""
        if self.drained is not None:
            self._guarded(self.drained)

    def lost(self) -> None:
        """The client has gone."""
        closed_by_peer = self.closed_by_peer
        self._close()
        if closed_by_peer is not None:
            self._guarded(closed_by_peer)

    def _close(self) -> None:
        self.closed = True
        self.drained = self.closed_by_peer = None

    def _guarded(self, function: Callable[[], None]) -> None:
        """A stream whose writer failed would stay silent forever; the client may come again."""
        try:
            function()
        except Exception as error:  # the last resort of a callback: logged, and the stream ends
            log.error("a piped stream ends because of a bug", exc_info=error)
            self.end()


class OwnersLine(PipeConnection):
    """The connection of one other shard."""

    def __init__(self, server: PipeServer) -> None:
        super().__init__(server.buffers, server.frame_bytes_max)
        self._server = server
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.askers: WeakValueDictionary[int, Asker] = WeakValueDictionary()
        self.outlets: dict[int, PipedOutlet] = {}
        self._waiting: dict[PipedOutlet, None] = {}  # for this connection, in their order

    def wait(self, outlet: PipedOutlet) -> None:
        """The outlet must be told when it may be written to."""
        self._waiting[outlet] = None

    def forget(self, number: int, outlet: PipedOutlet) -> None:
        """The outlet has ended."""
        if self.outlets.pop(number, None) is not None:
            self._server.outlets -= 1
        self._waiting.pop(outlet, None)

    def wake(self) -> None:
        """Tells those that wait, one after the other, as long as they may write."""
        while self._waiting and not self.congested:
            outlet = next(iter(self._waiting))
            del self._waiting[outlet]
            if outlet.credit.may_write:
                outlet.tell_drained()

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        if same_user(made.get_extra_info("socket")):
            super().connection_made(made)
        else:
            self._server.refuse()
            cast(asyncio.Transport, made).abort()

    def opened(self) -> None:
        self._server.lines.add(self)

    def resumed(self) -> None:
        self._server.wake()

    def received(self, frame: PipeFrame) -> None:
        kind, number, payload = frame
        if kind is FrameKind.ASK:
            self._ask(number, payload)
        elif kind is FrameKind.CREDIT:
            outlet = self.outlets.get(number)
            if outlet is not None:
                outlet.given(credit_in(payload))
        elif kind is FrameKind.OPEN:
            self._open(number, credit_in(payload), payload[CREDIT_BYTES:])
        elif kind is FrameKind.CLOSE:
            outlet = self.outlets.get(number)
            if outlet is not None:
                self.forget(number, outlet)
                outlet.lost()
        else:
            asker = self.askers.get(number)
            if asker is not None:
                asker.is_gone = True
            task = self.tasks.get(number)
            if task is not None:
                task.cancel()

    def lost(self) -> None:
        self._server.lines.discard(self)
        for asker in list(self.askers.values()):
            asker.is_gone = True
        for task in self.tasks.values():
            task.cancel()
        for number, outlet in list(self.outlets.items()):
            self.forget(number, outlet)
            outlet.lost()
        self._server.wake()  # what it held is free

    def check_invariants(self) -> None:
        """For tests."""
        assert not any(outlet.closed for outlet in self.outlets.values())
        assert self._waiting.keys() <= set(self.outlets.values())
        for outlet in self.outlets.values():
            outlet.credit.check_invariants()

    def _ask(self, number: int, payload: bytes) -> None:
        server = self._server
        if server.is_busy:
            self.send(FrameKind.BUSY, number)
            return
        size_bytes = len(payload)
        server.answering += 1
        server.payloads_bytes += size_bytes
        asker = self.askers[number] = Asker()
        task = asyncio.get_running_loop().create_task(self._answer(number, payload, asker))
        self.tasks[number] = task
        task.add_done_callback(lambda _: self._answered(number, size_bytes))

    def _answered(self, number: int, size_bytes: int) -> None:
        del self.tasks[number]
        self._server.answering -= 1
        self._server.payloads_bytes -= size_bytes

    async def _answer(self, number: int, payload: bytes, asker: Asker) -> None:
        try:
            answer = await self._server.handler.ask(payload, asker)
            kind = FrameKind.ANSWER
        except PipeRefused as refused:
            kind, answer = FrameKind.REFUSED, refused.payload
        except Exception as error:  # the last resort of a task: logged, and the asker is told
            log.error("a request of another shard failed because of a bug", exc_info=error)
            kind, answer = FrameKind.FAILED, b""
        if not self.fits(len(answer)):
            log.error("an answer has %d bytes, more than a pipe takes", len(answer))
            kind, answer = FrameKind.FAILED, b""
        self.send(kind, number, answer)

    def _open(self, number: int, credit_bytes: int, payload: bytes) -> None:
        outlet = PipedOutlet(self, number, credit_bytes)
        if self._server.outlets >= OUTLETS_MAX:
            log.warning("a stream of another shard ends: %d of them is the limit", OUTLETS_MAX)
            outlet.end()
            return
        self._server.outlets += 1
        self.outlets[number] = outlet
        try:
            self._server.handler.open(payload, outlet)
        except Exception as error:  # the last resort of a callback: logged, and the stream ends
            log.error("a piped stream ends because of a bug", exc_info=error)
            outlet.end()


class PipeServer:
    """Accepts the connections of other shards; ``handler`` serves them."""

    def __init__(self, handler: PipeHandler, buffers: PipeBuffers, frame_bytes_max: int) -> None:
        self.handler = handler
        self.buffers = buffers
        self.frame_bytes_max = frame_bytes_max
        self.lines: set[OwnersLine] = set()
        self.answering = 0
        self.payloads_bytes = 0  # of what is being answered
        self.outlets = 0
        self._strangers = 0
        self._listener: asyncio.AbstractServer | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accepts, first what waits in the backlog. The supervisor keeps the socket open."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_unix_server(
            lambda: OwnersLine(self), sock=listener, backlog=BACKLOG
        )

    @property
    def is_busy(self) -> bool:
        """Whether requests are refused."""
        return self.answering >= ANSWERING_MAX or self.payloads_bytes > PAYLOADS_BYTES_MAX

    def refuse(self) -> None:
        """A process of another user has connected."""
        self._strangers += 1
        if not self._strangers & (self._strangers - 1):  # the log must not grow as fast
            log.error("refused %d connections of processes of other users to the pipes between"
                      " shards", self._strangers)  # fmt: skip

    def wake(self) -> None:
        """Some of what connections held is free."""
        for line in list(self.lines):
            line.wake()

    async def close(self) -> None:
        """Stops accepting and closes all connections."""
        if self._listener is not None:
            self._listener.close()
        tasks = [task for line in self.lines for task in line.tasks.values()]
        for line in list(self.lines):
            line.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check_invariants(self) -> None:
        """For tests."""
        assert self.answering >= sum(len(line.tasks) for line in self.lines)
        assert self.answering or not self.payloads_bytes
        assert self.outlets == sum(len(line.outlets) for line in self.lines)
        for line in self.lines:
            line.check_invariants()
