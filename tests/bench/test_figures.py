"""The arithmetic of the table, by vectors."""

from __future__ import annotations

import pytest

from bench import figures
from bench.figures import Target, number
from bench.others import share
from bench.own_generator import Counts, added, bucket_of, percentile_us

MIB = 1 << 20


def test_mib_per_second_counts_bodies() -> None:
    assert figures.mib_per_s(3200, 64 * 1024, 2.0) == 100.0


def test_cpu_per_gib_counts_bodies() -> None:
    assert figures.cpu_s_per_gib(3.0, 8192, 64 * 1024) == 6.0


def test_nothing_acknowledged_has_no_cost_per_gib() -> None:
    assert figures.cpu_s_per_gib(3.0, 0, 1024) is None


@pytest.mark.parametrize(
    ("windows_ms", "put_bytes_per_s", "optimum"),
    [
        ([200.0], 0.0, 5.0),
        ([200.0], 40.0 * MIB, 10.0),
        ([200.0, 1000.0], 0.0, 3.0),
        ([0.5], 400.0 * MIB, 2000.0),
        ([10.0], 800.0 * MIB, 200.0),
    ],
)
def test_the_optimum_is_the_larger_of_window_and_volume(
    windows_ms: list[float], put_bytes_per_s: float, optimum: float
) -> None:
    measured = figures.put_optimum_per_s(windows_ms, put_bytes_per_s, 4 * MIB)
    assert measured == pytest.approx(optimum)


@pytest.mark.parametrize("windows_ms", [[], [200.0, 0.0]])
def test_a_window_of_nothing_is_refused(windows_ms: list[float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        figures.put_optimum_per_s(windows_ms, 0.0, 4 * MIB)


def test_a_ratio_to_nothing_is_none() -> None:
    assert figures.ratio(3.0, 2.0) == 1.5
    assert figures.ratio(3.0, 0) is None
    assert figures.ratio(None, 2.0) is None


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target("t", 50_000, 50_000), "met"),
        (Target("t", 50_000, 49_999), "not met"),
        (Target("t", 1.25, 1.25, at_least=False), "met"),
        (Target("t", 1.25, 1.26, at_least=False), "not met"),
    ],
)
def test_a_target_is_met_at_its_bound_and_not_beyond(target: Target, verdict: str) -> None:
    assert target.verdict == verdict


def test_pauses_make_the_rate_that_is_asked() -> None:
    # 1,000 connections, 40 ms a round each, of which 15 ms are the answer's.
    assert figures.pause_ms(25_000, 1000, 15) == 25.0


def test_a_rate_out_of_reach_has_no_pause() -> None:
    assert figures.pause_ms(25_000, 10, 15) == 0.0


@pytest.mark.parametrize(
    ("cpus", "shards", "shared_out"),
    [
        ([0, 1], 1, ({1}, {0}, False)),
        ([0, 1], 2, ({0, 1}, {0, 1}, True)),
        ([0], 1, ({0}, {0}, True)),
        ([2, 3, 4, 5], 2, ({4, 5}, {2, 3}, False)),
    ],
)
def test_the_daemon_gets_the_last_cpus_and_the_generator_the_others(
    cpus: list[int], shards: int, shared_out: tuple[set[int], set[int], bool]
) -> None:
    assert figures.share_cpus(cpus, shards) == shared_out


def test_others_share_is_what_neither_we_nor_idleness_took() -> None:
    assert share(busy_s=15.0, ours_s=10.0, seconds=10.0, cpus=2) == 0.25
    assert share(busy_s=9.9, ours_s=10.0, seconds=10.0, cpus=2) == 0.0


def test_percentiles_come_back_within_a_buckets_width() -> None:
    buckets: dict[int, int] = {}
    for latency_us in range(1, 10_001):
        bucket = bucket_of(latency_us)
        buckets[bucket] = buckets.get(bucket, 0) + 1
    assert percentile_us(buckets, 0.5) == pytest.approx(5_000, rel=0.02)
    assert percentile_us(buckets, 0.99) == pytest.approx(9_900, rel=0.02)
    assert percentile_us({}, 0.5) == 0.0


def test_processes_of_the_own_generator_add_up() -> None:
    slow, fast = bucket_of(10_000), bucket_of(1_000)
    one = Counts(requests=3, not_2xx=1, seconds=2.0, latency_sum_us=30_000, cpu_s=1.0,
                 buckets={slow: 3})  # fmt: skip
    two = Counts(requests=9, socket_errors=2, seconds=2.1, latency_sum_us=9_000, cpu_s=1.5,
                 buckets={fast: 9})  # fmt: skip
    load = added([one, two])
    assert (load.requests, load.not_2xx, load.socket_errors, load.seconds) == (12, 1, 2, 2.1)
    assert load.mean_ms == pytest.approx(3.25)
    assert load.generator_cpu_s == 2.5
    assert load.p50_ms == pytest.approx(1, rel=0.02)
    assert load.p99_ms == pytest.approx(10, rel=0.02)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (53_512.3, "53,512"), (99.94, "99.9"), (1.234, "1.23"), (0.0, "0.00")],
)
def test_a_figure_has_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text
