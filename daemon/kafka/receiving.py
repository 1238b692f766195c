"""Requests of Kafka's protocol, from the bytes of a connection to what answers them.

    a frame is read -> a Produce is put into the ring, another request waits for its turn -> the
    next frame is read

A connection makes one answer at a time, so a fetch that waits holds up what follows it. A Produce
that is there whole is begun in the call that received it (``_take_now``): almost always it waits
for nothing then, and no task has to run.

A connection reads nothing while ANSWERS_MAX of its answers are not written, while the ring has no
room for its batch, or while the frames of all connections take the shard's share. Bytes that are no
request close the connection, as every broker does. So does a request of a version that was never
said, except ApiVersions, which has an answer for that.

With tokens, a connection is *authenticated* first (``sasl.py``; a client's certificate may do it
too): until then it has small frames, and OPEN requests. Limits of the token make it wait: its
answers say for how long, and meanwhile it is not read (*muted*).

Frames with more than SMALL_FRAME_BYTES take their share of twice the largest, other requests than
Produce one of FRAMES_BYTES_MAX. What would take the loop longer than some milliseconds is done in
slices, or by a thread.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from daemon.access.access import Access
from daemon.access.audit import AuditLog
from daemon.kafka.budget import ITEMS_OF_A_TURN, SharedBytes
from daemon.kafka.connection import READ_BYTES, KafkaConnection
from daemon.kafka.error_codes import UNSUPPORTED_VERSION
from daemon.kafka.rights import EVERYTHING, Allowed, known_by
from daemon.kafka.served import (
    API_VERSIONS,
    OPEN,
    PRODUCE,
    SERVED,
    KafkaParts,
    ServedRequest,
    read_request,
    row_of,
    said_versions,
)
from daemon.kafka.wire import KafkaRequest, Malformed, TooLong
from shards.clock import monotonic_ns

SMALL_FRAME_BYTES = 4 << 10
TAKEN_NOW_MAX = 64  # frames of one call
EARLY_BYTES = 32 << 10  # of a frame that are there before it takes a share of what others need
IDLE_S = 600.0  # as Kafka's brokers have it; clients connect again
FRAME_S = 60.0
STALL_S = 5.0  # for a piece of a frame that holds what others wait for
FRAME_BYTES_MAX = 256 << 10  # of a request other than Produce
FRAMES_BYTES_MAX = 8 << 20  # of all these, with what they were read as
FRAME_HEADS_BYTES = 64 << 10  # of a Produce, in addition to its batches
CLOSED_BY_PEER = (OSError, asyncio.IncompleteReadError)
_PRODUCE = PRODUCE.key.to_bytes(2, "big")
_PRODUCERS = frozenset(PRODUCE.scopes or ())

T = TypeVar("T")


class NotAuthenticated(Exception):
    """A connection that may do nothing is to be closed."""


class KafkaReceiver:
    """Reads the requests of a shard's connections, and begins them."""

    def __init__(
        self, parts: KafkaParts, body_bytes_max: int, access: Access, audit: AuditLog | None
    ) -> None:
        self._parts = parts
        self._access = access
        self._audit = audit
        self._frame_bytes_max = body_bytes_max + FRAME_HEADS_BYTES
        # The largest frame always has room, if it is alone.
        self._frames = SharedBytes(2 * self._frame_bytes_max)
        # Other requests wait long, for records or for who reads slowly: never in a batch's place.
        self._others = SharedBytes(FRAMES_BYTES_MAX)

    async def run(self, connection: KafkaConnection, names: list[str]) -> None:
        """Reads requests until the client is gone. Raises Malformed, NotAuthenticated, and ApiError
        for a connection too many of its token."""
        exchange = connection.exchange
        take = partial(self._take_now, connection)
        while True:
            try:
                size = await connection.read_size(IDLE_S, take)
            except CLOSED_BY_PEER:
                if connection.unfinished is not None:
                    await connection.unfinished  # its client has gone, and wants it stored
                raise
            if connection.unfinished is not None:
                await connection.unfinished
            await connection.has_room(all_written=False)
            if connection.rights is None:
                connection.rights = known_by(self._access, names)
            if connection.rights is None or exchange.is_under_way:
                _check_early_size(size)
            else:
                _check_size(size, self._frame_bytes_max)
            counted = max(0, size - SMALL_FRAME_BYTES)
            frame = await connection.read(2 if counted else size, FRAME_S)
            await connection.unmuted()
            if exchange.has_no_heads:
                said = exchange.take_bytes(frame)
                if said is not None:
                    connection.answer(said)
                await _exchanged(connection)
                continue
            row = SERVED.get(int.from_bytes(frame[:2], "big"))
            share = self._frames if row is PRODUCE else self._others
            waits_for_others = row is not None and row.is_alone
            if counted:
                if row is not PRODUCE:
                    _check_size(size, FRAME_BYTES_MAX)
                _check_scope(connection, row, size)
                frame += await connection.read(min(size, EARLY_BYTES) - 2, FRAME_S)
                await share.take(counted)
            try:
                if len(frame) < size:
                    frame = await _whole(connection, frame, size)
                connection.begins()
                try:
                    await self._begin(connection, frame)
                finally:
                    connection.has_begun()
                del frame
                if counted and row is not PRODUCE and not waits_for_others:
                    # Its values are there until it has had its turn.
                    await connection.has_room(all_written=True)
            finally:
                share.give_back(counted)
            await connection.has_room(all_written=bool(connection.refusals) or waits_for_others)

    def _take_now(self, connection: KafkaConnection, data: bytes) -> int:
        """Begins each Produce at the start of some bytes that is there whole, as ``run`` would do
        it, but in the call that received it: almost always it has nothing to wait for. Returns how
        many bytes it took."""
        at = 0
        for _ in range(TAKEN_NOW_MAX):
            if not connection.is_free or connection.unfinished is not None:
                break
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            counted = max(0, end - at - 4 - SMALL_FRAME_BYTES)
            if (
                end > len(data)
                or end - at - 4 > self._frame_bytes_max
                or data[at + 4 : at + 6] != _PRODUCE
                or end - at - 4 < 8
                or connection.rights is None
                or connection.exchange.is_under_way
                or connection.rights.scopes.isdisjoint(_PRODUCERS)
                or not self._frames.take_now(counted)
            ):
                break
            connection.expect(IDLE_S)
            beginning = self._begun(connection, data[at + 4 : end], counted)
            at = end
            try:
                waits = beginning.send(None)
            except StopIteration:
                continue
            except Exception as error:  # noqa: BLE001 - the connection's task raises it
                connection.fail(error)
                break
            connection.unfinished = asyncio.get_running_loop().create_task(_rest(beginning, waits))
            connection.unfinished.add_done_callback(partial(_finished, connection))
        return at

    async def _begun(self, connection: KafkaConnection, frame: bytes, counted: int) -> None:
        """A Produce, which gives back its share of the frames."""
        try:
            connection.begins()
            await self._begin(connection, frame)
        finally:
            connection.has_begun()
            self._frames.give_back(counted)

    def _admitted(self, connection: KafkaConnection, row: ServedRequest[Any], size: int) -> Allowed:
        """What its sender may do by a request. Raises NotAuthenticated, and ApiError for a
        connection too many of its token."""
        rights = connection.rights
        if row.scopes is OPEN:
            return EVERYTHING
        if rights is None:
            raise NotAuthenticated(f"{row.name} came before it had shown a token")
        if rights.allowance is not None:
            rights.allowance.charge(connection, size)
        if rights.tally is not None:
            rights.tally.requests += 1
            rights.tally.bytes_in += size
        return Allowed(rights, row.scopes, row.name, connection.address, self._audit)

    async def _begin(self, connection: KafkaConnection, frame: bytes) -> None:
        """Begins a request; its answer is written in its turn. Raises as ``run``."""
        asked = read_request(frame, ITEMS_OF_A_TURN)
        row = row_of(asked.key, asked.version)
        if row is None:
            connection.answer(_not_served(asked))
            return
        allowed = self._admitted(connection, row, len(frame))
        head = asked.head(connection.throttle_ms, connection.host)
        values = await _read(asked, frame, row.read)
        if row.is_alone:  # its frame's share counts what it holds until its turn has come
            await connection.has_room(all_written=True)
        answer = await row.begin(self._parts, connection, head, values, allowed)
        if answer is not None:
            connection.answer(answer)
        if row.scopes is OPEN:
            await _exchanged(connection)


