"""The scheduler takes the same turns as a model that ticks and looks at everything."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delivery.ready import EntryKey, Kind, PriorityInputs, Turn
from delivery.scheduler.scheduler import BandedReadySet
from tests.delivery.scheduler.model import Model
from tests.long import examples

MS = 1_000_000
START_NS = 1_000_000 * MS
KEYS = st.tuples(st.integers(1, 6), st.sampled_from(Kind))
PRIORITIES = st.one_of(
    st.sampled_from([-5000, -1000, -750, -251, -250, -1, 0, 1, 249, 250, 499, 500, 749, 750, 5000]),
    st.integers(-1000, 1000),
)
WAITS_MS = st.one_of(
    st.sampled_from([0, 1, 10, 50, 250, 2_500, 7_500, 10_000, 60_000]), st.integers(0, 12_000)
)


@st.composite
def inputs(draw: st.DrawFn) -> PriorityInputs:
    """A manual priority, recency, or neither."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return PriorityInputs(priority=draw(PRIORITIES))
    if kind == 1:
        idle_ms = draw(st.integers(0, 400_000))
        return PriorityInputs(consumed_ns=START_NS - idle_ms * MS + draw(st.integers(0, MS)))
    return PriorityInputs(auto=draw(st.booleans()))


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of marks, turns, changes of priority, pressure and waiting."""

    @initialize(phase=st.integers(0, 50 * MS))
    def start(self, phase: int) -> None:
        self.now_ns = START_NS + phase
        self.real, self.model = BandedReadySet(), Model(self.now_ns)
        self.turns: list[Turn] = []

    @rule(waited_ms=WAITS_MS, ns=st.integers(0, 1000))
    def wait(self, waited_ms: int, ns: int) -> None:
        self.now_ns += waited_ms * MS + ns

    @rule(key=KEYS, inputs=inputs(), ago_ms=st.integers(0, 5))
    def mark(self, key: EntryKey, inputs: PriorityInputs, ago_ms: int) -> None:
        published_ns = self.now_ns - ago_ms * MS
        marked = self.model.mark(key, inputs, published_ns, self.now_ns)
        assert self.real.mark(key, inputs, published_ns, self.now_ns) == marked

    @precondition(lambda self: len(self.turns) < 2)
    @rule()
    def take(self) -> None:
        turn, expected = self.real.take(self.now_ns), self.model.take(self.now_ns)
        found = None
        if turn is not None:
            found = (turn.key, turn.published_ns, turn.enqueued_ns, turn.waited_ns)
        assert found == expected
        if not self.model.deferring:  # the clock of deferred entries stands still
            assert self.real.depths() == self.model.depths()
        if turn is not None:
            self.turns.append(turn)
        else:
            due_ns = self.real.next_due_ns()
            assert due_ns is None or due_ns > self.now_ns, "the dispatcher need not ask again"

    @precondition(lambda self: self.turns)
    @rule(cost=st.integers(0, 1 << 20), more=st.booleans())
    def finish(self, cost: int, more: bool) -> None:
        turn = self.turns.pop(0)
        self.real.finish(turn, cost, more, self.now_ns)
        self.model.finish(turn.key, cost, more, self.now_ns)

    @rule(costs=st.lists(st.integers(0, 1 << 18), min_size=1, max_size=20))
    def take_turns(self, costs: list[int]) -> None:
        for cost in costs:
            self.take()
            while self.turns:
                self.finish(cost, more=True)

    @rule(key=KEYS)
    def forget(self, key: EntryKey) -> None:
        self.real.forget(key)
        self.model.forget(key)

    @rule(coalesce_ms=st.sampled_from([0, 0, 5, 20]), deferring=st.booleans())
    def pressure(self, coalesce_ms: int, deferring: bool) -> None:
        self.real.set_pressure(coalesce_ms * MS, deferring, self.now_ns)
        self.model.set_pressure(coalesce_ms * MS, deferring, self.now_ns)

    @invariant()
    def both_hold_the_same(self) -> None:
        self.real.check_invariants()
        assert len(self.real) == len(self.model)

    @invariant()
    def the_next_turn_is_announced(self) -> None:
        due_ns = self.real.next_due_ns()
        held = [entry for entry in self.model.waiting if entry.enqueued_ns is None]
        if due_ns is None:
            assert not self.model.may_go() and not held
        elif not self.model.may_go():
            # Not before anything is due, but it may be what has become ready and is deferred.
            due = [entry.marked_ns + self.model.coalesce_ns for entry in held[:1]]
            assert due_ns <= max(self.now_ns, self.model.held_from_ns, *due)

    @invariant()
    def the_sensor_shows_the_oldest_that_may_go(self) -> None:
        self.model.pass_time(self.now_ns)
        if not any(entry.enqueued_ns is None for entry in self.model.waiting):
            assert self.real.oldest_wait_ns(self.now_ns) <= self.model.oldest_wait_ns(self.now_ns)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=examples(300), stateful_step_count=30)
