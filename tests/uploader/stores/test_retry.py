"""Delays between attempts: vectors, bounds, and when an error stands."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.stores.base import ForeignObject, StoreBusy, StoreError
from uploader.stores.retry import RetryLimits, ceiling_s, delay_s, retry_delay_s

LIMITS = RetryLimits(base_s=0.1, cap_s=5.0, attempts_max=4)


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (8, 5.0), (1_000_000, 5.0)],
)
def test_the_ceiling_doubles_with_each_attempt_up_to_the_cap(attempt: int, seconds: float) -> None:
    assert ceiling_s(attempt, LIMITS) == pytest.approx(seconds)


@given(st.integers(1, 10**6), st.integers())
def test_a_delay_is_within_zero_and_the_ceiling(attempt: int, seed: int) -> None:
    assert 0 <= delay_s(attempt, random.Random(seed), LIMITS) < ceiling_s(attempt, LIMITS)


def test_delays_use_the_whole_range_evenly() -> None:
    rng = random.Random(1)
    tenths = [0] * 10
    for _ in range(10_000):
        tenths[int(delay_s(3, rng, LIMITS) / 0.04)] += 1
    assert min(tenths) > 800 and max(tenths) < 1_200


def test_delays_are_a_function_of_the_random_source() -> None:
    one, other = ([delay_s(n, random.Random(7), LIMITS) for n in range(1, 9)] for _ in range(2))
    assert one == other


def test_what_cannot_help_is_not_tried_again() -> None:
    assert retry_delay_s(ForeignObject("taken"), 1, random.Random(1), LIMITS) is None


def test_attempts_end_at_their_limit_and_without_one_never() -> None:
    rng = random.Random(1)
    assert retry_delay_s(StoreBusy("busy"), 3, rng, LIMITS) is not None
    assert retry_delay_s(StoreBusy("busy"), 4, rng, LIMITS) is None
    reset = StoreError("reset", retryable=True, outcome_unknown=True)
    assert retry_delay_s(reset, 10**6, rng) is not None


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"base_s": 0.0}, r"base_s 0\.0"),
        ({"base_s": 9.0, "cap_s": 5.0}, r"base_s 9\.0 .* cap_s 5\.0"),
        ({"attempts_max": 0}, "attempts_max 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetryLimits(**limits)  # type: ignore[arg-type]  # attempts_max is an int in the table


def test_attempts_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1, not 0"):
        delay_s(0, random.Random(1))
