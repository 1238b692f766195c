"""The report of delivery judges its targets by their own loads."""

from __future__ import annotations

import msgspec
import pytest

from bench import delivery_report, report
from bench.delivery_results import (
    DeliveryResults,
    FairnessResult,
    FloodResult,
    LatencyResult,
    RoutedResult,
    Spread,
    StreamMemoryResult,
    WakeupsResult,
)
from bench.results import Machine, Results


def spread(p50_ms: float, p99_ms: float) -> Spread:
    return Spread(p50_ms, p99_ms, 2 * p99_ms, 100)


def latency(load: str, watchers: int, p50_ms: float, acked_per_s: float | None) -> LatencyResult:
    each = spread(p50_ms, 2 * p50_ms)
    return LatencyResult(load, watchers, each, each, each, 0.512, 2.048, acked_per_s)


def verdicts(results: DeliveryResults) -> dict[str, str]:
    return {target.name: target.verdict for target in delivery_report.targets(results)}


def test_percentiles_are_values_that_occurred() -> None:
    found = Spread.of_ns(number * 1_000_000 for number in range(1, 101))
    assert found == Spread(50, 99, 100, 100)


def test_only_the_idle_load_with_100_watchers_has_a_latency_target() -> None:
    slow = [latency("saturated", 100, 9, 5.0), latency("none", 1000, 9, None)]
    results = DeliveryResults(latencies=[*slow, latency("none", 100, 0.9, None)])
    assert verdicts(results) == {
        "commit to 100 sockets, idle: p50": "met",
        "commit to 100 sockets, idle: p99": "met",
    }


@pytest.mark.parametrize(("acked_per_s", "verdict"), [(91.0, "met"), (89.0, "not met")])
def test_producers_are_compared_with_what_they_get_alone_before_and_after(
    acked_per_s: float, verdict: str
) -> None:
    results = DeliveryResults(
        latencies=[latency("saturated", 100, 1, acked_per_s)], acked_alone_per_s=[90, 110]
    )
    assert verdicts(results) == {"acknowledged/s with 100 watchers over without": verdict}


@pytest.mark.parametrize(
    ("delivered", "verdict"), [([801, 400, 199, 100, 100], "met"), ([8, 4, 2, 1, 2], "not met")]
)
def test_bands_are_compared_with_their_weights(delivered: list[int], verdict: str) -> None:
    results = DeliveryResults(fairness=FairnessResult(delivered, []))
    assert list(verdicts(results).values()) == [verdict]


def test_one_late_append_is_too_many() -> None:
    results = DeliveryResults(wakeups=WakeupsResult(10, 1, spread(1, 2)))
    assert list(verdicts(results).values()) == ["not met"]


def test_all_of_it_is_printed_beside_the_seeds_figures_and_survives_json() -> None:
    delivery = DeliveryResults(
        0.5, [latency("none", 100, 0.9, None)], [10.0], [FloodResult(1, 2, 3, 4, 5, 6, 7)],
        FairnessResult([8, 4, 2, 1, 1], []), StreamMemoryResult(10, 2048),
        RoutedResult(1, 2, 3, 4, 5), WakeupsResult(10, 0, spread(1, 2)),
    )  # fmt: skip
    results = Results(Machine("a processor", 2, "3.11", "wrk"), "", delivery=delivery)
    text = report.text(results)
    for part in ("0.70", "1.28", "seed's p50", "KiB of memory per idle stream", "B4", "50%"):
        assert part in text
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results
