"""The metrics of the daemon: name, kind, labels, meaning, and where in the status each value is.

Names follow Prometheus' conventions: base units (seconds, bytes), counters end with ``_total``.
Labels are bounded by the machine and by constants, never by clients: shards, groups, kinds of
alarms, rungs, operations, the first topics and subscriptions. Nothing is computed here that
``status.py`` does not compute. The table needs no library; ``metrics.py`` writes it in Prometheus'
formats.
"""

from __future__ import annotations

from daemon.alarms.alarms import STANDS_STILL
from daemon.api.figures.metric_kinds import (
    Metric,
    alarms,
    alternatives,
    budget,
    by_gate,
    by_group,
    by_operation,
    by_router,
    by_shard,
    by_subscription,
    by_topic,
    changes,
    one,
    outcomes,
    rungs,
    sensors,
    stages,
)  # fmt: skip
from daemon.api.figures.push_metrics import PUSH_METRICS
from delivery.subscriptions.drainable import consumers_wanted
from shards.boards.rowboard import RowPhase

METRICS: tuple[Metric, ...] = (
    Metric(
        "headgate_build_info",
        "info",
        "the version that runs",
        ("version",),
        lambda scrape: [((scrape.status.version,), 1)],
    ),
    one("headgate_uptime_seconds", "gauge", "time since the start", lambda s: s.uptime_s),
    one("headgate_ready", "gauge", "1 if /readyz answers 200, 0 if not", lambda s: s.ready),
    one("headgate_incarnation", "gauge", "the number of this start", lambda s: s.incarnation),
    Metric(
        "headgate_alarm_active",
        "gauge",
        "1 while the alarm is raised",
        ("alarm",),
        alarms,
    ),
    # What producers get.
    by_shard(
        "headgate_acked_requests_total",
        "counter",
        "requests that were acknowledged, which are durable",
        lambda shard: shard.requests_acked,
    ),
    by_shard(
        "headgate_acked_records_total",
        "counter",
        "records that were acknowledged",
        lambda shard: shard.records_acked,
    ),
    by_shard(
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
    by_shard(
        "headgate_queued_requests",
        "gauge",
        "requests that wait for ring space, by `disable_backpressure`",
        lambda shard: shard.requests_queued,
    ),
    by_topic(
        "headgate_topic_acked_records_total",
        "records that were acknowledged, of the first 128 topics and of all others together",
        lambda topic: topic.records,
    ),
    by_topic(
        "headgate_topic_acked_bytes_total",
        "bytes of the bodies that were acknowledged, likewise",
        lambda topic: topic.bytes,
    ),
    Metric(
        "headgate_stage_seconds",
        "histogram",
        "how long each stage of a request took",
        ("stage",),
        stages,
    ),
    # Shards.
    by_shard("headgate_shard_ready", "gauge", "1 if the shard serves", lambda shard: shard.ready),
    by_shard(
        "headgate_shard_restarts_total",
        "counter",
        "how often the shard's process was replaced",
        lambda shard: shard.restarts,
    ),
    by_shard(
        "headgate_shard_heartbeat_age_seconds",
        "gauge",
        "time since the shard's loop turned; 0 before the first turn",
        lambda shard: (shard.heartbeat_age_ms or 0) / 1e3,
    ),
    by_shard(
        "headgate_shard_cpu_seconds_total",
        "counter",
        "CPU time of the shard's present process",
        lambda shard: shard.cpu_ms / 1e3,
    ),
    by_shard(
        "headgate_ring_bytes", "gauge", "size of the shard's ring", lambda shard: shard.ring_bytes
    ),
    by_shard(
        "headgate_ring_used_bytes",
        "gauge",
        "bytes in the ring that are not committed yet",
        lambda shard: shard.ring_used_bytes,
    ),
    by_shard(
        "headgate_connections",
        "gauge",
        "connections of the shard, without streams",
        lambda shard: shard.connections,
    ),
    by_shard("headgate_streams", "gauge", "streams of the shard", lambda shard: shard.streams),
    # Groups and commits.
    one("headgate_groups", "gauge", "how many upload groups there are", lambda s: len(s.groups)),
    by_group(
        "headgate_group_backlog_bytes",
        "bytes that the group has not pulled yet",
        lambda group: group.backlog_bytes,
    ),
    by_group(
        "headgate_group_upload_age_seconds",
        "time since the group last uploaded; 0 before the first time",
        lambda group: (group.last_upload_age_ms or 0) / 1e3,
    ),
    Metric(
        "headgate_group_changes_total",
        "counter",
        "splits and merges of groups",
        ("change",),
        changes,
    ),
    one("headgate_commits_total", "counter", "commits in the ledger", lambda s: s.commits),
    one(
        "headgate_committed_objects_total",
        "counter",
        "objects that this daemon committed",
        lambda s: s.totals.objects_committed,
    ),
    one(
        "headgate_adopted_leases_total",
        "counter",
        "leases that were taken over from a shard that died",
        lambda s: s.totals.orphans_adopted,
    ),
    one(
        "headgate_commit_window_seconds",
        "gauge",
        "the commit window in force",
        lambda s: s.window_ms / 1e3,
    ),
    # The store.
    by_operation(
        "headgate_store_requests_total",
        "requests to the object store: objects, the owner's log, images, probes, reads",
        {"put": lambda s: s.puts, "get": lambda s: s.gets, "list": lambda s: s.lists},
    ),
    by_operation(
        "headgate_store_bytes_total",
        "bytes that were put or got",
        {"put": lambda s: s.put_bytes, "get": lambda s: s.get_bytes},
    ),
    one(
        "headgate_store_put_failures_total",
        "counter",
        "attempts to PUT an object that failed; each is repeated",
        lambda s: s.store.put_failures,
    ),
    # The bill.
    one(
        "headgate_store_cost_usd_total",
        "counter",
        "what these requests cost, by the configured prices",
        lambda s: s.bill.usd,
    ),
    one(
        "headgate_store_cost_usd_per_month",
        "gauge",
        "the same for 30 days at the pace of the last minute; 0 in the first minute",
        lambda s: s.bill.usd_per_month or 0.0,
    ),
    one(
        "headgate_store_cost_usd_per_gib",
        "gauge",
        "the cost so far for each GiB of bodies that was acknowledged; 0 before 16 MiB",
        lambda s: s.bill.usd_per_gib or 0.0,
    ),
    alternatives(
        "headgate_alternative_puts_total",
        "PUTs that uploading without groups would have made",
        lambda cost: cost.puts,
    ),
    alternatives(
        "headgate_alternative_cost_usd_total",
        "what uploading without groups would have cost",
        lambda cost: cost.usd,
    ),
    one(
        "headgate_optimum_puts_per_second",
        "gauge",
        "PUTs if all shards were one group that is never too slow",
        lambda s: s.bill.optimum_put_rate,
    ),
    budget(
        "headgate_put_budget_usd_per_month",
        "the budget; no series: there is none",
        lambda budget: budget.usd_per_month,
    ),
    budget(
        "headgate_put_budget_holds",
        "0 if more is spent and no lever is left, 1 otherwise",
        lambda budget: budget.holds,
    ),
    budget(
        "headgate_put_budget_window_seconds",
        "the least commit window that the budget allows",
        lambda budget: budget.window_ms / 1e3,
    ),
    # The governor.
    one("headgate_pressure_ratio", "gauge", "the level of pressure", lambda s: s.pressure.level),
    one(
        "headgate_hard_pressure_ratio",
        "gauge",
        "the level of the hard sensors alone",
        lambda s: s.pressure.hard_level,
    ),
    one(
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
        sensors,
    ),
    Metric(
        "headgate_rung_active",
        "gauge",
        "1 while the rung of the ladder is in force",
        ("rung",),
        rungs,
    ),
    Metric(
        "headgate_rung_entered_total",
        "counter",
        "how often the rung came into force",
        ("rung",),
        lambda s: [((rung,), count) for rung, count in s.status.pressure.entered.items()],
    ),
    by_gate(
        "headgate_gate_paused_shards",
        "gauge",
        "shards that take nothing new from producers, or whose routers read nothing new",
        lambda gate: gate.paused_shards,
    ),
    by_gate(
        "headgate_gate_paused_seconds",
        "gauge",
        "for how long, the longest of them; 0: no shard",
        lambda gate: (gate.paused_ms or 0) / 1e3,
    ),
    by_gate(
        "headgate_gate_pauses_total",
        "counter",
        "how often the gate has closed",
        lambda gate: gate.pauses,
    ),
    # The scheduler.
    Metric(
        "headgate_ready_entries",
        "gauge",
        "topics that wait for their turn, by band; 0 is the lowest",
        ("band",),
        lambda s: [((str(band),), n) for band, n in enumerate(s.status.scheduler.ready)],
    ),
    one(
        "headgate_deferred_entries",
        "gauge",
        "those of them that pressure puts off",
        lambda s: s.scheduler.deferred,
    ),
    # Watchers.
    one(
        "headgate_lagged_watchers",
        "gauge",
        "watchers that have lagged and are not at the end again",
        lambda s: s.delivery.lagged_watchers,
    ),
    one(
        "headgate_watcher_lags_total",
        "counter",
        "how often watchers have lagged",
        lambda s: s.delivery.lags,
    ),
    # Subscriptions.
    one("headgate_subscriptions", "gauge", "how many there are", lambda s: s.subscriptions.count),
    one(
        "headgate_subscriptions_held",
        "gauge",
        "those of them that can deliver nothing now",
        lambda s: s.subscriptions.held,
    ),
    by_subscription(
        "headgate_subscription_lag_records",
        "records that are not finished, of the first 128 subscriptions and of all others together",
        lambda row: row.lag,
    ),
    by_subscription(
        "headgate_subscription_drainable_lag_records",
        "those of them that consumers could work on simultaneously",
        lambda row: row.drainable_lag,
    ),
    by_subscription(
        "headgate_subscription_scaling_ratio",
        "how much more consumers would help",
        lambda row: consumers_wanted(row.drainable_lag, row.consumers, row.consumer_max) / 100,
        others=False,
    ),
    by_subscription(
        "headgate_subscription_in_flight_messages",
        "messages that are with consumers",
        lambda row: row.in_flight,
    ),
    by_subscription(
        "headgate_subscription_waiting_messages",
        "messages that the owner knows and nobody has",
        lambda row: row.waiting,
    ),
    by_subscription(
        "headgate_subscription_blocked_keys",
        "keys whose first message nobody gets now",
        lambda row: row.blocked_keys,
    ),
    by_subscription(
        "headgate_subscription_consumers", "consumers that are present", lambda row: row.consumers
    ),
    by_subscription(
        "headgate_subscription_oldest_unacknowledged_seconds",
        "for how long a consumer has had the oldest message",
        lambda row: row.oldest_unacknowledged_ms / 1e3,
    ),
    by_subscription(
        "headgate_subscription_oldest_unfinished_seconds",
        "how long ago the oldest record that is not finished was stored",
        lambda row: row.oldest_unfinished_ms / 1e3,
    ),
    by_subscription(
        "headgate_subscription_running",
        "1 if it delivers, 0 if it is paused, held or stopped",
        lambda row: row.phase is RowPhase.RUNNING,
    ),
    by_subscription(
        "headgate_subscription_delivered_messages_total",
        "messages that were sent to consumers, each time",
        lambda row: row.delivered,
        "counter",
    ),
    Metric(
        "headgate_subscription_outcomes_total",
        "counter",
        "what came of messages; those that are redelivered come again",
        ("topic", "subscription", "outcome"),
        outcomes,
    ),
    by_subscription(
        "headgate_subscription_refused_messages_total",
        "messages that acknowledgments named in vain: too late, or never sent to that consumer",
        lambda row: row.refused,
        "counter",
    ),
    by_shard(
        "headgate_journal_used_ratio",
        "gauge",
        "how full the journal of acknowledgments is; nothing is delivered from 0.5 on",
        lambda shard: shard.journal_used_bytes / shard.journal_bytes,
    ),
    by_shard(
        "headgate_journal_waits_total",
        "counter",
        "acknowledgments that had to wait until the journal had space",
        lambda shard: shard.journal_waits,
    ),
    *PUSH_METRICS,
    # Routers.
    one("headgate_routers", "gauge", "how many there are", lambda s: s.routers.count),
    one(
        "headgate_routers_held",
        "gauge",
        "those of them that can copy nothing now",
        lambda s: s.routers.held,
    ),
    one(
        "headgate_routers_stopped",
        "gauge",
        "those of them that cannot go on",
        lambda s: s.routers.stopped,
    ),
    by_router(
        "headgate_router_lag_records",
        "offsets of the source that are not dealt with, of the first 128 routers and of all others"
        " together",
        lambda row: row.lag,
    ),
    by_router(
        "headgate_router_running",
        "1 if it copies, 0 if it is paused, held or stopped",
        lambda row: row.phase is RowPhase.RUNNING,
    ),
    by_router(
        "headgate_router_copied_records_total",
        "records that it copied",
        lambda row: row.copied,
        "counter",
    ),
    by_router(
        "headgate_router_filtered_records_total",
        "records that its filter left out",
        lambda row: row.filtered,
        "counter",
    ),
    by_router(
        "headgate_router_skipped_records_total",
        "offsets that were evicted before they were copied",
        lambda row: row.skipped,
        "counter",
    ),
    one(
        "headgate_standing_still",
        "gauge",
        "subscriptions and routers of which nothing goes on, although it could",
        lambda s: next((a.count for a in s.alarms if a.alarm == STANDS_STILL.name), 0),
    ),
    # Memory, retention and time.
    one(
        "headgate_memory_bound_bytes",
        "gauge",
        "the sum of the limits of all buffers",
        lambda s: s.memory_bound_bytes,
    ),
    one(
        "headgate_evicted_records_total",
        "counter",
        "records that a cap or the time to live evicted",
        lambda s: s.retention.records_evicted,
    ),
    one(
        "headgate_clock_jump_seconds",
        "gauge",
        "how far the wall clock jumped, negative: back; 0 while it is trusted",
        lambda s: (s.retention.clock_jump_ms or 0) / 1e3,
    ),
)
