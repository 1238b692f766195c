"""No wake-up is lost (T16): appends at random phases, under a virtual clock.

Commit log, doorbell, commit feed, dispatcher, ready set, hub and rings are the real ones; the loop
and the clock are turned here. An append is published and then rung, each at a time of its own, so
it falls before, between and within the loop's callbacks, which take time too. Now and then another
callback holds the loop for up to 10 ms, or a client takes nothing for up to 20 ms.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import re
import select
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from daemon.intake import commit_feed
from daemon.intake.commit_feed import CommitFeed
from delivery.dispatch import Dispatcher
from delivery.filters import Filter
from delivery.ready import Kind, PriorityInputs, ReadySet
from delivery.scheduler.scheduler import BandedReadySet
from delivery.streams.formats import NDJSON
from delivery.watch.tail_encoder import Shape
from ledger.types import Commit
from shards import layout as at
from shards.alarms import AlarmBoard
from shards.commitlog import CommitLog
from shards.doorbell import Doorbells
from tests.delivery.fifo import FifoReadySet
from tests.delivery.node import Node, ledger_thread, node_in, raise_it
from tests.delivery.watch.watching import Watching, watching
from uploader.l0.records import Record

MS = 1_000_000
LATE_NS = 50 * MS
WRITE_NS = 5_000
BUSY_NS = 10 * MS
STUCK_NS = 20 * MS
COALESCE_NS = 20 * MS
APPEND_MEAN_NS = 4 * MS
RING_BYTES = 1 << 20  # nobody falls out of the tail within 50 ms
TAGS = ("a", "b")

_SEQ = re.compile(rb'"partition":(\d+),"seq":(\d+)')


class World:
    """The virtual loop and clock: events of others by time, and the callbacks of the loop."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ns = 0
        self._count = itertools.count()
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._soon: deque[Callable[[], None]] = deque()

    def at(self, when_ns: int, event: Callable[[], object]) -> None:
        """Something outside the loop happens then."""
        heapq.heappush(self._events, (when_ns, next(self._count), event))

    def call_soon(self, callback: Callable[[], None], /) -> object:
        self._soon.append(callback)
        return None

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> Handle:
        handle = Handle(callback)
        self.at(self.now_ns + round(delay_s * 1e9), lambda: self._soon.append(handle))
        return handle

    def spend(self, ns: int) -> None:
        """The loop's callback takes this long; what happens meanwhile, happens."""
        end_ns = self.now_ns + ns
        self._happen(end_ns)
        self.now_ns = end_ns

    def step(self, bell: Callable[[], bool], rung: Callable[[], None]) -> bool:
        """One callback, or the next event of others; False when there is nothing more."""
        if bell():
            self._soon.append(rung)
        if self._soon:
            self._soon.popleft()()
            self.spend(self.rng.randrange(50_000))
            return True
        if self._events:
            self.now_ns = max(self.now_ns, self._events[0][0])
            self._happen(self.now_ns)
            return True
        return False

    def _happen(self, until_ns: int) -> None:
        while self._events and self._events[0][0] <= until_ns:
            when_ns, _, event = heapq.heappop(self._events)
            self.now_ns = max(self.now_ns, when_ns)
            event()


