"""The dispatcher over the simple ready set, with a loop and a clock that the test turns by hand."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import pytest

from delivery.dispatch import SLICE_NS, Dispatcher, Served
from delivery.ready import Kind, PriorityInputs, Turn
from delivery.scheduler.scheduler import BandedReadySet
from tests.delivery.fifo import FifoReadySet

INPUTS = PriorityInputs()
MS = 1_000_000


class Handle:
    def __init__(self, due_ns: int, call: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class HandLoop:
    """A loop that runs what is due when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.soon: deque[Callable[[], None]] = deque()
        self.later: list[Handle] = []

    def call_soon(self, callback: Callable[[], None], /) -> object:
        self.soon.append(callback)
        return None

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> Handle:
        handle = Handle(self.now_ns + round(delay_s * 1e9), callback)
        self.later.append(handle)
        return handle

    def turn(self) -> bool:
        """Runs one callback; whether there was one."""
        if not self.soon:
            return False
        self.soon.popleft()()
        return True


class Rig:
    """A dispatcher whose turns take ``turn_ns`` each, over work counted in turns per topic."""

    def __init__(self, turn_ns: int = 1000) -> None:
        self.loop = HandLoop()
        self.turn_ns = turn_ns
        self.left: dict[int, int] = {}
        self.served: list[int] = []
        self.breaks_at = 0
        self.dispatcher = Dispatcher(FifoReadySet(), lambda _: INPUTS, lambda: self.loop.now_ns)
        self.failures: list[Exception] = []
        self.dispatcher.start(self.loop, {Kind.WATCH: self.serve}, self.failures.append)

    def serve(self, turn: Turn) -> Served:
        topic_id, _ = turn.key
        self.loop.now_ns += self.turn_ns
        self.served.append(topic_id)
        if self.breaks_at == topic_id:
            raise OSError("a bug")
        self.left[topic_id] -= 1
        return Served(turn.budget_bytes, self.left[topic_id] > 0)

    def dirty(self, **turns: int) -> None:
        for name, count in turns.items():
            self.left[int(name[1:])] = count
        self.dispatcher.dirty([(int(name[1:]), Kind.WATCH) for name in turns], 0)


def test_what_a_commit_made_ready_is_served_in_the_next_turn_of_the_loop() -> None:
    rig = Rig()
    rig.dirty(t1=1, t2=1)
    assert rig.served == []
    assert rig.loop.turn()
    assert rig.served == [1, 2]
    assert not rig.loop.turn(), "nothing is left, so the loop rests"


def test_a_topic_with_more_work_goes_to_the_end_of_the_queue() -> None:
    rig = Rig()
    rig.dirty(t1=3, t2=1)
    while rig.loop.turn():
        pass
    assert rig.served == [1, 2, 1, 1]


