"""One connection of Kafka's protocol: its bytes, who its client is, and its answers in their order.

``server.py`` reads its requests, and says what they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from daemon.access.allowance import Allowance
from daemon.access.rights import Rights
from daemon.intake.pending import NEVER
from daemon.kafka.budget import Breaths, Said, SharedBytes, Turn, aside
from daemon.kafka.producing import OutcomeUnknown, Refusals, heard
from daemon.kafka.sasl import Exchange
from ledger.errors import LedgerError
from shards.clock import monotonic_ns
from uploader.stores.base import StoreError

ANSWERS_MAX = 8  # of one connection; clients have 5 under way
READ_BYTES = 64 << 10  # that a connection holds unread, and as much again
AUTHENTICATE_S = 10.0  # from its beginning on, with the handshake of TLS, which has 5
WRITTEN_TOGETHER_BYTES = 16 << 10
WRITE_S = 30.0  # for a client to take an answer
CLOSE_S = 3.0  # for it to take what is written when its connection ends
MUTED_LOOK_S = 1.0
THROTTLE_MS_MAX = (1 << 31) - 1
LONG_ANSWERS_BYTES_MAX = 8 << 20  # of all connections of a shard, that are not taken
LONG_ANSWER_BYTES = 64 << 10  # from which on it is a long one
log = logging.getLogger("headgate.kafka")

Answer = asyncio.Future[bytearray] | bytearray | Turn


class Arrivals:
    """What a socket and its connection tell each other. ``names`` are those of the client's
    certificate, which are there before its first byte; ``unread`` bytes are in the reader.
    ``take`` may take bytes before they are, and says how many it took."""

    __slots__ = ("names", "take", "unread")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.unread = 0
        self.take: Callable[[bytes], int] | None = None


class KafkaStreams(asyncio.StreamReaderProtocol):
    """The protocol of a socket, or of TLS on it. ``serve`` gets its arrivals, and not the protocol
    itself: the two would wait for the collector."""

    def __init__(self, serve: Callable[..., Coroutine[Any, Any, None]]) -> None:
        self._arrivals = Arrivals()
        super().__init__(asyncio.StreamReader(limit=READ_BYTES), partial(serve, self._arrivals))

    def client_is(self, names: tuple[str, ...]) -> None:
        """As ``daemon/tls/transport.py`` calls it."""
        self._arrivals.names.extend(names)

    def data_received(self, data: bytes) -> None:
        """As the loop calls it."""
        arrivals = self._arrivals
        if arrivals.take is not None and not arrivals.unread:
            taken = arrivals.take(data)
            if taken == len(data):
                return
            data = data[taken:]
        arrivals.unread += len(data)
        super().data_received(data)


class KafkaConnection:
    """One client, which has ``rights`` when it is authenticated. Its answers wait for their turn
    here; a long one holds its bytes of ``long_answers`` while it is made and taken."""

    def __init__(
        self, arrivals: Arrivals, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        exchange: Exchange, rights: Rights | None, long_answers: SharedBytes,
    ) -> None:  # fmt: skip
        self._arrivals = arrivals
        self._reader = reader
        self._writer = writer
        self.exchange = exchange
        self.rights = rights
        self.allowance: Allowance | None = None  # among whose connections it is
        self._authenticated_by_ns = monotonic_ns() + int(AUTHENTICATE_S * 1e9)
        self.due_ns = NEVER  # when its client must have sent what is waited for
        self._expected_ns = NEVER  # since when
        self.peer = writer.get_extra_info("peername")
        self.address = str(self.peer[0]) if self.peer else ""
        self.host = str(writer.get_extra_info("sockname")[0])
        self.refusals: Refusals = {}
        self.unfinished: asyncio.Task[None] | None = None
        """A request that was begun and waits; nothing is read before it is over."""
        self._long_answers = long_answers
        self._answers: deque[Answer] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._breaths = Breaths()
        self._is_beginning = False
        self._is_written = False
        self._has_ended = False
        self._writing = asyncio.ensure_future(self._write())

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is read or written."""
        return self._has_ended

    def expect(self, limit_s: float) -> None:
        """From now on its client has so long to send what is waited for."""
        self._expected_ns = now_ns = monotonic_ns()
        self.due_ns = (
            self._authenticated_by_ns if self.rights is None else now_ns + int(limit_s * 1e9)
        )

    @property
    def silent_since_ns(self) -> int:
        """Since when its client has neither sent a request nor waited for an answer; NEVER if it
        does."""
        is_busy = self._arrivals.take is None or self._answers or self.unfinished is not None
        return NEVER if is_busy or self._has_ended else self._expected_ns

    async def read(self, size: int, limit_s: float) -> bytes:
        """The next bytes of the client, which has so long to send them. Raises TimeoutError, and
        IncompleteReadError if it ends before."""
        self.expect(limit_s)
        data = await self._reader.readexactly(size)
        self._arrivals.unread -= size
        self.due_ns = NEVER
        return data

    async def read_size(self, limit_s: float, take: Callable[[bytes], int]) -> int:
        """The size of the next frame. Frames that are there whole are given to ``take`` first. Of
        many that came together, each may wait for nothing: others get their turn in between."""
        await self._breaths.item()
        self._arrivals.take = take
        try:
            return int.from_bytes(await self.read(4, limit_s), "big", signed=True)
        finally:
            self._arrivals.take = None

    def fail(self, error: Exception) -> None:
        """Ends its waiting for the client by this error. Nothing more is begun."""
        self.due_ns = NEVER
        self._arrivals.take = None
        self._reader.set_exception(error)

    def overdue(self) -> None:
        """The same when its client was due. No timer is set for each read: it would cost more than
        most reads."""
        self.fail(TimeoutError())

    @property
    def throttle_ms(self) -> int:
        """For how long the client is muted: the debt of its token."""
        allowance = None if self.rights is None else self.rights.allowance
        return 0 if allowance is None else min(THROTTLE_MS_MAX, allowance.debt_ns() // 1_000_000)

    async def unmuted(self) -> None:
        """Returns when its token has no debt, on any connection. Raises ConnectionResetError."""
        allowance = None if self.rights is None else self.rights.allowance
        while allowance is not None and (debt_ns := allowance.debt_ns()):
            await asyncio.sleep(min(MUTED_LOOK_S, debt_ns / 1e9))
            if self._writer.is_closing():
                raise ConnectionResetError

    def charge_out(self, size: int) -> None:
        """Counts bytes that it is going to be sent; they are not refused."""
        assert self.rights is not None
        if self.rights.allowance is not None:
            self.rights.allowance.charge_out(size)
        if self.rights.tally is not None:
            self.rights.tally.bytes_out += size

    def abort(self) -> None:
        """Ends it now, with what its client has not taken."""
        self._has_ended = True
        self._writer.transport.abort()

    def answer(self, answer: Answer) -> None:
        """Takes the answer to the next request, or what makes it in its turn."""
        self._answers.append(answer)
        self._changed.set()

    def begins(self) -> None:
        """A request is begun, whose answer is going to be taken. Raises ConnectionResetError if
        nothing may be begun any more."""
        self._check_open()
        self._is_beginning = True

    def has_begun(self) -> None:
        """Its answer was taken, or it failed."""
        self._is_beginning = False
        if self.refusals:
            self._changed.set()  # it is closed, if all is written

    @property
    def is_free(self) -> bool:
        """Whether another request may be read now: ``unmuted`` and ``has_room`` would not wait."""
        return not (
            self._has_ended
            or self.refusals
            or len(self._answers) >= ANSWERS_MAX
            or self.throttle_ms
        )

    async def has_room(self, *, all_written: bool) -> None:
        """Returns when another request may be read. Raises ConnectionResetError at its end."""
        while self._answers if all_written else len(self._answers) >= ANSWERS_MAX:
            self._room.clear()
            await self._room.wait()
        self._check_open()

    def _check_open(self) -> None:
        if self._has_ended:
            raise ConnectionResetError

    async def batches_answered(self) -> None:
        """Returns when the answers to all batches that were taken are written."""
        while any(isinstance(each, asyncio.Future) for each in self._answers):
            self._room.clear()
            await self._room.wait()

    async def write(self, data: bytearray) -> None:
        """Writes an answer, and returns when the client has taken most of it. Raises OSError."""
        await self._write_all((data,))

    async def _say(self, said: Said) -> None:
        """Makes and writes an answer that counts. Raises OSError."""
        is_long = said.size > LONG_ANSWER_BYTES
        held = min(said.size, LONG_ANSWERS_BYTES_MAX) if is_long else 0
        await self._long_answers.take(held)
        try:
            data = await aside(said.items, said.make)
            self.charge_out(len(data))
            await self.write(data)
        finally:
            self._long_answers.give_back(held)

    async def _write_all(self, answers: Sequence[bytearray]) -> None:
        writer = self._writer
        if writer.is_closing():  # its client has gone
            raise ConnectionResetError
        self._is_written = True
        writer.write(b"".join(part for each in answers for part in (_size_of(each), each)))
        if writer.transport.get_write_buffer_size():
            async with asyncio.timeout(WRITE_S):
                await writer.drain()
        self._is_written = False

    def _known(self) -> list[bytearray]:
        """The next answers, as far as they are known: those of a commit go out in one write.
        Raises OutcomeUnknown for the first."""
        known: list[bytearray] = []
        size = 0
        for answer in self._answers:
            if isinstance(answer, asyncio.Future):
                if not answer.done() or (known and answer.exception() is not None):
                    break
                answer = answer.result()
            elif not isinstance(answer, bytearray):
                break
            known.append(answer)
            size += len(answer)
            if size > WRITTEN_TOGETHER_BYTES:
                break
        return known

    async def _write(self) -> None:
        try:
            while not self._has_ended:
                while not self._answers:
                    if self.refusals and not self._is_beginning:
                        return
                    self._changed.clear()
                    await self._changed.wait()
                answer, written = self._answers[0], 1
                if isinstance(answer, asyncio.Future):
                    await answer
                if known := self._known():
                    await self._write_all(known)
                    written = len(known)
                elif not isinstance(answer, asyncio.Future | bytearray):
                    said = await answer()
                    if said is not None:
                        await self._say(said)
                for _ in range(min(written, len(self._answers))):  # none at its end
                    self._answers.popleft()
                self._room.set()
        except (OutcomeUnknown, LedgerError, StoreError) as error:
            log.info("the connection of %s is closed: %s", self.peer, error)
        except TimeoutError:
            log.info("%s has not taken an answer in %.0f s and is closed", self.peer, WRITE_S)
            self._writer.transport.abort()
        except OSError:
            pass
        except Exception as error:  # one client's request must not end the shard
            log.error("a request of %s failed because of a bug", self.peer, exc_info=error)
        finally:
            self._has_ended = True
            self._drop_answers()
            self._room.set()
            self._writer.close()  # nothing comes in any more, so the end may be said:
            self._reader.feed_eof()

    def _drop_answers(self) -> None:
        for answer in self._answers:
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(heard)
                answer.cancel()
        self._answers.clear()

    async def end(self) -> None:
        """Ends it, with what was asked, when the client has what is written; it has CLOSE_S for
        that. What is in the ring stays there."""
        self._has_ended = True
        if self.unfinished is not None:
            self.unfinished.cancel()
        try:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(CLOSE_S):
                    if self._is_written:
                        await asyncio.wait({self._writing})
                    self._writing.cancel()
                    self._drop_answers()
                    self._writer.close()
                    await self._writer.wait_closed()
        finally:  # also if its task is cancelled meanwhile
            self._writing.cancel()
            self._drop_answers()
            self._writer.transport.abort()
            if self.allowance is not None:
                self.allowance.count_connection(-1)
                self.allowance = None


def _size_of(answer: bytearray) -> bytes:
    return len(answer).to_bytes(4, "big")
