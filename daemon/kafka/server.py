"""Connections of Kafka's protocol: frames in, answers out in the order of the requests.

    a frame is read -> a Produce is put into the ring, another request waits for its turn -> the
    next frame is read -> the answer is written when those before it are

So a connection makes one answer at a time, and a fetch that waits holds up what follows it.

A connection reads nothing while ANSWERS_MAX of its answers are not written, while the ring has no
room for its batch, or while the frames of all connections take the shard's share. Bytes that are no
request close the connection, as every broker does. So does a request of a version that was never
said, except ApiVersions, which has an answer for that.

Bounds: CONNECTIONS_MAX connections with CONNECTION_BYTES each; frames with more than
SMALL_FRAME_BYTES take their share of twice the largest; fetched records of READ_BYTES_MAX.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from daemon.kafka import messages
from daemon.kafka.budget import SharedBytes
from daemon.kafka.fetching import FETCHED_BYTES_MAX, PLACE_BYTES_MAX, KafkaReads
from daemon.kafka.producing import KafkaProducer, OutcomeUnknown
from daemon.kafka.topics import KafkaTopics
from daemon.kafka.wire import KafkaRequest, Key, Malformed, read_request
from ledger.errors import LedgerError
from uploader.stores.base import StoreError

UNSUPPORTED_VERSION = 35
CONNECTIONS_MAX = 512
ANSWERS_MAX = 8  # of one connection; clients have 5 under way
SMALL_FRAME_BYTES = 4 << 10
IDLE_S = 600.0  # as Kafka's brokers have it; clients connect again
FRAME_S = 60.0
ANSWERS_FLUSH_S = 3.0  # at a stop, for clients to take what became of their batches
FRAME_HEADS_BYTES = 64 << 10  # of a Produce, in addition to its batches
READ_BYTES = 64 << 10  # that a connection holds unread, and as much again
# One read of the loop, what is unread, what is not written, and small requests as values.
CONNECTION_BYTES = (256 << 10) + 2 * READ_BYTES + (64 << 10) + 5 * ANSWERS_MAX * SMALL_FRAME_BYTES
CLOSED_BY_PEER = (OSError, asyncio.IncompleteReadError)
log = logging.getLogger("headgate.kafka")

Answer = asyncio.Future[bytearray]
Turn = Callable[[], Coroutine[Any, Any, None]]


def bytes_max(body_bytes_max: int) -> int:
    """What the connections of one shard take at most. A batch is decompressed, decoded and encoded
    one at a time."""
    return (
        CONNECTIONS_MAX * CONNECTION_BYTES + 6 * (body_bytes_max + FRAME_HEADS_BYTES)
        + FETCHED_BYTES_MAX + 4 * PLACE_BYTES_MAX
    )  # fmt: skip


class KafkaServer:
    """The connections of one shard."""

    def __init__(
        self,
        topics: KafkaTopics,
        producer: KafkaProducer,
        reads: KafkaReads,
        host: str | None,
        frame_bytes_max: int,
    ) -> None:
        self._topics = topics
        self._producer = producer
        self._reads = reads
        self._host = host
        self._frame_bytes_max = frame_bytes_max + FRAME_HEADS_BYTES
        # The largest frame always has room, if it is alone.
        self._frames = SharedBytes(2 * self._frame_bytes_max)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[Any]] = set()
        self._open: set[_Connection] = set()

    async def start(self, fds: Iterable[int]) -> None:
        """Serves on sockets that listen already, by their descriptors."""
        for listener in [socket.socket(fileno=fd) for fd in fds]:
            self._servers.append(
                await asyncio.start_server(self._serve, sock=listener, limit=READ_BYTES)
            )

    def drain(self) -> None:
        """Accepts no more connections."""
        for server in self._servers:
            server.close()

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
        except CLOSED_BY_PEER:
            pass
        except asyncio.CancelledError:
            pass  # by close
        except Exception as error:  # one client's request must not end the shard
            log.error("a request of %s failed because of a bug", connection.peer, exc_info=error)
        finally:
            connection.end()
            self._open.discard(connection)
            self._connections.discard(task)

    async def _run(self, connection: _Connection) -> None:
        """Reads requests until the client is gone. Raises Malformed."""
        reader = connection.reader
        while True:
            async with asyncio.timeout(IDLE_S):
                length = await reader.readexactly(4)
            size = int.from_bytes(length, "big", signed=True)
            if not 8 <= size <= self._frame_bytes_max:
                raise Malformed(
                    f"a frame of {size} bytes; the limit is {self._frame_bytes_max}: body_bytes_max"
                    " and its heads"
                )
            counted = max(0, size - SMALL_FRAME_BYTES)
            await self._frames.take(counted)
            try:
                async with asyncio.timeout(FRAME_S):  # it holds what others wait for
                    frame = await reader.readexactly(size)
                asked = read_request(frame)
                await self._begin(connection, asked)
                # The values of a large request are there until it has had its turn.
                is_kept = counted > 0 and asked.key != Key.PRODUCE
                await connection.has_room(all_written=is_kept)
            finally:
                self._frames.give_back(counted)

    async def _begin(self, connection: _Connection, asked: KafkaRequest) -> None:
        """Begins a request; its answer is written in its turn. Raises Malformed."""
        head = asked.head()
        if not asked.is_served():
            if asked.key != Key.API_VERSIONS:
                raise Malformed(f"version {asked.version} of the request {asked.key}")
            told = KafkaRequest(asked.key, 0, asked.correlation, asked.body)
            connection.answer(messages.api_versions(told, UNSUPPORTED_VERSION))
        elif asked.key == Key.PRODUCE:
            answer = await self._producer.take(asked)
            if answer is not None:
                connection.answer(answer)
        elif asked.key == Key.FETCH:
            connection.answer(partial(self._fetch, connection, head, messages.read_fetch(asked)))
        elif asked.key == Key.LIST_OFFSETS:
            offsets = messages.read_list_offsets(asked)
            connection.answer(partial(self._list_offsets, connection, head, offsets))
        elif asked.key == Key.METADATA:
            topics = messages.read_metadata(asked)
            connection.answer(partial(self._metadata, connection, head, topics))
        else:
            connection.answer(messages.api_versions(asked))

    async def _fetch(
        self, connection: _Connection, asked: KafkaRequest, wanted: messages.FetchAsked
    ) -> None:
        async with self._reads.fetch(wanted) as (error, read):
            await connection.write(messages.fetched(asked, error, read))

    async def _list_offsets(
        self, connection: _Connection, asked: KafkaRequest, wanted: messages.OffsetsAsked
    ) -> None:
        said = await self._reads.list_offsets(wanted)
        await connection.write(messages.listed_offsets(asked, said))

    async def _metadata(
        self, connection: _Connection, asked: KafkaRequest, wanted: messages.MetadataAsked
    ) -> None:
        brokers = self._topics.brokers(self._host or connection.host)
        said = await self._topics.asked(wanted)
        await connection.write(messages.metadata(asked, brokers, self._topics.cluster, said))


class _Connection:
    """One client. Its answers wait for their turn here."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self.peer = writer.get_extra_info("peername")
        self.host = str(writer.get_extra_info("sockname")[0])
        self._answers: deque[Answer | bytearray | Turn] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._writing = asyncio.ensure_future(self._write())

    def answer(self, answer: Answer | bytearray | Turn) -> None:
        """Takes the answer to the next request, or what writes it in its turn."""
        self._answers.append(answer)
        self._changed.set()

    async def has_room(self, *, all_written: bool) -> None:
        """Returns when another request may be read. Raises ConnectionResetError at its end."""
        while self._answers if all_written else len(self._answers) >= ANSWERS_MAX:
            self._room.clear()
            await self._room.wait()
        if self._writing.done():
            raise ConnectionResetError

    async def batches_answered(self) -> None:
        """Returns when the answers to all batches that were taken are written."""
        while any(isinstance(each, asyncio.Future) for each in self._answers):
            self._room.clear()
            await self._room.wait()

    async def write(self, data: bytearray) -> None:
        """Writes an answer, and returns when the client has taken most of it. Raises OSError."""
        self._writer.write(len(data).to_bytes(4, "big") + data)
        await self._writer.drain()

    async def _write(self) -> None:
        try:
            while True:
                while not self._answers:
                    self._changed.clear()
                    await self._changed.wait()
                answer = self._answers[0]
                if isinstance(answer, bytearray):
                    await self.write(answer)
                elif isinstance(answer, asyncio.Future):
                    await self.write(await answer)
                else:
                    await answer()
                self._answers.popleft()
                self._room.set()
        except (OutcomeUnknown, LedgerError, StoreError) as error:
            log.info("the connection of %s is closed: %s", self.peer, error)
        except OSError:
            pass
        except Exception as error:  # one client's request must not end the shard
            log.error("a request of %s failed because of a bug", self.peer, exc_info=error)
        finally:
            self._answers.clear()
            self._room.set()
            self._writer.transport.abort()

    def end(self) -> None:
        """Ends it, with what was asked. What is in the ring stays there."""
        self._writing.cancel()
        for answer in self._answers:
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(_heard)
                answer.cancel()
        self._answers.clear()
        self._writer.transport.abort()


def _heard(answer: Answer) -> None:
    """Nobody waits for it."""
    if not answer.cancelled():
        answer.exception()
