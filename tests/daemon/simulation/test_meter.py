"""What is measured: means over time, percentiles, and PUTs over the optimum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.simulation.meter import (
    Latencies,
    OverTime,
    PutBegun,
    over_optimum,
    worst_over_optimum,
)

S = 1_000_000_000


def test_a_level_has_its_mean_over_time_and_its_peak() -> None:
    level = OverTime(0, 2)
    level.set(10, 6)
    level.set(15, 0)
    assert level.mean(20) == (2 * 10 + 6 * 5) / 20
    assert level.peak == 6
    level.begin(20)
    level.set(25, 1)
    assert (level.mean(30), level.peak) == (0.5, 1)


@given(st.lists(st.tuples(st.floats(1e3, 1e10), st.integers(1, 50)), min_size=1, max_size=40))
def test_a_percentile_is_one_of_the_latencies_within_a_bucket(
    found: list[tuple[float, int]],
) -> None:
    latencies = Latencies()
    for latency_ns, count in found:
        latencies.add(latency_ns, count)
    every = sorted(each for latency_ns, count in found for each in [latency_ns] * count)
    for share in (0.5, 0.99, 0.999):
        exact = every[max(0, -int(-share * len(every) // 1) - 1)] / 1e6
        assert latencies.percentile_ms(share) == pytest.approx(exact, rel=0.012)


def test_without_requests_there_is_no_percentile() -> None:
    assert Latencies().percentiles_ms() == [None, None, None]


@pytest.mark.parametrize(
    ("puts", "put_bytes", "ratio"),
    [
        (50, 50, 1.0),  # one per window of 200 ms
        (25, 25, 0.5),
        (100, 100, 2.0),
        (200, 200_000, 1.0),  # 20 objects' worth a second
        (250, 200_000, 1.25),
    ],
)
def test_the_optimum_is_one_put_per_window_or_per_object_if_that_is_more(
    puts: int, put_bytes: int, ratio: float
) -> None:
    assert over_optimum(puts, put_bytes, 10, 0.2, 1000) == pytest.approx(ratio)


def test_the_worst_ten_seconds_are_found_wherever_they_are() -> None:
    puts = [PutBegun(second * S, 1) for second in range(30)]
    burst = [PutBegun(12 * S + n, 1) for n in range(20)]
    assert worst_over_optimum(puts, 1, 1000) == 1
    assert worst_over_optimum(sorted(puts + burst), 1, 1000) == pytest.approx(3.0)
    assert worst_over_optimum(puts[:9], 1, 1000) is None
