"""The subscriptions that a shard owns: loads them, serves them in turns, answers what is asked.

    start -> the journal of a dead predecessor is written into the ledger
    settings change -> ``look`` loads the subscriptions of this shard, with what is finished
    a commit moves a topic -> ``committed`` -> a turn of the dispatcher -> ``serve``
    a record that is not at hand -> a task loads it -> another turn
    a request of a consumer -> ``ask`` or ``open``; what it finishes is in the journal before it is
    answered

What one subscription does is in ``running.py``, what it tells in ``shown/``. Tasks and the ledger
are here.

Bounds: LOADS_AT_ONCE records are loaded simultaneously, each with LOAD_BYTES (blocks.py) at most;
the partitions of topics are pinned, which ``reading/followed.py`` bounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, cast

from msgspec import Struct

from compaction.parquet.file_bytes import LakeFileDamaged
from delivery.changes import ChangesFound, DeliveryChanges, FollowedChanges
from delivery.dispatch import Served
from delivery.flush import Flush
from delivery.ledger_thread import LedgerThread
from delivery.pipes.server import Asker
from delivery.reading.blocks import Blocks, Wanted
from delivery.reading.followed import Key
from delivery.reading.partition import QUARANTINED, PartitionReader
from delivery.ready import EntryKey, Kind, Turn
from delivery.routers.outbox import Outbox
from delivery.streams.outlet import Outlet
from delivery.subscriptions import repairs
from delivery.subscriptions.budget import Budgets
from delivery.subscriptions.dead_letters import DeadLetters
from delivery.subscriptions.journaled import JournaledProgress, add, first_epoch
from delivery.subscriptions.pinned import NotServed, PinnedPartitions
from delivery.subscriptions.requests import (
    Acknowledge,
    AnyRequest,
    Consume,
    Describe,
    DescribeKey,
    Leave,
    ListAttempts,
    ListKeys,
    Nack,
    NoteAttempts,
    OwnerRefused,
    OwnerRequest,
    PausePush,
    Poll,
    RepairBlocked,
    Resend,
    RetryKey,
    Seek,
    SenderRequest,
    SkipKey,
    TryPush,
)
from delivery.subscriptions.running import OwnerTools, RunningSubscription
from delivery.subscriptions.schemas import BlockedKeys, ConsumerLeft, PushPaused, Sought
from delivery.subscriptions.shown import inspection
from delivery.subscriptions.shown.inspection import OwnerClocks
from delivery.subscriptions.shown.rows import OwnedRows
from delivery.subscriptions.window.windows import kind_of, moved_over, window_after
from delivery.tasks import Tasks
from ledger.delivery import progress, subscriptions
from ledger.delivery.subscriptions import Subscription, SubscriptionView
from ledger.errors import LedgerError
from ledger.types import Topic
from shards.boards.pushboard import PushSenderRow
from shards.boards.rowboard import Board, SubscriptionRow
from shards.journal import FinishedJournal
from uploader.l0 import L0Error
from uploader.l0.records import RecordsError
from uploader.stores.base import StoreError

A = TypeVar("A")

log = logging.getLogger("headgate.subscriptions")

LOADS_AT_ONCE = 4
_CANNOT_READ = (StoreError, LedgerError, L0Error, LakeFileDamaged, RecordsError)


class PushedHere(Protocol):
    """The senders of one shard, as the owner of a push subscription asks them."""

    def wants_more(self, subscription: Subscription) -> bool:
        """Whether more senders would help it."""

    def rows(self, subscription: Subscription) -> Sequence[PushSenderRow]:
        """What its senders do."""

    async def asked(self, subscription: Subscription, request: SenderRequest) -> Struct | None:
        """The answer to what only they know. Raises OwnerRefused."""

    def forget(self, subscription_id: int) -> None:
        """It was deleted."""


class Subscriptions:
    """The subscriptions of one shard.

    ``version`` changes with subscriptions, ``evictions`` of a topic id with its evictions and
    trims; ``grown`` of a topic id is the change number when it last grew, known before what came
    after it; ``learn`` hears which topics have subscriptions, ``delivered`` of writes: the topic id
    and how long ago the commit was published; ``may_deliver`` says whether the prefix is ours;
    ``failed`` is told of an error that nothing expects. ``senders`` gives this shard's senders of
    push, which are made later.
    """

    def __init__(
        self,
        shard: int,
        shards: int,
        incarnation: int,
        reader: PartitionReader,
        ledger: LedgerThread,
        journal: FinishedJournal,
        flush: Flush,
        outbox: Outbox,
        board: Board[SubscriptionRow],
        dirty: Callable[[Iterable[EntryKey], int], None],
        version: Callable[[], int],
        evictions: Callable[[int], int],
        grown: Callable[[int], int],
        clocks: OwnerClocks,
        learn: Callable[[Topic], None],
        may_deliver: Callable[[], bool],
        delivered: Callable[[int, int], None],
        changes: DeliveryChanges,
        failed: Callable[[Exception], object],
        senders: Callable[[], PushedHere],
    ) -> None:
        self._may_deliver = may_deliver
        self._senders = senders
        self._delivered = delivered
        self._change, self._forget_growth = changes.make, changes.forget_growth
        self._checks_growth = False
        self._shard = shard
        self._shards = shards
        self._reader = reader
        self._ledger = ledger
        self._flush = flush
        self._outbox = outbox
        self._dirty = dirty
        self._evictions = evictions
        self._clocks = clocks
        self._now_ns = clocks.now_ns
        self._learn_topic = learn
        self._incarnation = incarnation
        self._pins = PinnedPartitions(reader)
        self._blocks = Blocks(reader)
        self.budgets = Budgets()
        self.progress = JournaledProgress(journal, flush.hurry, self._wake_all, self._reload)
        flush.add_progress(self.progress)
        self._running: dict[int, RunningSubscription] = {}
        self._held_pushed: set[int] = set()
        self._by_topic: dict[int, list[RunningSubscription]] = {}
        self._seen_evictions: dict[int, int] = {}
        self.tasks = Tasks(failed)
        self._changes = FollowedChanges(
            "subscriptions", version, self._read, self._take, self.tasks
        )
        self._loading: set[Wanted] = set()
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self._letters = DeadLetters(
            outbox, self._blocks, ledger, self._want, self._moved, self._reload, self.tasks.start
        )
        self._tools = OwnerTools(
            self._blocks, self.budgets, self.progress, reader.followed.head,
            lambda topic_id: grown(topic_id) <= self._changes.heard, clocks.now_ns, self._wake,
            lambda subscription: senders().wants_more(subscription),
        )  # fmt: skip
        self._is_foreign = False  # the prefix may be another daemon's
        self.rows = OwnedRows(
            board, shards, ledger, clocks.now_ns, clocks.wall_ms, lambda one: senders().rows(one)
        )
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def heard(self) -> int:
        """The number of the last change that is known here."""
        return self._changes.heard

    # What happens

    def hold_pushed(self, held: Mapping[int, str]) -> None:
        """Why senders send nothing, by the ids of their push subscriptions."""
        for subscription_id in self._held_pushed | held.keys():
            if running := self._running.get(subscription_id):
                running.sender_held = held.get(subscription_id, "")
        self._held_pushed = set(held)

    def look(self) -> None:
        """To be called regularly: notices changes of settings, and what time brings."""
        if self._closed:
            return
        self._changes.stale.update(self._pins.one_with_room())
        self._changes.look()
        if self._is_foreign:
            self._wake_all()
        self._look_for_growth()
        for running in self._running.values():
            if running.tick():
                self._record(running)
                self._wake(running)
            if running.window.dead_letters.waiting:
                self._letters.send(running)
        for topic_id, there in self._by_topic.items():
            seen = self._evictions(topic_id)
            if seen != self._seen_evictions[topic_id]:
                self._seen_evictions[topic_id] = seen
                for partition in range(max(len(each.window.look_aheads) for each in there)):
                    self.tasks.start(self._look_at_evictions((topic_id, partition)))
        self.rows.write(self._running)
        if self.rows.ages.is_due:
            self.tasks.start(self.rows.ages.load())

    def _look_for_growth(self) -> None:
        """All changes are heard, and yet a word tells of growth: it may never have been made."""
        if self._checks_growth or not self._changes.is_current:
            return
        topic_ids = {
            topic_id
            for topic_id, there in self._by_topic.items()
            if any(running.admission.is_behind for running in there)
        }
        if topic_ids:
            self._checks_growth = True
            self.tasks.start(self._check_growth(topic_ids))

    async def _check_growth(self, topic_ids: set[int]) -> None:
        try:
            await self._forget_growth(topic_ids)
            await self._changes.asked()  # a change that owners need not hear of may have its number
        except LedgerError as error:
            log.warning("whether topics have grown is looked for again: %s", error)
        finally:
            self._checks_growth = False

    def committed(self, moved: Iterable[Key], published_ns: int) -> None:
        """Commits have moved the heads of these partitions."""
        by_topic = self._by_topic
        keys: set[EntryKey] = set()
        for topic_id, partition in moved if by_topic else ():
            for running in by_topic.get(topic_id, ()):
                running.admission.committed(partition)
                keys.add((topic_id, Kind.CONSUME))
        if keys:
            self._dirty(keys, published_ns)

    def topic_changed(self, topic: Topic) -> None:
        """A topic is new, has other settings, or was deleted."""
        for subscription_id, running in self._running.items():
            view = running.view
            dead_letter_topic = view.subscription.config.dead_letter_topic
            if topic.topic_id == view.topic.topic_id or topic.name == dead_letter_topic:
                self._changes.stale.add(subscription_id)

    def close(self) -> None:
        """Ends all streams and polls: the process will end."""
        if self._closed:
            return
        self._closed = True
        for running in self._running.values():
            running.consumers.end(
                "shutting_down", "the daemon ends; connect again", but_senders=True
            )
        self._changes.close()
        self.tasks.cancel()

    # Requests

    async def ask(self, request: OwnerRequest[A]) -> A:
        """The answer to a request other than a poll. Raises OwnerRefused and LedgerError."""
        return cast(A, await self._asked(cast(AnyRequest, request)))

    async def _asked(self, request: AnyRequest) -> Struct | None:
        try:
            running = await self._find(request)
        except NotServed as found:
            if isinstance(request, Describe):
                return inspection.unserved_state(found, self._shard)
            raise
        match request:
            case Seek():
                return await self._seek(running, request)
            case Resend():
                resent = await repairs.resend(running, request, self._reader, self._blocks)
                self._wake(running)
                return resent
            case RepairBlocked():
                return await repairs.repair(running, request, self._record, self._wake)
            case PausePush():
                return await self._pause(request)
            case TryPush() | NoteAttempts() | ListAttempts():
                return await self._senders().asked(running.view.subscription, request)
        answer = self._answer(running, request)
        durable = self._record(running)
        self._wake(running)
        if durable is not None:
            await durable
        return answer

    async def poll(self, request: Poll, asker: Asker) -> bytes:
        """The answer to a poll, as JSON. If the asker is gone, the next poll is told what may be
        lost with this answer. Raises OwnerRefused and LedgerError."""
        running = await self._find(request)
        try:
            return await running.consumers.poll(request, asker)
        except asyncio.CancelledError:
            asker.is_gone = True
            raise

    def _answer(self, running: RunningSubscription, request: AnyRequest) -> Struct | None:
        wall_at = self._clocks.wall_at
        match request:
            case Consume():
                running.consumers.check(request)
            case Acknowledge():
                return running.acknowledge(request)
            case Nack():
                return running.nack(request)
            case Leave():
                return ConsumerLeft(request.consumer, running.consumers.leave(request.consumer))
            case Describe():
                return inspection.state_of(running, self._shard, self._now_ns(), wall_at)
            case DescribeKey():
                return inspection.key_of(running, request.key, wall_at)
            case ListKeys():
                return BlockedKeys(inspection.blocked(running, request.limit, wall_at))
            case RetryKey() | SkipKey():
                return repairs.unblock(running, request, wall_at)
            case _:
                raise TypeError(f"{type(request).__name__} is not answered here")
        return None

    def open(self, request: Consume, outlet: Outlet) -> None:
        """A stream that ``ask`` has not refused."""
        running = self._running.get(request.subscription_id)
        if running is None or self._closed:
            outlet.end()  # it was deleted since
            return
        running.consumers.open(request, outlet)

    async def _find(self, request: AnyRequest) -> RunningSubscription:
        subscription_id = request.subscription_id
        for _ in range(2):  # it may be newer than a question that is under way
            if subscription_id in self._running or self._closed:
                break
            await self._changes.asked()
        running = self._running.get(subscription_id)
        # What senders have under way while the daemon ends is acknowledged still.
        is_told = isinstance(request, Acknowledge | NoteAttempts)
        if self._closed and not (running is not None and is_told):
            raise OwnerRefused(503, "not_ready", "the daemon stops; ask again")
        if running is None:
            self._pins.check(subscription_id)
        if running is None and not self._changes.is_current:
            raise OwnerRefused(
                503, "not_ready", "the subscriptions of this shard cannot be read now; ask again"
            )
        if running is None:
            raise OwnerRefused(404, "unknown_subscription", "the subscription was deleted")
        return running

    async def _seek(self, running: RunningSubscription, request: Seek) -> Sought:
        """Goes on elsewhere, in another generation: nothing of the former one counts any more."""
        await self._ledger.write(
            subscriptions.seek, request.subscription_id, request.floors, self._clocks.wall_ms()
        )
        await self._changes.read_again(request.subscription_id)
        return Sought(inspection.progress_of(running))

    async def _pause(self, request: PausePush) -> PushPaused:
        """The receiver wants no more. All shards notice, as if a client had paused it."""
        paused = await self._change(
            lambda tx: subscriptions.pause(
                tx, request.subscription_id, request.endpoint, request.because
            )
        )
        if paused is not None:
            log.warning("subscription %s is paused until an operator resumes it: %s",
                        paused.name, request.because)  # fmt: skip
        return PushPaused(paused is not None)

    # Settings

    async def _read(self, heard: int, stale: set[int]) -> ChangesFound[SubscriptionView]:
        await self.progress.replay(lambda lot: self._flush.write(add, lot), asyncio.sleep)
        asked = self._ledger.read(subscriptions.owned, self._shard, self._shards, heard, stale)
        return ChangesFound(*await asked)

    async def _take(self, view: SubscriptionView) -> None:
        subscription = view.subscription
        running = self._running.get(subscription.subscription_id)
        if subscription.deleted_ms is not None:
            if running is not None:
                self._forget(running)
            self.rows.free(subscription)
            self._pins.unpin(view)
            return
        self._learn_topic(view.topic)
        unserved = await self._pins.pin(view)
        if unserved is not None:
            log.warning("subscription %s of topic %s is not served: %s",
                        subscription.name, view.topic.name, unserved.why)  # fmt: skip
            if running is None:
                self.rows.tell(subscription, inspection.unserved_row(unserved))
                return
            view = self._pins.pinned(view)
        if running is None:
            await self._begin(view)
            return
        config, former = subscription.config, running.view.subscription
        if subscription.generation != former.generation:
            known = await self._ledger.read(progress.state_of, subscription.subscription_id)
            if known is None:
                return  # the next look finds that it was deleted
            epoch, head = running.window.epoch, self._reader.followed.head
            running.restart(view, window_after(view, known, epoch, head), known)
        else:
            for partition in range(len(running.window.look_aheads), len(view.partitions)):
                running.window.open(partition, view.partitions[partition][0])
            if kind_of(config) != kind_of(former.config) or config.filter != former.config.filter:
                running.restart(view, moved_over(view, running.window))
            else:
                running.follow(view)
        running.unserved = "" if unserved is None else unserved.why
        running.enter()
        self._record(running)
        self._wake(running)

    async def _begin(self, view: SubscriptionView) -> None:
        """Begins to run a subscription, from what is finished of it."""
        subscription = view.subscription
        known = await self._ledger.read(progress.state_of, subscription.subscription_id)
        if known is None:
            self._pins.unpin(view)
            return
        epoch = first_epoch(known.epoch, self._incarnation)
        window = window_after(view, known, epoch, self._reader.followed.head)
        running = RunningSubscription(view, window, known, self._tools)
        row = self.rows.former(subscription)
        if row is not None:
            running.window.counts.count_on(row)
        self._running[subscription.subscription_id] = running
        self._by_topic.setdefault(view.topic.topic_id, []).append(running)
        self._seen_evictions.setdefault(view.topic.topic_id, -1)
        running.enter()
        self._record(running)
        self._wake(running)

    def _reload(self, subscription_id: int) -> None:
        """The ledger knows it no more, or not in this generation."""
        self._changes.stale.add(subscription_id)

    def _forget(self, running: RunningSubscription) -> None:
        subscription = running.view.subscription
        running.consumers.end("deleted", f"subscription {subscription.name!r} was deleted")
        self.progress.forget(subscription.subscription_id)
        self.budgets.forget(subscription.subscription_id)
        self._senders().forget(subscription.subscription_id)
        del self._running[subscription.subscription_id]
        topic_id = running.view.topic.topic_id
        self._by_topic[topic_id].remove(running)
        if not self._by_topic[topic_id]:
            del self._by_topic[topic_id], self._seen_evictions[topic_id]

    # Work

    def serve(self, turn: Turn) -> Served:
        """A turn of a topic: sends what its subscriptions may send, within the turn's budget."""
        there = self._by_topic.get(turn.key[0])
        if there is None or self._closed:
            return Served(0, False)
        self._is_foreign = not self._may_deliver()
        if self._is_foreign:
            return Served(0, False)  # until the next look
        there.append(there.pop(0))  # another one is first in the next turn
        cost = 0
        is_more = False
        for running in there:
            if cost >= turn.budget_bytes:
                return Served(cost, True)
            why = self.progress.held_because(running.tracked)
            if why:
                running.held = why
                continue
            wanted: list[Wanted] = []
            spent, more = running.serve(turn.budget_bytes - cost, wanted)
            running.is_loading = bool(wanted or running.admission.loading)
            if spent:
                self._delivered(turn.key[0], self._now_ns() - turn.published_ns)
            self._record(running)
            cost += spent
            is_more = is_more or more
            for each in wanted:
                self._want(each)
        return Served(cost, is_more)

    def _record(self, running: RunningSubscription) -> Awaitable[None] | None:
        """Makes durable what was finished, and takes what is to be moved away. Returns what an
        answer must wait for, if anything."""
        self.rows.touch(running)
        if running.window.dead_letters.is_new:
            self._letters.send(running)
        self.progress.touched(running.tracked)
        return self.progress.record(running.tracked)

    def _moved(self, running: RunningSubscription) -> None:
        """A dead letter is stored, so its key may go on."""
        self._record(running)
        self._wake(running)

    def _want(self, wanted: Wanted) -> None:
        # A load brings what follows, too: whoever wants that looks again when it has come.
        if not any(
            each.key == wanted.key and 0 <= wanted.offset - each.offset < each.records
            for each in self._loading
        ):
            self._loading.add(wanted)
            self.tasks.start(self._load(wanted))

    async def _load(self, wanted: Wanted) -> None:
        """Loads a record for all who wait for it."""
        topic_id, partition = wanted.key
        try:
            async with self._loads:
                head = await self._reader.head(wanted.key)
                loaded = await self._blocks.load(*wanted, head, len(self._loading))
        except _CANNOT_READ as error:
            self._hold(topic_id, f"its topic cannot be read from offset {wanted.offset} of"
                                 f" partition {partition} on: {error}")  # fmt: skip
            return
        finally:
            self._loading.discard(wanted)
            for running in self._by_topic.get(topic_id, ()):
                running.admission.loading.discard(partition)
        tombstone = loaded.tombstone
        if tombstone is not None and tombstone.reason == QUARANTINED:
            gap = f"{tombstone.gap_from} to {tombstone.gap_to}"
            self._hold(topic_id, f"offsets {gap} of partition {partition} are in quarantine; see"
                                 f" `headgate quarantine`")  # fmt: skip
            return
        for running in self._those_of(wanted.key):
            running.unreadable = ""
            running.evicted(partition, loaded.earliest_seq, tombstone)
            running.missing(partition, wanted.offset, loaded.following)
            self._record(running)
            self._wake(running)

    async def _look_at_evictions(self, key: Key) -> None:
        """Retention has removed something of a topic, perhaps of this partition."""
        topic_id, partition = key
        try:
            readable = await self._reader.readable(key)
        except LedgerError as error:
            log.warning("what retention removed is looked for again: %s", error)
            self._seen_evictions[topic_id] = -1
            return
        for running in self._those_of(key):
            look_ahead, tombstone = running.window.look_aheads[partition], None
            if is_ahead := look_ahead.floor + 1 < readable.earliest_seq:
                _, tombstone = readable.enter(look_ahead.floor)
            if is_ahead or running.window.resent.look_aheads(partition):
                running.evicted(partition, readable.earliest_seq, tombstone)
                self._record(running)
                self._wake(running)

    def _those_of(self, key: Key) -> Iterator[RunningSubscription]:
        """Subscriptions that deliver a partition. One that was added may have no room yet."""
        topic_id, partition = key
        for running in tuple(self._by_topic.get(topic_id, ())):
            if partition in running.window.look_aheads:
                yield running

    def _hold(self, topic_id: int, why: str) -> None:
        for running in self._by_topic.get(topic_id, ()):
            running.is_loading = False
            running.hold(why)

    def _wake(self, running: RunningSubscription) -> None:
        self._dirty([(running.view.topic.topic_id, Kind.CONSUME)], self._now_ns())

    def _wake_all(self) -> None:
        self._dirty([(topic_id, Kind.CONSUME) for topic_id in self._by_topic], self._now_ns())
