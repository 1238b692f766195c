"""All metrics of the daemon, by name: those of declared figures, and the few that need more.

Names follow Prometheus' conventions: base units (seconds, bytes), counters end with ``_total``.
Labels are bounded by the machine and by constants, never by clients: shards, groups, kinds of
alarms, rungs, operations, the first topics and subscriptions. The table needs no library;
``metrics.py`` writes it in Prometheus' formats.
"""

from __future__ import annotations

from daemon.alarms.alarms import NAMES, STANDS_STILL
from daemon.api.figures.metric_kinds import OTHERS, Histogram, Metric, declared
from daemon.governor.ladder import RUNGS
from delivery.subscriptions.shown.inspection import consumers_wanted
from shards.boards.pushboard import LATENCY_UNIT_NS, PushOutcome
from shards.boards.pushtotals import together
from shards.boards.rowboard import RowPhase
from shards.layout import PUSH_LATENCIES

_PUSH_BOUNDS_S = [(1 << bucket) * LATENCY_UNIT_NS / 1e9 for bucket in range(PUSH_LATENCIES - 1)]

_OWN = (
    Metric(
        "headgate_build_info",
        "info",
        "the version that runs",
        ("version",),
        lambda scrape: [((scrape.status.version,), 1)],
    ),
    Metric(  # each kind always has a value: a rule finds a series before the first alarm
        "headgate_alarm_active",
        "gauge",
        "1 while the alarm is raised",
        ("alarm",),
        lambda scrape: [
            ((name,), float(any(alarm.alarm == name for alarm in scrape.status.alarms)))
            for name in NAMES
        ],
    ),
    Metric(
        "headgate_stage_seconds",
        "histogram",
        "how long each stage of a request took",
        ("stage",),
        lambda scrape: [((s.name.lower(),), counted) for s, counted in scrape.stages.items()],
    ),
    Metric(
        "headgate_groups",
        "gauge",
        "how many upload groups there are",
        (),
        lambda scrape: [((), len(scrape.status.groups))],
    ),
    Metric(
        "headgate_rung_active",
        "gauge",
        "1 while the rung of the ladder is in force",
        ("rung",),
        lambda scrape: [
            ((rung.name,), float(rung.name in scrape.status.pressure.rungs)) for rung in RUNGS
        ],
    ),
    Metric(
        "headgate_subscription_scaling_ratio",
        "gauge",
        "how much more consumers would help",
        ("topic", "subscription"),
        lambda scrape: [
            (
                (row.topic, row.subscription),
                consumers_wanted(row.drainable_lag, row.consumers, row.consumer_max) / 100,
            )
            for row in scrape.subscriptions
            if row.subscription != OTHERS  # their sums say nothing
        ],
    ),
    Metric(
        "headgate_subscription_running",
        "gauge",
        "1 if it delivers, 0 if it is paused, held or stopped",
        ("topic", "subscription"),
        lambda scrape: [
            ((row.topic, row.subscription), row.phase is RowPhase.RUNNING)
            for row in scrape.subscriptions
        ],
    ),
    Metric(
        "headgate_journal_used_ratio",
        "gauge",
        "how full the journal of acknowledgments is; nothing is delivered from 0.5 on",
        ("shard",),
        lambda scrape: [
            ((str(shard.shard),), shard.journal_used_bytes / shard.journal_bytes)
            for shard in scrape.status.shards
        ],
    ),
    Metric(
        "headgate_push_mode",
        "gauge",
        "0 normal, 1 slow, 2 heartbeat: of the slowest sender",
        ("topic", "subscription"),
        lambda scrape: [((of.topic, of.subscription), of.total.mode) for of in scrape.push],
    ),
    Metric(
        "headgate_push_attempts_total",
        "counter",
        "POSTs that ended, by outcome; those that failed are made again",
        ("topic", "subscription", "outcome"),
        lambda scrape: [
            ((of.topic, of.subscription, outcome.name.lower()), count)
            for of in scrape.push
            for outcome, count in zip(PushOutcome, of.total.outcomes, strict=True)
        ],
    ),
    Metric(
        "headgate_push_attempt_seconds_total",
        "counter",
        "total time of these POSTs",
        ("topic", "subscription"),
        lambda scrape: [
            ((of.topic, of.subscription), of.total.latency.sum_ns / 1e9) for of in scrape.push
        ],
    ),
    Metric(
        "headgate_push_seconds",
        "histogram",
        "how long POSTs took, of all subscriptions together",
        (),
        lambda scrape: [
            ((), Histogram(together(of.total for of in scrape.push).latency, _PUSH_BOUNDS_S))
        ],
    ),
    Metric(
        "headgate_router_running",
        "gauge",
        "1 if it copies, 0 if it is paused, held or stopped",
        ("router", "source", "dest"),
        lambda scrape: [
            ((row.router, row.source, row.dest), row.phase is RowPhase.RUNNING)
            for row in scrape.routers
        ],
    ),
    Metric(
        "headgate_standing_still",
        "gauge",
        "subscriptions and routers that stand still although they could go on",
        (),
        lambda scrape: [
            ((), sum(a.count for a in scrape.status.alarms if a.alarm == STANDS_STILL.name))
        ],
    ),
)

METRICS = tuple(sorted([*_OWN, *declared()], key=lambda metric: metric.name))