def _not_served(asked: KafkaRequest) -> bytearray:
    """The answer to a request of which no version, or not this one, is served. Raises Malformed."""
    if asked.key != API_VERSIONS.key:
        raise Malformed(f"version {asked.version} of the request {asked.key}")
    oldest = KafkaRequest(asked.key, 0, asked.correlation, asked.body)
    return said_versions(oldest, UNSUPPORTED_VERSION)


async def _exchanged(connection: KafkaConnection) -> None:
    """After a step of its exchange. Raises NotAuthenticated after the answer to one that failed."""
    exchange = connection.exchange
    if exchange.failure:
        await connection.has_room(all_written=True)
        raise NotAuthenticated(exchange.failure)
    if exchange.rights is not None:
        connection.rights = exchange.rights


def _check_size(size: int, bytes_max: int) -> None:
    """Raises Malformed."""
    if not 8 <= size <= bytes_max:
        raise Malformed(
            f"a frame of {size} bytes; the limit is {bytes_max} (body_bytes_max and its heads for a"
            f" Produce, {FRAME_BYTES_MAX} for another request)"
        )


def _check_scope(connection: KafkaConnection, row: ServedRequest[Any] | None, size: int) -> None:
    """Before a frame takes what others wait for. Raises Malformed."""
    rights = connection.rights
    if row is None or row.scopes is OPEN or rights is None:
        return
    if rights.scopes.isdisjoint(row.scopes):
        raise Malformed(f"a {row.name} of {size} bytes from a token that has no scope for it")


