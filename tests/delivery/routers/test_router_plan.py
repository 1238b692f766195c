"""The plan of a router: whatever dies, in whatever order fates arrive, each copy is made once."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.partitioner import partition_of
from delivery.reading.lake import Item
from delivery.routers.frames import parts_of
from delivery.routers.router_plan import (
    HOLD_NS,
    NOTHING,
    Counts,
    Lane,
    LaneState,
    Load,
    Read,
    RouterPlan,
    Step,
)
from shards.frame import Part
from tests.long import examples
from uploader.l0 import records
from uploader.l0.records import Record

SOURCES = 2
DESTS = 3
PAGE = 3
# What disturbs everything would leave nothing else to see if it came as often as the rest.
SELDOM = st.sampled_from([False, False, False, True])


class Owner:
    """A process that runs the plan: what it waits for is lost when it dies."""

    def __init__(self, ring: int, partitions: int) -> None:
        self.ring = ring
        self.plan = RouterPlan(partitions)
        self.reads: list[tuple[Read, list[Item], int, int]] = []
        self.loads: list[tuple[int, int]] = []
        self.fates: list[tuple[int, int, bool]] = []
        self.flushes: list[tuple[int, bool]] = []


class Frame(NamedTuple):
    """A frame in a ring."""

    owner: Owner
    ticket: int
    step: Step
    parts: list[Part]


class RoutingMachine(RuleBasedStateMachine):
    """Owners that plan, rings that keep order, and a ledger that judges advances."""

    def __init__(self) -> None:
        super().__init__()
        self.source: list[list[Item]] = [[] for _ in range(SOURCES)]
        self.earliest = [1] * SOURCES
        self.evicted: set[tuple[int, int]] = set()
        self.cursor = [0] * SOURCES
        self.copied: list[list[tuple[int, int]]] = [[] for _ in range(DESTS)]
        self.rings: list[list[Frame]] = [[], []]
        self.owners: dict[int, Owner] = {}
        self.next_owner = 0
        self.tickets = 0
        self.now_ns = 0
        self.start(0)
        for partition in range(SOURCES):
            self.produce(partition, ["yes", "yes", "no"] * 20, None)

    def start(self, ring: int) -> None:
        self.owners[self.next_owner] = Owner(ring, SOURCES)
        self.next_owner += 1

    def owner(self, pick: int) -> int:
        return sorted(self.owners)[pick % len(self.owners)]

    # The source

    @rule(
        partition=st.integers(0, SOURCES - 1),
        tags=st.lists(st.sampled_from(["yes", "no"]), min_size=1, max_size=5),
        key=st.sampled_from([None, "a", "b", "c"]),
    )
    def produce(self, partition: int, tags: list[str], key: str | None) -> None:
        for tag in tags:
            offset = len(self.source[partition]) + 1
            record = Record(f"[{partition},{offset}]", None, key, tag)
            self.source[partition].append((offset, 1000 + offset, record))
        for owner in self.owners.values():
            owner.plan.lanes[partition].wake()

    @rule(partition=st.integers(0, SOURCES - 1), count=st.integers(1, 3))
    def evict(self, partition: int, count: int) -> None:
        before = self.earliest[partition]
        self.earliest[partition] = min(before + count, len(self.source[partition]) + 1)
        self.evicted |= {(partition, o) for o in range(before, self.earliest[partition])}

    # The owners

    def head(self, partition: int) -> int:
        return len(self.source[partition])

    @rule(pick=st.integers(0, 9), room=st.sampled_from([True, True, True, False]))
    def decide(self, pick: int, room: bool) -> None:
        owner = self.owners[self.owner(pick)]
        decision = owner.plan.next(self.head, 1 if room else 0, self.now_ns)
        if isinstance(decision, Load):
            owner.loads.append((decision.partition, self.cursor[decision.partition]))
        elif isinstance(decision, Read):
            assert room
            owner.reads.append(self.page(decision))

    def page(self, asked: Read, size: int = PAGE) -> tuple[Read, list[Item], int, int]:
        """(what was asked, records that pass, reached, skipped)."""
        start = max(asked.cursor, self.earliest[asked.partition] - 1)
        found = self.source[asked.partition][start : start + size]
        reached = found[-1][0] if found else start
        passing = [item for item in found if item[2].tag == "yes"]
        return asked, passing, reached, start - asked.cursor

    @precondition(lambda self: any(owner.loads for owner in self.owners.values()))
    @rule(pick=st.integers(0, 9))
    def loaded(self, pick: int) -> None:
        waiting = [owner for owner in self.owners.values() if owner.loads]
        owner = waiting[pick % len(waiting)]
        partition, position = owner.loads.pop(0)
        owner.plan.lanes[partition].loaded(position)

    @precondition(lambda self: any(owner.reads for owner in self.owners.values()))
    @rule(pick=st.integers(0, 9), fits=st.sampled_from([True, True, True, False]))
    def finish_read(self, pick: int, fits: bool) -> None:
        waiting = [owner for owner in self.owners.values() if owner.reads]
        self.take_page(waiting[pick % len(waiting)], fits=fits)

    def take_page(self, owner: Owner, *, fits: bool) -> None:
        asked, items, reached, skipped = owner.reads.pop(0)
        lane = owner.plan.lanes[asked.partition]
        filtered = reached - asked.cursor - skipped - len(items)
        if not items:
            lane.passed(reached, filtered, skipped)
            return
        step = lane.frame(reached)
        if step is None:
            return
        if not fits:
            lane.unread(1)
            return
        self.tickets += 1
        parts = parts_of(items, 7, DESTS, asked.partition)
        self.rings[owner.ring].append(Frame(owner, self.tickets, step, parts))
        lane.appended(self.tickets, step, Counts(len(items), filtered, skipped))

    @rule(pick=st.integers(0, 9))
    def flush(self, pick: int) -> None:
        owner = self.owners[self.owner(pick)]
        for lane in owner.plan.lanes:
            step = lane.flush()
            if step is None:
                continue
            moved = self.cursor[step.partition] == step.expected
            if moved:
                self.cursor[step.partition] = step.next
            owner.flushes.append((step.partition, moved))

    @precondition(lambda self: any(owner.flushes for owner in self.owners.values()))
    @rule(pick=st.integers(0, 9))
    def flushed(self, pick: int) -> None:
        waiting = [owner for owner in self.owners.values() if owner.flushes]
        partition, moved = (owner := waiting[pick % len(waiting)]).flushes.pop(0)
        owner.plan.flushed(partition, moved=moved)

    @rule(pick=st.integers(0, 9), until=st.booleans())
    def hold(self, pick: int, until: bool) -> None:
        owner = self.owners[self.owner(pick)]
        if until:
            owner.plan.hold("the destination is full", self.now_ns)
        else:
            self.now_ns += HOLD_NS
            owner.plan.release()

    @rule(pick=st.integers(0, 9), really=SELDOM)
    def pause_or_resume(self, pick: int, really: bool) -> None:
        plan = self.owners[self.owner(pick)].plan
        plan.paused ^= really

    # Deaths

    @rule(pick=st.integers(0, 9), really=SELDOM)
    def die(self, pick: int, really: bool) -> None:
        """The owner's process dies; its successor continues its ring."""
        if not really:
            return
        number = self.owner(pick)
        self.start(self.owners.pop(number).ring)

    @precondition(lambda self: len(self.owners) < 3)
    @rule(ring=st.integers(0, 1), really=SELDOM)
    def second_owner(self, ring: int, really: bool) -> None:
        if really:
            self.start(ring)

    @rule(really=SELDOM)
    def daemon_dies(self, really: bool) -> None:
        """The rings are gone with all processes."""
        if not really:
            return
        self.rings = [[], []]
        self.owners.clear()
        self.start(0)

    @precondition(lambda self: any(map(len, self.source)))
    @rule(partition=st.integers(0, SOURCES - 1), size=st.integers(1, 2 * PAGE))
    def another_owner_copies(self, partition: int, size: int) -> None:
        """A page, by an owner that this daemon does not know."""
        asked = Read(partition, self.cursor[partition])
        _, items, reached, _ = self.page(asked, size)
        if reached > asked.cursor:
            self.cursor[partition] = reached
            self.store(parts_of(items, 7, DESTS, partition))

    # The commit

    @precondition(lambda self: any(self.rings))
    @rule(pick=st.integers(0, 1), count=st.integers(1, 4))
    def commit(self, pick: int, count: int) -> None:
        ring = self.rings[pick] or self.rings[1 - pick]
        for frame in ring[:count]:
            step = frame.step
            stored = self.cursor[step.partition] == step.expected
            if stored:
                self.cursor[step.partition] = step.next
                self.store(frame.parts)
            frame.owner.fates.append((step.partition, frame.ticket, stored))
        del ring[:count]

    def store(self, parts: list[Part]) -> None:
        for part in parts:
            for record in records.decode(part.payload):
                source, offset = (int(n) for n in record.data[1:-1].split(","))
                assert record.ts == 1000 + offset
                self.copied[part.partition].append((source, offset))

    @precondition(lambda self: any(owner.fates for owner in self.owners.values()))
    @rule(pick=st.integers(0, 9), which=st.integers(0, 9))
    def tell(self, pick: int, which: int) -> None:
        waiting = [owner for owner in self.owners.values() if owner.fates]
        owner = waiting[pick % len(waiting)]
        partition, ticket, stored = owner.fates.pop(which % len(owner.fates))
        owner.plan.resolved(partition, ticket, stored=stored)

    @rule()
    def settle(self) -> None:
        """All frames are committed, and everybody knows of it."""
        while any(self.rings):
            self.commit(0, 4)
        while any(owner.fates for owner in self.owners.values()):
            self.tell(0, 0)

    @rule(pick=st.integers(0, 9), reads=st.integers(0, 3))
    def work(self, pick: int, reads: int) -> None:
        """An owner decides until it has as many reads on its way."""
        owner = self.owners[self.owner(pick)]
        for _ in range(6):
            self.decide(pick, room=True)
            if owner.loads:
                partition, position = owner.loads.pop(0)
                owner.plan.lanes[partition].loaded(position)
            if len(owner.reads) > reads:
                self.take_page(owner, fits=True)

    # What must hold

    @invariant()
    def the_destination_has_exactly_what_the_cursor_passed_in_order(self) -> None:
        for source in range(SOURCES):
            for dest in range(DESTS):
                found = [offset for s, offset in self.copied[dest] if s == source]
                wanted = [
                    offset
                    for offset, _, record in self.source[source][: self.cursor[source]]
                    if record.tag == "yes" and self.goes_to(source, record) == dest
                ]
                missing = set(wanted) - set(found)
                assert {(source, offset) for offset in missing} <= self.evicted
                assert found == [offset for offset in wanted if offset not in missing]

    def goes_to(self, source: int, record: Record) -> int:
        return source % DESTS if record.key is None else partition_of(record.key, DESTS)

    @invariant()
    def plans_are_consistent(self) -> None:
        for owner in self.owners.values():
            owner.plan.check_invariants()

    def teardown(self) -> None:
        """With one owner left that is not disturbed, everything is copied."""
        while len(self.owners) > 1:
            self.owners.pop(max(self.owners))
        (owner,) = self.owners.values()
        owner.plan.paused = False
        for _ in range(100 + 10 * sum(map(len, self.source))):
            self.now_ns += HOLD_NS
            self.decide(0, room=True)
            if owner.loads:
                self.loaded(0)
            if owner.reads:
                self.finish_read(0, fits=True)
            if any(self.rings):
                self.commit(0, 1)
            if owner.fates:
                self.tell(0, 0)
            self.flush(0)
            if owner.flushes:
                self.flushed(0)
        self.the_destination_has_exactly_what_the_cursor_passed_in_order()
        assert self.cursor == [len(each) for each in self.source]
        assert not any(lane.in_flight for lane in owner.plan.lanes)


