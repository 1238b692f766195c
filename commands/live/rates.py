"""Rates from two statuses. Pure.

Counters count from the start of the daemon. So after a restart, as at the beginning, the rates are
those since that start; a rate is never negative.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from commands.live.seen import SeenShard, SeenStatus


class SeenSample(NamedTuple):
    """A status, and when it came: monotonic, in seconds."""

    at: float
    status: SeenStatus


class ShardRates(Struct, frozen=True):
    """Of one shard, per second; ``busy`` is the share of a CPU, None if it cannot be known."""

    busy: float | None
    requests: float
    records: float
    bytes: float


class Rates(Struct, frozen=True):
    """Per second, over ``span_s``. ``object_bytes`` is the size of the objects put meanwhile."""

    span_s: float
    since_start: bool
    requests: float
    records: float
    bytes: float
    rejected: float
    puts: float
    optimum_puts: float | None  # if one stream uploaded for all
    object_bytes: float | None
    deliveries: float
    consumed: float  # messages that were sent to consumers of subscriptions
    acknowledged: float  # by them
    attempts: float  # of senders of push subscriptions
    failures: float  # of these
    pushed: float  # records that receivers took
    shards: dict[int, ShardRates]


def restarted(old: SeenStatus, new: SeenStatus) -> bool:
    """Whether another daemon, or another start of it, answers now."""
    was, now = old.totals, new.totals
    return (
        new.incarnation != old.incarnation
        or new.uptime_s < old.uptime_s
        or now.requests_acked < was.requests_acked
        or now.rejected < was.rejected
        or new.store.puts < old.store.puts
        or new.delivery.deliveries < old.delivery.deliveries
    )


def between(old: SeenSample | None, new: SeenSample) -> Rates:
    """The rates from ``old`` to ``new``, or since the start of the daemon."""
    status = new.status
    if old is None or restarted(old.status, status):
        empty = SeenStatus(version="", uptime_s=0, ready=False)
        return _rates(empty, status, max(1.0, float(status.uptime_s)), since_start=True)
    return _rates(old.status, status, max(1e-3, new.at - old.at), since_start=False)


def _rates(was: SeenStatus, now: SeenStatus, span_s: float, *, since_start: bool) -> Rates:
    def per_s(after: int, before: int) -> float:
        return max(0, after - before) / span_s

    puts = max(0, now.store.puts - was.store.puts)
    fewest = now.fewest_puts
    before = {shard.shard: shard for shard in was.shards}
    return Rates(
        span_s,
        since_start,
        per_s(now.totals.requests_acked, was.totals.requests_acked),
        per_s(now.totals.records_acked, was.totals.records_acked),
        per_s(now.totals.bytes_acked, was.totals.bytes_acked),
        per_s(now.totals.rejected, was.totals.rejected),
        puts / span_s,
        None if fewest is None else per_s(fewest, was.fewest_puts or 0),
        max(0, now.store.put_bytes - was.store.put_bytes) / puts if puts else None,
        per_s(now.delivery.deliveries, was.delivery.deliveries),
        per_s(now.subscriptions.delivered, was.subscriptions.delivered),
        per_s(now.subscriptions.acknowledged, was.subscriptions.acknowledged),
        per_s(now.push.attempts, was.push.attempts),
        per_s(now.push.failures, was.push.failures),
        per_s(now.push.records, was.push.records),
        {shard.shard: _shard_rates(before.get(shard.shard), shard, span_s) for shard in now.shards},
    )


def _shard_rates(was: SeenShard | None, now: SeenShard, span_s: float) -> ShardRates:
    old = was or SeenShard(now.shard, pid=now.pid, cpu_ms=0)
    busy = None
    # The CPU time is that of the present process, which may be younger than the span.
    if now.cpu_ms is not None and old.cpu_ms is not None and now.pid == old.pid:
        busy = max(0, now.cpu_ms - old.cpu_ms) / 1e3 / span_s
    return ShardRates(
        busy,
        max(0, now.requests_acked - old.requests_acked) / span_s,
        max(0, now.records_acked - old.records_acked) / span_s,
        max(0, now.bytes_acked - old.bytes_acked) / span_s,
    )
