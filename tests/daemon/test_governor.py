"""The governor: pressure and window are bounded and monotone; a broken sensor fails safe."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.governor import Governor, Inputs, clamp, rung, window_ms

levels = st.floats(0, 1)
anything = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("level", "window"),
    [(0, 200), (0.4, 200), (0.55, 400), (0.7, 600), (0.85, 800), (1, 1000)],
)
def test_the_window_grows_from_its_minimum_at_0_4_to_its_maximum_at_1(
    level: float, window: float
) -> None:
    assert window_ms(level, 200, 1000) == pytest.approx(window)


@given(levels, levels)
def test_the_window_is_monotone_and_continuous(low: float, high: float) -> None:
    low, high = sorted((low, high))
    shorter, longer = window_ms(low, 0.5, 10), window_ms(high, 0.5, 10)
    assert 0.5 <= shorter <= longer <= 10
    # Nowhere steeper than its one slope.
    assert longer - shorter <= 9.5 / 0.6 * (high - low) + 1e-9


@given(anything, anything)
def test_the_level_is_in_0_to_1_whatever_is_measured(busy: float, ring: float) -> None:
    governor = Governor()
    for _ in range(3):
        assert 0 <= governor.sample(busy, ring) <= 1
    assert 0.5 <= window_ms(governor.level, 0.5, 10) <= 10


def test_each_input_alone_drives_the_level_to_1() -> None:
    assert Governor().sample(0, 1) == 1
    governor = Governor()
    for _ in range(60):
        governor.sample(1, 0)
    assert governor.level == pytest.approx(1)


def test_the_busy_ratio_is_smoothed_and_the_ring_is_not() -> None:
    governor = Governor()
    assert [governor.sample(1, 0) for _ in range(3)] == [0.5, 0.75, 0.875]
    assert governor.sample(0, 0.9) == 0.9
    assert governor.inputs == Inputs(busy=0.4375, ring=0.9)


def test_a_broken_sensor_counts_as_full_pressure() -> None:
    assert clamp(math.nan) == 1
    assert Governor().sample(0, math.nan) == 1
    assert window_ms(math.nan, 200, 1000) == 1000


@pytest.mark.parametrize(
    ("value", "clamped"), [(-1, 0), (-math.inf, 0), (0.25, 0.25), (1.5, 1), (math.inf, 1)]
)
def test_values_out_of_range_are_held_to_it(value: float, clamped: float) -> None:
    assert clamp(value) == clamped


def test_the_rung_widens_above_0_4() -> None:
    assert [rung(level) for level in (0, 0.4, 0.41, 1)] == ["none", "none", "widen", "widen"]
