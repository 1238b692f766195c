"""Connections of Kafka's protocol: frames in, answers out in the order of the requests.

    a frame is read -> a Produce is put into the ring, another request waits for its turn -> the
    next frame is read -> the answer is written when those before it are

So a connection makes one answer at a time, and a fetch that waits holds up what follows it.

A connection reads nothing while ANSWERS_MAX of its answers are not written, while the ring has no
room for its batch, or while the frames of all connections take the shard's share. Bytes that are no
request close the connection, as every broker does. So does a request of a version that was never
said, except ApiVersions, which has an answer for that. A connection with refusals that clients
retry is closed when it has its answers (``producing.py``).

At its end, a connection keeps its place until its client has what was written, or CLOSE_S have
passed.

Bounds: CONNECTIONS_MAX connections with CONNECTION_BYTES each; frames with more than
SMALL_FRAME_BYTES take their share of twice the largest, other requests one of
FRAMES_BYTES_MAX; fetched records of FETCHED_BYTES_MAX; long answers of ANSWERS_BYTES_MAX. What
would take the loop longer than some milliseconds is done in slices, or by a thread.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from daemon.kafka import messages
from daemon.kafka.budget import ITEMS_OF_A_TURN, SharedBytes, aside
from daemon.kafka.fetching import FETCHED_BYTES_MAX, PLACE_BYTES_MAX, KafkaReads
from daemon.kafka.groups import coordinator
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.producing import (
    SHORT_BATCH_BYTES,
    KafkaProducer,
    OutcomeUnknown,
    Refusals,
)
from daemon.kafka.topics import TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaTopics
from daemon.kafka.wire import (
    KafkaRequest,
    Key,
    Malformed,
    TooLong,
    read_request,
)
from ledger.errors import LedgerError
from uploader.l0.kafka import snappy_codec
from uploader.stores.base import StoreError

UNSUPPORTED_VERSION = 35
CONNECTIONS_MAX = 512
ANSWERS_MAX = 8  # of one connection; clients have 5 under way
SMALL_FRAME_BYTES = 4 << 10
IDLE_S = 600.0  # as Kafka's brokers have it; clients connect again
FRAME_S = 60.0
WRITE_S = 30.0  # for a client to take an answer
CLOSE_S = 3.0  # for it to take what is written when its connection ends
WAIT_FOR_OTHERS = (Key.JOIN_GROUP, Key.SYNC_GROUP)  # for minutes; what they hold is counted
ANSWERS_FLUSH_S = 3.0  # at a stop, for clients to take what became of their batches
FRAME_BYTES_MAX = 256 << 10  # of a request other than Produce
FRAMES_BYTES_MAX = 8 << 20  # of all these, with what they were read as
ANSWERS_BYTES_MAX = 8 << 20  # of long answers to them that are not taken
ANSWER_BYTES_MIN = 64 << 10  # of a long one
FRAME_HEADS_BYTES = 64 << 10  # of a Produce, in addition to its batches
READ_BYTES = 64 << 10  # that a connection holds unread, and as much again
# One read of the loop, what is unread, what is not written, and small requests as values.
CONNECTION_BYTES = (
    (256 << 10) + 2 * READ_BYTES + (64 << 10) + 5 * ANSWERS_MAX * SMALL_FRAME_BYTES
    + 2 * SHORT_BATCH_BYTES
)  # fmt: skip
TOPIC_BYTES, OFFSET_BYTES = 48, 32  # in an answer, at most, of a topic or partition
CLOSED_BY_PEER = (OSError, asyncio.IncompleteReadError)
log = logging.getLogger("headgate.kafka")

T = TypeVar("T")
Answer = asyncio.Future[bytearray]
Turn = Callable[[], Coroutine[Any, Any, None]]


def bytes_max(body_bytes_max: int) -> int:
    """What the connections of one shard take at most. One long batch at a time is decompressed,
    decoded and encoded."""
    return (
        CONNECTIONS_MAX * CONNECTION_BYTES + 2 * (body_bytes_max + FRAME_HEADS_BYTES)
        + 4 * body_bytes_max + FETCHED_BYTES_MAX + 4 * PLACE_BYTES_MAX + 5 * FRAMES_BYTES_MAX
        + 2 * ANSWERS_BYTES_MAX + coordinator.BYTES_MAX
    )  # fmt: skip


class KafkaServer:
    """The connections of one shard."""

    def __init__(
        self,
        topics: KafkaTopics,
        producer: KafkaProducer,
        reads: KafkaReads,
        coordinator: Coordinator,
        host: str | None,
        frame_bytes_max: int,
    ) -> None:
        self._topics = topics
        self._producer = producer
        self._reads = reads
        self._coordinator = coordinator
        self._host = host
        self._frame_bytes_max = frame_bytes_max + FRAME_HEADS_BYTES
        # The largest frame always has room, if it is alone.
        self._frames = SharedBytes(2 * self._frame_bytes_max)
        # Other requests wait long, for records or for who reads slowly: never in a batch's place.
        self._others = SharedBytes(FRAMES_BYTES_MAX)
        self._answers = SharedBytes(ANSWERS_BYTES_MAX)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[Any]] = set()
        self._open: set[_Connection] = set()

    async def start(self, fds: Iterable[int]) -> None:
        """Serves on sockets that listen already, by their descriptors."""
        await asyncio.to_thread(snappy_codec)
        for listener in [socket.socket(fileno=fd) for fd in fds]:
            self._servers.append(
                await asyncio.start_server(self._serve, sock=listener, limit=READ_BYTES)
            )

    def drain(self) -> None:
        """Accepts no more connections, and no members of groups."""
        for server in self._servers:
            server.close()
        self._coordinator.close()

    async def close(self) -> None:
        """Ends all connections, after the answers to batches."""
        self.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_FLUSH_S):
                for connection in list(self._open):
                    await connection.batches_answered()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            log.warning("%d connections are open, the limit is %d; one more is closed",
                        len(self._connections), CONNECTIONS_MAX)  # fmt: skip
            writer.transport.abort()
            return
        self._connections.add(task)
        connection = _Connection(reader, writer)
        self._open.add(connection)
        try:
            await self._run(connection)
        except Malformed as error:
            log.info("%s did not send a request: %s", connection.peer, error)
        except OutcomeUnknown as error:
            log.info("the connection of %s is closed: %s", connection.peer, error)
        except CLOSED_BY_PEER:
            pass
        except asyncio.CancelledError:
            pass  # by close
        except Exception as error:  # one client's request must not end the shard
            log.error("a request of %s failed because of a bug", connection.peer, exc_info=error)
        finally:
            await connection.end()
            self._open.discard(connection)
            self._connections.discard(task)

    async def _run(self, connection: _Connection) -> None:
        """Reads requests until the client is gone. Raises Malformed."""
        reader = connection.reader
        while True:
            async with asyncio.timeout(IDLE_S):
                size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
                _check_size(size, self._frame_bytes_max)
                start = await reader.readexactly(2)
            key = int.from_bytes(start, "big")
            if key != Key.PRODUCE:
                _check_size(size, FRAME_BYTES_MAX)
            counted = max(0, size - SMALL_FRAME_BYTES)
            share = self._frames if key == Key.PRODUCE else self._others
            await share.take(counted)
            try:
                async with asyncio.timeout(FRAME_S):  # it holds what others wait for
                    frame = start + await reader.readexactly(size - 2)
                with connection.beginning():
                    await self._begin(connection, frame)
                del frame
                if counted and key not in (Key.PRODUCE, *WAIT_FOR_OTHERS):
                    # Its values are there until it has had its turn.
                    await connection.has_room(all_written=True)
            finally:
                share.give_back(counted)
            await connection.has_room(
                all_written=bool(connection.refusals) or key in WAIT_FOR_OTHERS
            )

    async def _begin(self, connection: _Connection, frame: bytes) -> None:
        """Begins a request; its answer is written in its turn. Raises Malformed."""
        asked = read_request(frame)
        head = asked.head()
        if not asked.is_served():
            if asked.key != Key.API_VERSIONS:
                raise Malformed(f"version {asked.version} of the request {asked.key}")
            told = KafkaRequest(asked.key, 0, asked.correlation, asked.body)
            connection.answer(messages.api_versions(told, UNSUPPORTED_VERSION))
        elif asked.key == Key.PRODUCE:
            batches = await _read(frame, messages.read_produce)
            answer = await self._producer.take(head, batches, connection.refusals)
            if answer is not None:
                connection.answer(answer)
        elif asked.key == Key.FETCH:
            places = await _read(frame, messages.read_fetch)
            connection.answer(partial(self._fetch, connection, head, places))
        elif asked.key == Key.LIST_OFFSETS:
            offsets = await _read(frame, messages.read_list_offsets)
            connection.answer(partial(self._list_offsets, connection, head, offsets))
        elif asked.key == Key.METADATA:
            topics = await _read(frame, messages.read_metadata)
            connection.answer(partial(self._metadata, connection, head, topics))
        elif asked.key == Key.INIT_PRODUCER_ID:
            error = 0
            if messages.read_init_producer_id(asked) is not None:
                error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            # By chance, so that none is given twice, whatever a recovery has lost.
            connection.answer(messages.init_producer_id(asked, error, secrets.randbits(63)))
        elif asked.key == Key.API_VERSIONS:
            connection.answer(messages.api_versions(asked))
        else:
            values = await _read(frame, coordinator.READERS[asked.key])
            # As brokers do: a member has committed before it joins again.
            await connection.has_room(all_written=True)
            host = self._host or connection.host
            turn = self._coordinator.begin(head, values, host, str(connection.peer[0]))
            connection.answer(partial(self._coordinated, connection, turn))

    async def _fetch(
        self, connection: _Connection, asked: KafkaRequest, wanted: messages.FetchAsked
    ) -> None:
        async with self._reads.fetch(wanted) as (error, read):
            items = sum(1 + len(some) for _, some in read)
            await connection.write(await aside(items, messages.fetched, asked, error, read))

    async def _coordinated(self, connection: _Connection, turn: coordinator.Turn) -> None:
        said = await turn()
        async with self._long_answer(said.size):
            await connection.write(await aside(said.items, said.make))

    async def _list_offsets(
        self, connection: _Connection, asked: KafkaRequest, wanted: messages.OffsetsAsked
    ) -> None:
        said = await self._reads.list_offsets(wanted)
        items = sum(1 + len(some) for _, some in said)
        size = OFFSET_BYTES * items + sum(len(name) for name, _ in said)
        async with self._long_answer(size):
            await connection.write(await aside(items, messages.listed_offsets, asked, said))

    async def _metadata(
        self, connection: _Connection, asked: KafkaRequest, wanted: messages.MetadataAsked
    ) -> None:
        brokers = self._topics.brokers(self._host or connection.host)
        said = await self._topics.asked(wanted)
        items = sum(1 + len(each.leaders) for each in said)
        size = TOPIC_BYTES * items + sum(len(each.name or "") for each in said)
        async with self._long_answer(size):
            answer = await aside(
                items, messages.metadata, asked, brokers, self._topics.cluster, said
            )
            await connection.write(answer)

    @asynccontextmanager
    async def _long_answer(self, size: int) -> AsyncIterator[None]:
        """Holds the bytes of an answer while it is made and taken, in turn, if it is a long one."""
        counted = min(size, ANSWERS_BYTES_MAX) if size > ANSWER_BYTES_MIN else 0
        await self._answers.take(counted)
        try:
            yield
        finally:
            self._answers.give_back(counted)


def _check_size(size: int, bytes_max: int) -> None:
    """Raises Malformed."""
    if not 8 <= size <= bytes_max:
        raise Malformed(
            f"a frame of {size} bytes; the limit is {bytes_max} (body_bytes_max and its heads for a"
            f" Produce, {FRAME_BYTES_MAX} for another request)"
        )


async def _read(frame: bytes, read: Callable[[KafkaRequest], T]) -> T:
    """The values of a request; a thread reads those of a long one. Raises Malformed."""
    try:
        return read(read_request(frame, ITEMS_OF_A_TURN))
    except TooLong:
        return await asyncio.to_thread(lambda: read(read_request(frame)))


class _Connection:
    """One client. Its answers wait for their turn here."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self.peer = writer.get_extra_info("peername")
        self.host = str(writer.get_extra_info("sockname")[0])
        self.refusals: Refusals = {}
        self._answers: deque[Answer | bytearray | Turn] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_beginning = False
        self._is_written = False
        self._has_ended = False
        self._writing = asyncio.ensure_future(self._write())

    def answer(self, answer: Answer | bytearray | Turn) -> None:
        """Takes the answer to the next request, or what writes it in its turn."""
        self._answers.append(answer)
        self._changed.set()

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """While a request is begun, whose answer is going to be taken. Raises ConnectionResetError
        if nothing may be begun any more."""
        self._check_open()
        self._is_beginning = True
        try:
            yield
        finally:
            self._is_beginning = False

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
        self._is_written = True
        self._writer.write(len(data).to_bytes(4, "big") + data)
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()
        self._is_written = False

    async def _write(self) -> None:
        try:
            while not self._has_ended:
                while not self._answers:
                    if self.refusals and not self._is_beginning:
                        return
                    self._changed.clear()
                    await self._changed.wait()
                answer = self._answers[0]
                if isinstance(answer, bytearray):
                    await self.write(answer)
                elif isinstance(answer, asyncio.Future):
                    await self.write(await answer)
                else:
                    await answer()
                if self._answers:  # not at its end
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
            self.reader.feed_eof()

    def _drop_answers(self) -> None:
        for answer in self._answers:
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(_heard)
                answer.cancel()
        self._answers.clear()

    async def end(self) -> None:
        """Ends it, with what was asked, when the client has what is written; it has CLOSE_S for
        that. What is in the ring stays there."""
        self._has_ended = True
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                if self._is_written:
                    await asyncio.wait({self._writing})
                self._writing.cancel()
                self._drop_answers()
                self._writer.close()
                await self._writer.wait_closed()
        self._writing.cancel()
        self._drop_answers()
        self._writer.transport.abort()


def _heard(answer: Answer) -> None:
    """Nobody waits for it."""
    if not answer.cancelled():
        answer.exception()
