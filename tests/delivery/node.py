"""A node without processes: real rings, ledger and store, and a commit by hand.

``produce`` writes a request into a shard's ring; ``commit`` makes one object of what the given
shards' rings hold, and commits it. Nobody is told of a commit but through its return value, so a
test decides when readers learn of it, and what they miss. ``records`` is what must be read.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random

from compaction.inputs.place import Place
from delivery.ledger_thread import LedgerThread
from delivery.reading.followed import Key
from delivery.reading.lake import ROWS_BYTES_MAX, LakeReader
from delivery.reading.objects import CACHE_BYTES_MAX, L0Reader
from delivery.reading.store_threads import StoreThreads
from delivery.reading.stored import StoredReader
from ledger import epochs, topics
from ledger.ledger import Ledger
from ledger.types import Commit, CommitDraft, LeasedRange, LeaseId, Topic, TopicConfig
from shards import layout as at
from shards.frame import CODEC_RECORDS, Part, encode_conditions
from shards.layout import Layout
from shards.ring import RequestAt, RingReader, RingWriter
from shards.segment import Segment
from tests.uploader.l0_samples import kafka_payload
from uploader import l0
from uploader.l0.records import Record, encode
from uploader.pipeline.assemble import assemble
from uploader.stores.file import FileStore

ARRIVAL_MS = 1_700_000_000_000


def raise_it(error: Exception) -> None:
    """For a dispatcher whose servers must not fail."""
    raise error


class CountingStore(FileStore):
    """The real store; counts GETs, can make them wait or fail first, and spoil what they give."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.gets: list[tuple[str, int]] = []
        self.under_way_max = 0
        self.asked = threading.Event()
        self.before: Callable[[], object] = lambda: None
        self.spoil: Callable[[bytes], bytes] = lambda body: body
        self._under_way: dict[str, int] = defaultdict(int)
        self._mutex = threading.Lock()

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        with self._mutex:
            self.gets.append((locator, start))
            self._under_way[locator] += 1
            self.under_way_max = max(self.under_way_max, self._under_way[locator])
        self.asked.set()
        try:
            self.before()
            return self.spoil(super().get(locator, start, length))
        finally:
            with self._mutex:
                self._under_way[locator] -= 1


