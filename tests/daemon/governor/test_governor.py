"""The governor: level and effects are bounded, monotone and continuous; edges come once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.sensors import BY_NAME, INDEX, SENSORS, Reading, clamp
from daemon.governor.governor import Governed, Governor, Level, level_of
from daemon.governor.ladder import RUNGS, WIDEN_ABOVE, Ladder, coalesce_ns, names_of, window_ms

MS = 1_000_000
S = 1_000 * MS
levels = st.floats(0, 1)
anything = st.floats(allow_nan=True, allow_infinity=True)


def sample(governor: Governor, now_ns: int = 0, **raw: float) -> Governed:
    """One sample; sensors that are not named read 0."""
    readings = [Reading(raw.get(sensor.name, 0.0)) for sensor in SENSORS]
    return governor.sample(readings, 0.5, 10, now_ns)


def raw_of(name: str, pressure: float) -> float:
    """A raw value that is this much pressure."""
    sensor = BY_NAME[name]
    return sensor.zero + pressure * (sensor.full - sensor.zero)


@pytest.mark.parametrize(
    ("level", "window"),
    [(0, 200), (0.4, 200), (0.55, 400), (0.7, 600), (0.85, 800), (1, 1000)],
)
def test_the_window_grows_from_its_minimum_at_0_4_to_its_maximum_at_1(
    level: float, window: float
) -> None:
    assert window_ms(level, 200, 1000) == pytest.approx(window)


@pytest.mark.parametrize(("level", "delay_ms"), [(0, 0), (0.2, 0), (0.4, 5), (0.6, 10), (1, 20)])
def test_the_coalescing_delay_grows_from_0_at_0_2_to_20_ms_at_1(
    level: float, delay_ms: float
) -> None:
    assert coalesce_ns(level) == pytest.approx(delay_ms * MS, abs=1)


@given(levels, levels)
def test_the_effects_are_monotone_and_continuous(low: float, high: float) -> None:
    low, high = sorted((low, high))
    shorter, longer = window_ms(low, 0.5, 10), window_ms(high, 0.5, 10)
    assert 0.5 <= shorter <= longer <= 10
    # Nowhere steeper than its one slope.
    assert longer - shorter <= 9.5 / 0.6 * (high - low) + 1e-9
    assert 0 <= coalesce_ns(low) <= coalesce_ns(high) <= 20 * MS
    assert coalesce_ns(high) - coalesce_ns(low) <= 20 * MS / 0.8 * (high - low) + 1


@given(st.lists(anything, min_size=len(SENSORS), max_size=len(SENSORS)))
def test_the_level_is_in_0_to_1_whatever_is_measured(raw: Sequence[float]) -> None:
    governor = Governor({})
    for step in range(3):
        governed = governor.sample([Reading(value) for value in raw], 0.5, 10, step)
        assert 0 <= governed.hard <= governed.level <= 1
        assert 0.5 <= governed.window_ms <= 10
        assert all(0 <= pressure <= 1 for pressure in governed.pressures)


@pytest.mark.parametrize("sensor", [sensor.name for sensor in SENSORS])
def test_each_sensor_alone_drives_the_level_to_1(sensor: str) -> None:
    governor = Governor({})
    for step in range(100):
        governed = sample(governor, step * 100 * MS, **{sensor: BY_NAME[sensor].full})
    assert governed.level == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("sensor", [sensor.name for sensor in SENSORS])
def test_a_broken_sensor_counts_as_full_pressure_as_long_as_it_is_broken(sensor: str) -> None:
    governor = Governor({})
    assert sample(governor, 0, **{sensor: math.nan}).level == 1
    assert sample(governor).level == 0


@given(st.lists(levels, min_size=len(SENSORS), max_size=len(SENSORS)), levels)
def test_soft_sensors_never_mask_hard_ones(pressures: Sequence[float], weight: float) -> None:
    weights = {sensor.name: weight for sensor in SENSORS if not sensor.hard}
    level = level_of(pressures, weights)
    hard = [p for sensor, p in zip(SENSORS, pressures, strict=True) if sensor.hard]
    soft = [p for sensor, p in zip(SENSORS, pressures, strict=True) if not sensor.hard]
    assert level.hard == max(hard)
    assert level == Level(max(level.hard, weight * max(soft)), level.hard)


def test_the_cpu_widens_no_window_below_nine_tenths() -> None:
    """D14: clients that wait for answers keep the CPU at what the window leaves."""
    assert BY_NAME["busy"].pressure(0.85) == 0
    assert BY_NAME["busy"].pressure(0.9) < WIDEN_ABOVE
    assert BY_NAME["busy"].pressure(0.98) == 1


def test_the_busy_ratio_is_smoothed_and_the_ring_is_not() -> None:
    governor = Governor({})
    sample(governor, 0)
    after_ns = [100 * MS, 200 * MS, 300 * MS]
    busy = [sample(governor, now, busy=0.8).readings[INDEX["busy"]].raw for now in after_ns]
    assert busy == pytest.approx([0.8 * (1 - math.exp(-t / 0.5)) for t in (0.1, 0.2, 0.3)])
    assert sample(governor, 400 * MS, ring=raw_of("ring", 0.9)).level == pytest.approx(0.9)


def test_a_governor_that_is_off_measures_and_changes_nothing() -> None:
    governor = Governor({}, reacts=False)
    for step in range(50):
        governed = sample(governor, step * 100 * MS, busy=1)
    assert governed.level > 0.99
    assert (governed.window_ms, governed.coalesce_ns, governed.deferring) == (0.5, 0, False)


@pytest.mark.parametrize(
    ("value", "clamped"),
    [(-1, 0), (-math.inf, 0), (0.25, 0.25), (1.5, 1), (math.inf, 1), (math.nan, 1)],
)
def test_values_out_of_range_are_held_to_it(value: float, clamped: float) -> None:
    assert clamp(value) == clamped


def test_a_rung_is_not_in_force_at_its_threshold_but_above_it() -> None:
    for rung in RUNGS[:2]:
        ladder = Ladder()
        for level, begins in ((rung.above, False), (rung.above + 1e-6, True)):
            ladder.step({"level": level, "steady": level, "ring": 0}, 0)
            assert (rung.name in ladder.in_force) == begins


def test_deferring_needs_a_second_above_0_8_and_ends_after_a_second_below_0_6() -> None:
    governor = Governor({}, reacts=True)
    seen: list[tuple[int, bool]] = []
    for step in range(60):
        ring = 0.85 if step < 20 else 0.65 if step < 30 else 0.55
        if step == 5:
            ring = 0.79  # begins the second again
        governed = sample(governor, step * 100 * MS, ring=raw_of("ring", ring))
        if any(edge.rung.name == "defer" for edge in governed.edges):
            seen.append((step, governed.deferring))
    assert seen == [(16, True), (40, False)]


@given(st.lists(st.tuples(levels, st.integers(0, 3 * S)), max_size=60))
def test_each_edge_of_a_rung_is_reported_once_and_they_alternate(
    samples: list[tuple[float, int]],
) -> None:
    ladder, now_ns = Ladder(), 0
    in_force: set[str] = set()
    for level, passed_ns in samples:
        now_ns += passed_ns
        for edge in ladder.step({"level": level, "steady": level, "ring": level}, now_ns):
            assert (edge.rung.name in in_force) != edge.begins
            (in_force.add if edge.begins else in_force.discard)(edge.rung.name)
        assert set(ladder.in_force) == in_force == set(names_of(ladder.mask))


def test_the_causes_name_the_sensors_that_press_most() -> None:
    full = Reading(raw_of("ring", 0.95), 1)
    readings = [full if s.name == "ring" else Reading(0.0) for s in SENSORS]
    governed = Governor({}).sample(readings, 0.5, 10, 0)
    assert governed.causes() == "ring 0.95 of shard 1"
    stores = [
        Reading(10.0, 0) if s.name == "store" else r for s, r in zip(SENSORS, readings, strict=True)
    ]
    half = Governor({"store": 0.5}).sample(stores, 0.5, 10, 0)
    assert half.causes() == "ring 0.95 of shard 1, store 0.50 of shard 0"
    assert Governor({"store": 0}).sample(stores, 0.5, 10, 0).causes() == "ring 0.95 of shard 1"
    assert [governed.line(edge) for edge in governed.edges][1] == (
        "pressure 0.95 (ring 0.95 of shard 1): widen begins: wider windows, fewer PUTs"
    )
