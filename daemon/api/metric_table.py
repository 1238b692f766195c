"""The metrics of the daemon: name, kind, labels, meaning, and where in the status each value is.

Names follow Prometheus' conventions: base units (seconds, bytes), counters end with ``_total``.
Labels are bounded by the machine and by constants, never by clients: shards, groups, kinds of
alarms, rungs, operations. Nothing is computed here that ``status.py`` does not compute. The table
needs no library; ``metrics.py`` writes it in Prometheus' formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from daemon.alarms import MEANINGS
from daemon.api.status_schemas import (
    BillStatus,
    BudgetStatus,
    GroupStatus,
    ShardStatus,
    Status,
    StoreCost,
)
from daemon.governor.ladder import RUNGS
from shards.latency import Counted, Stage
from shards.topiccounts import TopicCount

Sample = tuple[tuple[str, ...], float | Counted]  # values of the labels, value
Kind = Literal["counter", "gauge", "histogram", "info"]


OTHER_TOPICS = "_other"  # no name of a topic begins so


class Scrape(NamedTuple):
    """What the values are of: one moment of the daemon."""

    status: Status
    stages: Mapping[Stage, Counted]
    topics: Sequence[TopicCount]


class Metric(NamedTuple):
    """A metric; ``says`` is a phrase without a full stop, for HELP and the page of metrics."""

    name: str  # as queries have it, so with _total or _info
    kind: Kind
    says: str
    labels: tuple[str, ...]
    samples: Callable[[Scrape], Iterable[Sample]]


def _one(
    name: str, kind: Literal["counter", "gauge"], says: str, value: Callable[[Status], float]
) -> Metric:
    return Metric(name, kind, says, (), lambda scrape: [((), value(scrape.status))])


def _by_shard(
    name: str, kind: Literal["counter", "gauge"], says: str, value: Callable[[ShardStatus], float]
) -> Metric:
    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((str(shard.shard),), value(shard)) for shard in scrape.status.shards]

    return Metric(name, kind, says, ("shard",), samples)


def _by_group(name: str, says: str, value: Callable[[GroupStatus], float]) -> Metric:
    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((str(group.group),), value(group)) for group in scrape.status.groups]

    return Metric(name, "gauge", says, ("group",), samples)


def _by_operation(name: str, says: str, values: dict[str, Callable[[BillStatus], float]]) -> Metric:
    def samples(scrape: Scrape) -> Iterable[Sample]:
        bill = scrape.status.bill
        return [((operation,), value(bill)) for operation, value in values.items()]

    return Metric(name, "counter", says, ("operation",), samples)


def _alternatives(name: str, says: str, value: Callable[[StoreCost], float]) -> Metric:
    def samples(scrape: Scrape) -> Iterable[Sample]:
        bill = scrape.status.bill
        per_shard, single_stream = value(bill.per_shard), value(bill.single_stream)
        return [(("per_shard",), per_shard), (("single_stream",), single_stream)]

    return Metric(name, "counter", says, ("uploading",), samples)


def _budget(name: str, says: str, value: Callable[[BudgetStatus], float]) -> Metric:
    def samples(scrape: Scrape) -> Iterable[Sample]:
        budget = scrape.status.bill.budget
        return [] if budget is None else [((), value(budget))]

    return Metric(name, "gauge", says, (), samples)


def _alarms(scrape: Scrape) -> Iterable[Sample]:
    """Each kind always has a value, so that a rule finds a series before the first alarm."""
    raised = {alarm.alarm for alarm in scrape.status.alarms}
    names = [meaning.name for meaning in MEANINGS.values()]
    return [((name,), float(name in raised)) for name in names]


def _sensors(scrape: Scrape) -> Iterable[Sample]:
    return [((name,), pressure) for name, pressure in scrape.status.pressure.inputs.items()]


def _rungs(scrape: Scrape) -> Iterable[Sample]:
    in_force = scrape.status.pressure.rungs
    return [((rung.name,), float(rung.name in in_force)) for rung in RUNGS]


def _changes(scrape: Scrape) -> Iterable[Sample]:
    totals = scrape.status.totals
    return [(("split",), totals.splits), (("merge",), totals.merges)]


def _by_topic(name: str, says: str, value: Callable[[TopicCount], int]) -> Metric:
    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((topic.name or OTHER_TOPICS,), value(topic)) for topic in scrape.topics]

    return Metric(name, "counter", says, ("topic",), samples)


def _stages(scrape: Scrape) -> Iterable[Sample]:
    return [((stage.name.lower(),), counted) for stage, counted in scrape.stages.items()]


METRICS: tuple[Metric, ...] = (
    Metric(
        "headgate_build_info",
        "info",
        "the version that runs",
        ("version",),
        lambda scrape: [((scrape.status.version,), 1)],
    ),
    _one("headgate_uptime_seconds", "gauge", "time since the start", lambda s: s.uptime_s),
    _one("headgate_ready", "gauge", "1 if /readyz answers 200, 0 if not", lambda s: s.ready),
    _one("headgate_incarnation", "gauge", "the number of this start", lambda s: s.incarnation),
    Metric(
        "headgate_alarm_active",
        "gauge",
        "1 while the alarm is raised",
        ("alarm",),
        _alarms,
    ),
    # What producers get.
    _by_shard(
        "headgate_acked_requests_total",
        "counter",
        "requests that were acknowledged, which are durable",
        lambda shard: shard.requests_acked,
    ),
    _by_shard(
        "headgate_acked_records_total",
        "counter",
        "records that were acknowledged",
        lambda shard: shard.records_acked,
    ),
    _by_shard(
        "headgate_acked_bytes_total",
        "counter",
        "bytes of the bodies that were acknowledged, as they were received",
        lambda shard: shard.bytes_acked,
    ),
    Metric(
        "headgate_refused_requests_total",
        "counter",
        "requests to produce that got 429 (`throttled`) or 503: nothing of them was stored",
        ("code",),
        lambda s: [((code,), count) for code, count in s.status.totals.rejected_by.items()],
    ),
    _by_shard(
        "headgate_queued_requests",
        "gauge",
        "requests that wait for ring space, by `disable_backpressure`",
        lambda shard: shard.requests_queued,
    ),
    _by_topic(
        "headgate_topic_acked_records_total",
        "records that were acknowledged, of the first 128 topics and of all others together",
        lambda topic: topic.records,
    ),
    _by_topic(
        "headgate_topic_acked_bytes_total",
        "bytes of the bodies that were acknowledged, likewise",
        lambda topic: topic.bytes,
    ),
    Metric(
        "headgate_stage_seconds",
        "histogram",
        "how long each stage of a request took",
        ("stage",),
        _stages,
    ),
    # Shards.
    _by_shard("headgate_shard_ready", "gauge", "1 if the shard serves", lambda shard: shard.ready),
    _by_shard(
        "headgate_shard_restarts_total",
        "counter",
        "how often the shard's process was replaced",
        lambda shard: shard.restarts,
    ),
    _by_shard(
        "headgate_shard_heartbeat_age_seconds",
        "gauge",
        "time since the shard's loop turned; 0 before the first turn",
        lambda shard: (shard.heartbeat_age_ms or 0) / 1e3,
    ),
    _by_shard(
        "headgate_shard_cpu_seconds_total",
        "counter",
        "CPU time of the shard's present process",
        lambda shard: shard.cpu_ms / 1e3,
    ),
    _by_shard(
        "headgate_ring_bytes", "gauge", "size of the shard's ring", lambda shard: shard.ring_bytes
    ),
    _by_shard(
        "headgate_ring_used_bytes",
        "gauge",
        "bytes in the ring that are not committed yet",
        lambda shard: shard.ring_used_bytes,
    ),
    _by_shard(
        "headgate_connections",
        "gauge",
        "connections of the shard, without streams",
        lambda shard: shard.connections,
    ),
    _by_shard("headgate_streams", "gauge", "streams of the shard", lambda shard: shard.streams),
    # Groups and commits.
    _one("headgate_groups", "gauge", "how many upload groups there are", lambda s: len(s.groups)),
    _by_group(
        "headgate_group_backlog_bytes",
        "bytes that the group has not pulled yet",
        lambda group: group.backlog_bytes,
    ),
    _by_group(
        "headgate_group_upload_age_seconds",
        "time since the group last uploaded; 0 before the first time",
        lambda group: (group.last_upload_age_ms or 0) / 1e3,
    ),
    Metric(
        "headgate_group_changes_total",
        "counter",
        "splits and merges of groups",
        ("change",),
        _changes,
    ),
    _one("headgate_commits_total", "counter", "commits in the ledger", lambda s: s.commits),
    _one(
        "headgate_committed_objects_total",
        "counter",
        "objects that this daemon committed",
        lambda s: s.totals.objects_committed,
    ),
    _one(
        "headgate_adopted_leases_total",
        "counter",
        "leases that were taken over from a shard that died",
        lambda s: s.totals.orphans_adopted,
    ),
    _one(
        "headgate_commit_window_seconds",
        "gauge",
        "the commit window in force",
        lambda s: s.window_ms / 1e3,
    ),
    # The store.
    _by_operation(
        "headgate_store_requests_total",
        "requests to the object store: objects, the owner's log, images, probes, reads",
        {"put": lambda s: s.puts, "get": lambda s: s.gets, "list": lambda s: s.lists},
    ),
    _by_operation(
        "headgate_store_bytes_total",
        "bytes that were put or got",
        {"put": lambda s: s.put_bytes, "get": lambda s: s.get_bytes},
    ),
    _one(
        "headgate_store_put_failures_total",
        "counter",
        "attempts to PUT an object that failed; each is repeated",
        lambda s: s.store.put_failures,
    ),
    # The bill.
    _one(
        "headgate_store_cost_usd_total",
        "counter",
        "what these requests cost, by the configured prices",
        lambda s: s.bill.usd,
    ),
    _one(
        "headgate_store_cost_usd_per_month",
        "gauge",
        "the same for 30 days at the pace of the last minute",
        lambda s: s.bill.usd_per_month,
    ),
    _one(
        "headgate_store_cost_usd_per_gib",
        "gauge",
        "the cost so far for each GiB of bodies that was acknowledged; 0 before the first",
        lambda s: s.bill.usd_per_gib or 0.0,
    ),
    _alternatives(
        "headgate_alternative_puts_total",
        "PUTs that uploading without groups would have made",
        lambda cost: cost.puts,
    ),
    _alternatives(
        "headgate_alternative_cost_usd_total",
        "what uploading without groups would have cost",
        lambda cost: cost.usd,
    ),
    _one(
        "headgate_optimum_puts_per_second",
        "gauge",
        "PUTs if all shards were one group that is never too slow",
        lambda s: s.bill.optimum_put_rate,
    ),
    _budget(
        "headgate_put_budget_usd_per_month",
        "the budget; no series: there is none",
        lambda budget: budget.usd_per_month,
    ),
    _budget(
        "headgate_put_budget_holds",
        "0 if more is spent and no lever is left, 1 otherwise",
        lambda budget: budget.holds,
    ),
    _budget(
        "headgate_put_budget_window_seconds",
        "the least commit window that the budget allows",
        lambda budget: budget.window_ms / 1e3,
    ),
    # The governor.
    _one("headgate_pressure_ratio", "gauge", "the level of pressure", lambda s: s.pressure.level),
    _one(
        "headgate_hard_pressure_ratio",
        "gauge",
        "the level of the hard sensors alone",
        lambda s: s.pressure.hard_level,
    ),
    _one(
        "headgate_scaling_ratio",
        "gauge",
        "how much more CPU would help, over the last 15 s",
        lambda s: s.pressure.scaling / 100,
    ),
    Metric(
        "headgate_sensor_pressure_ratio",
        "gauge",
        "the pressure of each sensor, before its weight",
        ("sensor",),
        _sensors,
    ),
    Metric(
        "headgate_rung_active",
        "gauge",
        "1 while the rung of the ladder is in force",
        ("rung",),
        _rungs,
    ),
    Metric(
        "headgate_rung_entered_total",
        "counter",
        "how often the rung came into force",
        ("rung",),
        lambda s: [((rung,), count) for rung, count in s.status.pressure.entered.items()],
    ),
    # The scheduler.
    Metric(
        "headgate_ready_entries",
        "gauge",
        "topics that wait for their turn, by band; 0 is the lowest",
        ("band",),
        lambda s: [((str(band),), n) for band, n in enumerate(s.status.scheduler.ready)],
    ),
    _one(
        "headgate_deferred_entries",
        "gauge",
        "those of them that pressure puts off",
        lambda s: s.scheduler.deferred,
    ),
    # Memory, retention and time.
    _one(
        "headgate_memory_bound_bytes",
        "gauge",
        "the sum of the limits of all buffers",
        lambda s: s.memory_bound_bytes,
    ),
    _one(
        "headgate_evicted_records_total",
        "counter",
        "records that a cap or the time to live evicted",
        lambda s: s.retention.records_evicted,
    ),
    _one(
        "headgate_clock_jump_seconds",
        "gauge",
        "how far the wall clock jumped, negative: back; 0 while it is trusted",
        lambda s: (s.retention.clock_jump_ms or 0) / 1e3,
    ),
)