TestRouting = RoutingMachine.TestCase
TestRouting.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)


def ready(position: int = 0) -> Lane:
    lane = Lane(0, {})
    lane.loaded(position)
    return lane


def appended(lane: Lane, ticket: int, reached: int, counts: Counts = NOTHING) -> None:
    step = lane.frame(reached)
    assert step is not None
    lane.appended(ticket, step, counts)


def test_each_frame_continues_where_the_one_before_it_ends() -> None:
    lane = ready(4)
    assert lane.frame(9) == Step(0, 4, 9)
    appended(lane, 1, 9)
    lane.passed(12, 3, 0)
    assert lane.frame(15) == Step(0, 9, 15)
    assert lane.position == 4


def test_a_void_frame_makes_the_lane_wait_for_the_others_and_load_the_cursor_again() -> None:
    lane = ready()
    for ticket in (1, 2, 3):
        appended(lane, ticket, 10 * ticket)
    lane.resolved(1, stored=False)
    assert lane.state is LaneState.SETTLING
    assert not lane.wants_page(100)
    lane.resolved(2, stored=False)
    lane.resolved(3, stored=True)
    assert lane.wants_load


def test_a_page_from_before_the_cursor_moved_is_dropped_before_the_cursor_is_loaded() -> None:
    plan = RouterPlan(1)
    plan.next(lambda _: 9, 1, 0)
    lane = plan.lanes[0]
    lane.loaded(0)
    appended(lane, 1, 3)
    assert plan.next(lambda _: 9, 1, 0) == Read(0, 3)
    lane.resolved(1, stored=False)
    assert plan.next(lambda _: 9, 1, 0) is None
    assert lane.frame(6) is None
    assert plan.next(lambda _: 9, 1, 0) == Load(0)


