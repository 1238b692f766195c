"""Finished offsets of the subscriptions of a shard: into the journal immediately, into the ledger
soon.

Lifecycle of what a window finishes::

    ``record`` -> in the journal: the acknowledgment may be answered -> a sweep collects it
               -> in the ledger, by the flush (delivery/cursors/flush.py) -> the journal is freed

A *sweep* collects what all subscriptions have changed (floors, rows of finished offsets, number of
the last batch), in rounds of at most COSTS_MAX. Once its last round is durable, the journal is
freed up to where it was when the sweep began. A round that fails ends its sweep, and what it
collected is collected again.

* A full journal refuses nothing: the acknowledgment waits for a sweep that begins after it, and a
  flush begins immediately. From half full on nothing is delivered (``held_because``), so it gets
  full only if more than it holds was in flight.
* The number of a batch is never used twice. An owner cannot know the last one of its predecessor,
  so it begins EPOCHS_UNFLUSHED_MAX after the last one that was flushed, sends nothing before it has
  flushed that, and never that many more than were flushed.
* ``replay`` comes before anything else. No sweep begins before it is complete, since the sweep
  would free what it reads.

What a dead shard left in its journal is *replayed* into the ledger, before its successor delivers.
If it has no successor because the daemon ends, the supervisor writes it, last of all::

    entries -> lots of rows, as the ledger has them -> a transaction each -> the journal is empty

After a death in between it begins again: bits are only added. A subscription that was deleted or
sought meanwhile is passed over, because its entries are of another generation. A damaged journal
gives what is before the damage; what is after it is delivered again.

This module decides and collects; ``CursorFlush`` has the thread and the transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from delivery.subscriptions.window.look_ahead import LookAhead
from ledger.delivery import progress
from ledger.delivery.progress import ROW_BYTES, ROW_OFFSETS, SubscriptionFlush, SubscriptionProgress
from ledger.errors import LedgerError
from ledger.tx import WriteTx
from shards.journal import FinishedJournal, JournalDamaged, JournalEntry, JournalFull

log = logging.getLogger("headgate.subscriptions")

# What a round may cost, in floors, of 2.8 us each in the transaction; a row takes 9 us there, and
# 18 us in the loop. So a round keeps the ledger lock, and the loop, for 2 ms. Rounds follow each
# other quickly: at most a twentieth of the time is in transactions, which is 2,000 rows a second.
COSTS_MAX = 512
ROW_COST = 4
EPOCHS_UNFLUSHED_MAX = 1 << 20
_EPOCHS_OF_INCARNATION = 1 << 32  # so the 2 million first incarnations stay below 2^53

LOT_ROWS = 512  # in one transaction: about 5 ms of the ledger lock, while commits wait
PAUSE_S = 1.0  # after an error of the ledger

Lot = dict[tuple[int, int], dict[tuple[int, int], bytearray]]
"""By subscription and generation: by partition and row, the bits of finished offsets."""


class TrackedWindow(Protocol):
    """What is read of a window."""

    look_aheads: dict[int, LookAhead]
    epoch: int

    def take_news(self) -> Mapping[int, Sequence[int]]:
        """The offsets, by partition, that were finished since the last call."""
        ...


class TrackedProgress:
    """One subscription, in one generation. ``floors`` and ``epoch`` are those in the ledger."""

    __slots__ = (
        "epoch", "floors", "generation", "left", "left_rows", "subscription_id", "waits", "window",
    )  # fmt: skip

    def __init__(
        self, subscription_id: int, known: SubscriptionProgress, window: TrackedWindow
    ) -> None:
        self.subscription_id = subscription_id
        self.generation = known.generation
        self.window = window
        self.floors = dict(known.floors)
        self.epoch = known.epoch
        # What the sweep has not collected yet: partitions, and rows of the last of them.
        self.left: list[int] | None = None
        self.left_rows: list[int] | None = None
        self.waits: asyncio.Future[None] | None = (
            None  # until what is not in the journal is durable
        )

    def collect(self, costs_max: int) -> tuple[SubscriptionFlush | None, int]:
        """The changes of the partitions that are left, and what they cost to write."""
        look_aheads = self.window.look_aheads
        if self.left is None:
            self.left = list(look_aheads)
        floors: list[tuple[int, int]] = []
        rows: list[tuple[int, int, bytes]] = []
        cost = 0
        while self.left and cost < costs_max:
            partition = self.left[-1]
            look_ahead = look_aheads[partition]
            if self.left_rows is None:
                self.left_rows = sorted(look_ahead.changed_rows, reverse=True)
                if look_ahead.floor != self.floors.get(partition, 0):
                    floors.append((partition, look_ahead.floor))
                    cost += 1
            while self.left_rows and cost < costs_max:
                row = self.left_rows.pop()
                look_ahead.changed_rows.discard(row)
                bits = look_ahead.row(row)
                if bits is not None:
                    rows.append((partition, row, bits))
                    cost += ROW_COST
            if not self.left_rows:
                self.left_rows = None
                self.left.pop()
        epoch = self.window.epoch
        if not floors and not rows and epoch == self.epoch:
            return None, 0
        return SubscriptionFlush(
            self.subscription_id, self.generation, epoch, floors, rows
        ), cost + 1  # fmt: skip

    def written(self, flush: SubscriptionFlush) -> None:
        """This is in the ledger now."""
        self.floors.update(flush.floors)
        self.epoch = flush.epoch

    def begin_again(self) -> None:
        """The next sweep collects all partitions."""
        self.left = self.left_rows = None

    def failed(self, flush: SubscriptionFlush) -> None:
        """This is not: it has to be collected again."""
        for partition, row, _ in flush.rows:
            self.window.look_aheads[partition].changed_rows.add(row)


class JournaledProgress:
    """The progress of all subscriptions of a shard; belongs to its loop.

    ``hurry`` makes the flush begin now, ``resumed`` is called when deliveries may go on, and
    ``gone`` for a subscription that the ledger does not know any more, or not in this generation.
    """

    def __init__(
        self,
        journal: FinishedJournal,
        hurry: Callable[[], None],
        resumed: Callable[[], None],
        gone: Callable[[int], None],
        costs_max: int = COSTS_MAX,
    ) -> None:
        self._journal = journal
        self._hurry = hurry
        self._resumed = resumed
        self._gone = gone
        self._costs_max = costs_max
        self._is_replayed = False
        self._tracked: dict[int, TrackedProgress] = {}
        self._dirty: dict[TrackedProgress, None] = {}
        self._sweep: deque[TrackedProgress] | None = None
        self._mark = 0
        self._round: list[tuple[TrackedProgress, SubscriptionFlush]] = []
        self._waiting: asyncio.Future[None] | None = None  # for a sweep that has not begun
        self._sweeping: asyncio.Future[None] | None = None  # for the one that has
        self._is_held = False  # since the journal was half full
        self._is_awaited = False  # a subscription was told so, or waits for numbers

    async def replay(
        self,
        write: Callable[[Lot], Awaitable[object]],
        sleep_s: Callable[[float], Awaitable[object]],
    ) -> None:
        """Writes what a predecessor has left, once; ``write`` makes a transaction of a lot."""
        if not self._is_replayed:
            await replay(self._journal, write, sleep_s)
            self._is_replayed = True

    def track(
        self, subscription_id: int, known: SubscriptionProgress, window: TrackedWindow
    ) -> TrackedProgress:
        """Begins with a subscription of which the ledger has ``known``; ends with a former
        generation of it, whose changes since the last flush are forgotten."""
        self.forget(subscription_id)
        tracked = TrackedProgress(subscription_id, known, window)
        self._tracked[subscription_id] = tracked
        if window.epoch != known.epoch:
            self._hurry()
        return tracked

    def exchange(self, tracked: TrackedProgress, window: TrackedWindow) -> None:
        """Goes on with another window of the same generation, which has the floors, the finished
        offsets and the changed rows of the former one. What is not flushed yet stays so."""
        self.record(tracked)
        tracked.window = window

    def forget(self, subscription_id: int) -> None:
        """Ends with a subscription that was deleted: its changes are not flushed any more."""
        former = self._tracked.pop(subscription_id, None)
        if former is not None:
            self._dirty.pop(former, None)

    def touched(self, tracked: TrackedProgress) -> None:
        """Its floors may have moved without news: it passed over something."""
        self._dirty[tracked] = None

    def record(self, tracked: TrackedProgress) -> Awaitable[None] | None:
        """Makes durable what the window has finished since the last call.

        None: it is in the journal, and may be answered. Otherwise it may be once the awaitable is
        done; so may what was refused because it is finished, for it waits for the same.
        """
        news = tracked.window.take_news()
        if news:
            self._dirty[tracked] = None
        journal = self._journal
        for partition, offsets in news.items():
            try:
                journal.append(tracked.subscription_id, tracked.generation, partition, offsets)
            except JournalFull:
                journal.count_wait()
                if self._waiting is None:
                    self._waiting = asyncio.get_running_loop().create_future()
                tracked.waits = self._waiting
                self._hurry()
        if not self._is_held and journal.is_half_full:
            self._is_held = self._is_awaited = True
            self._hurry()
        if tracked.waits is None:
            return None
        if tracked.waits.done():
            tracked.waits = None
            return None
        return asyncio.shield(tracked.waits)

    def held_because(self, tracked: TrackedProgress) -> str:
        """Why nothing may be delivered until a flush; empty: it may."""
        if self._is_held:
            return "half of the journal of acknowledgments is used, and not yet in the ledger"
        if tracked.window.epoch - tracked.epoch < EPOCHS_UNFLUSHED_MAX:
            return ""
        if not self._is_awaited:
            self._is_awaited = True
            self._hurry()
        return "the numbers of the next batches are not in the ledger yet"

    # The flush (delivery/cursors/flush.py)

    @property
    def has_more(self) -> bool:
        """Whether a sweep has begun and is not complete."""
        return self._sweep is not None

    def collect(self) -> list[SubscriptionFlush]:
        """The next round of the sweep. ``collected`` follows, before the next call."""
        if not self._is_replayed:
            return []
        if self._sweep is None:
            self._begin()
        assert self._sweep is not None
        cost = 0
        while self._sweep and cost < self._costs_max:
            tracked = self._sweep[0]
            if self._tracked.get(tracked.subscription_id) is tracked:
                flush, flush_cost = tracked.collect(self._costs_max - cost)
                cost += flush_cost
                if flush is not None:
                    self._round.append((tracked, flush))
                if tracked.left:
                    break
            tracked.begin_again()
            self._sweep.popleft()
        if not self._round:
            self._complete()
        return [flush for _, flush in self._round]

    def collected(self, ignored: Set[int] | None) -> None:
        """The round is in the ledger, which ignored these subscriptions; None: it is not."""
        done, self._round = self._round, []
        if ignored is None:
            for tracked, flush in done:
                tracked.failed(flush)
            self._abandon([tracked for tracked, _ in done])
            return
        for tracked, flush in done:
            if flush.subscription_id not in ignored:
                tracked.written(flush)
            elif self._tracked.get(flush.subscription_id) is tracked:
                self.forget(flush.subscription_id)
                self._gone(flush.subscription_id)
        if not self._sweep:
            self._complete()
        elif self._is_held or self._sweeping is not None:
            self._hurry()

    def _begin(self) -> None:
        self._mark = self._journal.head
        for tracked in self._tracked.values():
            if tracked.window.epoch != tracked.epoch:
                self._dirty[tracked] = None
        self._sweep = deque(self._dirty)
        self._dirty = {}
        self._sweeping, self._waiting = self._waiting, None

    def _complete(self) -> None:
        self._sweep = None
        self._journal.empty_up_to(self._mark)
        if self._sweeping is not None:
            self._sweeping.set_result(None)
            self._sweeping = None
        self._is_held = self._is_held and self._journal.is_half_full
        if self._is_awaited and not self._is_held:
            self._is_awaited = False
            self._resumed()

    def _abandon(self, again: Sequence[TrackedProgress]) -> None:
        assert self._sweep is not None
        for tracked in (*again, *self._sweep):
            tracked.begin_again()
            if self._tracked.get(tracked.subscription_id) is tracked:
                self._dirty[tracked] = None
        self._sweep = None
        former, self._sweeping = self._sweeping, None
        if former is None:
            return
        if self._waiting is not None:
            self._waiting.add_done_callback(lambda _: former.set_result(None))
        else:
            self._waiting = former

    def check_invariants(self) -> None:
        """Raises AssertionError unless what is not in the ledger will be collected."""
        left = set(self._dirty) | set(self._sweep or ()) | {each for each, _ in self._round}
        for subscription_id, tracked in self._tracked.items():
            assert tracked.subscription_id == subscription_id
            assert tracked.epoch <= tracked.window.epoch
            for partition, look_ahead in tracked.window.look_aheads.items():
                assert tracked.floors.get(partition, 0) <= look_ahead.floor
                assert not look_ahead.changed_rows or tracked in left
        assert self._sweep is not None or (not self._round and self._sweeping is None)
        self._journal.check_invariants()


def first_epoch(stored: int, incarnation: int) -> int:
    """After which number an owner numbers its batches: no batch of another owner has it or a later
    one. A recovery may not know what was flushed, so each incarnation has numbers of its own."""
    return max(stored + EPOCHS_UNFLUSHED_MAX, incarnation * _EPOCHS_OF_INCARNATION)


class Replayed(NamedTuple):
    """What was found."""

    entries: int
    offsets: int


async def replay(
    journal: FinishedJournal,
    write: Callable[[Lot], Awaitable[object]],
    sleep_s: Callable[[float], Awaitable[object]],
) -> Replayed:
    """Writes what the journal has, and empties it; waits out errors of the ledger."""
    found = _Counter()
    try:
        for lot in lots(found.counted(journal.entries())):
            while True:
                try:
                    await write(lot)
                    break
                except LedgerError as error:
                    log.warning("acknowledgments of this shard's former process cannot be written"
                                " to the ledger, and are tried again: %s", error)  # fmt: skip
                    await sleep_s(PAUSE_S)
    except JournalDamaged as error:
        log.error("messages that were acknowledged in the last seconds may be delivered again:"
                  " in the journal of this shard, %s", error)  # fmt: skip
    journal.clear()
    if found.entries:
        log.info("%d acknowledged messages of a former process of this shard were written to the"
                 " ledger", found.offsets)  # fmt: skip
    return Replayed(found.entries, found.offsets)


def replay_last(journal: FinishedJournal, write: Callable[[Lot], object]) -> None:
    """As ``replay``, but does not wait: the journal ends with the process."""
    try:
        for lot in lots(journal.entries()):
            write(lot)
    except (LedgerError, JournalDamaged) as error:
        log.error("messages that were acknowledged in the last seconds may be delivered again:"
                  " the journal of a shard cannot be written to the ledger: %s", error)  # fmt: skip


class _Counter:
    def __init__(self) -> None:
        self.entries = 0
        self.offsets = 0

    def counted(self, entries: Iterable[JournalEntry]) -> Iterator[JournalEntry]:
        for entry in entries:
            self.entries += 1
            self.offsets += len(entry.offsets)
            yield entry


def lots(entries: Iterable[JournalEntry]) -> Iterator[Lot]:
    """Entries as rows; a lot has LOT_ROWS, or the rows of one entry more."""
    lot: Lot = {}
    count = 0
    try:
        for entry in entries:
            rows = lot.setdefault((entry.subscription_id, entry.generation), {})
            before = len(rows)
            for offset in entry.offsets:
                row, bit = divmod(offset, ROW_OFFSETS)
                bits = rows.get((entry.partition, row))
                if bits is None:
                    bits = rows[entry.partition, row] = bytearray(ROW_BYTES)
                bits[bit >> 3] |= 1 << (bit & 7)
            count += len(rows) - before
            if count >= LOT_ROWS:
                yield lot
                lot, count = {}, 0
    except JournalDamaged:
        if lot:
            yield lot
        raise
    if lot:
        yield lot


def add(tx: WriteTx, lot: Lot) -> None:
    """Adds a lot to what is finished, except what is below the floors already."""
    flushes = []
    for (subscription_id, generation), rows in lot.items():
        there = progress.state_of(tx, subscription_id)
        if there is None or there.generation != generation:
            continue
        partitions = {partition for partition, _ in rows}
        floors = [each for each in there.floors.items() if each[0] in partitions]
        kept = [(*key, bytes(bits)) for key, bits in sorted(rows.items())]
        flushes.append(SubscriptionFlush(subscription_id, generation, there.epoch, floors, kept))
    progress.flush(tx, flushes)
