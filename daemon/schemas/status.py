"""What the daemon says about itself: alive, ready, and its status. See ``api.py``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Live(Struct, frozen=True):
    """The loop of a shard turns."""

    live: bool = True


class Ready(Struct, frozen=True):
    """All shards serve."""

    ready: bool = True


class MetricsHeaders(Struct, frozen=True, rename={"accept": "Accept"}):
    """The header that chooses the format of the metrics."""

    accept: Annotated[
        str, Meta(description="`text/plain` (the default) or `application/openmetrics-text`")
    ] = ""


class AlarmStatus(Struct, frozen=True):
    """A kind of alarm, over all processes."""

    alarm: Annotated[str, Meta(description="its name (docs/operations.md)")]
    age_ms: int
    count: Annotated[int, Meta(description="how often it was raised since it began")]
    message: str
    not_ready: Annotated[bool, Meta(description="whether it makes the daemon not ready")]


class StandingStatus(Struct, frozen=True):
    """A subscription or a router of which nothing goes on, although it could."""

    kind: Annotated[str, Meta(description="`subscription`, `push` or `router`")]
    topic: Annotated[str, Meta(description="of a router, its source")]
    name: str
    age_ms: int
    message: Annotated[
        str, Meta(description="which message (partition, offset, key) stands still, and why")
    ]


class StoreStatus(Struct, frozen=True):
    """Calls of the object store since the daemon started, over restarts of shards."""

    url: str
    puts: Annotated[int, Meta(description="attempts to PUT an L0 object")]
    put_bytes: int
    put_failures: int
    gets: int
    get_bytes: int
    lists: int


class StoreCost(Struct, frozen=True):
    """What another way to upload the same requests would have cost."""

    puts: Annotated[int, Meta(description="an estimate")]
    usd: Annotated[float, Meta(description="with all other requests as they were")]


class BudgetStatus(Struct, frozen=True):
    """The budget in force (`put_budget_usd_per_month`)."""

    usd_per_month: float
    window_ms: Annotated[float, Meta(description="the least commit window that it allows now")]
    target_bytes: Annotated[int, Meta(description="the object target that it asks for now")]
    holds: Annotated[bool, Meta(description="false: more is spent, and no lever is left")]


class BillStatus(Struct, frozen=True):
    """What the daemon's requests to the store cost since it started, in US dollars. A month has 30
    days. Requests of commands are not included; they report their own."""

    store_class: Annotated[str, Meta(description="whose `prices` count")]
    puts: Annotated[
        int, Meta(description="attempts: objects, the owner's log, images of the ledger, probes")
    ]
    gets: int
    lists: int
    put_bytes: int
    get_bytes: int
    usd: float
    usd_per_month: Annotated[
        float | None,
        Meta(description="at the pace of the last minute; null in the first minute"),
    ]
    usd_per_gib: Annotated[
        float | None,
        Meta(description="of acknowledged bodies; null: fewer than 16 MiB were acknowledged"),
    ]
    put_rate: Annotated[float, Meta(description="PUTs per second in the last minute")]
    optimum_put_rate: Annotated[
        float, Meta(description="the same if all shards were one group that is never too slow")
    ]
    per_shard: Annotated[StoreCost, Meta(description="if each shard uploaded for itself")]
    single_stream: Annotated[StoreCost, Meta(description="if one stream uploaded for all")]
    budget: BudgetStatus | None


class SensorStatus(Struct, frozen=True):
    """What one sensor says."""

    sensor: str
    raw: Annotated[float | None, Meta(description="what was measured, smoothed; null: broken")]
    unit: str
    pressure: Annotated[float, Meta(description="0 to 1")]
    weight: Annotated[float, Meta(description="how much of the pressure counts; a hard one's is 1")]
    hard: Annotated[bool, Meta(description="whether it watches something that runs out")]
    shard: Annotated[int | None, Meta(description="the shard with the highest value")]
    source: Annotated[str, Meta(description="what is measured")]


class Pressure(Struct, frozen=True):
    """How loaded the daemon is."""

    level: Annotated[float, Meta(description="0 to 1")]
    rung: Annotated[str, Meta(description="the strongest reaction in force, or `none`")]
    inputs: Annotated[dict[str, float], Meta(description="the pressure of each sensor, 0 to 1")]
    hard_level: Annotated[float, Meta(description="that of the hard sensors alone")]
    rungs: Annotated[list[str], Meta(description="all reactions in force, weakest first")]
    sensors: list[SensorStatus]
    entered: Annotated[dict[str, int], Meta(description="how often each came into force")]
    steady_level: Annotated[float, Meta(description="the level that the commit window follows")]
    coalesce_ms: Annotated[float, Meta(description="how long pushes wait for others")]
    deferring: Annotated[bool, Meta(description="whether the least urgent pushes are put off")]
    scaling: Annotated[int, Meta(description="0 to 100, as `GET /v0/scaling`")]


class SubscriptionScaling(Struct, frozen=True):
    """How much more consumers would help a subscription. Lag that they cannot drain does not ask
    for them: blocked keys, all but one message of a key, a store that is down."""

    topic: str
    subscription: str
    value: Annotated[
        int,
        Meta(
            description="0 to 100: the part of the drainable lag that the consumers which are"
            " present cannot hold"
        ),
    ]
    drainable_lag: Annotated[
        int, Meta(description="messages that consumers could work on simultaneously")
    ]
    lag: Annotated[int, Meta(description="records that are not finished")]
    in_flight: int
    blocked_keys: int
    consumers: int
    consumer_max: Annotated[
        int,
        Meta(
            description="how many messages a consumer works on at a time: the largest `max` of"
            " those that poll; for streams, and without consumers, the subscription's setting"
        ),
    ]
    held: Annotated[str, Meta(description="why nothing is delivered now; empty if it is")]


class Scaling(Struct, frozen=True):
    """How much more CPU would help. A store that is down, or a full disk, does not ask for it."""

    value: Annotated[int, Meta(description="0 to 100, over the last 15 s")]
    inputs: Annotated[dict[str, float], Meta(description="pressures that count, now, 0 to 1")]
    left_out: Annotated[
        dict[str, float], Meta(description="pressures that more CPU would not lower")
    ]
    shards: int
    subscriptions: Annotated[
        list[SubscriptionScaling], Meta(description="how much more consumers would help each")
    ]


class SubscriptionCounters(Struct, frozen=True, kw_only=True):
    """Of one subscription, or of all together. Counts are since the daemon started."""

    lag: Annotated[int, Meta(description="records that are not finished")]
    drainable_lag: Annotated[
        int, Meta(description="messages that consumers could work on simultaneously")
    ]
    in_flight: Annotated[int, Meta(description="messages that are with consumers")]
    waiting: Annotated[int, Meta(description="messages that the owner knows and nobody has")]
    blocked_keys: int
    consumers: int
    oldest_unacknowledged_ms: Annotated[
        int, Meta(description="for how long a consumer has had the oldest message")
    ]
    oldest_unfinished_ms: Annotated[
        int, Meta(description="how long ago the oldest record that is not finished was stored")
    ]
    delivered: int
    acknowledged: int
    redelivered: int
    refused: Annotated[int, Meta(description="messages that acknowledgments named in vain")]
    dropped: Annotated[int, Meta(description="given up by the policy of failures")]
    skipped: Annotated[int, Meta(description="given up by an operator")]
    dead_lettered: int
    evicted: Annotated[int, Meta(description="removed by retention before they were finished")]
    unmatched: Annotated[int, Meta(description="skipped: no consumer accepted them")]


class SubscriptionFigures(SubscriptionCounters, frozen=True, kw_only=True):
    """A subscription as its owner told last, about a second ago."""

    topic: str
    subscription: str
    state: Annotated[str, Meta(description="running, paused, held or stopped")]
    reason: Annotated[str, Meta(description="why it does not run, or why dead letters wait")]


class SubscriptionsStatus(SubscriptionCounters, frozen=True, kw_only=True):
    """All subscriptions together; of the ages, the greatest one."""

    count: int
    held: Annotated[int, Meta(description="those that can deliver nothing now")]
    first: Annotated[
        list[SubscriptionFigures],
        Meta(description="up to 20: held, with blocked keys, then with the most lag"),
    ]


class PushCounters(Struct, frozen=True, kw_only=True):
    """Of one push subscription, or of all together. Rates are attempts (POSTs) a second; counts are
    since the daemon started."""

    rate_max: Annotated[float, Meta(description="what the settings allow")]
    granted: Annotated[float, Meta(description="what the senders may use of that now")]
    rate: Annotated[float, Meta(description="the rate in force: what receivers take")]
    use: Annotated[
        float,
        Meta(
            description="how much of that the senders need, 0 to 1: what they have used, or all"
            " while the rate climbs"
        ),
    ]
    senders: int
    in_flight: Annotated[int, Meta(description="POSTs under way")]
    attempts: int
    records: Annotated[int, Meta(description="records that were delivered")]
    failures: Annotated[int, Meta(description="attempts that failed, for any reason")]
    p50_ms: Annotated[
        float | None, Meta(description="half of the attempts took less, to a factor of two")
    ]
    p99_ms: float | None


class PushFigures(PushCounters, frozen=True, kw_only=True):
    """A push subscription."""

    topic: str
    subscription: str
    mode: Annotated[str, Meta(description="normal, slow or heartbeat: of its slowest sender")]
    held_ms: Annotated[int, Meta(description="how long the receiver still wants nothing")]
    outcomes: Annotated[dict[str, int], Meta(description="how attempts ended, where not 0")]


class PushStatus(PushCounters, frozen=True, kw_only=True):
    """All push subscriptions together."""

    count: int
    slow: Annotated[int, Meta(description="those in slow or heartbeat mode: the receiver fails")]
    first: Annotated[
        list[PushFigures], Meta(description="up to 20: slow, then with the most failures")
    ]


class RouterCounters(Struct, frozen=True, kw_only=True):
    """Of one router, or of all together. Counts are since the daemon started."""

    lag: Annotated[int, Meta(description="offsets of the source that are not dealt with")]
    copied: Annotated[int, Meta(description="records")]
    filtered: Annotated[int, Meta(description="records that the filter left out")]
    skipped: Annotated[int, Meta(description="offsets that were evicted before they were copied")]


class RouterFigures(RouterCounters, frozen=True, kw_only=True):
    """A router as its owner told last, about a second ago."""

    router: str
    source: str
    dest: str
    state: Annotated[str, Meta(description="running, paused, held or stopped")]
    reason: Annotated[str, Meta(description="why it does not run")]


class RoutersStatus(RouterCounters, frozen=True, kw_only=True):
    """All routers together."""

    count: int
    held: Annotated[int, Meta(description="those that can copy nothing now")]
    stopped: Annotated[int, Meta(description="those that cannot go on")]
    first: Annotated[
        list[RouterFigures], Meta(description="up to 20: stopped or held, then with the most lag")
    ]


class SchedulerStatus(Struct, frozen=True):
    """Topics that wait for their turn, over all shards: a topic counts once for its watchers and
    once for its routers."""

    ready: Annotated[list[int], Meta(description="by band, the lowest first")]
    deferred: Annotated[int, Meta(description="those of them that pressure puts off")]


class RetentionStatus(Struct, frozen=True):
    """Evictions since the daemon started."""

    records_evicted: int
    clock_jump_ms: Annotated[
        int | None,
        Meta(
            description="null, or how far the wall clock jumped (negative: back); time to live then"
            " evicts nothing until an operator acts"
        ),
    ]


class DeliveryStatus(Struct, frozen=True):
    """How long records took from their commit to a stream, since the daemon started."""

    deliveries: Annotated[int, Meta(description="writes to streams with records that were new")]
    p50_ms: Annotated[
        float | None,
        Meta(description="half took less; exact to a factor of 2. Null: there was no delivery"),
    ]
    p99_ms: Annotated[float | None, Meta(description="99 % took less")]
    lagged_watchers: Annotated[
        int, Meta(description="watchers that have lagged and are not at the end again")
    ]
    lags: Annotated[int, Meta(description="how often watchers have lagged")]


class GateStatus(Struct, frozen=True):
    """A gate, which pauses a source of new records while something runs out."""

    gate: Annotated[str, Meta(description="its source: `producers`, or `routers` of each shard")]
    paused_shards: Annotated[int, Meta(description="shards that take nothing from it now")]
    paused_ms: Annotated[
        int | None, Meta(description="for how long, the longest of them; null: no shard")
    ]
    pauses: Annotated[int, Meta(description="how often it has closed, since the daemon started")]
    reasons: Annotated[
        list[str],
        Meta(
            description="what keeps it closed: of producers, `store_failing`, `ledger_disk`,"
            " `store_disk` or `memory`; of routers, the sensor that closed it"
        ),
    ]


class LatencyStatus(Struct, frozen=True):
    """How long a stage took, since the daemon started. Null: nothing was counted."""

    count: Annotated[int, Meta(description="times that were counted; of requests, one in 16")]
    p50_ms: Annotated[float | None, Meta(description="half took less; exact to a factor of 2")]
    p99_ms: Annotated[float | None, Meta(description="99 % took less")]


class ShardStatus(Struct, frozen=True):
    """A shard. Counters are of its processes since the daemon started."""

    shard: int
    pid: Annotated[int | None, Meta(description="null while the shard is being restarted")]
    ready: Annotated[bool, Meta(description="whether it serves")]
    cpu: int
    group: int
    restarts: int
    heartbeat_age_ms: Annotated[int | None, Meta(description="null before the first one")]
    cpu_ms: Annotated[int, Meta(description="CPU time of its present process")]
    ring_bytes: int
    ring_used_bytes: int
    connections: Annotated[int, Meta(description="without streams")]
    streams: int
    requests_queued: Annotated[
        int,
        Meta(description="wait for ring space (`disable_backpressure`) with their bodies unread"),
    ]
    requests_acked: int
    records_acked: int
    bytes_acked: Annotated[int, Meta(description="of bodies as they were received")]
    journal_bytes: int
    journal_used_bytes: Annotated[
        int, Meta(description="acknowledgments that are not in the ledger yet")
    ]
    journal_waits: Annotated[
        int, Meta(description="acknowledgments that had to wait until the journal had space")
    ]


class GroupStatus(Struct, frozen=True):
    """A group of shards."""

    group: int
    shards: list[int]
    turn: Annotated[int, Meta(description="the shard that uploads next")]
    backlog_bytes: int
    last_upload_age_ms: int | None
    last_change_age_ms: int | None
    splits: int
    merges: int


class Totals(Struct, frozen=True):
    """Sums over all shards since the daemon started."""

    requests_acked: int
    records_acked: int
    bytes_acked: int
    rejected: int
    rejected_by: Annotated[dict[str, int], Meta(description="by the code of the answer")]
    objects_committed: int
    orphans_adopted: int
    splits: Annotated[int, Meta(description="of groups")]
    merges: int


class Status(Struct, frozen=True):
    """What the daemon is doing. Ages are null before the first time."""

    version: str
    uptime_s: int
    ready: bool
    alarms: list[AlarmStatus]
    standing: Annotated[
        list[StandingStatus],
        Meta(description="what stands still, up to 100, the longest first (docs/operations.md)"),
    ]
    incarnation: int
    epoch: int
    commits: int
    store: StoreStatus
    window_ms: Annotated[float, Meta(description="the commit window in force")]
    object_bytes_target: Annotated[int, Meta(description="the object size in force")]
    pressure: Pressure
    bill: BillStatus
    memory_bound_bytes: int
    retention: RetentionStatus
    gates: list[GateStatus]
    scheduler: SchedulerStatus
    delivery: DeliveryStatus
    subscriptions: SubscriptionsStatus
    push: PushStatus
    routers: RoutersStatus
    latency: Annotated[
        dict[str, LatencyStatus],
        Meta(
            description="by stage: admitted, published, pulled, put, committed, answered,"
            " acknowledged (the whole way of a request), dispatched, delivered"
        ),
    ]
    shards: list[ShardStatus]
    groups: list[GroupStatus]
    totals: Totals
