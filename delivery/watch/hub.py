"""The watchers of one shard: who gets what, when.

    add -> catch-up task -> LIVE: commits put the watchers of their topics into ``waiting``, a turn
    of the topic serves them -> lagged: catch-up again -> ... -> the client goes, or ``close``

A turn writes at most once for each watcher that waits, and ends in the middle of them when its
budget is spent. A watcher whose outlet has not drained is passed over and costs nothing until it
has. One that has not drained for LAGGED_NS when something is due, or whose next record the rings
no longer hold, has *lagged*: of a lossy topic it gets a tombstone up to the head, of any other it
catches up from wherever the records are. It counts as lagged until it is at the tail again.

Invariants:

- Each partition that is watched is pinned once for each of its watchers.
- A LIVE watcher whose cursor is below a head waits in the topic, or is BLOCKED.
- Nothing is written to an outlet that is not writable.
- A watcher whose outlet has not drained although something is due is in ``_blocked``, in the order
  of time, until it counts as lagged.

Everything belongs to the loop. This module knows no HTTP; the loop's tasks, the clock and the
reader are arguments.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import msgspec

from delivery.dispatch import Served
from delivery.reading.followed import Key, TooManyPinned
from delivery.reading.partition import PartitionReader, RecordPage
from delivery.ready import EntryKey, Kind, Turn
from delivery.streams.events import WatchError
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from delivery.watch.tail_encoder import Encoded, Shape, TailEncoder
from delivery.watch.watcher import Watcher
from ledger.types import Topic
from uploader.lru import LruCache

log = logging.getLogger("headgate.watch")

LAGGED_NS = 1_000_000_000
WRITE_COST_BYTES = 4096  # a write costs about as much as encoding 4 KiB
HEARTBEAT_NS = 15_000_000_000
TICKS_PER_ROUND = 50  # each tick looks at this part of the watchers
PAGE_RECORDS = 1_000
# Of a catch-up, without names and escapes; a larger record is a page of its own.
PAGE_BYTES = 128 << 10
# Pages that are read or encoded simultaneously; the watchers beyond them wait for their turn.
CATCH_UPS_AT_ONCE = 16
# Between the look-up of a topic and the start of its stream, it may change; about 1 KB each.
CHANGES_KEPT = 4_096

LAGGED = "lagged"  # a tombstone's reason


class WatchedTopic:
    """A topic with watchers. ``waiting`` are those that the next turns serve, in order."""

    __slots__ = ("lagged", "lossy", "name", "partitions", "topic_id", "waiting", "watchers")

    def __init__(self, topic: Topic) -> None:
        self.topic_id = topic.topic_id
        self.name = topic.name
        self.lossy = topic.config.lossy
        self.partitions = topic.config.partitions
        self.watchers: dict[Watcher, None] = {}
        self.waiting: OrderedDict[Watcher, None] = OrderedDict()
        self.lagged = 0  # of the watchers


class _Same(NamedTuple):
    """What one watcher of a single partition was given in a turn, and so are all others that are at
    the same place: most of a thousand are, and a look into a cache is a fifth of a write."""

    key: Key
    cursor: int
    shape: Shape
    encoded: Encoded

    def suits(self, watcher: Watcher) -> bool:
        """Whether it is all that this watcher lacks, its position too."""
        return (
            watcher.cursors.get(self.key) == self.cursor
            and watcher.outlet.writable
            and (watcher.shape is self.shape or watcher.shape == self.shape)
        )


class WatchHub:
    """All watchers of one shard.

    ``dirty(keys, published_ns)`` asks the dispatcher for turns; ``told`` turns an error of a read
    into the event that ends a stream; ``delivered`` hears how long after its commit's publication
    a write was made, and of which topic; ``coalesce`` says whether several records go in one event;
    ``watched`` hears how many watchers a topic has, and how many of them have lagged, whenever
    that changes.
    """

    def __init__(
        self,
        reader: PartitionReader,
        dirty: Callable[[Iterable[EntryKey], int], None],
        told: Callable[[Exception], WatchError],
        delivered: Callable[[int, int], None],
        coalesce: Callable[[], bool],
        now_ns: Callable[[], int],
        watched: Callable[[int, int, int], None],
    ) -> None:
        self._reader = reader
        self._followed = reader.followed
        self._encoder = TailEncoder(reader.followed, reader.tail)
        self._dirty = dirty
        self._told = told
        self._delivered = delivered
        self._coalesce = coalesce
        self._now_ns = now_ns
        self._watched = watched
        self._topics: dict[int, WatchedTopic] = {}
        self._watchers: dict[Watcher, None] = {}
        self._blocked: OrderedDict[Watcher, None] = OrderedDict()
        self.lagged = 0  # watchers that have lagged and are not at the tail again
        self.lags = 0  # how often one has lagged
        self._round: deque[Watcher] = deque()  # whose silence is looked at next
        self._changed: LruCache[int, Topic] = LruCache(CHANGES_KEPT)
        self._reading = asyncio.Semaphore(CATCH_UPS_AT_ONCE)
        self._same: _Same | None = None  # of the turn
        self._closing = False

    def __len__(self) -> int:
        return len(self._watchers)

    @property
    def topics(self) -> Iterable[WatchedTopic]:
        """The topics that are watched."""
        return self._topics.values()

    def topic(self, topic_id: int) -> WatchedTopic | None:
        """A topic, if it is watched."""
        return self._topics.get(topic_id)

    # Coming and going

    def add(
        self,
        outlet: Outlet,
        shape: Shape,
        topics: Iterable[Topic],
        cursors: dict[Key, int],
        whole: Iterable[int],
        first: bytes = b"",
    ) -> None:
        """Begins to serve a client. ``topics`` are those of the cursors; ``first`` are events that
        it gets before all others."""
        if outlet.closed:
            return
        topics, whole = list(topics), frozenset(whole)
        for topic in topics:
            watched = self._topics.get(topic.topic_id)
            if watched is not None and topic.topic_id in whole:
                # Partitions that were added after the client's request was looked at.
                for partition in range(topic.config.partitions, watched.partitions):
                    cursors.setdefault((topic.topic_id, partition), 0)
                    shape = _of_several(shape)
        try:
            self._pin(cursors)
        except TooManyPinned as error:
            told = self._told(error)
            outlet.end(chunk(shape.format.error(told.code, told.message, told.detail)))
            return
        watcher = Watcher(outlet, shape, cursors, whole)
        outlet.drained = partial(self._drained, watcher)
        outlet.closed_by_peer = partial(self._forget, watcher)
        self._watchers[watcher] = None
        self._round.append(watcher)
        for topic in topics:
            watched = self._topics.get(topic.topic_id)
            if watched is None:
                watched = self._topics[topic.topic_id] = WatchedTopic(topic)
            watched.watchers[watcher] = None
            self._tell_watched(watched)
        watcher.write(shape.format.opening() + first, self._now_ns())
        if self._closing:
            self._end(watcher, shape.format.closing())
            return
        self._start_catch_up(watcher)
        for topic in topics:
            latest = self._changed.get(topic.topic_id)
            if latest is not None:  # since the client asked, perhaps
                self.topic_changed(latest)

    def _pin(self, keys: Iterable[Key]) -> None:
        """All of them or none. Raises TooManyPinned."""
        pinned: list[Key] = []
        try:
            for key in keys:
                self._followed.pin(key)
                pinned.append(key)
        except TooManyPinned:
            for key in pinned:
                self._followed.unpin(key)
            raise

    def _forget(self, watcher: Watcher) -> None:
        """The client is gone, or its stream has ended."""
        if watcher not in self._watchers:
            return
        del self._watchers[watcher]
        self._blocked.pop(watcher, None)
        self._mark(watcher, lagged=False)
        if watcher.catch_up is not None:
            watcher.catch_up.cancel()
            # Otherwise watcher, task and the traceback of its end keep each other, and a page.
            watcher.catch_up = None
        for topic_id in list(watcher.keys):
            self._leave(watcher, topic_id)

    def _leave(self, watcher: Watcher, topic_id: int) -> None:
        for key in watcher.keys.pop(topic_id):
            del watcher.cursors[key]
            self._followed.unpin(key)
        topic = self._topics[topic_id]
        del topic.watchers[watcher]
        topic.waiting.pop(watcher, None)
        topic.lagged -= watcher.lagged
        if not topic.watchers:
            del self._topics[topic_id]
        self._tell_watched(topic)

    def _tell_watched(self, topic: WatchedTopic) -> None:
        self._watched(topic.topic_id, len(topic.watchers), topic.lagged)

    def _end(self, watcher: Watcher, data: bytes) -> None:
        """Ends a stream with a last event."""
        watcher.write(data, self._now_ns())
        watcher.outlet.end()
        self._forget(watcher)

    def _fail(self, watcher: Watcher, error: Exception) -> None:
        """Ends a stream that cannot go on, and says why."""
        told = self._told(error)
        self._end(watcher, watcher.shape.format.error(told.code, told.message, told.detail))

    def close(self) -> None:
        """The process ends: so do all streams, each with a last event."""
        self._closing = True
        for watcher in list(self._watchers):
            self._end(watcher, watcher.shape.format.closing())

    # Commits

    def committed(self, moved: Iterable[Key], published_ns: int) -> None:
        """Partitions have new records: their watchers wait for a turn."""
        topics = self._topics
        keys: list[EntryKey] = []
        for topic_id in {key[0] for key in moved}:
            topic = topics.get(topic_id)
            if topic is not None:
                topic.waiting.update(topic.watchers)
                keys.append((topic_id, Kind.WATCH))
        if keys:
            self._dirty(keys, published_ns)

    def serve(self, turn: Turn) -> Served:
        """Writes to the watchers of a topic that wait, as far as the turn's budget goes."""
        topic = self._topics.get(turn.key[0])
        if topic is None:
            return Served(0, False)
        spent = 0
        waiting = topic.waiting
        coalesced = self._coalesce()
        while waiting and spent < turn.budget_bytes:
            watcher, _ = waiting.popitem(last=False)
            if watcher.catch_up is not None:
                continue
            same = self._same
            if same is not None and same.suits(watcher):
                watcher.cursors[same.key] = same.encoded.reached
                watcher.outlet.write(same.encoded.data)  # with its position
                watcher.written_ns = now_ns = self._now_ns()
                watcher.told = True
                self._delivered(topic.topic_id, now_ns - turn.published_ns)
                spent += len(same.encoded.data) + WRITE_COST_BYTES
            else:
                spent += self._deliver(watcher, topic, turn, coalesced)
        self._same = None
        return Served(spent, bool(waiting))

    def _deliver(self, watcher: Watcher, topic: WatchedTopic, turn: Turn, coalesced: bool) -> int:
        """One write to a LIVE watcher; returns what it cost."""
        outlet = watcher.outlet
        if not outlet.writable:
            self._block(watcher)
            return 0
        cursors, shape = watcher.cursors, watcher.shape
        data = b""
        is_behind = False
        reached: list[tuple[Key, int]] = []
        keys = watcher.keys[topic.topic_id]
        filtered_bytes = self._encoder.filtered_bytes
        for place, key in enumerate(keys):
            head = self._followed.head(key) or 0
            if cursors[key] >= head:
                continue
            if self._encoder.filtered_bytes - filtered_bytes >= turn.budget_bytes:
                is_behind = True
                keys[:] = keys[place:] + keys[:place]  # the next turn begins here
                break
            encoded = self._encoder.encode(key, cursors[key], shape, topic.name, coalesced)
            if encoded is None:  # nothing is written, so no cursor has moved
                self._lagged(watcher)
                return WRITE_COST_BYTES + self._encoder.filtered_bytes - filtered_bytes
            if encoded.data and shape.with_position and encoded.reached >= head:
                self._same = _Same(key, cursors[key], shape, encoded)
            reached.append((key, encoded.reached))
            is_behind = is_behind or encoded.reached < head
            data = data + encoded.data if data else encoded.data
        if reached:
            cursors.update(reached)
            watcher.told = False
        if data:
            self._write_shared(watcher, data)
            self._delivered(topic.topic_id, watcher.written_ns - turn.published_ns)
        if is_behind:
            topic.waiting[watcher] = None  # blocked, if the outlet has not drained by then
        return len(data) + WRITE_COST_BYTES + self._encoder.filtered_bytes - filtered_bytes

    def _write_shared(self, watcher: Watcher, data: bytes) -> None:
        """Writes events that other watchers share, and the position if they lack it."""
        if not watcher.shape.with_position:
            watcher.write(data, self._now_ns())
            return
        watcher.outlet.write(data)
        watcher.written_ns = self._now_ns()
        watcher.told = True

    # Falling back

    def _drained(self, watcher: Watcher) -> None:
        """The client has taken what was written to it."""
        if watcher.drained is not None:
            watcher.drained.set()
        elif watcher.blocked_since_ns:
            now_ns = self._now_ns()
            has_lagged = now_ns - watcher.blocked_since_ns >= LAGGED_NS
            self._unblock(watcher)
            if has_lagged:
                self._lagged(watcher)
                return
            for topic_id in watcher.keys:
                self._topics[topic_id].waiting[watcher] = None
            self._dirty([(topic_id, Kind.WATCH) for topic_id in watcher.keys], now_ns)

    def _block(self, watcher: Watcher) -> None:
        """The outlet has not drained, although something is due."""
        if not watcher.blocked_since_ns:
            watcher.blocked_since_ns = self._now_ns()
            self._blocked[watcher] = None

    def _unblock(self, watcher: Watcher) -> None:
        watcher.blocked_since_ns = 0
        self._blocked.pop(watcher, None)

    def _mark(self, watcher: Watcher, *, lagged: bool) -> None:
        """From now on the watcher counts as lagged, or no longer."""
        if watcher.lagged == lagged:
            return
        watcher.lagged = lagged
        change = 1 if lagged else -1
        self.lagged += change
        self.lags += lagged
        for topic_id in watcher.keys:
            topic = self._topics[topic_id]
            topic.lagged += change
            self._tell_watched(topic)

    def _lagged(self, watcher: Watcher) -> None:
        """Skips what a lossy topic may lose; the rest is caught up."""
        self._mark(watcher, lagged=True)
        data = b""
        for key, cursor in watcher.cursors.items():
            topic = self._topics[key[0]]
            head = self._followed.head(key) or 0
            if topic.lossy and cursor < head:
                origin = watcher.shape.origin(key, topic.name)
                data += watcher.shape.format.tombstone(origin, cursor + 1, head, LAGGED)
                watcher.cursors[key] = head
        if data:
            watcher.write(data, self._now_ns())
        self._start_catch_up(watcher)

    def _start_catch_up(self, watcher: Watcher) -> None:
        self._unblock(watcher)
        watcher.drained = asyncio.Event()
        watcher.catch_up = asyncio.get_running_loop().create_task(self._catch_up(watcher))

    async def _catch_up(self, watcher: Watcher) -> None:
        try:
            while await self._read_pages(watcher):
                continue  # commits came meanwhile
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is ends this stream and is told
            watcher.catch_up = None
            self._fail(watcher, error)
            return
        watcher.catch_up = watcher.drained = None
        self._mark(watcher, lagged=False)
        heads = [
            (self._topics[key[0]].name, key[1], seq) for key, seq in sorted(watcher.cursors.items())
        ]
        if heads:
            watcher.write(watcher.shape.format.caught_up(heads), self._now_ns())

    async def _read_pages(self, watcher: Watcher) -> bool:
        """Writes a page of each partition that has more; False if none has."""
        was_behind = False
        for key in list(watcher.cursors):
            head = self._followed.head(key)
            if head is None:
                head = await self._reader.head(key)
            if watcher.cursors.get(key, head) >= head:
                continue
            was_behind = True
            async with self._reading:
                page = await self._reader.page(
                    key,
                    watcher.cursors[key],
                    head,
                    limit=PAGE_RECORDS,
                    bytes_max=PAGE_BYTES,
                    passes=watcher.shape.filter.matches,
                )
            topic = self._topics.get(key[0])
            if topic is None or key not in watcher.cursors:
                continue  # it was deleted
            self._write_page(watcher, key, topic.name, page)
            del page  # while the client is slow, only its outlet keeps what was read for it
            await self._until_drained(watcher)
        # Another look decides without an await, so that no commit falls in between.
        return was_behind or any(
            cursor < (self._followed.head(key) or 0) for key, cursor in watcher.cursors.items()
        )

    def _write_page(self, watcher: Watcher, key: Key, name: str, page: RecordPage) -> None:
        origin, format_ = watcher.shape.origin(key, name), watcher.shape.format
        data = b""
        if page.tombstone is not None:
            gap = page.tombstone
            data = format_.tombstone(origin, gap.gap_from, gap.gap_to, gap.reason)
        data += format_.records(page.items, origin, len(page.items) > 1)
        watcher.cursors[key] = page.reached
        watcher.told = False
        if data:
            watcher.write(data, self._now_ns())

    async def _until_drained(self, watcher: Watcher) -> None:
        assert watcher.drained is not None
        if watcher.outlet.writable:
            await asyncio.sleep(0)  # a long catch-up shares the loop
            return
        watcher.drained.clear()
        self._block(watcher)
        await watcher.drained.wait()
        self._unblock(watcher)

    # Time, and changes of topics

    def tick(self) -> None:
        """To be called regularly: tells silent clients that the stream lives, and where it is, and
        marks those that have taken nothing for too long."""
        now_ns = self._now_ns()
        while self._blocked:
            watcher = next(iter(self._blocked))
            if now_ns - watcher.blocked_since_ns < LAGGED_NS:
                break
            del self._blocked[watcher]
            self._mark(watcher, lagged=True)
        for _ in range(-(-len(self._round) // TICKS_PER_ROUND)):
            watcher = self._round.popleft()
            if watcher not in self._watchers:
                continue
            self._round.append(watcher)
            if not watcher.outlet.writable or now_ns - watcher.written_ns < HEARTBEAT_NS:
                continue
            data = watcher.shape.format.heartbeat()
            watcher.write(data, now_ns)

    def topic_changed(self, topic: Topic) -> None:
        """A topic has other settings, or is deleted; called for all topics, watched or not."""
        self._changed.keep(topic.topic_id, topic)
        watched = self._topics.get(topic.topic_id)
        if watched is None:
            return
        watched.lossy = topic.config.lossy
        if topic.deleted_ms is not None:
            for watcher in list(watched.watchers):
                self._deleted(watcher, watched)
            return
        added = range(watched.partitions, topic.config.partitions)
        watched.partitions = topic.config.partitions
        keys = [(topic.topic_id, partition) for partition in added]
        for watcher in list(watched.watchers) if keys else ():
            if topic.topic_id not in watcher.whole:
                continue
            try:
                self._pin(keys)
            except TooManyPinned as error:
                self._fail(watcher, error)
                continue
            watcher.cursors.update(dict.fromkeys(keys, 0))
            watcher.keys[topic.topic_id] += keys
            watcher.shape = _of_several(watcher.shape)
            if watcher.catch_up is None:
                self._start_catch_up(watcher)

    def _deleted(self, watcher: Watcher, topic: WatchedTopic) -> None:
        data = watcher.shape.format.topic_deleted(topic.name, topic.topic_id)
        self._leave(watcher, topic.topic_id)
        if watcher.keys:
            watcher.write(data, self._now_ns())
        else:
            self._end(watcher, data)

    def check_invariants(self) -> None:
        """Raises AssertionError unless the invariants in the head of this module hold."""
        for topic_id, topic in self._topics.items():
            assert topic.watchers, f"topic id {topic_id} has no watcher"
            assert all(watcher in topic.watchers for watcher in topic.waiting)
            assert topic.lagged == sum(watcher.lagged for watcher in topic.watchers)
        assert self.lagged == sum(watcher.lagged for watcher in self._watchers)
        assert list(self._blocked) == sorted(self._blocked, key=lambda w: w.blocked_since_ns)
        for watcher in self._watchers:
            assert set(watcher.cursors) == {k for keys in watcher.keys.values() for k in keys}
            is_blocked = watcher.blocked_since_ns > 0
            assert watcher not in self._blocked or is_blocked
            assert watcher in self._blocked or not is_blocked or watcher.lagged
            if watcher.catch_up is not None or is_blocked:
                continue
            for key, cursor in watcher.cursors.items():
                is_waiting = watcher in self._topics[key[0]].waiting
                assert is_waiting or cursor >= (self._followed.head(key) or 0), key


def _of_several(shape: Shape) -> Shape:
    """The shape of a stream that has got a second partition."""
    return msgspec.structs.replace(shape, shows_partition=True, with_position=False)
