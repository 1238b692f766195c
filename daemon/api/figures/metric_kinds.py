"""What a metric is, and the values that several metrics get in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from daemon.alarms.alarms import NAMES
from daemon.governor.ladder import RUNGS
from daemon.schemas.status import (
    BillStatus,
    BudgetStatus,
    GateStatus,
    GroupStatus,
    ShardStatus,
    Status,
    StoreCost,
)
from shards.boards.pushtotals import PushTotal
from shards.boards.rowboard import RouterRow, SubscriptionRow
from shards.boards.topiccounts import TopicCount
from shards.latency import Counted, Stage


class Histogram(NamedTuple):
    """A histogram whose buckets are not those of stages: where each but the last one ends."""

    counted: Counted
    bounds_s: Sequence[float]


Sample = tuple[tuple[str, ...], float | Counted | Histogram]  # values of the labels, value
Kind = Literal["counter", "gauge", "histogram", "info"]

OTHERS = "_other"  # no name of a topic begins so


class PushSeries(NamedTuple):
    """A push subscription with series of its own, or the others together."""

    topic: str
    subscription: str
    total: PushTotal


class Scrape(NamedTuple):
    """What the values are of: one moment of the daemon."""

    status: Status
    stages: Mapping[Stage, Counted]
    topics: Sequence[TopicCount]
    subscriptions: Sequence[SubscriptionRow]
    push: Sequence[PushSeries]
    routers: Sequence[RouterRow]


class Metric(NamedTuple):
    """A metric; ``says`` is a phrase without a full stop, for HELP and the page of metrics."""

    name: str  # as queries have it, so with _total or _info
    kind: Kind
    says: str
    labels: tuple[str, ...]
    samples: Callable[[Scrape], Iterable[Sample]]


def one(
    name: str, kind: Literal["counter", "gauge"], says: str, value: Callable[[Status], float]
) -> Metric:
    """One value of the status."""
    return Metric(name, kind, says, (), lambda scrape: [((), value(scrape.status))])


def by_shard(
    name: str, kind: Literal["counter", "gauge"], says: str, value: Callable[[ShardStatus], float]
) -> Metric:
    """A value of each shard."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((str(shard.shard),), value(shard)) for shard in scrape.status.shards]

    return Metric(name, kind, says, ("shard",), samples)


def by_group(name: str, says: str, value: Callable[[GroupStatus], float]) -> Metric:
    """A value of each upload group."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((str(group.group),), value(group)) for group in scrape.status.groups]

    return Metric(name, "gauge", says, ("group",), samples)


def by_operation(name: str, says: str, values: dict[str, Callable[[BillStatus], float]]) -> Metric:
    """A value of each kind of request to the store."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        bill = scrape.status.bill
        return [((operation,), value(bill)) for operation, value in values.items()]

    return Metric(name, "counter", says, ("operation",), samples)


def alternatives(name: str, says: str, value: Callable[[StoreCost], float]) -> Metric:
    """A value of each other way to upload."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        bill = scrape.status.bill
        per_shard, single_stream = value(bill.per_shard), value(bill.single_stream)
        return [(("per_shard",), per_shard), (("single_stream",), single_stream)]

    return Metric(name, "counter", says, ("uploading",), samples)


def budget(name: str, says: str, value: Callable[[BudgetStatus], float]) -> Metric:
    """A value of the PUT budget; none without one."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        budget = scrape.status.bill.budget
        return [] if budget is None else [((), value(budget))]

    return Metric(name, "gauge", says, (), samples)


def alarms(scrape: Scrape) -> Iterable[Sample]:
    """Each kind always has a value, so that a rule finds a series before the first alarm."""
    raised = {alarm.alarm for alarm in scrape.status.alarms}
    return [((name,), float(name in raised)) for name in NAMES]


def sensors(scrape: Scrape) -> Iterable[Sample]:
    """The pressure of each sensor."""
    return [((name,), pressure) for name, pressure in scrape.status.pressure.inputs.items()]


def rungs(scrape: Scrape) -> Iterable[Sample]:
    """Whether each rung is in force."""
    in_force = scrape.status.pressure.rungs
    return [((rung.name,), float(rung.name in in_force)) for rung in RUNGS]


def by_gate(
    name: str, kind: Literal["counter", "gauge"], says: str, value: Callable[[GateStatus], float]
) -> Metric:
    """A value of each kind of gate."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((gate.gate,), value(gate)) for gate in scrape.status.gates]

    return Metric(name, kind, says, ("gate",), samples)


def changes(scrape: Scrape) -> Iterable[Sample]:
    """Splits and merges."""
    totals = scrape.status.totals
    return [(("split",), totals.splits), (("merge",), totals.merges)]


def by_topic(name: str, says: str, value: Callable[[TopicCount], int]) -> Metric:
    """A count of each topic with a slot, and of the others together."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((topic.name or OTHERS,), value(topic)) for topic in scrape.topics]

    return Metric(name, "counter", says, ("topic",), samples)


def by_subscription(
    name: str,
    says: str,
    value: Callable[[SubscriptionRow], float],
    kind: Kind = "gauge",
    *,
    others: bool = True,
) -> Metric:
    """A value of each subscription with series of its own, and of the others together, unless
    their sums say nothing."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [
            ((row.topic, row.subscription), value(row))
            for row in scrape.subscriptions
            if others or row.subscription != OTHERS
        ]

    return Metric(name, kind, says, ("topic", "subscription"), samples)


def by_router(
    name: str, says: str, value: Callable[[RouterRow], float], kind: Kind = "gauge"
) -> Metric:
    """A value of each router with series of its own, and of the others together."""

    def samples(scrape: Scrape) -> Iterable[Sample]:
        return [((row.router, row.source, row.dest), value(row)) for row in scrape.routers]

    return Metric(name, kind, says, ("router", "source", "dest"), samples)


_OUTCOMES = (
    "acknowledged", "redelivered", "dropped", "skipped", "dead_lettered", "evicted", "unmatched",
)  # fmt: skip


def outcomes(scrape: Scrape) -> Iterable[Sample]:
    """The counts of what came of messages."""
    return [
        ((row.topic, row.subscription, outcome), getattr(row, outcome))
        for row in scrape.subscriptions
        for outcome in _OUTCOMES
    ]


def stages(scrape: Scrape) -> Iterable[Sample]:
    """The histogram of each stage."""
    return [((stage.name.lower(),), counted) for stage, counted in scrape.stages.items()]
