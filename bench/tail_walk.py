"""What one shard's loop does for its readers after a commit: ``python -m bench.tail_walk``.

One process sets up rings, a ledger and a commit log, commits what the rings hold, and does what a
shard does then: reads the commit from the log, applies it to the followed partitions and reads
their new records from the rings. Each figure is the CPU of this process for one commit of 4 MiB, as
the median over turns that alternate between the cases, so that a busy minute of the machine affects
all. A commit has at most 1,000 partitions, as a pull takes them; of 10,000 topics each commit
writes to the next 1,000.

``log``: reading the commit, or "ledger" if the log does not hold it. ``apply``: with one partition
or all of them followed. ``read``: finding and copying the records, without decoding them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from delivery.reading.followed import FollowedPartitions, Key
from delivery.reading.tail import TailReader
from ledger import epochs, topics
from ledger.ledger import Ledger
from ledger.types import Commit, CommitDraft, LeasedRange, LeaseId, TopicConfig
from shards import layout as at
from shards.clock import process_cpu_ns
from shards.commitlog import CommitLog
from shards.frame import Part
from shards.layout import Layout
from shards.ring import RingReader, RingWriter
from shards.segment import Segment
from uploader import l0
from uploader.l0.records import Record, encode
from uploader.pipeline.assemble import assemble

COMMIT_BYTES = 4 << 20
RING_BYTES = 64 << 20  # of all shards together
PARTITIONS_A_COMMIT = 1_000
TOPICS = (1, 100, 10_000)
RECORD_BYTES = (200, 1024)
SHARDS = (1, 64)


class Case(NamedTuple):
    """How many shards accept records of which size for how many topics."""

    shards: int
    topics: int
    record_bytes: int


class Turn(NamedTuple):
    """CPU in ms of one commit."""

    log: float
    apply_one: float
    apply_all: float
    read_one: float
    read_all: float


class Shards:
    """Rings of all shards over one ledger, and two readers: of one topic, and of all."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self._segment = Segment.create(Layout(case.shards, max(RING_BYTES // case.shards, 1 << 20)))
        self._rings = [RingReader(self._segment, shard) for shard in range(case.shards)]
        self._writers = [RingWriter(self._segment, shard) for shard in range(case.shards)]
        self._ledger = Ledger(folder / "ledger.db", contextlib.nullcontext())
        self._ledger.write(epochs.begin_incarnation, 1)
        self._keys: list[Key] = [
            (self._ledger.write(topics.create, f"t{n}", TopicConfig(), 1)[0].topic_id, 0)
            for n in range(case.topics)
        ]
        self._next = itertools.cycle(
            [self._keys[n : n + PARTITIONS_A_COMMIT]
             for n in range(0, case.topics, PARTITIONS_A_COMMIT)]
        )  # fmt: skip
        self._log = CommitLog(self._segment)
        self._counter = 0
        self._one, self._all = FollowedPartitions(), FollowedPartitions()
        self._tail_of_one, self._tail_of_all = (TailReader(self._segment) for _ in range(2))
        for key in self._keys:
            self._all.follow(key)

    def close(self) -> None:
        self._ledger.close()
        del self._rings, self._writers, self._tail_of_one, self._tail_of_all, self._log
        self._segment.close()

    def turn(self) -> Turn:
        """One commit, and what a shard does with it."""
        keys = next(self._next)
        one = keys[len(keys) // 2]
        self._one.follow(one)
        commit = self._commit(keys)
        self._log.publish(commit)
        spent: list[float] = []
        with _timed(spent):
            found = self._log.read(commit.number)
        if found is None:
            spent[-1] = float("nan")
        commit = found or commit
        with _timed(spent):
            self._one.apply(commit)
        with _timed(spent):
            moved = self._all.apply(commit)
        if len(moved) != len(keys):
            raise AssertionError(f"{len(moved)} of {len(keys)} partitions moved")
        with _timed(spent):
            self._read(self._tail_of_one, self._one, [one])
        with _timed(spent):
            self._read(self._tail_of_all, self._all, moved)
        return Turn(*spent)

    def _read(self, tail: TailReader, followed: FollowedPartitions, keys: Sequence[Key]) -> None:
        for key in keys:
            head = followed.head(key) or followed._followed[key].head_seq
            (extent,) = followed.tail(key, head)
            count = 0
            for batch in tail.raw_batches(key, extent, extent.first_offset):
                if batch is None:
                    raise AssertionError("the ring has overwritten what was just committed")
                count += batch[1].record_count
            if count != extent.last_offset - extent.first_offset + 1:
                raise AssertionError(f"{count} records of {extent}")

    def _commit(self, keys: Sequence[Key]) -> Commit:
        payload = encode([Record('"' + "x" * (self.case.record_bytes - 2) + '"')])
        starts = [ring.head for ring in self._rings]
        for number in range(COMMIT_BYTES // self.case.record_bytes):
            writer = self._writers[number % self.case.shards]
            part = Part(*keys[number % len(keys)], 1, payload, 1, 1)
            writer.append(1, 1, b"", [part])
        ranges = tuple(
            LeasedRange(ring.shard, start, ring.head)
            for ring, start in zip(self._rings, starts, strict=True)
        )
        requests = [
            (leased.shard, request)
            for leased in ranges
            for request in self._rings[leased.shard].requests(leased.start, leased.end)
        ]
        extents, _ = assemble(requests, self._rings, str)
        self._counter += 1
        lease = LeaseId(1, 1, 0, self._counter)
        built = l0.build(lease, 1, extents)
        draft = CommitDraft(lease, l0.object_key(lease), "", len(built.body), 1, ranges,
                            built.drafts)  # fmt: skip
        for leased in ranges:
            base = self._segment.layout.shard(leased.shard)
            self._segment.words[base + at.S_COMMITTED] = leased.end
        return self._ledger.commit(draft, 1, lambda _: None)


@contextlib.contextmanager
def _timed(spent: list[float]) -> Iterator[None]:
    before_ns = process_cpu_ns()
    yield
    spent.append((process_cpu_ns() - before_ns) / 1e6)


def measure(cases: Sequence[Case], turns: int, work: Path) -> list[tuple[Case, Turn]]:
    """The median turn of each case, figure by figure."""
    with contextlib.ExitStack() as stack:
        worlds = []
        for number, case in enumerate(cases):
            folder = work / str(number)
            folder.mkdir()
            worlds.append(stack.enter_context(contextlib.closing(Shards(case, folder))))
        measured: list[list[Turn]] = [[] for _ in cases]
        for _ in range(turns):
            for world, spent in zip(worlds, measured, strict=True):
                spent.append(world.turn())
    return [
        (case, Turn(*(statistics.median(figures) for figures in zip(*spent, strict=True))))
        for case, spent in zip(cases, measured, strict=True)
    ]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args()
    cases = [Case(*each) for each in itertools.product(SHARDS, TOPICS, RECORD_BYTES)]
    print("CPU in ms for one commit of 4 MiB\n")
    names = ("shards", "topics", "record B", "log", "apply 1", "apply all", "read 1", "read all")
    print(" | ".join(f"{name:>9}" for name in names))
    with tempfile.TemporaryDirectory() as work:
        for case, turn in measure(cases, given.turns, Path(work)):
            figures = [f"{'ledger' if f != f else format(f, '.3f'):>9}" for f in turn]
            print(" | ".join([f"{n:>9}" for n in case] + figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
