"""The subscriptions that a shard owns: loads them, serves them in turns, answers what is asked.

    settings change -> ``look`` loads the subscriptions of this shard, with what is finished
    a commit moves a topic -> ``committed`` -> a turn of the dispatcher -> ``serve``
    a record that is not at hand -> a task loads it -> another turn
    a request of a consumer -> ``ask`` or ``open``

What one subscription does is in ``running.py``, what it tells in ``inspection.py``. Tasks and the
ledger are here.

Bounds: LOADS_AT_ONCE records are loaded simultaneously, each with LOAD_BYTES (blocks.py) at most;
the partitions of topics are pinned, which ``followed.py`` bounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

import msgspec
from msgspec import Struct

from compaction.parquet.file_bytes import LakeFileDamaged
from delivery.dispatch import Served
from delivery.followed import Key, TooManyPinned
from delivery.ledger_thread import LedgerThread
from delivery.partition_reader import QUARANTINED, PartitionReader
from delivery.ready import EntryKey, Kind, Turn
from delivery.subscriptions import inspection
from delivery.subscriptions.blocks import Blocks
from delivery.subscriptions.requests import (
    Acknowledge,
    AnyRequest,
    Consume,
    Describe,
    DescribeKey,
    Leave,
    ListKeys,
    Nack,
    OwnerRefused,
    Poll,
    RetryKey,
    SkipKey,
)
from delivery.subscriptions.running import RunningSubscription, Wanted, policy_of
from delivery.subscriptions.schemas import BlockedKey, BlockedKeys, ConsumerLeft
from delivery.subscriptions.windows import window_for
from delivery.watch.formats import FORMATS
from delivery.watch.outlet import Outlet
from delivery.watch.wire import chunk
from ledger import progress, subscriptions
from ledger.errors import LedgerError
from ledger.subscriptions import SubscriptionView
from ledger.types import Topic
from uploader.l0 import L0Error
from uploader.l0.records import RecordsError
from uploader.stores.base import StoreError

log = logging.getLogger("headgate.subscriptions")

LOADS_AT_ONCE = 4
_CANNOT_READ = (StoreError, LedgerError, L0Error, LakeFileDamaged, RecordsError)

_encoder = msgspec.json.Encoder()


class Subscriptions:
    """The subscriptions of one shard. ``version`` changes with subscriptions; ``learn`` hears which
    topics have some; ``ended`` is called if the process must end."""

    def __init__(
        self,
        shard: int,
        shards: int,
        reader: PartitionReader,
        ledger: LedgerThread,
        dirty: Callable[[Iterable[EntryKey], int], None],
        version: Callable[[], int],
        now_ns: Callable[[], int],
        wall_ms: Callable[[], int],
        learn: Callable[[Topic], None],
        ended: Callable[[], object],
    ) -> None:
        self._shard = shard
        self._shards = shards
        self._reader = reader
        self._ledger = ledger
        self._dirty = dirty
        self._version = version
        self._now_ns = now_ns
        self._wall_ms = wall_ms
        self._learn_topic = learn
        self._ended = ended
        self._blocks = Blocks(reader)
        self._running: dict[int, RunningSubscription] = {}
        self._by_topic: dict[int, list[RunningSubscription]] = {}
        self._pinned: dict[int, list[Key]] = {}
        self._change = 0
        self._seen = -1
        self._stale: set[int] = set()
        self._asking: asyncio.Task[None] | None = None
        self._loading: set[Wanted] = set()
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)
        self.tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    # What happens

    def look(self) -> None:
        """To be called regularly: notices changes of settings, and what time brings."""
        if self._closed:
            return
        if self._asking is None and (self._version() != self._seen or self._stale):
            self._asking = self._start(self._ask())
        for running in self._running.values():
            if running.tick():
                self._wake(running)

    def committed(self, moved: Iterable[Key], published_ns: int) -> None:
        """Commits have moved the heads of these partitions."""
        by_topic = self._by_topic
        if by_topic:
            keys = {(key[0], Kind.CONSUME) for key in moved if key[0] in by_topic}
            if keys:
                self._dirty(keys, published_ns)

    def topic_changed(self, topic: Topic) -> None:
        """A topic has other settings, or was deleted."""
        for running in self._by_topic.get(topic.topic_id, ()):
            self._stale.add(running.view.subscription.subscription_id)

    def close(self) -> None:
        """Ends all streams and polls: the process will end."""
        if self._closed:
            return
        self._closed = True
        for running in self._running.values():
            running.end("shutting_down", "the daemon ends; connect again")
        for task in self.tasks:
            task.cancel()

    # Requests

    async def ask(self, request: AnyRequest) -> bytes:
        """The answer to a request, as JSON. Raises OwnerRefused."""
        running = await self._find(request.subscription_id)
        if isinstance(request, Poll):
            answered = running.poll(request)
            self._wake(running)
            return await answered
        answer = self._answer(running, request)
        self._wake(running)
        return _encoder.encode(answer)

    def _answer(self, running: RunningSubscription, request: AnyRequest) -> Struct | None:
        match request:
            case Consume():
                running.check(request)
            case Acknowledge():
                return running.acknowledge(request)
            case Nack():
                return running.nack(request)
            case Leave():
                return ConsumerLeft(request.consumer, running.leave(request.consumer))
            case Describe():
                return inspection.state_of(running, self._shard, self._now_ns(), self._wall_at)
            case DescribeKey():
                return inspection.key_of(running, request.key, self._wall_at)
            case ListKeys():
                return BlockedKeys(inspection.blocked(running, request.limit, self._wall_at))
            case RetryKey() | SkipKey():
                return self._unblock(running, request)
            case _:
                raise TypeError(f"{type(request).__name__} is not answered here")
        return None

    def open(self, request: Consume, outlet: Outlet) -> None:
        """A stream that ``ask`` has not refused."""
        running = self._running.get(request.subscription_id)
        if running is None or self._closed:
            # It was deleted since, or the stream is one of a former owner.
            self._start(self._open_later(request, outlet))
        else:
            self._opened(running, request, outlet)

    async def _open_later(self, request: Consume, outlet: Outlet) -> None:
        """Opens a stream of a subscription that this process may not know yet."""
        try:
            running = await self._find(request.subscription_id)
            if not outlet.closed:
                self._opened(running, request, outlet)
        except OwnerRefused as refused:
            format_ = next(each for each in FORMATS if each.content_type == request.content_type)
            told = format_.error(refused.code, refused.message, refused.detail)
            outlet.end(chunk(told))

    def _opened(self, running: RunningSubscription, request: Consume, outlet: Outlet) -> None:
        running.open(request, outlet)
        outlet.drained = partial(self._wake, running)
        self._wake(running)

    async def _find(self, subscription_id: int) -> RunningSubscription:
        if subscription_id not in self._running and not self._closed:
            # It may be newer than the last look.
            for _ in range(2):
                if self._asking is None:
                    self._asking = self._start(self._ask())
                await asyncio.wait([self._asking])
                if subscription_id in self._running:
                    break
        running = self._running.get(subscription_id)
        if self._closed:
            raise OwnerRefused(503, "shutting_down", "the daemon ends; ask again")
        if running is None:
            raise OwnerRefused(404, "unknown_subscription", "the subscription was deleted", {})
        return running

    def _unblock(self, running: RunningSubscription, request: RetryKey | SkipKey) -> BlockedKey:
        found = inspection.find_blocked(running, request.key, request.place, self._wall_at)
        if found is None:
            what = (
                f"key {request.key!r}"
                if request.place is None
                else f"message {request.place[1]} of partition {request.place[0]}"
            )
            raise OwnerRefused(
                404, "not_blocked",
                f"{what} is not blocked; GET .../keys lists those that are",
                {"key": request.key},
            )  # fmt: skip
        if isinstance(request, RetryKey):
            running.window.retry(found.partition, found.seq)
        else:
            running.window.moved(found.partition, found.seq)
            running.window.counts.dropped += 1
        return found

    def _wall_at(self, at_ns: int) -> int:
        """The wall clock at a monotonic time, in ms."""
        return self._wall_ms() - (self._now_ns() - at_ns) // 1_000_000

    # Settings

    async def _ask(self) -> None:
        version = self._version()
        stale, self._stale = self._stale, set()
        try:
            change, views = await self._ledger.read(
                subscriptions.owned, self._shard, self._shards, self._change, stale
            )
            for view in views:
                await self._take(view)
            self._seen, self._change = version, change
        except LedgerError as error:
            self._stale |= stale
            log.warning("subscriptions cannot be read, and are looked for again: %s", error)
        finally:
            self._asking = None

    async def _take(self, view: SubscriptionView) -> None:
        subscription_id = view.subscription.subscription_id
        running = self._running.get(subscription_id)
        if view.subscription.deleted_ms is not None:
            if running is not None:
                self._forget(running, "deleted", "the subscription was deleted")
            return
        self._learn_topic(view.topic)
        if running is None:
            await self._load(view)
            return
        running.view = view
        running.window.set_policy(policy_of(view.subscription.config))
        self._wake(running)

    async def _load(self, view: SubscriptionView) -> None:
        """Begins to run a subscription, from what is finished of it."""
        subscription_id, topic_id = view.subscription.subscription_id, view.topic.topic_id
        pinned: list[Key] = []
        try:
            for partition, _ in enumerate(view.partitions):
                self._reader.followed.pin((topic_id, partition))
                pinned.append((topic_id, partition))
        except TooManyPinned as error:
            log.warning("subscription %s is not served: %s", view.subscription.name, error)
            for key in pinned:
                self._reader.followed.unpin(key)
            return
        for key in pinned:
            await self._reader.head(key)  # followed first, so that no commit falls in between
        known = await self._ledger.read(progress.state_of, subscription_id)
        if known is None:  # it was deleted meanwhile, which the next look notices
            for key in pinned:
                self._reader.followed.unpin(key)
            return
        config = view.subscription.config
        window = window_for(config.mode, policy_of(config), known.epoch, reliable=config.reliable)
        for _, partition in pinned:
            window.open(partition, known.floors.get(partition, 0))
        for partition, row, bits in known.rows:
            window.lanes[partition].restore(row, bits)
        running = RunningSubscription(
            view, window, self._blocks, self._reader.followed.head, self._now_ns
        )
        self._pinned[subscription_id] = pinned
        self._running[subscription_id] = running
        self._by_topic.setdefault(topic_id, []).append(running)

    def _forget(self, running: RunningSubscription, code: str, message: str) -> None:
        subscription_id = running.view.subscription.subscription_id
        running.end(code, message)
        del self._running[subscription_id]
        topic_id = running.view.topic.topic_id
        self._by_topic[topic_id].remove(running)
        if not self._by_topic[topic_id]:
            del self._by_topic[topic_id]
        for key in self._pinned.pop(subscription_id):
            self._reader.followed.unpin(key)

    # Work

    def serve(self, turn: Turn) -> Served:
        """A turn of a topic: sends what its subscriptions may send, within the turn's budget."""
        there = self._by_topic.get(turn.key[0])
        if there is None or self._closed:
            return Served(0, False)
        there.append(there.pop(0))  # another one is first in the next turn
        cost = 0
        is_more = False
        for running in there:
            if cost >= turn.budget_bytes:
                return Served(cost, True)
            wanted: list[Wanted] = []
            spent, more = running.serve(turn.budget_bytes - cost, wanted)
            cost += spent
            is_more = is_more or more
            for each in wanted:
                if each not in self._loading:
                    self._loading.add(each)
                    self._start(self._load_records(each))
        return Served(cost, is_more)

    async def _load_records(self, wanted: Wanted) -> None:
        """Loads a record for whoever wants it."""
        topic_id, partition = wanted.key
        try:
            async with self._loads:
                head = await self._reader.head(wanted.key)
                loaded = await self._blocks.load(wanted.key, wanted.offset, head)
        except _CANNOT_READ as error:
            self._hold(topic_id, f"its topic cannot be read from offset {wanted.offset} of"
                                 f" partition {partition} on: {error}")  # fmt: skip
            return
        finally:
            self._loading.discard(wanted)
        tombstone = loaded.tombstone
        if tombstone is not None and tombstone.reason == QUARANTINED:
            gap = f"{tombstone.gap_from} to {tombstone.gap_to}"
            self._hold(topic_id, f"offsets {gap} of partition {partition} are in quarantine; see"
                                 f" `headgate quarantine`")  # fmt: skip
            return
        for running in self._by_topic.get(topic_id, ()):
            running.evicted(partition, loaded.earliest_seq, tombstone)
            self._wake(running)

    def _hold(self, topic_id: int, why: str) -> None:
        for running in self._by_topic.get(topic_id, ()):
            running.hold(why)

    def _wake(self, running: RunningSubscription) -> None:
        self._dirty([(running.view.topic.topic_id, Kind.CONSUME)], self._now_ns())

    # Tasks

    def _start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.critical("subscriptions cannot continue in this process, which ends",
                         exc_info=task.exception())  # fmt: skip
            self._ended()
