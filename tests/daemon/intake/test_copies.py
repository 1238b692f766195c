"""Copies of routers in the ring: among the requests of producers, within their share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from daemon.intake.admission import Admission
from daemon.intake.copies import RING_SHARE, Copies
from daemon.intake.pending import NEVER, Callback, PendingRequest, PendingRequests
from daemon.intake.topic_cache import TopicCache
from delivery.ledger_thread import LedgerThread
from delivery.routers.outbox import DestinationFull, FrameTooLong, RingShareUsed
from ledger import topics
from ledger.ledger import Ledger
from ledger.types import (
    Advance,
    Commit,
    ExtentRun,
    LeasedRange,
    LeaseId,
    PartitionHead,
    Topic,
    TopicConfig,
)
from shards import layout as at
from shards.boards.namecounts import TopicTally
from shards.frame import Part, decode_conditions
from shards.layout import Layout
from shards.ring import RingReader, RingWriter
from shards.segment import Segment
from tests.daemon.intake.test_pending import ME, S, Shard, commit, one, shard, topic, verdict

__all__ = ["shard"]  # a fixture

RING_BYTES = 64 << 10
STEP = Advance(5, 0, 3, 9, True)


class Outbox:
    """The copies of a shard, with a ledger that has a topic ``dest``."""

    def __init__(self, ledger: LedgerThread, dest: Topic) -> None:
        self.dest = dest
        self.ledger = ledger
        self.segment = Segment.create(Layout(1, RING_BYTES))
        self.ring = RingWriter(self.segment, 0)
        self.topics = TopicCache(self.segment, ledger, nullcontext())
        self.pending = PendingRequests(self.segment, 0, lambda _: TopicTally())
        self.admission = Admission(self.segment, 0, self.ring, 1 << 20, random.Random(1))
        self.published = 0
        self.copies = Copies(self.topics, self.ring, self.pending, self.admission, self._published)
        self.fates: list[bool] = []

    def _published(self) -> None:
        self.published += 1

    def append(self, size: int = 100, records: int = 1) -> None:
        part = Part(self.dest.topic_id, 0, records, bytes(size), 5, 5)
        self.copies.append(self.dest, [part], STEP, self.fates.append)

    def commit_all(self) -> None:
        """Everything is stored."""
        words, base = self.segment.words, self.segment.layout.shard(0)
        source = LeasedRange(0, words[base + at.S_COMMITTED], self.ring.head)
        count = sum(count for waiting in self.pending._waiting for _, count in waiting.parts)
        key = (self.dest.topic_id, 0)
        made = Commit(
            1, LeaseId(1, 1, 0, 1), (source,), (ExtentRun(0, *key, 1, count),),
            (PartitionHead(*key, count),),
        )  # fmt: skip
        words[base + at.S_COMMITTED] = self.ring.head
        self.topics.trackers.committed(made)
        self.pending.committed(made)
        self.pending.answer(lambda: 0, 1)


@contextmanager
def outbox_in(directory: Path, **config: object) -> Iterator[Outbox]:
    with (
        closing(Ledger(directory / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        settings = TopicConfig(**config)  # type: ignore[arg-type]
        dest, _ = ledger.write(topics.create, "dest", settings, 1)
        made = Outbox(LedgerThread(ledger, thread), dest)
        yield made
        made.segment.close()


def test_a_copy_is_published_with_its_advance_and_waits_for_a_window(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        made.append()
        reader = RingReader(made.segment, 0)
        (request,) = reader.requests(0, reader.head)
        assert decode_conditions(request.conditions).advance == STEP
        assert [arrival.waits for arrival in reader.arrivals(0, reader.head)] == [True]
        assert made.published == 1


def test_copies_take_a_quarter_of_the_ring_until_they_are_committed(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        share = RING_BYTES // RING_SHARE
        made.append(1000)
        length = made.copies.in_flight_bytes
        appended = share // length
        for _ in range(appended - 1):
            made.append(1000)
        with pytest.raises(RingShareUsed):
            made.append(1000)
        used = made.copies.in_flight_bytes
        assert used == appended * length
        assert made.ring.used_bytes == used
        made.commit_all()
        assert made.fates == [True] * appended
        assert made.copies.in_flight_bytes == 0
        made.append(1000)


def test_a_frame_of_one_large_record_goes_alone_and_one_of_several_is_to_be_cut(
    tmp_path: Path,
) -> None:
    with outbox_in(tmp_path) as made:
        with pytest.raises(FrameTooLong, match="the copies of 2 records take"):
            made.append(RING_BYTES // 3, records=2)
        made.append(RING_BYTES // 3)
        with pytest.raises(RingShareUsed):
            made.append(10)
        made.commit_all()
        made.append(10)


def test_what_is_promised_to_bodies_is_never_taken(tmp_path: Path) -> None:
    with outbox_in(tmp_path) as made:
        made.admission.promise_again(RING_BYTES - 500)
        assert made.copies.room_bytes() == 500
        with pytest.raises(RingShareUsed):
            made.append(1000)
        made.admission.release(RING_BYTES - 500)
        made.append(1000)


@pytest.mark.parametrize("word", [at.G_DRAINING, at.G_GATE, at.G_SUPERSEDED])
def test_while_producers_are_refused_there_is_no_room_for_copies(tmp_path: Path, word: int) -> None:
    with outbox_in(tmp_path) as made:
        made.segment.words[word] = 1
        made.admission.read_gate()
        assert made.copies.room_bytes() == 0
        with pytest.raises(RingShareUsed):
            made.append()


async def learn(made: Outbox) -> None:
    assert not made.copies.knows(made.dest)
    await made.copies.learn(made.dest)
    assert made.copies.knows(made.dest)


def test_a_cap_of_a_destination_that_rejects_counts_what_is_on_its_way(tmp_path: Path) -> None:
    with outbox_in(tmp_path, cap_records=3, discard="reject") as made:
        asyncio.run(learn(made))
        made.append(records=2)
        with pytest.raises(DestinationFull, match="has 2 records of cap_records = 3"):
            made.append(records=2)
        made.append(records=1)
        made.commit_all()
        with pytest.raises(DestinationFull, match="has 3 records of cap_records = 3"):
            made.append()


def copy(shard: Shard, *parts: tuple[int, int], fates: list[int]) -> int:
    position = shard.position
    shard.position += 100
    shard.pending.add(
        PendingRequest(position, Callback(0, fates.append), topic(7), parts, 0, None, NEVER, STEP)
    )
    return position


def test_requests_after_a_stored_copy_get_the_offsets_after_it(shard: Shard) -> None:
    fates: list[int] = []
    shard.waits(topic(7), (0, 1))
    copy(shard, (0, 4), fates=fates)
    shard.waits(topic(7), (0, 2))
    shard.takes(commit(shard, ExtentRun(ME, 7, 0, 11, 7), heads=(PartitionHead(7, 0, 17),)))
    assert shard.said() == [(200, one(11, 11, 17)), (200, one(16, 17, 17))]
    assert fates == [12]
    assert [shard.word(word) for word in (at.S_REQUESTS_ACKED, at.S_RECORDS_ACKED)] == [2, 3]


def test_a_void_copy_takes_no_offsets(shard: Shard) -> None:
    fates: list[int] = []
    position = copy(shard, (0, 4), fates=fates)
    shard.waits(topic(7), (0, 2))
    made = commit(
        shard, ExtentRun(ME, 7, 0, 11, 6), heads=(PartitionHead(7, 0, 12),),
        verdicts=(verdict(position, "cursor_moved"),),
    )  # fmt: skip
    shard.takes(made)
    assert shard.said() == [(200, one(11, 12, 12))]
    assert fates == [0]


def test_a_copy_without_conditions_to_a_deleted_topic_is_void(shard: Shard) -> None:
    fates: list[int] = []
    copy(shard, (0, 4), fates=fates)
    shard.takes(commit(shard, ExtentRun(ME, 7, 0, 0, 4)))
    assert fates == [0]


def test_a_copy_has_no_deadline_and_ends_the_run_of_those_that_are_taken_back(
    shard: Shard,
) -> None:
    fates: list[int] = []
    first = shard.waits(topic(7), (0, 1))
    between = copy(shard, (0, 1), fates=fates)
    last = shard.waits(topic(7), (0, 1))
    later = copy(shard, (0, 1), fates=fates)
    now_ns = max(w.request.arrival_ns for w in shard.pending._waiting) + 100 * S
    expired = shard.pending.expired(now_ns, 0, shard.position)
    assert [waiting.position for waiting in expired.void] == [first, last]
    assert expired.runs == [(first, between), (last, later)]
    assert not expired.unknown