def test_a_flush_waits_for_frames_and_a_frame_waits_for_the_flush() -> None:
    lane = ready()
    appended(lane, 1, 5)
    lane.passed(8, 3, 0)
    assert lane.flush() is None
    lane.resolved(1, stored=True)
    assert lane.flush() == Step(0, 5, 8)
    assert lane.frame(9) is None
    assert lane.flushed(moved=True) == Counts(0, 3, 0)
    assert lane.frame(9) == Step(0, 8, 9)


def test_records_count_once_their_frame_is_stored_or_the_cursor_has_passed_them() -> None:
    plan = RouterPlan(1)
    lane = plan.lanes[0]
    lane.loaded(0)
    lane.passed(3, 2, 1)
    appended(lane, 1, 7, Counts(3, 1, 0))
    appended(lane, 2, 9, Counts(2, 0, 0))
    assert plan.counts == NOTHING
    plan.resolved(0, 1, stored=True)
    assert plan.counts == Counts(3, 3, 1)
    plan.resolved(0, 2, stored=False)
    assert plan.counts == Counts(3, 3, 1)


@pytest.mark.parametrize("how", ["paused", "stopped", "held"])
def test_a_router_that_may_not_go_on_decides_nothing(how: str) -> None:
    plan = RouterPlan(1)
    if how == "paused":
        plan.paused = True
    elif how == "stopped":
        plan.stopped = "its source was deleted"
    else:
        plan.hold("its destination is full", 100)
    assert plan.next(lambda _: 9, 1, 100) is None
    if how == "held":
        assert plan.next(lambda _: 9, 1, 100 + HOLD_NS) == Load(0)