class Node:
    """Rings of some shards over one ledger and one store."""

    def __init__(self, directory: Path, shards: int = 2, ring_bytes: int = 4096) -> None:
        self.segment = Segment.create(Layout(shards=shards, ring_bytes=ring_bytes))
        self._writers = [RingWriter(self.segment, shard) for shard in range(shards)]
        self._readers = [RingReader(self.segment, shard) for shard in range(shards)]
        self.ledger = Ledger(directory / "ledger.db", nullcontext())
        self._incarnation, self._epoch = self.ledger.write(epochs.begin_incarnation, 1)
        self.store = CountingStore(str(directory / "store"))
        self.place = Place(f"file://{directory}/store")
        self.topic: Topic = self.ledger.write(topics.create, "t", TopicConfig(partitions=3), 1)[0]
        self.runs = 1  # compactions so far, for their names
        self.commits: list[Commit] = []
        self.records: dict[Key, list[tuple[int, Record]]] = defaultdict(list)

    def key(self, partition: int = 0) -> Key:
        return (self.topic.topic_id, partition)

    def produce(
        self, shard: int, parts: Mapping[int, Sequence[Record]], *,
        idempotency_key: str | None = None, expected_seq: int | None = None,
        codec: int = CODEC_RECORDS,
    ) -> None:  # fmt: skip
        """Publishes a request: records by partition. Raises RingFull."""
        encoded = encode if codec == CODEC_RECORDS else kafka_payload
        times = {
            partition: [ARRIVAL_MS if r.ts is None else r.ts for r in records]
            for partition, records in parts.items()
        }
        self._writers[shard].append(
            0,
            ARRIVAL_MS,
            encode_conditions(idempotency_key, expected_seq),
            [
                Part(self.topic.topic_id, p, len(records), encoded([*records]),
                     min(times[p]), max(times[p]), codec)
                for p, records in sorted(parts.items())
            ],
        )  # fmt: skip

    def withdraw(self, shard: int, produce: Callable[[], None]) -> None:
        """``produce`` publishes a request in a shard's ring, which becomes void before any pull."""
        before = self._writers[shard].head
        produce()
        found = list(self._readers[shard].requests(before, self._writers[shard].head))
        self._writers[shard].make_void(found[-1].position, found[-1].end)

    def restart(self, shard: int) -> None:
        """A shard's process is another one from now on."""
        self._writers[shard] = RingWriter(self.segment, shard)

    def commit(self, *shards: int) -> Commit | None:
        """Commits what the rings of these shards (all, without one) hold; None for nothing."""
        ranges = tuple(
            LeasedRange(shard, self._readers[shard].committed, self._readers[shard].head)
            for shard in shards or range(len(self._readers))
            if self._readers[shard].committed != self._readers[shard].head
        )
        requests = [
            (leased.shard, request)
            for leased in ranges
            for request in self._readers[leased.shard].requests(leased.start, leased.end)
        ]
        if not requests:
            return None
        extents, conditions = assemble(requests, self._readers, lambda _: self.topic.name)
        lease = LeaseId(self._incarnation, self._epoch, 0, len(self.commits) + 1)
        built = l0.build(lease, ARRIVAL_MS, extents, conditions)
        key = l0.object_key(lease)
        draft = CommitDraft(
            lease_id=lease,
            key=key,
            locator=self.store.put(key, built.body, built.crc32c),
            size_bytes=len(built.body),
            created_ms=ARRIVAL_MS,
            ranges=ranges,
            extents=built.drafts,
            conditions=tuple(conditions),
        )
        commit = self.ledger.commit(draft, ARRIVAL_MS, lambda _: None)
        self._remember(commit, requests)
        for leased in ranges:
            self.segment.words[self.segment.layout.shard(leased.shard) + at.S_COMMITTED] = (
                leased.end
            )
        self.commits.append(commit)
        return commit

    def _remember(self, commit: Commit, requests: Iterable[tuple[int, RequestAt]]) -> None:
        void = {(verdict.shard, verdict.position) for verdict in commit.verdicts}
        for shard, request in requests:
            if (shard, request.position) in void:
                continue
            for batch in request.batches:
                payload = self._readers[shard].batch(batch)
                decoded = l0.records_of(bytes(payload), 1, (), 1, key="ring")
                self.records[(batch.topic_id, batch.partition)] += [
                    (ts, record) for _, ts, record in decoded
                ]

    def tail_of(self, number: int) -> list[Commit]:
        """All commits up to ``number``, as the commit log would give them."""
        return self.commits[:number]

    def close(self) -> None:
        self.ledger.close()
        self.store.close()
        self._writers.clear()
        self._readers.clear()
        self.segment.close()


@contextmanager
def l0_reader(
    node: Node, *, cache_bytes_max: int = CACHE_BYTES_MAX
) -> Iterator[tuple[L0Reader, list[int]]]:
    """A reader of the node's store, and the sizes of the GETs that it counted."""
    counted: list[int] = []
    with ThreadPoolExecutor(4) as threads:
        store_threads = StoreThreads(threads, counted.append, Random(1))
        yield L0Reader(node.store, store_threads, cache_bytes_max), counted


@contextmanager
def ledger_thread(node: Node) -> Iterator[LedgerThread]:
    """The node's ledger, in a thread."""
    with ThreadPoolExecutor(1) as thread:
        yield LedgerThread(node.ledger, thread)


def stored_reader(
    node: Node, ledger: LedgerThread, l0: L0Reader, *, rows_bytes_max: int = ROWS_BYTES_MAX
) -> StoredReader:
    """Reads of L0 and L1, sharing the threads of an L0 reader."""
    lake = LakeReader(lambda: node.place, l0._threads, rows_bytes_max)
    return StoredReader(ledger, l0, lake, Random(1))


@contextmanager
def node_in(directory: Path, shards: int = 2, ring_bytes: int = 4096) -> Iterator[Node]:
    """A node that is closed at the end."""
    node = Node(directory, shards, ring_bytes)
    try:
        yield node
    finally:
        node.close()
