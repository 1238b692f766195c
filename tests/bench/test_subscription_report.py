"""The report of subscriptions judges the figures that have a bound."""

from __future__ import annotations

import msgspec
import pytest

from bench import report, subscription_report
from bench.delivery_results import Spread
from bench.results import Machine, Results
from bench.subscription_results import (
    ArrivalResult,
    DrainKind,
    DrainResult,
    HotKeyResult,
    RequestsResult,
    SubscriptionResults,
    TakeoverResult,
    WaitingResult,
)


def spread(p99_ms: float) -> Spread:
    return Spread(p99_ms / 2, p99_ms, 2 * p99_ms, 100)


def drain(per_s: float) -> DrainResult:
    kind = DrainKind("key_shared", 1, 1)
    return DrainResult(kind, 600_000, 10_000, 8, 4.0, per_s, per_s, 200.0, 0.5)


def verdicts(results: SubscriptionResults) -> list[str]:
    return [target.verdict for target in subscription_report.targets(results)]


@pytest.mark.parametrize(("per_s", "verdict"), [(100_000.0, "met"), (99_999.0, "not met")])
def test_the_rate_by_key_has_a_bound(per_s: float, verdict: str) -> None:
    assert verdicts(SubscriptionResults(drains=[drain(per_s), drain(1.0)])) == [verdict]


@pytest.mark.parametrize(("bytes_each", "verdict"), [(32.0, "met"), (33.0, "not met")])
def test_a_waiting_message_takes_few_bytes(bytes_each: float, verdict: str) -> None:
    waiting = WaitingResult(1_000_000, 10_000, bytes_each)
    assert verdicts(SubscriptionResults(waiting=waiting)) == [verdict]


@pytest.mark.parametrize(("p99_ms", "verdict"), [(4.0, "met"), (4.1, "not met")])
def test_a_hot_key_may_double_the_p99_of_others(p99_ms: float, verdict: str) -> None:
    hot = HotKeyResult(1_000_000, spread(2.0), spread(p99_ms), 1_000.0)
    assert verdicts(SubscriptionResults(hot_key=hot)) == [verdict]


def test_all_of_it_is_printed_and_survives_json() -> None:
    subscribed = SubscriptionResults(
        0.5, [drain(123_456.0), drain(2.0)], WaitingResult(1_000_000, 10_000, 17.0),
        ArrivalResult(8, spread(1.5)), HotKeyResult(1_000_000, spread(1), spread(1), 2_500.0),
        TakeoverResult(spread(700), spread(900)), RequestsResult(1, 2, 3, 45_678.0),
    )  # fmt: skip
    results = Results(Machine("a processor", 2, "3.11", "wrk"), "", subscriptions=subscribed)
    text = report.text(results)
    for part in ("123,456", "17.0", "2,500", "45,678", "kill -9", "50%", "of all CPUs"):
        assert part in text
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results
