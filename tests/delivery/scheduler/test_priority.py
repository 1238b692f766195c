"""Vectors of the formulas of priority, and crossing times against ticking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.ready import PriorityInputs
from delivery.scheduler import priority
from delivery.scheduler.bands import EDGES
from delivery.scheduler.priority import TICK_NS, base, clamp, crossing_tick, effective, recency

MS = 1_000_000
SECOND = 1000 * MS


@pytest.mark.parametrize(
    ("idle_s", "points"),
    [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (299.999, 0), (300, 0), (1e6, 0)],
)
def test_recency_halves_every_30_seconds_and_ends_after_5_minutes(
    idle_s: float, points: int
) -> None:
    assert recency(round(idle_s * 1000)) == points


def test_the_table_of_recency_errs_by_less_than_a_point_and_never_rises() -> None:
    found = [recency(idle_ms) for idle_ms in range(0, 301_000, 7)]
    exact = [500 * 2 ** (-idle_ms / 30_000) for idle_ms in range(0, 300_000, 7)]
    assert max(abs(one - other) for one, other in zip(found, exact, strict=False)) < 1
    assert found == sorted(found, reverse=True)
    assert recency(-5) == 500, "a word of another shard is a moment ahead"


def test_a_manual_priority_is_clamped_and_hides_recency() -> None:
    assert [clamp(p) for p in (-(10**30), -1001, -1000, 0, 1000, 1001)] == [
        -1000, -1000, -1000, 0, 1000, 1000,
    ]  # fmt: skip
    assert base(PriorityInputs(priority=-7, consumed_ns=SECOND), SECOND) == -7
    assert base(PriorityInputs(consumed_ns=SECOND), SECOND) == 500
    assert base(PriorityInputs(auto=False, consumed_ns=SECOND), SECOND) == 0
    assert base(PriorityInputs(), SECOND) == 0, "never consumed"


@pytest.mark.parametrize(
    ("waited_ms", "points"),
    [(0, 0), (9, 0), (10, 1), (1000, 100), (9_990, 999), (10_000, 1000), (60_000, 1000)],
)
def test_age_is_100_a_second_up_to_1000(waited_ms: int, points: int) -> None:
    assert priority.age(waited_ms * MS) == points


def test_age_counts_after_the_clamp() -> None:
    assert effective(PriorityInputs(priority=5000), 0, 10 * SECOND) == 2000
    assert effective(PriorityInputs(priority=-5000), 0, 10 * SECOND) == 0


INPUTS = st.one_of(
    st.builds(PriorityInputs, priority=st.integers(-1100, 1100)),
    st.builds(PriorityInputs, consumed_ns=st.integers(1, 400 * SECOND)),
    st.builds(PriorityInputs, auto=st.booleans()),
)


@given(INPUTS, st.integers(300 * SECOND, 400 * SECOND), st.sampled_from(EDGES))
def test_crossing_times_are_those_that_ticking_finds(
    inputs: PriorityInputs, since_ns: int, edge: int
) -> None:
    if inputs.consumed_ns > since_ns:
        inputs = PriorityInputs(consumed_ns=since_ns)
    if base(inputs, since_ns) >= edge:
        return
    first = since_ns // TICK_NS + 1
    ticks = range(first, first + 205)
    crossed = [tick for tick in ticks if effective(inputs, since_ns, tick * TICK_NS) >= edge]
    assert crossing_tick(inputs, since_ns, edge) == (crossed[0] if crossed else None)
    if crossed:
        assert crossed == list(range(crossed[0], ticks.stop)), "no entry falls back"
