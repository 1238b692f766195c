"""Delays between attempts: vectors, bounds, and what may pass."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import LedgerBusy, LedgerMissing
from uploader.stores import retry
from uploader.stores.base import ForeignObject, StoreBusy, StoreRefused
from uploader.stores.retry import COMMIT, Budget, ceiling_s, delay_s, may_pass

BUDGET = Budget("test", 4, 0.1, 5.0)


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (8, 5.0), (1_000_000, 5.0)],
)
def test_the_ceiling_doubles_with_each_attempt_up_to_the_cap(attempt: int, seconds: float) -> None:
    assert ceiling_s(attempt, BUDGET) == pytest.approx(seconds)


@given(st.integers(1, 10**6), st.integers())
def test_a_delay_is_within_zero_and_the_ceiling(attempt: int, seed: int) -> None:
    assert 0 <= delay_s(attempt, random.Random(seed), BUDGET) < ceiling_s(attempt, BUDGET)


def test_delays_use_the_whole_range_evenly() -> None:
    rng = random.Random(1)
    tenths = [0] * 10
    for _ in range(10_000):
        tenths[int(delay_s(3, rng, BUDGET) / 0.04)] += 1
    assert min(tenths) > 800 and max(tenths) < 1_200


def test_delays_are_a_function_of_the_random_source() -> None:
    one, other = ([delay_s(n, random.Random(7), BUDGET) for n in range(1, 9)] for _ in range(2))
    assert one == other


def test_attempts_end_at_their_limit_and_without_one_never() -> None:
    assert [BUDGET.is_spent(attempt) for attempt in (1, 3, 4, 5)] == [False, False, True, True]
    assert not COMMIT.is_spent(10**6)


def test_each_budget_has_a_name_of_its_own() -> None:
    budgets = [each for each in vars(retry).values() if isinstance(each, Budget)]
    assert len({each.name for each in budgets}) == len(budgets) > 5


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StoreBusy("503"), True),
        (StoreRefused("forbidden"), True),
        (ForeignObject("taken"), True),
        (LedgerBusy(Path("ledger.db"), 500), True),
        (LedgerMissing(Path("ledger.db")), False),
        (ValueError("a bug"), False),
    ],
)
def test_a_step_waits_for_what_an_operator_can_mend(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"base_s": 0.0}, r"cap_s 5\.0: 0\.0"),
        ({"base_s": 9.0, "cap_s": 5.0}, r"at most cap_s 5\.0: 9\.0"),
        ({"attempts_max": 0}, "attempts_max must be at least 1, got 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(**{"name": "test", "attempts_max": 4, "base_s": 0.1, "cap_s": 5.0, **limits})


def test_attempts_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1, got 0"):
        delay_s(0, random.Random(1), BUDGET)
