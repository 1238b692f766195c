"""What the daemon says about itself: alive, ready, and its status. See ``api.py``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from daemon.schemas.bill import BillStatus, StoreStatus
from daemon.schemas.kafka import KafkaGroupScaling, KafkaStatus
from daemon.schemas.standby import StandbysStatus
from shards import layout as at
from shards.boards.figures import Family, RouterCounters, SubscriptionCounters, figure

_GROUP_CHANGES = Family("headgate_group_changes_total", "splits and merges of groups")


class Live(Struct, frozen=True):
    """The loop of a shard turns."""

    live: bool = True


class Ready(Struct, frozen=True):
    """All shards serve."""

    ready: bool = True


class MetricsHeaders(Struct, frozen=True, rename={"accept": "Accept"}):
    """The header that chooses the format of the metrics."""

    accept: Annotated[
        str, figure("`text/plain` (the default) or `application/openmetrics-text`")
    ] = ""


class AlarmStatus(Struct, frozen=True):
    """A kind of alarm, over all processes."""

    alarm: Annotated[str, figure("its name (docs/operations.md)")]
    age_ms: int
    count: Annotated[int, figure("how often it was raised")]
    message: str
    not_ready: Annotated[bool, figure("whether it makes the daemon not ready")]


class StandingStatus(Struct, frozen=True):
    """A subscription or a router that stands still although it could go on."""

    kind: Annotated[str, figure("`subscription`, `push` or `router`")]
    topic: Annotated[str, figure("of a router, its source")]
    name: str
    age_ms: int
    message: Annotated[str, figure("which message (partition, offset, key) stands still, and why")]


class SensorStatus(Struct, frozen=True):
    """What one sensor says."""

    sensor: str
    raw: Annotated[float | None, figure("what was measured, smoothed; null: broken")]
    unit: str
    pressure: Annotated[float, figure("0 to 1")]
    weight: Annotated[float, figure("how much of the pressure counts; a hard one's is 1")]
    hard: Annotated[bool, figure("whether it watches something that runs out")]
    shard: Annotated[int | None, figure("the shard with the highest value")]
    source: Annotated[str, figure("what is measured")]


class Pressure(Struct, frozen=True):
    """How loaded the daemon is."""

    level: Annotated[float, figure("the level of pressure, 0 to 1", "headgate_pressure_ratio")]
    rung: Annotated[str, figure("the strongest reaction in force, or `none`")]
    inputs: Annotated[
        dict[str, float],
        figure(
            "the pressure of each sensor, 0 to 1, before its weight",
            "headgate_sensor_pressure_ratio",
            by="sensor",
        ),
    ]
    hard_level: Annotated[
        float, figure("the level of the hard sensors alone", "headgate_hard_pressure_ratio")
    ]
    rungs: Annotated[list[str], figure("all reactions in force, weakest first")]
    sensors: list[SensorStatus]
    entered: Annotated[
        dict[str, int],
        figure("how often each rung came into force", "headgate_rung_entered_total", by="rung"),
    ]
    steady_level: Annotated[float, figure("the level that the commit window follows")]
    coalesce_ms: Annotated[float, figure("how long pushes wait for others")]
    deferring: Annotated[bool, figure("whether the least urgent pushes are put off")]
    scaling: Annotated[
        int,
        figure(
            "how much more CPU would help, over the last 15 s, as `GET /v0/scaling`; 100 is a ratio"
            " of 1",
            "headgate_scaling_ratio",
            per=100,
        ),
    ]
    memory_left_bytes: Annotated[
        int | None,
        figure(
            "what the daemon may still use before the memory sensor's pressure is 1: below the"
            " limit of its control group, or of the machine; null: not known",
            "headgate_memory_left_bytes",
            has_unknown=True,
        ),
    ]


class SubscriptionScaling(Struct, frozen=True):
    """How much more consumers would help a subscription. Lag that they cannot drain does not
    count."""

    topic: str
    subscription: str
    value: Annotated[
        int,
        figure("0 to 100: the part of the drainable lag that present consumers cannot hold"),
    ]
    drainable_lag: Annotated[int, figure("messages that consumers could work on simultaneously")]
    lag: Annotated[int, figure("records that are not finished")]
    in_flight: int
    blocked_keys: int
    consumers: int
    consumer_max: Annotated[
        int,
        figure(
            "messages that a consumer works on at a time: the largest `max` of polls, or else"
            " the subscription's setting"
        ),
    ]
    held: Annotated[str, figure("why nothing is delivered now; empty if it is")]


class ImportScaling(Struct, frozen=True):
    """What imports into a topic have left, also if their command has ended: the sizes that
    clients told, less where the cursors are."""

    topic: str
    sources: Annotated[int, figure("sources that are not imported to their ends")]
    unknown: Annotated[
        int,
        figure(
            "those whose size is not known, or was told more than an hour ago; they are in no lag"
        ),
    ]
    lag_bytes: Annotated[int, figure("what is left of the other sources that are text")]
    lag_records: Annotated[int, figure("what is left of those in Kafka, in offsets")]
    told_age_ms: Annotated[int | None, figure("how long ago the oldest of their sizes was told")]


class Scaling(Struct, frozen=True):
    """How much more CPU would help."""

    value: Annotated[int, figure("0 to 100, over the last 15 s")]
    inputs: Annotated[dict[str, float], figure("pressures that count, now, 0 to 1")]
    left_out: Annotated[dict[str, float], figure("pressures that more CPU would not lower")]
    shards: int
    subscriptions: Annotated[
        list[SubscriptionScaling], figure("how much more consumers would help each")
    ]
    imports: Annotated[
        list[ImportScaling] | None,
        figure(
            "topics with imports that have not ended; null if the ledger did not answer"
            " within a second"
        ),
    ] = None
    kafka_groups: Annotated[
        list[KafkaGroupScaling],
        figure(
            "consumer groups of Kafka's protocol, each in the topics that it has committed of; the"
            " first 512"
        ),
    ] = []


class SubscriptionFigures(SubscriptionCounters, frozen=True, kw_only=True):
    """A subscription as its owner told last, about a second ago."""

    topic: str
    subscription: str
    state: Annotated[str, figure("running, paused, held or stopped")]
    reason: Annotated[str, figure("why it does not run, or why dead letters wait")]


class SubscriptionsStatus(SubscriptionCounters, frozen=True, kw_only=True):
    """All subscriptions together; of the ages, the greatest one."""

    count: Annotated[int, figure("how many subscriptions there are", "headgate_subscriptions")]
    held: Annotated[
        int, figure("subscriptions that can deliver nothing now", "headgate_subscriptions_held")
    ]
    first: Annotated[
        list[SubscriptionFigures],
        figure("up to 20: held, with blocked keys, then with the most lag"),
    ]


class PushCounters(Struct, frozen=True, kw_only=True):
    """Figures of one push subscription, or of all together. Rates are attempts (POSTs) a second;
    counts are since the daemon started."""

    rate_max: Annotated[
        float, figure("what the settings allow", "headgate_push_allowed_attempts_per_second")
    ]
    granted: Annotated[
        float,
        figure("what the senders may use of it now", "headgate_push_granted_attempts_per_second"),
    ]
    rate: Annotated[
        float,
        figure("the rate in force: what receivers take", "headgate_push_rate_attempts_per_second"),
    ]
    use: Annotated[
        float,
        figure(
            "how much of the granted rate the senders need, 0 to 1; all while the rate climbs",
            "headgate_push_use_ratio",
        ),
    ]
    senders: Annotated[int, figure("senders that are present", "headgate_push_senders")]
    in_flight: Annotated[int, figure("POSTs under way", "headgate_push_in_flight_attempts")]
    attempts: int
    records: Annotated[
        int, figure("records that receivers took", "headgate_push_delivered_records_total")
    ]
    failures: Annotated[int, figure("attempts that failed, for any reason")]
    p50_ms: Annotated[float | None, figure("half of the attempts took less, to a factor of two")]
    p99_ms: float | None


class PushFigures(PushCounters, frozen=True, kw_only=True):
    """A push subscription."""

    topic: str
    subscription: str
    mode: Annotated[str, figure("normal, slow or heartbeat: of its slowest sender")]
    held_ms: Annotated[int, figure("how long the receiver still wants nothing")]
    outcomes: Annotated[dict[str, int], figure("how attempts ended, where not 0")]


class PushStatus(PushCounters, frozen=True, kw_only=True):
    """All push subscriptions together."""

    count: Annotated[int, figure("subscriptions that push", "headgate_push_subscriptions")]
    slow: Annotated[
        int,
        figure(
            "subscriptions in slow or heartbeat mode, because the receiver fails",
            "headgate_push_subscriptions_slow",
        ),
    ]
    first: Annotated[list[PushFigures], figure("up to 20: slow, then with the most failures")]


class RouterFigures(RouterCounters, frozen=True, kw_only=True):
    """A router as its owner told last, about a second ago."""

    router: str
    source: str
    dest: str
    state: Annotated[str, figure("running, paused, held or stopped")]
    reason: Annotated[str, figure("why it does not run")]


class RoutersStatus(RouterCounters, frozen=True, kw_only=True):
    """All routers together."""

    count: Annotated[int, figure("how many routers there are", "headgate_routers")]
    held: Annotated[int, figure("routers that can copy nothing now", "headgate_routers_held")]
    stopped: Annotated[int, figure("routers that cannot go on", "headgate_routers_stopped")]
    first: Annotated[
        list[RouterFigures], figure("up to 20: stopped or held, then with the most lag")
    ]


class SchedulerStatus(Struct, frozen=True):
    """Topics that wait for their turn, over all shards: each counts once for watchers and once
    for routers."""

    ready: Annotated[
        list[int],
        figure(
            "topics that wait for their turn, by band from 0",
            "headgate_ready_entries",
            by="band",
        ),
    ]
    deferred: Annotated[
        int,
        figure(
            "topics that wait and that pressure puts off",
            "headgate_deferred_entries",
            word=at.S_DEFERRED,
        ),
    ]


class RetentionStatus(Struct, frozen=True):
    """Evictions since the daemon started."""

    records_evicted: Annotated[
        int,
        figure("records that a cap or the time to live evicted", "headgate_evicted_records_total"),
    ]
    clock_jump_ms: Annotated[
        int | None,
        figure(
            "how far the wall clock jumped; negative: back. Time to live then evicts nothing"
            " until an operator acts",
            "headgate_clock_jump_seconds",
            per=1e3,
        ),
    ]


class DeliveryStatus(Struct, frozen=True):
    """How long records took from their commit to a stream, since the daemon started."""

    deliveries: Annotated[int, figure("writes to streams with records that were new")]
    p50_ms: Annotated[
        float | None,
        figure("half took less; exact to a factor of 2. Null: there was no delivery"),
    ]
    p99_ms: Annotated[float | None, figure("99 % took less")]
    lagged_watchers: Annotated[
        int,
        figure(
            "watchers that have lagged and are not at the end again",
            "headgate_lagged_watchers",
            word=at.S_LAGGED,
        ),
    ]
    lags: Annotated[
        int, figure("how often watchers have lagged", "headgate_watcher_lags_total", word=at.S_LAGS)
    ]


class GateStatus(Struct, frozen=True):
    """A gate, which pauses a source of new records while something runs out."""

    gate: Annotated[str, figure("its source: `producers`, or `routers` of each shard")]
    paused_shards: Annotated[
        int,
        figure(
            "shards that take nothing new from producers, or whose routers read nothing new",
            "headgate_gate_paused_shards",
        ),
    ]
    paused_ms: Annotated[
        int | None,
        figure(
            "the longest time for which a shard has been paused; null, or 0: none is",
            "headgate_gate_paused_seconds",
            per=1e3,
        ),
    ]
    pauses: Annotated[
        int,
        figure(
            "how often the gate has closed since the daemon started", "headgate_gate_pauses_total"
        ),
    ]
    reasons: Annotated[
        list[str],
        figure(
            "what keeps it closed: `store_failing`, `ledger_disk`, `store_disk` or `memory`;"
            " of routers, a sensor"
        ),
    ]


class LatencyStatus(Struct, frozen=True):
    """How long a stage took, since the daemon started. Null: nothing was counted."""

    count: Annotated[int, figure("times that were counted; of requests, one in 16")]
    p50_ms: Annotated[float | None, figure("half took less; exact to a factor of 2")]
    p99_ms: Annotated[float | None, figure("99 % took less")]


class ShardStatus(Struct, frozen=True):
    """A shard. Counters are of its processes since the daemon started."""

    shard: int
    pid: Annotated[int | None, figure("null while the shard is being restarted")]
    ready: Annotated[bool, figure("whether the shard serves", "headgate_shard_ready")]
    cpu: Annotated[int, figure("", word=at.S_CPU)]
    group: int
    restarts: Annotated[
        int,
        figure(
            "how often the shard's process was replaced",
            "headgate_shard_restarts_total",
            word=at.S_RESTARTS,
        ),
    ]
    heartbeat_age_ms: Annotated[
        int | None,
        figure(
            "time since the shard's loop turned; null, or 0, before the first turn",
            "headgate_shard_heartbeat_age_seconds",
            per=1e3,
        ),
    ]
    cpu_ms: Annotated[
        int,
        figure(
            "CPU time of the shard's present process", "headgate_shard_cpu_seconds_total", per=1e3
        ),
    ]
    ring_bytes: Annotated[int, figure("size of the shard's ring", "headgate_ring_bytes")]
    ring_used_bytes: Annotated[
        int, figure("bytes in the ring that are not committed yet", "headgate_ring_used_bytes")
    ]
    connections: Annotated[
        int,
        figure(
            "connections of the shard, without streams",
            "headgate_connections",
            word=at.S_CONNECTIONS,
        ),
    ]
    streams: Annotated[int, figure("streams of the shard", "headgate_streams", word=at.S_STREAMS)]
    requests_queued: Annotated[
        int,
        figure(
            "requests that wait for ring space (`disable_backpressure`)",
            "headgate_queued_requests",
            word=at.S_QUEUED,
        ),
    ]
    requests_acked: Annotated[
        int,
        figure(
            "requests that were acknowledged, which are durable",
            "headgate_acked_requests_total",
            word=at.S_REQUESTS_ACKED,
        ),
    ]
    records_acked: Annotated[
        int,
        figure(
            "records that were acknowledged",
            "headgate_acked_records_total",
            word=at.S_RECORDS_ACKED,
        ),
    ]
    bytes_acked: Annotated[
        int,
        figure(
            "bytes of the bodies that were acknowledged, as they were received",
            "headgate_acked_bytes_total",
            word=at.S_BYTES_ACKED,
        ),
    ]
    journal_bytes: int
    journal_used_bytes: Annotated[int, figure("acknowledgments that are not in the ledger yet")]
    journal_waits: Annotated[
        int,
        figure(
            "acknowledgments that had to wait until the journal had space",
            "headgate_journal_waits_total",
            word=at.S_JOURNAL_WAITS,
        ),
    ]


class GroupStatus(Struct, frozen=True):
    """A group of shards."""

    group: int
    shards: list[int]
    turn: Annotated[int, figure("the shard that uploads next")]
    backlog_bytes: Annotated[
        int, figure("bytes that the group has not pulled yet", "headgate_group_backlog_bytes")
    ]
    last_upload_age_ms: Annotated[
        int | None,
        figure(
            "time since the group last uploaded; null, or 0, before the first time",
            "headgate_group_upload_age_seconds",
            per=1e3,
        ),
    ]
    last_change_age_ms: int | None
    splits: int
    merges: int


class Totals(Struct, frozen=True):
    """Sums over all shards since the daemon started."""

    requests_acked: Annotated[int, figure("", word=at.S_REQUESTS_ACKED)]
    records_acked: Annotated[int, figure("", word=at.S_RECORDS_ACKED)]
    bytes_acked: Annotated[int, figure("", word=at.S_BYTES_ACKED)]
    rejected: Annotated[int, figure("", word=at.S_REJECTED)]
    rejected_by: Annotated[
        dict[str, int],
        figure(
            "requests to produce that got 429 (`throttled`) or 503, by code",
            "headgate_refused_requests_total",
            by="code",
        ),
    ]
    objects_committed: Annotated[
        int,
        figure(
            "objects that this daemon committed",
            "headgate_committed_objects_total",
            word=at.S_OBJECTS_COMMITTED,
        ),
    ]
    orphans_adopted: Annotated[
        int,
        figure(
            "leases that were taken over from a shard that died",
            "headgate_adopted_leases_total",
            word=at.S_ORPHANS_ADOPTED,
        ),
    ]
    splits: Annotated[int, figure("of groups", _GROUP_CHANGES, change="split")]
    merges: Annotated[int, figure("of groups", _GROUP_CHANGES, change="merge")]


class CertificateStatus(Struct, frozen=True):
    """The certificate that the TLS listener shows."""

    names: Annotated[list[str], figure("for which it was issued")]
    expires_at_ms: Annotated[
        int,
        figure(
            "when the certificate expires, since 1970",
            "headgate_certificate_expiry_timestamp_seconds",
            per=1e3,
        ),
    ]


class Status(Struct, frozen=True):
    """What the daemon is doing. Ages are null before the first time."""

    version: str
    uptime_s: Annotated[int, figure("time since the start", "headgate_uptime_seconds")]
    ready: Annotated[bool, figure("whether /readyz answers 200", "headgate_ready")]
    alarms: list[AlarmStatus]
    standing: Annotated[
        list[StandingStatus],
        figure("what stands still, up to 100, the longest first (docs/operations.md)"),
    ]
    incarnation: Annotated[int, figure("the number of this start", "headgate_incarnation")]
    epoch: int
    commits: Annotated[int, figure("commits in the ledger", "headgate_commits_total")]
    store: StoreStatus
    window_ms: Annotated[
        float, figure("the commit window in force", "headgate_commit_window_seconds", per=1e3)
    ]
    object_bytes_target: Annotated[int, figure("the object size in force")]
    pressure: Pressure
    bill: BillStatus
    memory_bound_bytes: Annotated[
        int, figure("the sum of the limits of all buffers", "headgate_memory_bound_bytes")
    ]
    retention: RetentionStatus
    gates: Annotated[list[GateStatus], figure("", by="gate")]
    scheduler: SchedulerStatus
    delivery: DeliveryStatus
    subscriptions: SubscriptionsStatus
    push: PushStatus
    routers: RoutersStatus
    latency: Annotated[
        dict[str, LatencyStatus],
        figure("by [stage](observability/README.md#latency-by-stage)"),
    ]
    shards: Annotated[list[ShardStatus], figure("", by="shard")]
    groups: Annotated[list[GroupStatus], figure("", by="group")]
    totals: Totals
    certificate: Annotated[CertificateStatus | None, figure("null without `tls_certificate`")] = (
        None
    )
    standbys: Annotated[StandbysStatus, figure("")] = StandbysStatus()
    imports: Annotated[
        list[ImportScaling] | None,
        figure(
            "topics with imports that have not ended; null if the ledger did not answer"
            " within a second"
        ),
    ] = None
    kafka: Annotated[KafkaStatus | None, figure("null without `kafka_listen`")] = None