async def _whole(connection: KafkaConnection, begin: bytes, size: int) -> bytes:
    """A frame that holds its share, and so must come. Raises TimeoutError."""
    pieces, left = [begin], size - len(begin)
    until_ns = monotonic_ns() + int(FRAME_S * 1e9)
    while left:
        left_s = (until_ns - monotonic_ns()) / 1e9
        pieces.append(await connection.read(min(left, READ_BYTES), min(STALL_S, left_s)))
        left -= len(pieces[-1])
    return b"".join(pieces)


def _check_early_size(size: int) -> None:
    """Raises Malformed."""
    if not 8 <= size <= SMALL_FRAME_BYTES:
        raise Malformed(
            f"a frame of {size} bytes before it had shown a token; the limit is {SMALL_FRAME_BYTES}"
        )


@types.coroutine
def _rest(begun: Coroutine[Any, Any, None], waits: Any) -> Generator[Any, Any, None]:
    """Goes on with what was begun outside of a task, and yielded this."""
    try:
        while True:
            try:
                value = yield waits
            except BaseException as error:  # noqa: BLE001 - it is given to what was begun
                waits = begun.throw(error)
            else:
                waits = begun.send(value)
    except StopIteration:
        pass


def _finished(connection: KafkaConnection, task: asyncio.Task[None]) -> None:
    connection.unfinished = None
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Exception):
        connection.fail(error)


async def _read(asked: KafkaRequest, frame: bytes, read: Callable[[KafkaRequest], T]) -> T:
    """The values of a request whose head was read; a thread reads those of a long one. Raises
    Malformed."""
    try:
        return read(asked)
    except TooLong:
        return await asyncio.to_thread(lambda: read(read_request(frame)))
