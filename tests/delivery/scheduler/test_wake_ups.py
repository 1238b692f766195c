"""No wake-up is lost: the dispatcher over the scheduler, in a clock that the test turns (T16).

Appends come at random moments: between the loop's callbacks, while a turn is being served, just
before a timer is due. The load is light, so each must be delivered within 50 ms.
"""

from __future__ import annotations

import random

import pytest

from delivery.dispatch import Dispatcher, Served
from delivery.ready import Kind, PriorityInputs, ReadySet, Turn
from delivery.scheduler.scheduler import BandedReadySet
from tests.delivery.fifo import FifoReadySet
from tests.delivery.node import raise_it
from tests.delivery.test_dispatch import HandLoop
from tests.long import examples

MS = 1_000_000
TOPICS = 20
PRIORITIES = (-1000, -251, -1, 0, 250, 1000, None)


class Appends:
    """Topics with heads and cursors, appends at random phases, and a loop."""

    def __init__(self, ready: ReadySet, rng: random.Random) -> None:
        self.rng = rng
        self.loop = HandLoop()
        self.loop.now_ns = 10**12 + rng.randrange(50 * MS)
        self.ready = ready
        self.dispatcher = Dispatcher(ready, self.inputs, lambda: self.loop.now_ns)
        servers = dict.fromkeys(Kind, self.serve)
        self.dispatcher.start(self.loop, servers, raise_it)
        self.waiting: dict[tuple[int, Kind], list[int]] = {}  # when each was appended
        self.longest_ns = 0
        self.delivered = 0
        self.appended = 0

    def inputs(self, topic_id: int) -> PriorityInputs:
        priority = PRIORITIES[topic_id % len(PRIORITIES)]
        return PriorityInputs(priority, True, self.loop.now_ns - topic_id * 1000 * MS)

    def append(self) -> None:
        key = (self.rng.randrange(TOPICS), self.rng.choice(list(Kind)))
        self.waiting.setdefault(key, []).append(self.loop.now_ns)
        self.appended += 1
        self.dispatcher.dirty([key], self.loop.now_ns)

    def serve(self, turn: Turn) -> Served:
        times = self.waiting.pop(turn.key, [])
        count = self.rng.randint(1, 3)
        for appended_ns in times[:count]:
            self.loop.now_ns += 5_000
            self.longest_ns = max(self.longest_ns, self.loop.now_ns - appended_ns)
            self.delivered += 1
        left = times[count:]
        if left:
            self.waiting[turn.key] = left
        if self.rng.random() < 0.02:  # a commit is followed in the middle of a turn
            self.append()
        return Served(4096 * len(times), bool(self.waiting.get(turn.key)))

    def run(self, appends: int) -> None:
        """Turns the loop until so much was appended and everything is delivered."""
        rng, loop = self.rng, self.loop
        next_ns = loop.now_ns
        while self.appended < appends or loop.soon or any(h.call for h in loop.later):
            loop.later = [handle for handle in loop.later if handle.call is not None]
            timer = min(loop.later, key=lambda handle: handle.due_ns, default=None)
            if loop.soon and rng.random() < 0.7:
                loop.now_ns += rng.randrange(200_000)  # what else the loop does
                loop.turn()
            elif timer is not None and (timer.due_ns <= next_ns or self.appended >= appends):
                loop.now_ns = max(loop.now_ns, timer.due_ns) + rng.randrange(100_000)
                call, timer.call = timer.call, None
                assert call is not None
                call()
            elif self.appended < appends:
                loop.now_ns = max(loop.now_ns, next_ns)
                next_ns = loop.now_ns + int(rng.expovariate(1 / 600_000))
                self.append()
                if rng.random() < 0.01:
                    self.dispatcher.set_pressure(rng.choice([0, 5, 20]) * MS, False)


@pytest.mark.parametrize("make", [BandedReadySet, FifoReadySet])
@pytest.mark.parametrize("seed", range(1))
def test_every_append_is_delivered_within_50_ms_whenever_it_comes(
    make: type[BandedReadySet] | type[FifoReadySet], seed: int
) -> None:
    world = Appends(make(), random.Random(seed))
    world.run(examples(100_000))
    assert world.delivered == world.appended >= examples(100_000)
    assert world.longest_ns <= 50 * MS
    assert world.ready.next_due_ns() is None


def test_what_was_deferred_is_delivered_as_soon_as_it_may_be() -> None:
    world = Appends(BandedReadySet(), random.Random(1))
    world.dispatcher.set_pressure(0, True)
    for _ in range(200):
        world.append()
    world.run(0)
    assert 0 < world.delivered < world.appended
    assert all(PRIORITIES[topic_id % 7] in (-1000, -251, -1) for topic_id, _ in world.waiting)
    world.dispatcher.set_pressure(0, False)
    world.run(0)
    assert world.delivered == world.appended
