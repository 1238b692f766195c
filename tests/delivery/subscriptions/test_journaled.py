"""What is answered is in the journal or the ledger, at every step, whatever fails or dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delivery.subscriptions.journaled import (
    COSTS_MAX,
    EPOCHS_UNFLUSHED_MAX,
    ROW_COST,
    JournaledProgress,
    Lot,
    TrackedProgress,
    first_epoch,
)
from ledger.delivery.progress import ROW_OFFSETS, SubscriptionFlush, SubscriptionProgress
from shards.journal import FinishedJournal
from shards.layout import Layout
from shards.segment import Segment
from tests.delivery.subscriptions.tracked import FinishingWindow
from tests.long import examples


class FlushedSet:
    """The ledger as a set: what is finished of each subscription."""

    def __init__(self) -> None:
        self.generations = {1: 10, 2: 20}
        self.floors: dict[tuple[int, int], int] = {}
        self.finished: dict[tuple[int, int], set[int]] = {}
        self.epochs: dict[int, int] = {}

    def write(self, flushes: Iterable[SubscriptionFlush]) -> set[int]:
        ignored = set()
        for each in flushes:
            if self.generations.get(each.subscription_id) != each.generation:
                ignored.add(each.subscription_id)
                continue
            self.epochs[each.subscription_id] = each.epoch
            for partition, floor in each.floors:
                key = (each.subscription_id, partition)
                assert floor >= self.floors.get(key, 0)
                self.floors[key] = floor
            for partition, row, bits in each.rows:
                number = int.from_bytes(bits, "little")
                offsets = {row * ROW_OFFSETS + n for n in range(ROW_OFFSETS) if number >> n & 1}
                self.finished.setdefault((each.subscription_id, partition), set()).update(offsets)
        return ignored

    def has(self, subscription_id: int, partition: int, offset: int) -> bool:
        key = (subscription_id, partition)
        return offset <= self.floors.get(key, 0) or offset in self.finished.get(key, ())


def known(generation: int, window: FinishingWindow) -> SubscriptionProgress:
    """A ledger that has no floors yet, but the number of the window's last batch."""
    return SubscriptionProgress({}, [], generation, window.epoch)


async def nothing(_: object) -> None:
    """Neither writes nor waits."""


class Owner:
    """A shard's journal and progress; ``hurried``, ``resumed`` and ``gone`` note the calls."""

    def __init__(self, segment: Segment, costs_max: int = COSTS_MAX) -> None:
        self.journal = FinishedJournal(segment, 0)
        self.hurried = self.resumed = 0
        self.gone: list[int] = []
        self.progress = JournaledProgress(
            self.journal, self._hurry, self._resume, self.gone.append, costs_max
        )
        if not self.journal.used_bytes:
            with contextlib.suppress(StopIteration):  # an empty journal needs no loop
                self.progress.replay(nothing, nothing).send(None)

    def _hurry(self) -> None:
        self.hurried += 1

    def _resume(self) -> None:
        self.resumed += 1

    def sweep(self, ledger: FlushedSet) -> int:
        """A whole sweep; how many rounds it took."""
        rounds = 0
        while True:
            flushes = self.progress.collect()
            if flushes:
                rounds += 1
                self.progress.collected(ledger.write(flushes))
            if not self.progress.has_more:
                return rounds


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(1, 4096, journal_bytes=4096))
    yield made
    made.close()