class Handle:
    """A callback that can be cancelled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def __call__(self) -> None:
        if self._callback is not None:
            self._callback()


class Arrivals:
    """An outlet that notes when each record arrives; each must come once and in order."""

    def __init__(self, world: World) -> None:
        self.drained: Callable[[], None] | None = None
        self.closed_by_peer: Callable[[], None] | None = None
        self.closed = False
        self.stuck = False
        self.writable = True
        self.at_ns: dict[tuple[int, int], int] = {}
        self._last = [0, 0, 0]
        self._world = world

    def write(self, data: bytes) -> None:
        assert self.writable
        for found in _SEQ.finditer(data):
            partition, seq = int(found[1]), int(found[2])
            assert seq > self._last[partition], "again, or out of order"
            self._last[partition] = seq
            self.at_ns[partition, seq] = self._world.now_ns
        self.writable = not self.stuck
        self._world.spend(WRITE_NS)

    def stick(self) -> None:
        """The client takes nothing more."""
        self.stuck = True

    def take(self) -> None:
        """The client takes what was written to it, and all that comes."""
        self.stuck = False
        if not self.writable:
            self.writable = True
            assert self.drained is not None
            self.drained()

    def end(self, data: bytes = b"") -> None:
        self.closed = True


class Rig:
    """A shard's way from the commit log to its watchers."""

    def __init__(self, node: Node, made: Watching, feed: CommitFeed, bells: Doorbells,
                 log: CommitLog, ready: ReadySet, seed: int) -> None:  # fmt: skip
        self.node, self.made, self.feed, self.bells, self.log = node, made, feed, bells, log
        self.world = World(seed)
        self.published_ns: dict[tuple[int, int], int] = {}
        self.tags: dict[tuple[int, int], str] = {}
        self._poll = select.poll()
        self._poll.register(bells.fds[0], select.POLLIN)
        self._publish_ns = 0
        self.dispatcher = Dispatcher(ready, lambda _: PriorityInputs(), lambda: self.world.now_ns)
        self.dispatcher.start(self.world, {Kind.WATCH: made.hub.serve}, raise_it)

    def take(self, commit: Commit) -> None:
        moved = self.made.partitions.followed.apply(commit)
        self.made.hub.committed(moved, commit.published_ns)

    def rung(self) -> None:
        """As a shard does when its bell rings."""
        self.bells.clear(0)
        self.world.spend(self.world.rng.randrange(20_000))
        self.feed.follow()

    def hook(self) -> None:
        """As a shard does with each request that it takes."""
        if self.node.segment.words[at.G_COMMITS] != self.feed.seen:
            self.feed.follow()
            self.dispatcher.serve_now()

    def append(self) -> None:
        """A record is committed; its commit is published, then the bell is rung."""
        rng, world = self.world.rng, self.world
        partition, tag = rng.randrange(3), rng.choice(TAGS)
        self.node.produce(0, {partition: [Record("1", tag=tag)]})
        commit = self.node.commit(0)
        assert commit is not None
        place = (partition, commit.heads[0].head_seq)
        self.tags[place] = tag
        self._publish_ns = max(self._publish_ns + 1, world.now_ns + rng.randrange(MS))

        def publish() -> None:
            self.log.publish(commit, world.now_ns)
            self.published_ns[place] = world.now_ns

        world.at(self._publish_ns, publish)
        world.at(self._publish_ns + rng.randrange(MS // 4), lambda: self.bells.ring(0))

    def busy(self) -> None:
        """Another callback holds the loop; with requests in it, it looks for commits."""
        end_ns = self.world.now_ns + self.world.rng.randrange(BUSY_NS)
        looks = self.world.rng.random() < 0.5
        while self.world.now_ns < end_ns:
            self.world.spend(MS // 2)
            if looks:
                self.hook()

    def run(self, appends: int, outlets: list[Arrivals]) -> None:
        world, rng = self.world, self.world.rng
        when_ns = 0
        for _ in range(appends):
            when_ns += int(rng.expovariate(1 / APPEND_MEAN_NS))
            if rng.random() < 0.1:
                when_ns += 2 * LATE_NS  # nothing comes that would make good what was forgotten
            world.at(when_ns, self.append)
            if rng.random() < 0.1:
                world.at(when_ns - rng.randrange(MS), lambda: world.call_soon(self.busy))
            if rng.random() < 0.1:
                outlet = rng.choice(outlets)
                world.at(when_ns, outlet.stick)
                taken = partial(world.call_soon, outlet.take)
                world.at(when_ns + rng.randrange(STUCK_NS), taken)
        while world.step(lambda: bool(self._poll.poll(0)), self.rung):
            continue


@contextmanager
def rig_in(folder: Path, ready: ReadySet, seed: int) -> Iterator[Rig]:
    with ExitStack() as stack:
        # The feed ends a slice by the real clock and goes on in asyncio's loop, which stands still
        # here: on a busy machine a commit would wait for the next append.
        stack.enter_context(patch.object(commit_feed, "SLICE_NS", 3600 * 1000 * MS))
        node = stack.enter_context(node_in(folder, ring_bytes=RING_BYTES))
        made = stack.enter_context(watching(node))
        bells = Doorbells.create(1)
        stack.callback(bells.close)
        log = CommitLog(node.segment)
        log.start(0)

        def ended() -> None:
            raise AssertionError("the feed cannot read a commit")

        rigs: list[Rig] = []
        feed = CommitFeed(
            log, stack.enter_context(ledger_thread(node)), AlarmBoard(node.segment, 0),
            random.Random(1), lambda commit: rigs[0].take(commit), ended, ended,
        )  # fmt: skip
        rigs.append(Rig(node, made, feed, bells, log, ready, seed))
        yield rigs[0]
        rigs.clear()


def check(ready: ReadySet, appends: int, seed: int) -> None:
    async def main(folder: Path) -> None:
        with rig_in(folder, ready, seed) as rig:
            outlets = [Arrivals(rig.world) for _ in range(4)]
            filters = [Filter(), Filter(), Filter(tag="a"), Filter()]
            for outlet, each in zip(outlets, filters, strict=True):
                shape = Shape(NDJSON, each, shows_partition=True)
                topic = rig.node.topic
                cursors = {rig.node.key(partition): 0 for partition in range(3)}
                rig.made.hub.add(outlet, shape, [topic], cursors, [topic.topic_id])
            await rig.made.rest()
            rig.made.hub._dirty = rig.dispatcher.dirty
            rig.made.hub._now_ns = lambda: rig.world.now_ns
            rig.run(appends, outlets)
            assert len(rig.published_ns) == appends
            for outlet, each in zip(outlets, filters, strict=True):
                wanted = {p for p in rig.published_ns if not each or rig.tags[p] == "a"}
                assert set(outlet.at_ns) == wanted
                waits_ns = [outlet.at_ns[p] - rig.published_ns[p] for p in wanted]
                assert max(waits_ns) <= LATE_NS, f"{max(waits_ns) / MS} ms"
            rig.made.hub.close()

    # In memory: what is proved does not depend on a disk, which takes 10 ms for a commit.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        asyncio.run(main(Path(folder)))


def ready_sets() -> list[Callable[[], ReadySet]]:
    def coalescing() -> ReadySet:
        ready = BandedReadySet()
        ready.set_pressure(COALESCE_NS, False, 0)
        return ready

    return [FifoReadySet, BandedReadySet, coalescing]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["fifo", "bands", "bands that coalesce"])
def test_each_append_at_a_random_phase_is_delivered_within_50_ms(kind: int) -> None:
    check(ready_sets()[kind](), appends=400, seed=kind)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "appends"), [(1, 30_000), (2, 10_000)], ids=["bands", "bands that coalesce"]
)
def test_very_many_appends(kind: int, appends: int) -> None:
    check(ready_sets()[kind](), appends=appends, seed=16 + kind)
