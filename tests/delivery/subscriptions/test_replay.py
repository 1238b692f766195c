"""What a dead shard left in its journal reaches the ledger, once, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from delivery.subscriptions import journaled
from delivery.subscriptions.journaled import LOT_ROWS, Lot, Replayed
from ledger import topics
from ledger.delivery import progress, subscriptions
from ledger.delivery.progress import ROW_OFFSETS, SubscriptionFlush
from ledger.delivery.subscriptions import SubscriptionConfig
from ledger.errors import LedgerBusy
from ledger.ledger import Ledger
from ledger.types import TopicConfig
from shards.journal import FinishedJournal
from shards.layout import Layout
from shards.segment import Segment


class Left:
    """A journal with two entries of a dead shard, and a ledger with a subscription."""

    def __init__(self, path: Path, segment: Segment) -> None:
        self.ledger = Ledger(path / "ledger.db", nullcontext())
        self.ledger.write(topics.create, "orders", TopicConfig(partitions=2), 1)
        self.ledger.write(subscriptions.create, "orders", "s", SubscriptionConfig(), "earliest", 1)
        state = self.ledger.read(progress.state_of, 1)
        assert state is not None
        self.generation = state.generation
        self.segment = segment
        self.journal = FinishedJournal(segment, 0)
        self.pauses = 0
        self.errors = 0
        self.lots = 0

    async def write(self, lot: Lot) -> None:
        self.lots += 1
        if self.errors:
            self.errors -= 1
            raise LedgerBusy(Path("ledger.db"), 1)
        self.ledger.write(journaled.add, lot)

    async def sleep_s(self, seconds: float) -> None:
        self.pauses += 1

    def replay(self) -> Replayed:
        journal = FinishedJournal(self.segment, 0)
        found = asyncio.run(journaled.replay(journal, self.write, self.sleep_s))
        assert journal.used_bytes == 0
        return found

    def finished(self, partition: int) -> list[int]:
        state = self.ledger.read(progress.state_of, 1)
        assert state is not None
        found: list[int] = []
        for each, row, bits in state.rows:
            left = int.from_bytes(bits, "little") if each == partition else 0
            while left:
                lowest = left & -left
                found.append(row * ROW_OFFSETS + lowest.bit_length() - 1)
                left ^= lowest
        return found


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Left]:
    segment = Segment.create(Layout(1, 4096))
    made = Left(tmp_path, segment)
    with closing(made.ledger):
        yield made
    segment.close()


def test_what_the_journal_has_is_in_the_ledger_afterwards(left: Left) -> None:
    left.journal.append(1, left.generation, 0, [2, 4, 4095, 4096])
    left.journal.append(1, left.generation, 1, [2**40 + 7])
    left.journal.append(1, left.generation, 0, [2, 3])
    assert left.replay() == Replayed(3, 7)
    assert left.finished(0) == [2, 3, 4, 4095, 4096]
    assert left.finished(1) == [2**40 + 7]
    assert left.replay() == Replayed(0, 0)


def test_entries_of_another_generation_and_of_deleted_subscriptions_are_passed_over(
    left: Left,
) -> None:
    left.journal.append(1, left.generation, 0, [2])
    left.journal.append(7, 1, 0, [5])
    left.ledger.write(subscriptions.seek, 1, {0: 0, 1: 0}, 5)
    assert left.replay() == Replayed(2, 2)
    assert left.finished(0) == []


def test_what_the_floor_has_passed_leaves_no_row(left: Left) -> None:
    """The shard died between the flush and the word that frees the journal."""
    left.journal.append(1, left.generation, 0, [1, 2, ROW_OFFSETS + 5])
    floor = SubscriptionFlush(1, left.generation, 5, [(0, ROW_OFFSETS)])
    left.ledger.write(progress.flush, [floor])
    left.replay()
    state = left.ledger.read(progress.state_of, 1)
    assert state is not None
    assert [(partition, row) for partition, row, _ in state.rows] == [(0, 1)]
    assert (state.floors, state.epoch) == ({0: ROW_OFFSETS}, 5)


def test_an_error_of_the_ledger_is_waited_out(left: Left) -> None:
    left.journal.append(1, left.generation, 0, [2])
    left.errors = 3
    left.replay()
    assert left.finished(0) == [2] and left.pauses == 3


def test_a_damaged_entry_loses_what_follows_it_and_nothing_before_it(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    left.journal.append(1, left.generation, 0, [2])
    damaged = left.journal.head
    left.journal.append(1, left.generation, 0, [3])
    left.segment.journal(0)[damaged + 40] ^= 1
    left.replay()
    assert left.finished(0) == [2]
    assert f"may be delivered again: in the journal of this shard, the entry at {damaged} is" in (
        caplog.text
    )


def test_offsets_far_apart_are_written_in_lots(left: Left) -> None:
    count = 2 * LOT_ROWS + 10
    for number in range(count):
        left.journal.append(1, left.generation, 0, [number * ROW_OFFSETS + 1])
    left.replay()
    assert left.lots == 3
    assert left.finished(0)[1:] == [number * ROW_OFFSETS + 1 for number in range(1, count)]


def test_a_successor_that_dies_in_between_leaves_all_to_the_next_one(left: Left) -> None:
    for number in range(LOT_ROWS + 1):
        left.journal.append(1, left.generation, 0, [number * ROW_OFFSETS + 9])

    async def dies(lot: Lot) -> None:
        if left.lots == 1:
            raise KeyboardInterrupt
        await left.write(lot)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(journaled.replay(FinishedJournal(left.segment, 0), dies, left.sleep_s))
    assert len(left.finished(0)) == LOT_ROWS
    left.replay()
    assert len(left.finished(0)) == LOT_ROWS + 1


def test_a_shard_without_a_successor_is_replayed_by_the_supervisor(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    left.journal.append(1, left.generation, 0, [2])
    journaled.replay_last(
        FinishedJournal(left.segment, 0), lambda lot: left.ledger.write(journaled.add, lot)
    )
    assert left.finished(0) == [2]

    def fails(_: Lot) -> None:
        raise LedgerBusy(Path("ledger.db"), 1)

    journaled.replay_last(FinishedJournal(left.segment, 0), fails)
    assert "may be delivered again" in caplog.text, "the daemon ends all the same"
