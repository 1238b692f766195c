"""Histograms of latencies: fixed buckets, one writer per shard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.latency import (
    LAST,
    MEANINGS,
    LatencyHistogram,
    Stage,
    bounds_s,
    counted,
    quantile_us,
)
from shards.layout import LATENCY_BUCKETS, Layout
from tests.shards.conftest import MakeSegment


@pytest.mark.parametrize(
    ("after_ns", "bucket"),
    [
        (-5, 0), (0, 0), (999, 0), (1_000, 1), (1_999, 1), (2_000, 2), (3_999, 2), (4_000, 3),
        (1_000_000, 10), (1_023_999, 10), (1_024_000, 11), (1 << 62, LAST),
    ],
)  # fmt: skip
def test_a_time_is_counted_in_its_bucket_of_its_stage(
    make_segment: MakeSegment, after_ns: int, bucket: int
) -> None:
    segment = make_segment(Layout(2, 4096))
    histogram = LatencyHistogram(segment, 1, Stage.PUT)
    histogram.observe(after_ns)
    histogram.observe(after_ns)
    found = counted(segment, Stage.PUT)
    assert found.buckets == [2 * (n == bucket) for n in range(LATENCY_BUCKETS)]
    assert (found.total, found.sum_ns) == (2, 2 * max(0, after_ns))
    others = [counted(segment, stage) for stage in Stage if stage is not Stage.PUT]
    assert all(other.total == other.sum_ns == 0 for other in others)


def test_a_stage_is_the_sum_of_all_shards(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(3, 4096))
    for shard in range(3):
        LatencyHistogram(segment, shard, Stage.ANSWERED).observe(1_000 << shard)
    found = counted(segment, Stage.ANSWERED)
    assert (found.total, found.sum_ns) == (3, 7_000)
    assert list(found.buckets[:5]) == [0, 1, 1, 1, 0]


def test_a_successor_continues_the_counts(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    for _ in range(3):
        LatencyHistogram(segment, 0, Stage.DELIVERED).observe(5_000)
    assert counted(segment, Stage.DELIVERED).total == 3


def test_bounds_are_those_of_the_buckets() -> None:
    assert bounds_s()[:3] == [1e-06, 2e-06, 4e-06]
    assert len(bounds_s()) == LATENCY_BUCKETS - 1 and bounds_s()[-1] > 500


def test_every_stage_is_described() -> None:
    assert set(MEANINGS) == set(Stage)


def test_no_deliveries_have_no_quantile() -> None:
    assert quantile_us([0] * LATENCY_BUCKETS, 0.5) is None


@given(
    st.lists(st.integers(0, 1 << 38), min_size=1),
    st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]),
)
def test_a_quantile_is_at_most_twice_too_large(times_us: list[int], share: float) -> None:
    buckets = [0] * LATENCY_BUCKETS
    for time_us in times_us:
        buckets[min(LAST, time_us.bit_length())] += 1
    found = quantile_us(buckets, share)
    assert found is not None
    below = sum(time_us < found for time_us in times_us)
    assert below >= share * len(times_us) or found == 1 << LAST
    if found > 1:
        assert sum(time_us < found / 2 for time_us in times_us) < share * len(times_us)
