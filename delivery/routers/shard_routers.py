"""The routers that a shard owns: reads their sources, carries out their plans, tells of them.

    settings change -> ``look`` loads the routers of this shard, and each lane's cursor
    a commit moves a source -> ``committed`` -> a turn of the dispatcher -> ``serve``: pages from
    the rings become frames in the ring
    a page that the rings do not hold -> a task reads it from objects or the lake -> a frame
    a frame's commit is followed -> ``settled`` -> the plan, and a turn for what waited for room

``router_plan.py`` decides what to do. A page is never kept: one that finds no room is read again.

Bounds: a page has at most PAGE_BYTES_MAX and one record, and PAGES_AT_ONCE are read simultaneously
from the store; LANES_MAX lanes, TASKS_MAX tasks. The outbox bounds the frames in the ring, and
``reading/followed.py`` the partitions of sources that are pinned. What does not change costs
nothing: only lanes that are due are looked at, only rows that may have changed are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from compaction.parquet.file_bytes import LakeFileDamaged
from delivery.changes import ChangesFound, FollowedChanges
from delivery.dispatch import Served
from delivery.filters import filter_of
from delivery.ledger_thread import LedgerThread
from delivery.reading.followed import Key, TooManyPinned
from delivery.reading.lake import Item
from delivery.reading.partition import QUARANTINED, PartitionReader
from delivery.reading.tail import PIECE_RECORDS
from delivery.ready import EntryKey, Kind, Turn
from delivery.routers.frames import parts_of
from delivery.routers.outbox import DestinationFull, FrameTooLong, Outbox, RingShareUsed
from delivery.routers.router_plan import Counts, Lane, Load, Read, RouterPlan
from delivery.routers.schemas import gone_topic
from delivery.routers.standing import RouterStanding
from delivery.standstill import LOOK_NS
from delivery.tasks import Tasks
from delivery.tokens import NoTokens, TokensInForce
from ledger import cursors
from ledger.delivery import routers
from ledger.delivery.routers import RouterView
from ledger.errors import LedgerError
from ledger.types import Advance, CursorMove, Topic
from shards.boards.rowboard import Board, RouterRow, RowPhase
from uploader.l0 import L0Error
from uploader.l0.records import Record, RecordsError
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.routers")

PAGE_BYTES_MAX = 256 << 10
PAGE_RECORDS = PIECE_RECORDS  # that a page from the rings looks at: about a millisecond
PAGE_COST_BYTES = 4 << 10  # of a page in addition to its bytes, as of a write to a watcher
STORED_PAGE_RECORDS = 10_000
PAGES_AT_ONCE = 4
TASKS_MAX = 64  # that load a position, or wait to read a page; a start may have work for thousands
LANES_MAX = 100_000  # partitions of sources, over all routers of a shard
LANES_AT_ONCE = 8_192  # that are looked at in a heartbeat for what stands still: 2 ms
LANE_BYTES = 512  # of a lane with its place in two tables; measured: 360
# What the evictions of a source are called; other gaps never had a record, or may have one again.
_LOSSES = ("cap", "ttl", "lost")
_CANNOT_READ = (StoreError, LedgerError, L0Error, LakeFileDamaged, RecordsError)


class SourcePage(NamedTuple):
    """Records after ``start`` that pass, up to ``reached``; ``skipped`` were gone before it."""

    items: list[Item]
    start: int
    reached: int
    skipped: int
    read_bytes: int


class RunningRouter:
    """A router of this shard."""

    def __init__(self, view: RouterView) -> None:
        self.plan = RouterPlan(len(view.partitions), paused=view.router.paused)
        self.pinned: list[Key] = []
        self.learning = False
        self.told: RouterRow | None = None
        self.standing = RouterStanding()
        self.follow(view)

    def follow(self, view: RouterView) -> None:
        """Takes settings that may have changed."""
        self.view = view
        self.plan.paused = view.router.paused
        self.plan.stopped = gone_topic(view)
        self.plan.grow(len(view.partitions))
        passing = filter_of(view.router.filter)
        self.passes: Callable[[Record], bool] = passing.matches if passing else _everything
        self.page_records = min(PAGE_RECORDS, passing.lot) if passing else PAGE_RECORDS

    def wake(self, partition: int) -> None:
        """A partition of the source has new records."""
        if partition < len(self.plan.lanes):
            self.plan.lanes[partition].wake()

    def row(self, gated: str) -> RouterRow:
        """What is told of it; ``gated`` says why no router reads on, if so."""
        plan = self.plan
        phase, reason = RowPhase.RUNNING, ""
        if plan.stopped:
            phase, reason = RowPhase.STOPPED, plan.stopped
        elif plan.paused:
            phase = RowPhase.PAUSED
        elif plan.barred or gated or plan.held:
            phase, reason = RowPhase.HELD, plan.barred or gated or plan.held
        stands = self.standing.stands
        return RouterRow(
            phase, reason, self.view.router.name, self.view.source.name, self.view.dest.name,
            0 if stands is None else stands.since_ns, "" if stands is None else stands.text,
            lag=self.standing.lag, **plan.counts._asdict(),
        )  # fmt: skip

    def stored(self, partition: int) -> int:
        """A position that the ledger had."""
        partitions = self.view.partitions
        return partitions[partition][0] if partition < len(partitions) else 0


def _everything(_: Record) -> bool:
    return True


class Routers:
    """The routers of one shard. ``version`` changes with routers; ``learn`` hears which
    topics are sources; ``failed`` is told of an error that nothing expects."""

    def __init__(
        self,
        shard: int,
        shards: int,
        reader: PartitionReader,
        ledger: LedgerThread,
        outbox: Outbox,
        board: Board[RouterRow],
        dirty: Callable[[Iterable[EntryKey], int], None],
        version: Callable[[], int],
        now_ns: Callable[[], int],
        learn: Callable[[Topic], None],
        failed: Callable[[Exception], object],
        page_bytes: int = PAGE_BYTES_MAX,
        tokens: TokensInForce | None = None,
    ) -> None:
        self._shard = shard
        self._tokens = tokens or NoTokens()
        self._tokens_seen = self._tokens.version
        self._page_bytes = page_bytes
        self._shards = shards
        self._reader = reader
        self._ledger = ledger
        self._outbox = outbox
        self._board = board
        self._dirty = dirty
        self._now_ns = now_ns
        self._learn_topic = learn
        self._running: dict[int, RunningRouter] = {}
        self._by_source: dict[int, list[RunningRouter]] = {}
        self._of_topic: dict[int, set[int]] = {}  # ids of routers, by source and by destination
        self._lanes = 0
        self._starved: set[int] = set()  # sources that wait for room in the ring, or for a task
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)
        self._tasks = Tasks(failed)
        self._changes = FollowedChanges("routers", version, self._read, self._take, self._tasks)
        self._tickets = 0
        self._flushing: dict[tuple[int, int], RunningRouter] = {}
        self._unflushed: dict[Lane, RunningRouter] = {}  # that may have a stretch to be flushed
        self._touched: set[RunningRouter] = set()  # whose rows may be out of date, or that are held
        self._in_turn: deque[RunningRouter] = deque()  # all, whose turn it is to be looked at first
        self._closed = False
        self._gated = ""

    def __len__(self) -> int:
        return len(self._running)

    @property
    def heard(self) -> int:
        """The number of the last change that is known here."""
        return self._changes.heard

    # What happens

    def look(self) -> None:
        """To be called regularly: notices changes of settings, and ends pauses."""
        if self._closed:
            return
        self._changes.look()
        if self._tokens.version != self._tokens_seen:
            self._tokens_seen = self._tokens.version
            for running in self._running.values():
                self._bar(running)
        now_ns = self._now_ns()
        self._look_at_lag(now_ns)
        touched, self._touched = self._touched, set()
        for running in touched:
            plan = running.plan
            if plan.held:
                self._touched.add(running)
                if now_ns >= plan.held_until_ns:
                    if plan.is_done(partial(self._head, running)):
                        plan.release()
                    self._wake(running)
            router = running.view.router
            row = running.row(self._gated)
            if row != running.told and router.router_id in self._running:
                self._board.write(router.slot, router.router_id, row)
                running.told = row
        self._wake_starved()

    def _bar(self, running: RunningRouter) -> None:
        """It waits while the token with which it was set up is not in force."""
        running.plan.barred = self._tokens.why_gone(running.view.router.token)
        self._touched.add(running)
        self._wake(running)

    def _look_at_lag(self, now_ns: int) -> None:
        """How far routers are behind and which stand still, each once a second."""
        left = LANES_AT_ONCE
        while self._in_turn and left > 0:
            running = self._in_turn[0]
            if now_ns - running.standing.looked_ns < LOOK_NS:
                break
            self._in_turn.rotate(-1)
            left -= len(running.plan.lanes)
            head = partial(self._head, running)
            running.standing.look(running.plan, running.stored, head, self._gated, now_ns)
            if self._may_be_pinned(running):
                self._changes.stale.add(running.view.router.router_id)
            self._touched.add(running)

    def committed(self, moved: Iterable[Key], published_ns: int) -> None:
        """Commits have moved the heads of these partitions."""
        by_source = self._by_source
        if not by_source:
            return
        keys: set[EntryKey] = set()
        for topic_id, partition in moved:
            there = by_source.get(topic_id)
            if there is not None:
                keys.add((topic_id, Kind.ROUTE))
                for running in there:
                    running.wake(partition)
        if keys:
            self._dirty(keys, published_ns)

    def topic_changed(self, topic: Topic) -> None:
        """A topic has other settings, or was deleted."""
        self._changes.stale |= self._of_topic.get(topic.topic_id, set())

    def pause(self, why: str) -> None:
        """Reads nothing more until ``resume``; frames on their way are settled. Cursors stay where
        they are."""
        self._gated = why
        self._touched |= set(self._running.values())

    def resume(self) -> None:
        """Reads on where it was."""
        self.pause("")
        self._wake_starved()

    def close(self) -> None:
        """Reads nothing more; frames on their way are still settled."""
        self._closed = True
        self._changes.close()
        self._tasks.cancel()

    # Settings

    async def _read(self, heard: int, stale: set[int]) -> ChangesFound[RouterView]:
        asked = self._ledger.read(routers.owned, self._shard, self._shards, heard, stale)
        return ChangesFound(*await asked)

    async def _take(self, view: RouterView) -> None:
        router_id = view.router.router_id
        running = self._running.get(router_id)
        if view.router.deleted_ms is not None:
            if running is not None:
                self._forget(self._running.pop(router_id))
            return
        self._learn_topic(view.source)
        if running is None:
            for topic in (view.source, view.dest):
                self._of_topic.setdefault(topic.topic_id, set()).add(router_id)
            running = self._running[router_id] = RunningRouter(view)
            told = self._board.read(view.router.slot, router_id)
            if told is not None:  # of this router's former owner
                running.plan.counts = Counts(told.copied, told.filtered, told.skipped)
            self._by_source.setdefault(view.source.topic_id, []).append(running)
            self._in_turn.appendleft(running)
            self._lanes += len(running.plan.lanes)
        else:
            self._lanes -= len(running.plan.lanes)
            running.follow(view)
            self._lanes += len(running.plan.lanes)
        self._pin(running)
        self._bar(running)

    def _may_be_pinned(self, running: RunningRouter) -> bool:
        """Whether there is room now for partitions that had none."""
        topic_id = running.view.source.topic_id
        left = [
            (topic_id, partition)
            for partition in range(len(running.pinned), len(running.plan.lanes))
        ]
        has_room = self._lanes <= LANES_MAX and self._reader.followed.can_pin(left)
        return bool(left) and has_room

    def _pin(self, running: RunningRouter) -> None:
        topic_id = running.view.source.topic_id
        if self._lanes > LANES_MAX:
            running.plan.stopped = (
                f"the routers of its shard have sources with {self._lanes} partitions, the limit is"
                f" {LANES_MAX}; delete routers, or use more shards"
            )
            return
        try:
            for partition in range(len(running.pinned), len(running.plan.lanes)):
                self._reader.followed.pin((topic_id, partition))
                running.pinned.append((topic_id, partition))
        except TooManyPinned as error:
            running.plan.stopped = str(error)

    def _forget(self, running: RunningRouter) -> None:
        running.plan.stopped = "it was deleted"
        self._in_turn.remove(running)
        self._board.free(running.view.router.slot, running.view.router.router_id)
        self._lanes -= len(running.plan.lanes)
        for topic in (running.view.source, running.view.dest):
            self._of_topic[topic.topic_id].discard(running.view.router.router_id)
            if not self._of_topic[topic.topic_id]:
                del self._of_topic[topic.topic_id]
        for key in running.pinned:
            self._reader.followed.unpin(key)
        running.pinned.clear()
        source_id = running.view.source.topic_id
        self._by_source[source_id].remove(running)
        if not self._by_source[source_id]:
            del self._by_source[source_id]

    # Work

    def serve(self, turn: Turn) -> Served:
        """A turn of a source: copies what the rings hold of it, within the turn's budget."""
        there = self._by_source.get(turn.key[0])
        if there is None or self._closed:
            return Served(0, False)
        there.append(there.pop(0))  # another one is first in the next turn
        cost = 0
        for running in there:
            cost += self._work(running, turn.budget_bytes - cost)
            if cost >= turn.budget_bytes:
                return Served(cost, True)
        return Served(cost, False)

    def _work(self, running: RunningRouter, budget_bytes: int) -> int:
        """Carries out what the plan says; returns what it cost."""
        cost = 0
        while cost < budget_bytes:
            room = 0 if self._gated else self._outbox.room_bytes()
            if not room:
                self._starved.add(running.view.source.topic_id)
            decision = running.plan.next(partial(self._head, running), room, self._now_ns())
            if decision is None:
                break
            self._touched.add(running)
            page = None if isinstance(decision, Load) else self._from_rings(running, decision)
            if page is None:
                if len(self._tasks) >= TASKS_MAX:
                    running.plan.lanes[decision.partition].unread()
                    self._starved.add(running.view.source.topic_id)
                    break
                self._tasks.start(
                    self._load(running, decision.partition)
                    if isinstance(decision, Load)
                    else self._from_store(running, decision)
                )
                continue
            cost += page.read_bytes + PAGE_COST_BYTES
            self._take_page(running, decision.partition, page)
        return cost

    def _head(self, running: RunningRouter, partition: int) -> int | None:
        return self._reader.followed.head((running.view.source.topic_id, partition))

    async def _load(self, running: RunningRouter, partition: int) -> None:
        lane = running.plan.lanes[partition]
        key = (running.view.source.topic_id, partition)
        place = (running.view.router.cursor_id, partition)
        try:
            await self._reader.head(key)  # followed first, so that no commit falls in between
            positions = await self._ledger.read(cursors.positions_of, [place])
        except LedgerError as error:
            self._hold(running, f"its position cannot be read: {error}")
            lane.unread()
            return
        if place in positions:
            lane.loaded(positions[place])
            running.plan.release()
            self._wake(running)
        else:  # it was deleted, which the next look notices
            lane.unread()
            self._hold(running, "its cursor is gone")

    def _from_rings(self, running: RunningRouter, asked: Read) -> SourcePage | None:
        """A page, if the rings hold its first record."""
        key = (running.view.source.topic_id, asked.partition)
        page = self._reader.from_rings(
            key, asked.cursor, running.page_records, self._page_bytes, running.passes
        )
        if page is None:
            return None
        return SourcePage(page.items, asked.cursor, page.reached, 0, page.read_bytes)

    async def _from_store(self, running: RunningRouter, asked: Read) -> None:
        """Reads a page that the rings do not hold, and takes it."""
        lane = running.plan.lanes[asked.partition]
        key = (running.view.source.topic_id, asked.partition)
        async with self._pages:
            try:
                page = await self._reader.page(
                    key, asked.cursor, await self._reader.head(key),
                    limit=STORED_PAGE_RECORDS, bytes_max=self._page_bytes, passes=running.passes,
                )  # fmt: skip
            except _CANNOT_READ as error:
                lane.unread()
                self._hold(running, f"its source cannot be read after offset {asked.cursor}"
                                    f" of partition {asked.partition}: {error}")  # fmt: skip
                return
            tombstone = page.tombstone
            if tombstone is not None and tombstone.reason == QUARANTINED:
                lane.unread()
                self._hold(
                    running,
                    f"offsets {tombstone.gap_from} to {tombstone.gap_to} of partition"
                    f" {asked.partition} are in quarantine; see `headgate quarantine`",
                )
                return
            start, skipped = max(asked.cursor, page.earliest_seq - 1), 0
            if tombstone is not None:
                start = max(start, tombstone.gap_to)
                if tombstone.reason in _LOSSES:
                    skipped = tombstone.gap_to - asked.cursor
            if page.reached == asked.cursor:
                lane.unread()
                self._hold(running, f"nothing can be read after offset {asked.cursor} of partition"
                                    f" {asked.partition} yet")  # fmt: skip
                return
            self._take_page(
                running, asked.partition,
                SourcePage(page.items, min(start, page.reached), page.reached, skipped, 0),
            )  # fmt: skip
        self._wake(running)

    def _take_page(self, running: RunningRouter, partition: int, page: SourcePage) -> None:
        """Appends the frame of a page; of its first records, if the destination takes no more."""
        plan, view = running.plan, running.view
        lane = plan.lanes[partition]
        items, start, reached, skipped, _ = page
        if not items:
            lane.passed(reached, reached - start, skipped)
            self._unflushed[lane] = running
            plan.release()
            return
        step = lane.frame(reached)
        if step is None:
            return
        if not plan.may_copy or self._closed:
            lane.unread()
            return
        if self._gated:
            lane.unread()
            self._starved.add(view.source.topic_id)
            return
        if not self._outbox.knows(view.dest):
            lane.unread()
            if not running.learning:
                running.learning = True
                self._tasks.start(self._learn(running))
            self._hold(running, "")
            return
        while True:
            parts = parts_of(items, view.dest.topic_id, view.dest.config.partitions, partition)
            advance = Advance(view.router.cursor_id, partition, step.expected, reached, True)
            # A name of its own: other frames may be appended during this one's append, since what
            # was committed meanwhile is delivered immediately.
            self._tickets = ticket = self._tickets + 1
            settled = partial(self._settled, running, partition, ticket)
            try:
                self._outbox.append(view.dest, parts, advance, settled)
            except RingShareUsed as error:
                lane.unread(error.needed_bytes)
                self._starved.add(view.source.topic_id)
                return
            except (DestinationFull, FrameTooLong) as error:
                if len(items) == 1:
                    lane.unread()
                    self._hold(running, str(error))
                    return
                items = items[: len(items) // 2]
                reached = items[-1][0]
                continue
            break
        counts = Counts(len(items), reached - start - len(items), skipped)
        lane.appended(ticket, step._replace(next=reached), counts)
        plan.release()

    async def _learn(self, running: RunningRouter) -> None:
        try:
            await self._outbox.learn(running.view.dest)
        except LedgerError as error:
            self._hold(running, f"how full its destination is cannot be read: {error}")
        else:
            running.plan.release()
            self._wake(running)
        finally:
            running.learning = False

    def _settled(self, running: RunningRouter, partition: int, ticket: int, stored: bool) -> None:
        running.plan.resolved(partition, ticket, stored=stored)
        self._touched.add(running)
        self._wake(running)
        self._wake_starved()

    def _hold(self, running: RunningRouter, reason: str) -> None:
        now_ns = self._now_ns()
        running.plan.hold(reason, now_ns)
        running.standing.hold(reason, now_ns)
        self._touched.add(running)

    def _wake(self, running: RunningRouter) -> None:
        self._dirty([(running.view.source.topic_id, Kind.ROUTE)], self._now_ns())

    def _wake_starved(self) -> None:
        if self._starved and not self._gated and self._outbox.room_bytes():
            starved, self._starved = self._starved, set()
            self._dirty([(topic_id, Kind.ROUTE) for topic_id in starved], self._now_ns())

    # The flush of cursors (delivery/flush.py)

    def moves(self, limit: int) -> Sequence[CursorMove]:
        """Moves over what no frame carries."""
        found: list[CursorMove] = []
        for lane, running in list(self._unflushed.items()):
            if len(found) >= limit:
                break
            step = lane.flush()
            if step is None:
                if not lane.wants_flush:
                    del self._unflushed[lane]
                continue
            del self._unflushed[lane]
            cursor_id = running.view.router.cursor_id
            found.append(CursorMove(cursor_id, step.partition, step.expected, step.next))
            self._flushing[cursor_id, step.partition] = running
        return found

    def flushed(self, move: CursorMove, *, moved: bool) -> None:
        """The outcome of one of ``moves``."""
        running = self._flushing.pop((move.cursor_id, move.partition))
        running.plan.flushed(move.partition, moved=moved)
        lane = running.plan.lanes[move.partition]
        if lane.wants_flush:  # a page was passed meanwhile
            self._unflushed[lane] = running
        self._touched.add(running)
        self._wake(running)