def test_partitions_take_turns() -> None:
    plan = RouterPlan(3)
    for lane in plan.lanes:
        lane.loaded(0)
    read = []
    for number in range(6):
        decision = plan.next(lambda _: 100, 1, 0)
        assert isinstance(decision, Read)
        read.append(decision.partition)
        plan.lanes[decision.partition].passed(number + 1, 1, 0)
    assert read == [0, 1, 2, 0, 1, 2]


def test_a_frame_that_found_no_room_is_read_again_only_where_it_fits() -> None:
    plan = RouterPlan(1)
    plan.lanes[0].loaded(0)
    plan.lanes[0].unread(1_000)
    assert plan.next(lambda _: 9, 999, 0) is None
    assert plan.next(lambda _: 9, 1_000, 0) == Read(0, 0)


def test_a_partition_that_is_added_is_copied_from_its_start() -> None:
    plan = RouterPlan(1)
    plan.lanes[0].loaded(7)
    assert plan.next(lambda _: 7, 1, 0) is None
    plan.grow(2)
    assert plan.next(lambda _: 7, 1, 0) == Load(1)


def test_partitions_in_which_nothing_happens_are_not_looked_at() -> None:
    plan = RouterPlan(1_000)
    for lane in plan.lanes:
        lane.loaded(0)
    asked: list[int] = []

    def head(partition: int) -> int:
        asked.append(partition)
        return 5 if partition == 7 else 0

    assert plan.next(head, 1, 0) == Read(7, 0)
    asked.clear()
    plan.lanes[7].wake()
    assert plan.next(head, 1, 0) is None
    plan.lanes[7].passed(3, 3, 0)
    while plan.next(head, 1, 0) != Read(7, 3):
        assert len(asked) < 1_000
    asked.clear()
    plan.lanes[7].passed(5, 2, 0)
    assert plan.next(head, 1, 0) is None
    assert asked == [7]
