"""What those see who look at the daemon live: its status, rates from two of them, topics and
compactions. Pure.

Counters count from the start of the daemon. So after a restart, as at the beginning, the rates are
those since that start; a rate is never negative.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Struct, inspect

from daemon.schemas.status import ShardStatus, Status
from shards.boards.figures import figure


class StatusSample(NamedTuple):
    """A status, and when it came: monotonic, in seconds."""

    at: float
    status: Status


_NOTHING: dict[type[inspect.Type], Any] = {
    inspect.IntType: 0, inspect.FloatType: 0.0, inspect.StrType: "", inspect.BoolType: False,
    inspect.ListType: [], inspect.DictType: {}, inspect.StructType: {},
}  # fmt: skip


def completed(document: dict[str, Any]) -> bytes:
    """A status of any version, with all fields of ours: what a daemon does not say, perhaps because
    it is being upgraded, is 0, false, empty or null."""
    return msgspec.json.encode(_completed(inspect.type_info(Status), document))


def _completed(kind: inspect.Type, value: Any) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _completed(kind.type, value)
    if isinstance(kind, inspect.UnionType):
        kinds = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return None if value is None else _completed(kinds[0], value)
    if value is None:
        value = _NOTHING[type(kind)]
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        return [_completed(kind.item_type, each) for each in value]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {name: _completed(kind.value_type, each) for name, each in value.items()}
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        return {each.name: _completed(each.type, value.get(each.name)) for each in kind.fields}
    return value


class ShardRates(Struct, frozen=True):
    """The rates of one shard, per second."""

    busy: Annotated[float | None, figure("the share of a CPU; null: it is not known")]
    requests: float
    records: float
    bytes: float


class Rates(Struct, frozen=True):
    """Per second, over `span_s`."""

    span_s: float
    since_start: bool
    requests: Annotated[float, figure("that were acknowledged")]
    records: float
    bytes: float
    rejected: float
    puts: float
    optimum_puts: Annotated[float, figure("if one stream uploaded for all")]
    object_bytes: Annotated[
        float | None, figure("the mean size of the objects that were put; null: there was none")
    ]
    deliveries: float
    consumed: Annotated[float, figure("messages that were sent to consumers of subscriptions")]
    acknowledged: Annotated[float, figure("by them")]
    attempts: Annotated[float, figure("of senders of push subscriptions")]
    failures: Annotated[float, figure("of these")]
    pushed: Annotated[float, figure("records that receivers took")]
    shards: dict[int, ShardRates]


class TopicFigures(Struct, frozen=True):
    """A topic."""

    topic: str
    partitions: int
    head_seq: Annotated[int, figure("the last committed offsets, of all partitions together")]
    count: Annotated[int, figure("records that can be read")]
    bytes: int
    acked_bytes: Annotated[int, figure("what its producers were acknowledged since the start")]


class RunFigures(Struct, frozen=True):
    """A compaction."""

    run: str
    owner: Annotated[str, figure("where it runs")]
    started_ms: int
    ended_ms: Annotated[int | None, figure("null: it has not ended")]
    lives: Annotated[bool, figure("whether it is under way")]


class Overview(Struct, frozen=True):
    """The daemon, and what the status leaves out."""

    status: Status
    rates: Annotated[Rates, figure("over the last 5 s; at first since the start")]
    topics: Annotated[
        list[TopicFigures] | None,
        figure(
            "up to 100: those with the most acknowledged bytes, then by name; null: the"
            " ledger did not answer"
        ),
    ]
    more_topics: bool
    runs: Annotated[list[RunFigures], figure("of compactions, up to 5, the newest first")]


def restarted(old: Status, new: Status) -> bool:
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


def between(old: StatusSample | None, new: StatusSample) -> Rates:
    """The rates from ``old`` to ``new``, or since the start of the daemon."""
    status = new.status
    if old is None or restarted(old.status, status):
        empty = msgspec.json.decode(completed({}), type=Status)
        return _rates(empty, status, max(1.0, float(status.uptime_s)), since_start=True)
    return _rates(old.status, status, max(1e-3, new.at - old.at), since_start=False)


def _rates(was: Status, now: Status, span_s: float, *, since_start: bool) -> Rates:
    def per_s(after: int, before: int) -> float:
        return max(0, after - before) / span_s

    puts = max(0, now.store.puts - was.store.puts)
    before = {shard.shard: shard for shard in was.shards}
    return Rates(
        span_s,
        since_start,
        per_s(now.totals.requests_acked, was.totals.requests_acked),
        per_s(now.totals.records_acked, was.totals.records_acked),
        per_s(now.totals.bytes_acked, was.totals.bytes_acked),
        per_s(now.totals.rejected, was.totals.rejected),
        puts / span_s,
        per_s(_fewest_puts(now), _fewest_puts(was)),
        max(0, now.store.put_bytes - was.store.put_bytes) / puts if puts else None,
        per_s(now.delivery.deliveries, was.delivery.deliveries),
        per_s(now.subscriptions.delivered, was.subscriptions.delivered),
        per_s(now.subscriptions.acknowledged, was.subscriptions.acknowledged),
        per_s(now.push.attempts, was.push.attempts),
        per_s(now.push.failures, was.push.failures),
        per_s(now.push.records, was.push.records),
        {shard.shard: _shard_rates(before.get(shard.shard), shard, span_s) for shard in now.shards},
    )


def _fewest_puts(status: Status) -> int:
    """Uploads so far, had one stream made them: not all requests upload."""
    return status.bill.single_stream.puts - (status.bill.puts - status.store.puts)


def _shard_rates(was: ShardStatus | None, now: ShardStatus, span_s: float) -> ShardRates:
    old = was or msgspec.structs.replace(
        now, cpu_ms=0, requests_acked=0, records_acked=0, bytes_acked=0
    )
    busy = None
    # The CPU time is that of the present process, which may be younger than the span.
    if now.pid == old.pid:
        busy = max(0, now.cpu_ms - old.cpu_ms) / 1e3 / span_s
    return ShardRates(
        busy,
        max(0, now.requests_acked - old.requests_acked) / span_s,
        max(0, now.records_acked - old.records_acked) / span_s,
        max(0, now.bytes_acked - old.bytes_acked) / span_s,
    )
