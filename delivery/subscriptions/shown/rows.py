"""What an owner tells on the board of its subscriptions, so that any shard can report it.

A row is written at a heartbeat if it may have changed, few at a time; all are due once a second,
because ages grow. One that another subscription has written over is written again. What a
subscription stands still at is looked for once a second, since that looks at all its partitions.

How long ago the oldest unfinished record was stored:

    the first unfinished offset of each partition -> when its object was made, from the ledger, for
    all offsets of the extent -> remembered until the partition has passed that extent

WANTED_MAX offsets are looked up at a time, about 20 us each in the ledger's thread; those of other
partitions follow with the next look. What is remembered is one entry per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec import structs

from delivery.ledger_thread import LedgerThread
from delivery.standstill import LOOK_NS, Standstill
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.shown.inspection import row_of
from delivery.subscriptions.shown.standing import SenderRows, SubscriptionStanding
from ledger import reads
from ledger.delivery.subscriptions import Subscription
from ledger.errors import LedgerError
from shards.boards.rowboard import Board, SubscriptionRow

ROWS_NS = 1_000_000_000
ROWS_AT_ONCE = 64  # in a heartbeat, 13 us each; what is due longest comes first


class _Told:
    """What was told of a subscription last, and what was found out for it."""

    __slots__ = ("looked_ns", "oldest_ms", "row", "running", "standing", "stands")

    def __init__(self, running: RunningSubscription, standing: SubscriptionStanding) -> None:
        self.running = running
        self.standing = standing
        self.stands: Standstill | None = None
        self.looked_ns = self.oldest_ms = 0
        self.row: SubscriptionRow | None = None


class OwnedRows:
    """The rows of one shard's subscriptions. ``sender_rows`` gives those of a subscription's
    senders."""

    def __init__(
        self,
        board: Board[SubscriptionRow],
        shards: int,
        ledger: LedgerThread,
        now_ns: Callable[[], int],
        wall_ms: Callable[[], int],
        sender_rows: SenderRows,
    ) -> None:
        self._board = board
        self._shards = shards
        self._now_ns = now_ns
        self._wall_ms = wall_ms
        self.ages = RecordAges(ledger)
        self.touched: dict[RunningSubscription, None] = {}  # may be out of date
        self._told: dict[int, _Told] = {}  # by subscription
        self._due_ns = 0
        self._sender_rows = sender_rows

    def touch(self, running: RunningSubscription) -> None:
        """A row may be out of date."""
        self.touched[running] = None

    def write(self, running: Mapping[int, RunningSubscription]) -> None:
        """Writes what is due of those that run now."""
        now_ns = self._now_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + ROWS_NS
            self.touched.update(dict.fromkeys(running.values()))
        for each in list(islice(self.touched, ROWS_AT_ONCE)):
            del self.touched[each]
            if each.view.subscription.subscription_id in running:
                self._write(each, now_ns)

    def _write(self, running: RunningSubscription, now_ns: int) -> None:
        place = running.view.subscription.slot, running.view.subscription.subscription_id
        told = self._told.get(place[1])
        if told is None or told.running is not running:
            standing = SubscriptionStanding(running, self._shards, self._sender_rows)
            told = self._told[place[1]] = _Told(running, standing)
        if now_ns - told.looked_ns >= LOOK_NS:
            told.looked_ns, told.stands = now_ns, told.standing.look(now_ns)
            first, topic_id = told.standing.first, running.view.topic.topic_id
            told.oldest_ms = self.ages.oldest_ms(place[1], topic_id, first, self._wall_ms())
        row = row_of(running, told.stands, told.oldest_ms, now_ns)
        if row != told.row or not self._board.is_of(*place):
            self._board.write(*place, row)
            told.row = row

    def tell(self, subscription: Subscription, row: SubscriptionRow) -> None:
        """Writes the row of one that does not run."""
        if row.stands:
            former = self.former(subscription)
            since_ns = former.stands_since_ns if former is not None else 0
            row = structs.replace(row, stands_since_ns=since_ns or self._now_ns())
        self._board.write(subscription.slot, subscription.subscription_id, row)

    def former(self, subscription: Subscription) -> SubscriptionRow | None:
        """What a former owner told."""
        return self._board.read(subscription.slot, subscription.subscription_id)

    def free(self, subscription: Subscription) -> None:
        """A subscription was deleted."""
        self._told.pop(subscription.subscription_id, None)
        self.ages.forget(subscription.subscription_id)
        self._board.free(subscription.slot, subscription.subscription_id)


WANTED_MAX = 256


class _Stored(NamedTuple):
    ms: int
    last_offset: int


class RecordAges:
    """The ages of a shard's records that subscriptions have not finished."""

    def __init__(self, ledger: LedgerThread) -> None:
        self._ledger = ledger
        self._stored: dict[int, dict[int, _Stored]] = {}  # by subscription and partition
        self._is_loading = False
        self._wanted: dict[tuple[int, int], tuple[int, int, int]] = {}

    @property
    def is_due(self) -> bool:
        """Whether ``load`` has something to do that it does not do yet."""
        return bool(self._wanted) and not self._is_loading

    def oldest_ms(
        self, subscription_id: int, topic_id: int, first: Mapping[int, int], wall_ms: int
    ) -> int:
        """The age of the oldest record; ``first`` has the first unfinished offset of each partition
        that has one. 0: there is none, or it is not known yet."""
        known = self._stored.get(subscription_id, {})
        kept: dict[int, _Stored] = {}
        for partition, offset in first.items():
            stored = known.get(partition)
            if stored is not None and offset <= stored.last_offset:
                kept[partition] = stored
            elif len(self._wanted) < WANTED_MAX:
                self._wanted[subscription_id, partition] = topic_id, partition, offset
        if kept:
            self._stored[subscription_id] = kept
        else:
            self._stored.pop(subscription_id, None)
        return max(0, wall_ms - min((stored.ms for stored in kept.values()), default=wall_ms))

    def forget(self, subscription_id: int) -> None:
        """A subscription ends."""
        self._stored.pop(subscription_id, None)

    async def load(self) -> None:
        """Looks up what is wanted. What cannot be read is wanted again."""
        wanted, self._wanted = self._wanted, {}
        self._is_loading = True
        try:
            found = await self._ledger.read(reads.stored, [*wanted.values()])
        except LedgerError:
            return
        finally:
            self._is_loading = False
        for (subscription_id, partition), stored in zip(wanted, found, strict=True):
            if stored is not None:
                self._stored.setdefault(subscription_id, {})[partition] = _Stored(*stored)
