"""The intake of one shard with real connections over no sockets; a test commits what it took."""

from __future__ import annotations

import asyncio
import io
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import cast

from daemon.api.application import Api
from daemon.api.route import Handlers
from daemon.api.routes import ROUTES
from daemon.http.connection import Connection
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from daemon.intake.cursor_cache import CursorCache
from daemon.intake.formats import BodyLimits
from daemon.intake.pending import NEVER, PendingRequests
from daemon.intake.producer import Producer
from daemon.intake.refused import BY_CODE
from daemon.intake.topic_cache import TopicCache
from delivery.ledger_thread import LedgerThread
from delivery.reading.waiters import Waiters
from ledger.ledger import Ledger
from ledger.types import Commit, ExtentRun, LeasedRange, LeaseId, PartitionHead, TopicConfig
from shards import layout as at
from shards.boards.namecounts import TopicTally
from shards.layout import Layout
from shards.ring import RingWriter
from shards.segment import Segment
from tests.daemon.http.memory_transport import MemoryTransport, connect
from tests.e2e.daemon import Answer
from tests.e2e.load import read_answer

RING_BYTES = 256 << 10
BODY_BYTES_MAX = RING_BYTES // 4
PRODUCE = [route for route in ROUTES if route.handler is None]


@contextmanager
def topics_in(directory: Path) -> Iterator[TopicCache]:
    """Topics over a real ledger, of which ``t`` is known."""
    segment = Segment.create(Layout(shards=1, ring_bytes=4096))
    with (
        closing(Ledger(directory / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        made = TopicCache(segment, LedgerThread(ledger, thread), nullcontext())
        asyncio.run(made.create("t", TopicConfig()))
        asyncio.run(made.entry("t"))
        yield made
    segment.close()


class Client:
    """The other end of a connection."""

    def __init__(self, connection: Connection, transport: MemoryTransport) -> None:
        self.connection = connection
        self.transport = transport
        self.unsent = b""
        self.gone = False

    def send(self, data: bytes) -> None:
        """Sends; what the connection does not read stays in the socket."""
        self.unsent += data
        self.flow()

    def flow(self) -> None:
        """The loop reads what it may."""
        while self.unsent and not self.transport.paused and not self.transport.closed:
            data, self.unsent = self.unsent, b""
            self.connection.data_received(data)

    def leave(self) -> None:
        """The connection is lost."""
        self.gone = True
        self.transport.closed = True
        self.connection.connection_lost(None)

    @property
    def answers(self) -> list[Answer]:
        """What was answered; 100 Continue is one too."""
        stream = io.BytesIO(bytes(self.transport.written))
        found = []
        while (answer := read_answer(stream)) is not None:
            found.append(answer)
        return found

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]


class Intake:
    """One shard's admission and producer, with its HTTP front."""

    def __init__(
        self, topics: TopicCache, ring_bytes: int, body_bytes_max: int, timeout_ns: int = NEVER
    ) -> None:
        self.segment = Segment.create(Layout(1, ring_bytes))
        self.words = self.segment.words
        self._base = self.segment.layout.shard(0)
        self.ring = RingWriter(self.segment, 0)
        self.pending = PendingRequests(self.segment, 0, lambda _: TopicTally(), timeout_ns)
        self.published: list[int] = []  # the head after each publication
        self.short: list[tuple[int, int]] = []  # requests with less time than usual
        limits = BodyLimits(body_bytes_max=body_bytes_max, record_bytes_max=body_bytes_max)
        self.producer = Producer(
            self.segment, 0, topics, cast(CursorCache, None), self.ring, self.pending, limits,
            lambda: self.published.append(self.ring.head), lambda *short: self.short.append(short),
            random.Random(1), 20_000,
        )  # fmt: skip
        self.admission = self.producer.admission
        self.server = Server()
        self.server.turns.left = sys.maxsize  # a test without a loop is one turn
        self.server.limits = HttpLimits(body_bytes_max=body_bytes_max)
        self.server.application = Api(PRODUCE, cast(Handlers, None), self.producer, Waiters())
        self._clients: list[Client] = []
        self._commits = 0
        self._seq: dict[tuple[int, int], int] = {}

    def connect(self) -> Client:
        client = Client(*connect(self.server))
        self._clients.append(client)
        return client

    @property
    def refused(self) -> dict[str, int]:
        """How many were refused, by code; those codes that were given."""
        words = self.words[self._base + at.S_REFUSED :]
        found = {code: int(words[reason]) for code, reason in BY_CODE.items() if words[reason]}
        assert sum(found.values()) == self.words[self._base + at.S_REJECTED]
        return found

    def flow(self) -> None:
        """All connections read what they may."""
        for client in self._clients:
            if not client.gone:
                client.flow()

    def commit(self) -> None:
        """What was published becomes durable and is answered; then the bell rings."""
        start, end = int(self.words[self._base + at.S_COMMITTED]), self.ring.head
        counts: dict[tuple[int, int], int] = {}
        for waiting in self.pending._waiting:
            for partition, count in waiting.parts:
                key = (waiting.topic.topic_id, partition)
                counts[key] = counts.get(key, 0) + count
        runs, heads = [], []
        for key, count in counts.items():
            first = self._seq.get(key, 0) + 1
            self._seq[key] = first + count - 1
            runs.append(ExtentRun(0, *key, first, count))
            heads.append(PartitionHead(*key, first + count - 1))
        self._commits += 1
        self.words[self._base + at.S_COMMITTED] = end
        if counts:
            source = LeasedRange(0, start, end)
            lease = LeaseId(1, 1, 0, self._commits)
            self.pending.committed(
                Commit(self._commits, lease, (source,), tuple(runs), tuple(heads))
            )
            self.pending.answer(lambda: 0, 1)
        self.admission.read_gate()
        self.flow()

    def shut(self, word: int, value: int) -> None:
        """Stores a word that closes or opens the gate, and rings the bell."""
        self.words[word] = value
        self.admission.read_gate()
        self.flow()

    def later(self, now_ns: int) -> None:
        """A heartbeat at that time."""
        self.admission.end_overdue(now_ns)
        self.flow()

    def check(self) -> None:
        self.admission.check_invariants()
        promised = self.admission._promised_bytes
        assert self.ring.used_bytes + promised <= self.ring.capacity

    def close(self) -> None:
        for client in self._clients:
            if not client.gone:
                client.leave()
        assert not self.admission.queued
        assert self.admission._promised_bytes == 0
        self.segment.close()