def test_the_loop_gets_a_turn_after_each_slice() -> None:
    rig = Rig(turn_ns=SLICE_NS // 4)
    rig.dirty(t1=10)
    slices = []
    while rig.loop.turn():
        slices.append(len(rig.served))
    assert slices == [4, 8, 10]


def test_commits_during_a_slice_are_served_without_a_second_wake_up() -> None:
    rig = Rig()
    rig.dirty(t1=1)
    rig.dirty(t1=1, t2=1)
    assert len(rig.loop.soon) == 1
    rig.loop.turn()
    assert rig.served == [1, 2]


def test_a_caller_in_a_long_turn_of_the_loop_can_have_a_slice_served_immediately() -> None:
    rig = Rig()
    rig.dispatcher.serve_now()
    assert rig.served == [], "nothing is due"
    rig.dirty(t1=1)
    rig.dispatcher.serve_now()
    assert rig.served == [1]
    rig.dirty(t2=1)
    rig.dispatcher.serve_now()
    assert rig.served == [1, 2]
    assert rig.loop.turn(), "the loop's own slice"
    assert not rig.loop.turn(), "there is one, however often commits came"
    assert rig.served == [1, 2]


def test_a_push_whose_delay_is_over_does_not_wait_for_the_end_of_a_long_turn_of_the_loop() -> None:
    rig = Rig()
    rig.dispatcher.ready = BandedReadySet()
    rig.dispatcher.set_pressure(5_000_000, False)
    rig.dirty(t1=1)
    while rig.loop.turn():
        pass
    rig.dispatcher.serve_now()
    assert rig.served == [], "it is held"
    rig.loop.now_ns += 5_000_000
    rig.dispatcher.serve_now()
    assert rig.served == [1]
    assert not rig.loop.turn(), "the timer is not needed any more"


def test_what_is_left_of_a_slice_in_the_middle_of_a_turn_is_served_by_the_loop() -> None:
    rig = Rig(turn_ns=SLICE_NS)
    rig.dirty(t1=3)
    rig.dispatcher.serve_now()
    assert rig.served == [1]
    while rig.loop.turn():
        pass
    assert rig.served == [1, 1, 1]


def test_a_server_that_appends_in_its_turn_gets_no_turn_within_it() -> None:
    rig = Rig()
    depths: list[int] = []

    def serve(turn: Turn) -> Served:
        depths.append(len(depths) - len(rig.served))
        if len(depths) == 1:
            rig.dirty(t2=1)
        rig.dispatcher.serve_now()
        return rig.serve(turn)

    rig.dispatcher.servers[Kind.WATCH] = serve
    rig.dirty(t1=1)
    while rig.loop.turn():
        pass
    assert (depths, rig.served) == ([0, 0], [1, 2])


def test_a_server_that_fails_is_told_because_its_topic_would_wait_forever() -> None:
    rig = Rig()
    rig.breaks_at = 1
    rig.dirty(t1=1)
    while rig.loop.turn():
        pass
    assert [str(error) for error in rig.failures] == ["a bug"]


def test_the_latency_is_the_average_wait_for_a_turn_and_falls_while_there_are_none() -> None:
    rig = Rig(turn_ns=MS)
    rig.dirty(t1=1, t2=1, t3=1)
    while rig.loop.turn():
        pass
    assert rig.dispatcher.latency_ns() == MS, "of 0, 1 and 2 ms"
    rig.loop.now_ns += 500 * MS
    assert rig.dispatcher.latency_ns() == pytest.approx(MS / math.e)
    rig.loop.now_ns += 500 * MS
    rig.dirty(t1=1)
    while rig.loop.turn():
        pass
    rig.loop.now_ns -= MS
    assert rig.dispatcher.latency_ns() == pytest.approx(MS / math.e**2)


def test_turns_that_may_be_deferred_are_not_part_of_the_latency() -> None:
    ready = BandedReadySet()
    loop = HandLoop()
    dispatcher = Dispatcher(ready, lambda _: PriorityInputs(priority=-1), lambda: loop.now_ns)
    dispatcher.start(loop, {Kind.WATCH: lambda _: Served(1, False)}, lambda _: None)
    dispatcher.dirty([(1, Kind.WATCH)], 0)
    loop.now_ns = 3600 * 1000 * MS
    while loop.turn():
        pass
    assert len(ready) == 0 and dispatcher.latency_ns() == 0


def test_one_turn_in_sixteen_tells_how_long_it_waited_and_none_that_may_be_deferred() -> None:
    loop = HandLoop()
    told: list[int] = []
    priority = 0
    dispatcher = Dispatcher(
        BandedReadySet(), lambda _: PriorityInputs(priority=priority), lambda: loop.now_ns,
        told.append,
    )  # fmt: skip
    dispatcher.start(loop, {Kind.WATCH: lambda _: Served(1, False)}, lambda _: None)

    def serve(topics: range) -> None:
        dispatcher.dirty([(topic_id, Kind.WATCH) for topic_id in topics], loop.now_ns)
        loop.now_ns += 7
        while loop.turn():
            pass

    serve(range(40))
    assert told == [7, 7, 7]
    priority = -1
    serve(range(40, 80))
    assert len(told) == 3
