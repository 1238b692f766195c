"""Governed streaming under any interleaving of answers, refusals, lost connections and kills.

The model's daemon does with requests and cursors what the commit does (docs/http-api.md, Cursors).
Requests of a lost connection or of a killed import may still be judged later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.importing.budget_leases import Leases
from commands.importing.chain import DEPTH_MAX, Chain, CursorSetBack, ImportStep, SubBlockRows
from commands.importing.flow import Flow, Limits
from commands.importing.reading.blocks import SourceBlock, SourceRecord
from tests.cli.importing.fixed_budget import FixedBudget

KINDS = {"row": (1, 0), "dropped": (0, 0), "dead": (0, 1), "doubled": (2, 0)}


def source(kinds: Sequence[str], size: int = 10) -> list[SourceRecord]:
    """Records of ``size`` bytes each, of these kinds."""
    made = []
    for number, kind in enumerate(kinds):
        rows, dead = KINDS[kind]
        made.append(
            SourceRecord(
                (number + 1) * size,
                size,
                tuple(b"%d.%d" % (number, row) for row in range(rows)),
                tuple(b"dead %d" % number for _ in range(dead)),
            )
        )
    return made


class Topic:
    """A topic and the cursor that moves with its records."""

    def __init__(self) -> None:
        self.position = 0
        self.stored: list[bytes] = []

    def judge(self, step: ImportStep) -> bool:
        if self.position != step.expected:
            return False
        self.position = step.next
        self.stored += step.load.rows
        return True


class World:
    """One import, its daemon and what is between them."""

    def __init__(self, records: list[SourceRecord], limits: Limits, budget: int) -> None:
        self.records = records
        self.end = records[-1].next if records else 0
        self.rows, self.dead = Topic(), Topic()
        self.stragglers: list[deque[tuple[Topic, ImportStep]]] = []
        self.block_records = 7
        self.begin(limits, budget)

    def begin(self, limits: Limits, budget: int) -> None:
        self.leases = Leases(FixedBudget(budget))
        self.flow = Flow(self.rows.position, self.dead.position, self.leases, limits)
        self.read = self.rows.position
        self.lines: tuple[deque[ImportStep], deque[ImportStep]] = (deque(), deque())
        self.largest = 0

    def topics(self) -> list[tuple[Chain, Topic, deque[ImportStep]]]:
        return [
            (self.flow.main, self.rows, self.lines[0]),
            (self.flow.dead, self.dead, self.lines[1]),
        ]

    def client(self) -> None:
        """Reads and sends what can be."""
        if self.flow.wants_block():
            left = [record for record in self.records if record.next > self.read]
            some = left[: self.block_records]
            if some:
                self.read = some[-1].next
                self.flow.offer(SourceBlock(some, self.read))
            else:
                self.flow.end()
        self.flow.lease()
        while (step := self.flow.next_dead(0.0)) is not None:
            self.lines[1].append(step)
        while (step := self.flow.next_step(0.0)) is not None:
            self.lines[0].append(step)
        self.flow.release()
        position = self.flow.settlement(at_least=1)
        if position is not None:
            if self.rows.position == self.flow.main.position:
                self.rows.position = position
                self.flow.main.settled(position)
            else:
                self.flow.main.settled(self.rows.position)
        self.check()

    def check(self) -> None:
        self.flow.check_invariants()
        most = max(self.leases.budget.bytes, max((r.size for r in self.records), default=0))
        assert self.leases.peak <= most

    def serve(self, which: int, *, busy: bool = False) -> None:
        """The daemon answers the oldest request of a connection."""
        chain, topic, line = self.topics()[which % 2]
        if not line:
            return
        step = line.popleft()
        if busy:
            chain.busy(0.0)
        elif topic.judge(step):
            assert chain.stored() == step
        else:
            chain.moved(topic.position)
        self.flow.release()
        self.check()

    def lose(self, which: int) -> None:
        """A connection ends; its requests may be in the daemon."""
        chain, topic, line = self.topics()[which % 2]
        self.stragglers.append(deque((topic, step) for step in line))
        line.clear()
        chain.lost(0.0)
        self.flow.release()
        self.check()

    def straggle(self, which: int) -> None:
        """A request without an answer is judged late."""
        self.stragglers = [each for each in self.stragglers if each]
        if self.stragglers:
            topic, step = self.stragglers[which % len(self.stragglers)].popleft()
            topic.judge(step)

    def kill(self, limits: Limits, budget: int) -> None:
        """The import dies and is run again."""
        for _, topic, line in self.topics():
            self.stragglers.append(deque((topic, step) for step in line))
        self.begin(limits, budget)

    def finish(self) -> None:
        """Nothing fails any more."""
        for _ in range(20 * len(self.records) + 20):
            if self.flow.is_done:
                return
            self.client()
            for which in (0, 1):
                while self.lines[which]:
                    self.serve(which)
        raise AssertionError("the import does not end")


class Act(NamedTuple):
    name: str
    number: int
    batch: int
    budget: int


KIND = st.sampled_from(sorted(KINDS))
ACTS = st.builds(
    Act,
    st.sampled_from(["client", "serve", "serve", "busy", "lose", "straggle", "kill"]),
    st.integers(0, 5),
    st.integers(1, 6),
    st.integers(1, 120),
)


@given(st.lists(KIND, max_size=30), st.integers(1, 60), st.integers(1, 6), st.lists(ACTS))
def test_every_record_is_dealt_with_exactly_once_whatever_fails_and_is_killed(
    kinds: list[str], budget: int, batch: int, acts: list[Act]
) -> None:
    records = source(kinds)
    world = World(records, Limits(10 * batch, batch), budget)
    for act in acts:
        match act.name:
            case "client":
                world.client()
            case "serve":
                world.serve(act.number)
            case "busy":
                world.serve(act.number, busy=True)
            case "lose":
                world.lose(act.number)
            case "straggle":
                world.straggle(act.number)
            case "kill":
                world.kill(Limits(10 * act.batch, act.batch), act.budget)
        # Nothing is stored past what the cursor says, and no dead letter is passed.
        assert world.rows.stored == [r for x in records if x.next <= world.rows.position
                                     for r in x.rows]  # fmt: skip
        due = [r for x in records if x.next <= world.rows.position for r in x.dead]
        assert world.dead.stored[: len(due)] == due
    world.finish()

    assert world.rows.stored == [row for record in records for row in record.rows]
    assert world.dead.stored == [row for record in records for row in record.dead]
    assert world.rows.position == world.end
    assert world.leases.leased == 0


@given(st.lists(KIND, min_size=1, max_size=20))
def test_a_budget_that_has_room_makes_a_block_one_sub_block(kinds: list[str]) -> None:
    world = World(source(kinds), Limits(1_000, 1_000), 1_000)
    world.block_records = 1_000
    world.client()
    rows = [row for record in world.records for row in record.rows]
    sent = list(world.lines[0])
    if any(kind == "dead" for kind in kinds):
        world.serve(1)
        world.client()
        sent = list(world.lines[0])
    if rows:
        assert [(step.expected, step.next, list(step.load.rows)) for step in sent] == [
            (0, world.end, rows)
        ]


def test_a_block_that_becomes_twice_the_records_moves_the_cursor_once_past_each_of_them() -> None:
    world = World(source(["doubled"] * 4), Limits(20, 100), 1_000)
    world.client()
    assert [(s.expected, s.next, len(s.load.rows)) for s in world.lines[0]] == [
        (0, 20, 4),
        (20, 40, 4),
    ]


def test_the_rows_of_one_source_record_stay_together_and_a_large_one_passes_alone() -> None:
    records = [
        SourceRecord(10, 10, (b"a",)),
        SourceRecord(510, 500, (b"b", b"c", b"d")),
        SourceRecord(520, 10, (b"e",)),
    ]
    world = World(records, Limits(100, 2), 50)
    world.client()
    assert [step.next for step in world.lines[0]] == [10]
    assert world.leases.leased == 10
    world.serve(0)
    world.client()
    assert [(step.next, len(step.load.rows)) for step in world.lines[0]] == [(510, 3)]
    assert world.leases.leased == world.leases.peak == 500
    world.finish()
    assert world.rows.stored == [b"a", b"b", b"c", b"d", b"e"]


def test_a_stretch_without_rows_moves_the_cursor_without_a_request_of_records() -> None:
    world = World(source(["dropped"] * 30), Limits(50, 5), 100)
    for _ in range(10):
        world.client()
    assert world.flow.is_done and world.rows.position == world.end
    assert world.rows.stored == [] and not world.lines[0]


def test_a_stretch_of_dead_letters_moves_the_cursor_once_they_are_stored() -> None:
    world = World(source(["dead"] * 3), Limits(100, 100), 1_000)
    world.client()
    assert world.rows.position == 0 and len(world.lines[1]) == 1
    world.serve(1)
    world.client()
    world.client()
    assert world.flow.is_done and world.rows.position == world.end
    assert world.dead.stored == [b"dead 0", b"dead 1", b"dead 2"]


def test_rows_wait_until_the_dead_letters_that_their_step_passes_are_stored() -> None:
    world = World(source(["row", "dead", "row"]), Limits(100, 100), 1_000)
    world.client()
    assert not world.lines[0] and len(world.lines[1]) == 1
    world.serve(1, busy=True)
    world.client()
    assert not world.lines[0]
    world.serve(1)
    world.client()
    assert [step.load.rows for step in world.lines[0]] == [[b"0.0", b"2.0"]]


def test_nothing_after_an_error_of_the_source_is_committed() -> None:
    world = World(source(["row"] * 5), Limits(20, 2), 1_000)
    world.block_records = 3
    world.client()
    world.flow.end()
    world.finish()
    assert world.rows.stored == [b"0.0", b"1.0", b"2.0"]
    assert world.rows.position == world.flow.dealt == 30


def test_a_refused_request_holds_back_those_after_it_until_the_daemon_takes_them() -> None:
    world = World(source(["row"] * 4), Limits(10, 1), 1_000)
    world.client()
    world.lines[0].popleft()
    world.flow.main.busy(until=5.0)
    world.flow.main.add(SubBlockRows(50, [50], [b"late"]))
    for _ in range(3):
        assert world.flow.next_step(9.0) is None, "the requests after it have no answer yet"
        assert not world.rows.judge(world.lines[0].popleft())
        world.flow.main.moved(world.rows.position)
    assert world.flow.next_step(4.9) is None
    again = world.flow.next_step(5.0)
    assert again is not None and (again.expected, again.next) == (0, 10)


def test_a_cursor_that_another_client_sets_back_ends_the_import() -> None:
    chain = Chain(100)
    chain.add(SubBlockRows(110, [110], [b"x"]))
    assert chain.next_step(0.0) is not None
    with pytest.raises(CursorSetBack, match="is at 50, and was at 100"):
        chain.moved(50)


def test_a_refusal_that_contradicts_itself_ends_the_import() -> None:
    chain = Chain(100)
    chain.add(SubBlockRows(110, [110], [b"x"]))
    assert chain.next_step(0.0) is not None
    with pytest.raises(CursorSetBack):
        chain.moved(100)


def test_the_requests_in_flight_have_a_limit() -> None:
    chain = Chain(0)
    for number in range(DEPTH_MAX + 10):
        chain.add(SubBlockRows(number + 1, [number + 1], [b"x"]))
    sent = 0
    while chain.next_step(0.0) is not None:
        sent += 1
    assert sent == chain.in_flight == DEPTH_MAX


def test_a_budget_that_shrinks_takes_no_lease_back_and_grants_none_above_it() -> None:
    budget = FixedBudget(100)
    leases = Leases(budget)
    assert leases.take(60) and leases.take(40)
    budget.bytes = 10
    assert not leases.take(1)
    leases.give_back(60)
    assert not leases.take(1)
    leases.give_back(40)
    assert leases.take(30), "larger than the budget, but alone"
    with pytest.raises(ValueError, match="31 bytes are given back, 30 are leased"):
        leases.give_back(31)
