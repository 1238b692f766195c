"""The low-pass filter: its steps are those of an exponential, whatever the pace of the samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.smoothed import Smoothed

SECOND = 1_000_000_000


def test_the_value_is_0_and_then_the_first_sample() -> None:
    smoothed = Smoothed(1.0)
    assert smoothed.value == 0.0
    assert smoothed.add(7.0, 0) == 7.0


@given(st.lists(st.integers(1, SECOND), min_size=1, max_size=30))
def test_a_step_is_followed_by_time_and_not_by_the_number_of_samples(steps: list[int]) -> None:
    smoothed = Smoothed(0.5)
    smoothed.add(0.0, 0)
    now_ns = 0
    for step in steps:
        now_ns += step
        smoothed.add(1.0, now_ns)
    assert smoothed.value == pytest.approx(1 - math.exp(-now_ns / (0.5 * SECOND)))


def test_a_broken_sample_shows_and_does_not_stay() -> None:
    smoothed = Smoothed(1.0)
    smoothed.add(2.0, 0)
    assert math.isnan(smoothed.add(math.nan, SECOND))
    assert smoothed.add(3.0, 2 * SECOND) == 3.0


def test_a_clock_that_stands_still_changes_nothing() -> None:
    smoothed = Smoothed(1.0)
    smoothed.add(1.0, SECOND)
    assert smoothed.add(100.0, SECOND) == 1.0
