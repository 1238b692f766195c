"""The metrics of push subscriptions, a part of the table (``metric_table.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from daemon.api.figures.metric_kinds import Histogram, Kind, Metric, Sample, Scrape, one
from shards.boards.pushboard import LATENCY_UNIT_NS, PushOutcome
from shards.boards.pushtotals import PushTotal, together
from shards.latency import Counted
from shards.layout import PUSH_LATENCIES

_BOUNDS_S = [(1 << bucket) * LATENCY_UNIT_NS / 1e9 for bucket in range(PUSH_LATENCIES - 1)]


def _by_subscription(
    name: str, says: str, value: Callable[[PushTotal], float], kind: Kind = "gauge"
) -> Metric:
    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((each.topic, each.subscription), value(each.total)) for each in scrape.push]

    return Metric(name, kind, says, ("topic", "subscription"), samples)


def _attempts(scrape: Scrape) -> Iterable[Sample]:
    return [
        ((each.topic, each.subscription, outcome.name.lower()), count)
        for each in scrape.push
        for outcome, count in zip(PushOutcome, each.total.outcomes, strict=True)
    ]


def _latencies(scrape: Scrape) -> Iterable[Sample]:
    counted: Counted = together(each.total for each in scrape.push).latency
    return [((), Histogram(counted, _BOUNDS_S))]


PUSH_METRICS: tuple[Metric, ...] = (
    one("headgate_push_subscriptions", "gauge", "how many push", lambda s: s.push.count),
    one(
        "headgate_push_subscriptions_slow",
        "gauge",
        "those of them in slow or heartbeat mode, because the receiver fails",
        lambda s: s.push.slow,
    ),
    _by_subscription(
        "headgate_push_mode",
        "0 normal, 1 slow, 2 heartbeat: of the slowest sender",
        lambda total: total.mode,
    ),
    _by_subscription(
        "headgate_push_allowed_attempts_per_second",
        "the `rate_max` of the settings",
        lambda total: total.rate_max,
    ),
    _by_subscription(
        "headgate_push_granted_attempts_per_second",
        "what the senders may use of that",
        lambda total: total.granted,
    ),
    _by_subscription(
        "headgate_push_rate_attempts_per_second",
        "the rate in force, which follows the receiver",
        lambda total: total.rate,
    ),
    _by_subscription(
        "headgate_push_use_ratio",
        "how much of what is granted the senders need, by which they share it",
        lambda total: total.use,
    ),
    _by_subscription(
        "headgate_push_senders", "senders that are present", lambda total: total.senders
    ),
    _by_subscription(
        "headgate_push_in_flight_attempts", "POSTs under way", lambda total: total.in_flight
    ),
    Metric(
        "headgate_push_attempts_total",
        "counter",
        "POSTs that ended, by what came of them; those that failed are made again",
        ("topic", "subscription", "outcome"),
        _attempts,
    ),
    _by_subscription(
        "headgate_push_attempt_seconds_total",
        "time that these POSTs took together",
        lambda total: total.latency.sum_ns / 1e9,
        "counter",
    ),
    _by_subscription(
        "headgate_push_delivered_records_total",
        "records that receivers took",
        lambda total: total.records,
        "counter",
    ),
    Metric(
        "headgate_push_seconds",
        "histogram",
        "how long POSTs took, of all subscriptions together",
        (),
        _latencies,
    ),
)