def test_a_sweep_writes_floors_and_rows_and_frees_the_journal(segment: Segment) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow(2)
    tracked = owner.progress.track(1, known(10, window), window)
    window.finish(0, 1, 2, 4, 5_000)
    window.epoch = 7
    assert owner.progress.record(tracked) is None
    assert [(each.partition, [*each.offsets]) for each in owner.journal.entries()] == [
        (0, [1, 2, 4, 5_000])
    ]
    (flush,) = owner.progress.collect()
    assert (flush.subscription_id, flush.generation, flush.epoch) == (1, 10, 7)
    assert [*flush.floors] == [(0, 2)]
    assert [(partition, row) for partition, row, _ in flush.rows] == [(0, 0), (0, 1)]
    window.finish(1, 1)
    assert owner.progress.record(tracked) is None, "while the flush is under way"
    owner.progress.collected(ledger.write([flush]))
    assert [ledger.has(1, 0, n) for n in (2, 3, 4, 5_000)] == [True, False, True, True]
    assert [each.partition for each in owner.journal.entries()] == [1]
    assert owner.sweep(ledger) == 1
    assert ledger.has(1, 1, 1) and owner.journal.used_bytes == 0
    assert owner.sweep(ledger) == 0, "nothing has changed"


def test_a_flush_that_failed_is_collected_again_and_frees_nothing(segment: Segment) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow()
    tracked = owner.progress.track(1, known(10, window), window)
    window.finish(0, 1, 3)
    owner.progress.record(tracked)
    first = owner.progress.collect()
    owner.progress.collected(None)
    assert owner.journal.used_bytes and not owner.progress.has_more
    window.finish(0, 2)
    owner.progress.record(tracked)
    assert owner.progress.collect() != first
    owner.progress.collected(None)
    owner.sweep(ledger)
    assert [ledger.has(1, 0, n) for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert owner.journal.used_bytes == 0


def test_a_sweep_has_as_many_rounds_as_its_cost_asks_for(segment: Segment) -> None:
    owner, ledger, window = Owner(segment, costs_max=10), FlushedSet(), FinishingWindow(25)
    tracked = owner.progress.track(1, known(10, window), window)
    for partition in range(25):
        window.finish(partition, 1)
    owner.progress.record(tracked)
    window.finish(7, 2)  # in a later sweep, though its partition may be collected in this one
    assert len(owner.progress.collect()[0].floors) == 10
    owner.progress.collected(set())
    assert owner.journal.used_bytes, "not before the last round"
    assert owner.progress.has_more
    assert owner.sweep(ledger) == 2
    assert owner.journal.used_bytes == 0


def test_a_subscription_that_never_rests_does_not_keep_others_from_their_flush(
    segment: Segment,
) -> None:
    owner, ledger = Owner(segment, costs_max=4), FlushedSet()
    busy, other = FinishingWindow(9), FinishingWindow()
    tracked = [
        owner.progress.track(1, known(10, busy), busy),
        owner.progress.track(2, known(20, other), other),
    ]
    other.finish(0, 1)
    for partition in range(9):
        busy.finish(partition, 1)
    for each in tracked:
        owner.progress.record(each)
    for number in range(2, 6):
        for partition in range(9):
            busy.finish(partition, number)
        owner.progress.record(tracked[0])
        flushes = owner.progress.collect()
        owner.progress.collected(ledger.write(flushes))
    assert ledger.has(2, 0, 1)


def test_the_rows_of_one_partition_are_collected_in_several_rounds_and_each_once(
    segment: Segment,
) -> None:
    owner, ledger, window = Owner(segment, costs_max=2 * ROW_COST), FlushedSet(), FinishingWindow()
    tracked = owner.progress.track(1, known(10, window), window)
    offsets = [row * ROW_OFFSETS + 7 for row in range(9)]
    window.finish(0, *offsets)
    owner.progress.record(tracked)
    rows: list[int] = []
    for _ in range(5):
        (flush,) = owner.progress.collect()
        rows += [row for _, row, _ in flush.rows]
        window.finish(0, 8 + len(rows))  # a row that was collected changes again
        owner.progress.touched(tracked)
        owner.progress.collected(ledger.write([flush]))
    assert rows == list(range(9)) and not owner.progress.has_more
    assert all(ledger.has(1, 0, offset) for offset in offsets)
    owner.sweep(ledger)
    assert ledger.has(1, 0, 10)


def test_while_deliveries_are_held_each_round_follows_immediately(segment: Segment) -> None:
    owner, ledger, window = Owner(segment, costs_max=ROW_COST), FlushedSet(), FinishingWindow()
    tracked = owner.progress.track(1, known(10, window), window)
    window.finish(0, *range(2, 700), 5_000, 9_000)
    owner.progress.record(tracked)
    assert owner.progress.held_because(tracked) and owner.hurried == 1
    for hurried in (2, 3):
        owner.progress.collected(ledger.write(owner.progress.collect()))
        assert owner.hurried == hurried
    owner.progress.collected(ledger.write(owner.progress.collect()))
    assert owner.hurried == 3 and owner.resumed == 1


def test_the_number_of_the_last_batch_is_flushed_without_any_acknowledgment(
    segment: Segment,
) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow(epoch=5)
    tracked = owner.progress.track(1, known(10, window), window)
    rested = owner.progress.track(2, known(20, FinishingWindow()), FinishingWindow())
    assert owner.sweep(ledger) == 0
    window.epoch += EPOCHS_UNFLUSHED_MAX - 1
    assert owner.progress.held_because(tracked) == ""
    window.epoch += 1
    assert "numbers of the next batches" in owner.progress.held_because(tracked)
    assert owner.progress.held_because(rested) == "", "the others go on"
    assert owner.hurried == 1 and owner.resumed == 0
    owner.sweep(ledger)
    assert ledger.epochs == {1: window.epoch} and owner.resumed == 1
    assert owner.progress.held_because(tracked) == ""


def test_an_owner_sends_nothing_before_its_first_number_is_in_the_ledger(segment: Segment) -> None:
    """Otherwise its successor would begin where it began, if it died before its first flush."""
    owner, ledger = Owner(segment), FlushedSet()
    window = FinishingWindow(epoch=first_epoch(7, 1))
    tracked = owner.progress.track(1, SubscriptionProgress({}, [], 10, 7), window)
    assert owner.hurried == 1
    assert owner.progress.held_because(tracked)
    owner.sweep(ledger)
    assert owner.progress.held_because(tracked) == "" and owner.resumed == 1
    assert first_epoch(ledger.epochs[1], 1) == window.epoch + EPOCHS_UNFLUSHED_MAX


def test_another_window_of_the_same_generation_forgets_nothing(segment: Segment) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow()
    tracked = owner.progress.track(1, known(10, window), window)
    window.finish(0, 1, 2, 5)
    other = FinishingWindow(epoch=window.epoch)
    other.finish(0, 1, 2, 5)
    other.take_news()
    owner.progress.exchange(tracked, other)
    assert [[*entry.offsets] for entry in owner.journal.entries()] == [[1, 2, 5]]
    other.finish(0, 7)
    owner.progress.record(tracked)
    owner.sweep(ledger)
    assert [n for n in range(1, 9) if ledger.has(1, 0, n)] == [1, 2, 5, 7]


@pytest.mark.parametrize(
    ("stored", "incarnation", "epoch"),
    [
        (0, 0, 1 << 20),
        (5, 0, (1 << 20) + 5),
        (0, 1, 1 << 32),
        ((1 << 32) + 9, 1, (1 << 32) + 9 + (1 << 20)),
        (7, 2_000_000, 2_000_000 << 32),
    ],
)
def test_a_new_owner_numbers_its_batches_after_all_that_may_have_been_sent(
    stored: int, incarnation: int, epoch: int
) -> None:
    assert first_epoch(stored, incarnation) == epoch
    assert epoch + EPOCHS_UNFLUSHED_MAX < 1 << 53, "JSON"


def test_half_a_journal_stops_deliveries_until_a_flush(segment: Segment) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow()
    tracked = owner.progress.track(1, known(10, window), window)
    window.finish(0, *range(1, 400))
    owner.progress.record(tracked)
    assert (owner.progress.held_because(tracked), owner.hurried) == ("", 0)
    window.finish(0, *range(400, 520))
    assert owner.progress.record(tracked) is None, "acknowledgments do not stop"
    assert "half of the journal" in owner.progress.held_because(tracked)
    assert owner.hurried == 1
    owner.sweep(ledger)
    assert owner.progress.held_because(tracked) == "" and owner.resumed == 1


async def test_what_a_full_journal_does_not_hold_is_answered_after_a_flush_that_began_later(
    segment: Segment,
) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow()
    tracked = owner.progress.track(1, known(10, window), window)
    window.finish(0, *range(1, 500))
    owner.progress.record(tracked)
    before = owner.progress.collect()
    window.finish(0, *range(500, 1_200))
    hurried = owner.hurried
    waits = owner.progress.record(tracked)
    assert waits is not None and owner.hurried > hurried
    task = asyncio.ensure_future(waits)
    assert owner.progress.record(tracked) is not None, "a repeated acknowledgment waits too"
    owner.progress.collected(ledger.write(before))
    await asyncio.sleep(0)
    assert not task.done() and not ledger.has(1, 0, 600)
    owner.progress.collect()
    owner.progress.collected(None)  # this flush failed
    await asyncio.sleep(0)
    assert not task.done()
    owner.sweep(ledger)
    await task
    assert ledger.has(1, 0, 1_199)
    assert owner.progress.record(tracked) is None


def test_a_subscription_that_the_ledger_does_not_know_is_forgotten_and_told(
    segment: Segment,
) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow()
    tracked = owner.progress.track(1, known(9, window), window)
    window.finish(0, 1)
    owner.progress.record(tracked)
    owner.sweep(ledger)
    assert owner.gone == [1] and owner.journal.used_bytes == 0
    window.finish(0, 2)
    owner.progress.record(tracked)
    assert owner.sweep(ledger) == 0, "nobody writes for it any more"


def test_a_seek_forgets_what_was_finished_before_it(segment: Segment) -> None:
    owner, ledger, window = Owner(segment), FlushedSet(), FinishingWindow()
    former = owner.progress.track(1, known(9, window), window)
    window.finish(0, 1)
    owner.progress.record(former)
    flushes = owner.progress.collect()
    sought = FinishingWindow()
    owner.progress.track(1, known(10, sought), sought)
    owner.progress.collected(ledger.write(flushes))
    assert owner.gone == [] and not ledger.has(1, 0, 1)
    sought.finish(0, 1)
    assert owner.sweep(ledger) == 0


def test_a_flush_frees_nothing_of_a_predecessor_before_it_is_replayed(segment: Segment) -> None:
    """The replay may wait for the ledger for a while, and die again."""
    FinishedJournal(segment, 0).append(1, 10, 0, [7])
    owner = Owner(segment)
    lots: list[Lot] = []

    async def write(lot: Lot) -> None:
        assert owner.progress.collect() == [] and not owner.progress.has_more
        assert owner.journal.used_bytes
        lots.append(lot)

    assert owner.progress.collect() == [] and owner.journal.used_bytes
    asyncio.run(owner.progress.replay(write, nothing))
    asyncio.run(owner.progress.replay(write, nothing))
    assert [lot.keys() for lot in lots] == [{(1, 10)}]
    assert not owner.journal.used_bytes


class Deaths(RuleBasedStateMachine):
    """Acknowledgments, flushes that fail or not, and deaths; ``answered`` is what clients know."""

    @initialize()
    def begin(self) -> None:
        self.segment = Segment.create(Layout(1, 4096, journal_bytes=4096))
        self.loop = asyncio.new_event_loop()
        self.ledger = FlushedSet()
        self.answered: set[tuple[int, int, int]] = set()
        self.own()

    def own(self) -> None:
        self.owner = Owner(self.segment, costs_max=9)
        epochs = self.ledger.epochs
        self.windows = {
            1: FinishingWindow(3, first_epoch(epochs.get(1, 0), 0)),
            2: FinishingWindow(1, first_epoch(epochs.get(2, 0), 0)),
        }
        self.tracked: dict[int, TrackedProgress] = {}
        self.waiting: list[tuple[asyncio.Future[None], set[tuple[int, int, int]]]] = []
        for subscription_id, window in self.windows.items():
            floors = {
                partition: floor
                for (each, partition), floor in self.ledger.floors.items()
                if each == subscription_id
            }
            for partition, floor in floors.items():
                window.look_aheads[partition].add_done(floor)
            for (each, partition), offsets in self.ledger.finished.items():
                if each == subscription_id:
                    late = {n for n in offsets if n > floors.get(partition, 0)}
                    window.finish(partition, *late) if late else None
            window.take_news()
            for look_ahead in window.look_aheads.values():
                look_ahead.changed_rows.clear()
            self.tracked[subscription_id] = self.owner.progress.track(
                subscription_id,
                SubscriptionProgress(
                    floors,
                    [],
                    self.ledger.generations[subscription_id],
                    self.ledger.epochs.get(subscription_id, 0),
                ),
                window,
            )
        self.flushes: list[SubscriptionFlush] = []

    @rule(
        subscription_id=st.sampled_from([1, 2]),
        partition=st.integers(0, 2),
        start=st.one_of(st.integers(1, 30), st.integers(4_000, 13_000)),
        count=st.sampled_from([1, 2, 5, 100, 700]),
    )
    def acknowledge(self, subscription_id: int, partition: int, start: int, count: int) -> None:
        window = self.windows[subscription_id]
        partition %= len(window.look_aheads)
        offsets = range(start, start + count)
        window.finish(partition, *offsets)
        window.epoch += 1

        async def record() -> None:
            waits = self.owner.progress.record(self.tracked[subscription_id])
            done = {(subscription_id, partition, offset) for offset in offsets}
            if waits is None:
                self.answered |= done
            else:
                self.waiting.append((asyncio.ensure_future(waits), done))

        self.loop.run_until_complete(record())

    @precondition(lambda self: not self.flushes)
    @rule()
    def a_round_begins(self) -> None:
        self.flushes = self.owner.progress.collect()
        self.answer()

    @precondition(lambda self: self.flushes)
    @rule(fails=st.booleans(), is_written=st.booleans())
    def a_round_ends(self, fails: bool, is_written: bool) -> None:
        if not fails or is_written:  # the answer of a commit may be lost
            ignored = self.ledger.write(self.flushes)
        self.owner.progress.collected(None if fails else ignored)
        self.flushes = []
        self.answer()

    def answer(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))
        for waits, done in [*self.waiting]:
            if waits.done():
                self.answered |= done
                self.waiting.remove((waits, done))

    @rule(is_written=st.booleans())
    def the_owner_dies(self, is_written: bool) -> None:
        if is_written:
            self.ledger.write(self.flushes)
        for waits, _ in self.waiting:
            waits.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        journal = FinishedJournal(self.segment, 0)
        for entry in journal.entries():
            key = (entry.subscription_id, entry.partition)
            self.ledger.finished.setdefault(key, set()).update(entry.offsets)
        journal.clear()
        self.own()

    @invariant()
    def what_was_answered_survives_the_owner(self) -> None:
        if not hasattr(self, "owner"):
            return
        self.owner.progress.check_invariants()
        journaled = {
            (entry.subscription_id, entry.partition, offset)
            for entry in self.owner.journal.entries()
            for offset in entry.offsets
        }
        lost = {each for each in self.answered - journaled if not self.ledger.has(*each)}
        assert not lost

    def teardown(self) -> None:
        if not hasattr(self, "owner"):
            return
        if self.flushes:
            self.a_round_ends(fails=False, is_written=True)
        for _ in range(2):
            self.owner.sweep(self.ledger)
            self.answer()
        assert not self.waiting, "a flush that succeeds answers all that wait"
        assert not self.owner.journal.used_bytes
        self.what_was_answered_survives_the_owner()
        self.loop.close()
        self.segment.close()


TestDeaths = Deaths.TestCase
TestDeaths.settings = settings(max_examples=examples(15), stateful_step_count=30, deadline=None)
