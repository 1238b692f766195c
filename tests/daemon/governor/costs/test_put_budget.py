"""The law of the PUT budget: by itself, and with groups that upload by the shipped rule."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.governor.costs.put_budget import (
    BYTES_SMOOTHED_S,
    BudgetDecision,
    BudgetTerms,
    PutBudget,
    target_max_bytes,
    terms,
)
from tests.daemon.governor.plant import Plant, S, at_random, evenly
from uploader.stores.prices import DEFAULT_PRICES, GIB, SECONDS_PER_MONTH

TICK_NS = 100_000_000
MIB = 1 << 20
PUT_USD = 5e-6


def terms_of(puts_per_s: float, *, groups: int = 4, window_min_ms: float = 200.0) -> BudgetTerms:
    return BudgetTerms(
        puts_per_s=puts_per_s, put_usd=PUT_USD, window_min_ms=window_min_ms, window_max_ms=5_000.0,
        target_min_bytes=4 * MIB, target_max_bytes=8 * MIB, groups=groups,
    )  # fmt: skip


class Loop:
    """A plant that a budget steers. ``own_per_s``: PUTs that no lever changes."""

    def __init__(self, plant: Plant, terms: BudgetTerms, own_per_s: float = 0.0) -> None:
        self.plant, self.budget = plant, PutBudget(terms, 0)
        self.own_per_s = own_per_s
        self.now_ns = self.spent = 0
        self.windows_ms: list[float] = []
        self.debts: list[float] = []
        self.decision = self.budget.decision()
        self._apply(self.decision)

    def run(self, seconds: float) -> float:
        """Runs on; returns the PUTs per second of that time."""
        before = self.spent
        for _ in range(int(seconds * 10)):
            self.now_ns += TICK_NS
            puts = -self.plant.puts
            self.plant.run_until(self.now_ns)
            ticks = self.now_ns // TICK_NS
            puts += self.plant.puts + int(ticks * self.own_per_s / 10)
            puts -= int((ticks - 1) * self.own_per_s / 10)
            self.spent += puts
            self.decision = self.budget.step(puts, 0.0, self.now_ns)
            self.budget.check_invariants()
            self.windows_ms.append(self.decision.window_ms)
            self.debts.append(self.budget.debt_puts)
            self._apply(self.decision)
        return (self.spent - before) / seconds

    def _apply(self, decision: BudgetDecision) -> None:
        self.plant.window_ms = decision.window_ms
        self.plant.target_bytes = decision.target_bytes


@pytest.mark.parametrize(
    "gaps",
    [
        pytest.param(evenly, marks=pytest.mark.slow),
        lambda per_s: at_random(per_s, random.Random(7)),
    ],
)
@pytest.mark.parametrize(
    ("groups", "per_s", "request_bytes", "puts_per_s", "window_min_ms"),
    [
        (1, 20, 1_000, 1.0, 200.0),  # one group, five windows a second without a budget
        (16, 10, 1_000, 10.0, 200.0),  # 80 PUTs a second without one
        (2, 200, 1_000, 50.0, 0.5),  # windows shorter than the tick
        (2, 60, 200_000, 4.5, 200.0),  # the size decides, so only the target helps
    ],
)
def test_what_the_levers_can_hold_is_spent_within_5_percent_and_the_window_comes_to_rest(
    groups: int, per_s: float, request_bytes: int, puts_per_s: float, window_min_ms: float,
    gaps: Callable[[float], Callable[[], int]],
) -> None:  # fmt: skip
    plant = Plant(groups, request_bytes, gaps(per_s))
    wanted = terms_of(puts_per_s, groups=groups, window_min_ms=window_min_ms)
    loop = Loop(plant, wanted, own_per_s=0.2)
    settles_s = 4 * wanted.debt_max_puts / puts_per_s
    loop.run(settles_s)
    assert loop.run(60) == pytest.approx(puts_per_s, rel=0.05)
    assert loop.decision.holds
    assert loop.spent <= puts_per_s * loop.now_ns / S + wanted.debt_max_puts
    # What is left is the ripple of single PUTs: all groups may upload in the same moment.
    ripple = loop.debts[-300:]
    assert max(ripple) - min(ripple) <= 2.5 * groups + 2


def test_the_whole_bill_is_within_5_percent_once_the_first_debt_is_small_beside_it() -> None:
    loop = Loop(Plant(4, 1_000, evenly(20)), terms_of(4.0))
    loop.run(600)
    assert loop.spent == pytest.approx(4.0 * 600, rel=0.05)


def test_a_load_that_spends_less_than_the_budget_keeps_the_least_window() -> None:
    loop = Loop(Plant(1, 1_000, evenly(20)), terms_of(6.0, groups=1))
    loop.run(60)
    assert set(loop.windows_ms) == {200.0}


def test_an_idle_hour_saves_nothing_for_a_burst() -> None:
    wanted = terms_of(2.0)
    loop = Loop(Plant(4, 1_000, evenly(20)), wanted)
    loop.plant.silence_until(3_600 * S)
    loop.now_ns = 3_599 * S
    loop.run(1)
    assert loop.spent == 0 and loop.budget.debt_puts == 0
    burst = 0.0
    for _ in range(100):
        burst += loop.run(1)
        assert burst <= 2.0 * (loop.now_ns / S - 3_600) + wanted.debt_max_puts


def test_an_hour_that_no_lever_could_hold_is_forgotten_within_the_bound_of_the_debt() -> None:
    wanted = terms_of(1.0)
    loop = Loop(Plant(4, 500_000, evenly(20)), wanted)
    loop.run(300)
    assert not loop.decision.holds and loop.decision.target_bytes == 8 * MIB
    assert loop.decision.window_ms == 5_000.0
    loop.plant.silence_until(loop.now_ns + 86_400 * S)
    loop.run(wanted.debt_max_puts / wanted.puts_per_s + 20)
    assert loop.decision == BudgetDecision(200.0, 4 * MIB, holds=True)


def test_the_window_is_the_first_lever_and_the_target_the_second() -> None:
    wanted = terms_of(1.0)
    budget = PutBudget(wanted, 0)
    seen = [budget.step(1.0, 0.0, 0) for _ in range(int(wanted.debt_max_puts) + 2)]
    windows, targets = [d.window_ms for d in seen], [d.target_bytes for d in seen]
    assert windows == sorted(windows) and targets == sorted(targets)
    full = windows.index(5_000.0)
    assert targets[full - 1] == 4 * MIB and targets[-1] == 8 * MIB
    assert [d.holds for d in seen] == [True] * (len(seen) - 2) + [False] * 2


def test_a_budget_is_exceeded_until_a_fold_of_the_debt_is_paid() -> None:
    wanted = terms_of(1.0)
    budget = PutBudget(wanted, 0)
    assert not budget.step(10_000.0, 0.0, 0).holds
    paid_ns = int(wanted.fold_puts * S)
    assert not budget.step(0.0, 0.0, paid_ns - S).holds
    assert not budget.step(0.9, 0.0, paid_ns).holds
    assert budget.step(0.0, 0.0, paid_ns + S).holds
    assert budget.step(0.9, 0.0, paid_ns + S).holds


def test_what_bytes_cost_is_owed_smoothly_and_entirely() -> None:
    budget = PutBudget(terms_of(1e-9), 0)
    budget.step(0.0, 20 * PUT_USD, 0)
    assert budget.debt_puts == 0
    budget.step(0.0, 0.0, int(BYTES_SMOOTHED_S * S))
    assert budget.debt_puts == pytest.approx(12.64, abs=0.01)
    budget.step(0.0, 0.0, int(20 * BYTES_SMOOTHED_S * S))
    assert budget.debt_puts == pytest.approx(20)


def test_changed_terms_keep_the_debt_within_their_bound() -> None:
    budget = PutBudget(terms_of(1.0), 0)
    budget.step(60.0, 0.0, 0)
    budget.change(terms_of(2.0))
    assert budget.debt_puts == 60
    budget.change(terms_of(2.0, groups=1))
    budget.check_invariants()
    assert budget.debt_puts == budget.terms.debt_max_puts < 60


@given(
    st.floats(1e-4, 1e5),
    st.integers(1, 512),
    st.lists(st.tuples(st.integers(0, 2_000), st.floats(0, 1), st.integers(0, 100 * S))),
)
def test_whatever_is_spent_the_levers_stay_within_their_limits(
    puts_per_s: float, groups: int, steps: list[tuple[int, float, int]]
) -> None:
    budget = PutBudget(terms_of(puts_per_s, groups=groups), 0)
    now_ns = 0
    for puts, bytes_usd, passed_ns in steps:
        now_ns += passed_ns
        budget.step(puts, bytes_usd, now_ns)
        budget.check_invariants()


def test_the_loop_is_as_fast_as_the_groups_that_the_budget_can_hold_allow() -> None:
    # At most one PUT a second, of groups that upload every 5 s at least: at most five groups.
    many, five = terms_of(1.0, groups=512), terms_of(1.0, groups=5)
    assert many.fold_puts == five.fold_puts == 40 and many.debt_max_puts == five.debt_max_puts
    assert terms_of(1.0, groups=4).fold_puts == 32 and terms_of(0.01, groups=4).fold_puts == 8


def test_terms_follow_from_the_configuration() -> None:
    found = terms(
        12.96, DEFAULT_PRICES["standard"], window_min_ms=200, ack_timeout_ms=20_000,
        target_bytes=4 * MIB, ring_bytes=64 * MIB, shards=8,
    )  # fmt: skip
    assert found.puts_per_s == pytest.approx(1.0)  # 2,592,000 PUTs in 30 days
    assert (found.window_max_ms, found.target_max_bytes) == (5_000, 8 * MIB)
    assert found.put_usd * found.puts_per_s * SECONDS_PER_MONTH == pytest.approx(12.96)


def test_a_lever_without_room_stays_where_it_is() -> None:
    assert target_max_bytes(4 * MIB, 16 * MIB) == 4 * MIB
    assert target_max_bytes(4 * MIB, 64 * GIB) == GIB
    found = terms(
        1, DEFAULT_PRICES["standard"], window_min_ms=1_000, ack_timeout_ms=100,
        target_bytes=4 * MIB, ring_bytes=16 * MIB, shards=1,
    )  # fmt: skip
    budget = PutBudget(found, 0)
    assert budget.step(1e6, 0.0, 0) == BudgetDecision(1_000.0, 4 * MIB, holds=False)


@pytest.mark.parametrize(
    "change",
    [
        {"puts_per_s": 0.0}, {"puts_per_s": float("nan")}, {"put_usd": 0.0},
        {"window_min_ms": 6_000.0}, {"target_min_bytes": 9 * MIB}, {"groups": 0},
    ],
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused(change: dict[str, float]) -> None:
    values = {name: getattr(terms_of(1.0), name) for name in BudgetTerms.__struct_fields__}
    with pytest.raises(ValueError, match=r"budget|windows|targets|groups"):
        BudgetTerms(**{**values, **change})
