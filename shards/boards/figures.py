"""Figures: what the daemon counts and measures. Each is declared once, as a field of a Struct.

The declaration of a figure has its meaning, its metric, and the word of a shard that it is read
from, if it is one. The field is what the status, ``top`` and the pages of the API show; the metrics
are made of the declarations (``daemon/api/figures/metric_kinds.py``). Rows of shared memory inherit
their figures, so their owners have to set them, and that is all (``shards/boards/rowboard.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, inspect


class Family(NamedTuple):
    """A metric of several figures: they have a label each, and this has their meaning."""

    name: str
    says: str


class Figure(NamedTuple):
    """What a field says of itself. ``by`` is the label of a field with several values, by name or
    in order; ``labels`` are the same for all its values."""

    says: str
    metric: Family | None
    by: tuple[str, ...]
    labels: Mapping[str, str]
    per: float
    word: int | None
    has_unknown: bool


def figure(
    says: str = "",
    metric: str | Family = "",
    *,
    by: str = "",
    per: float = 1,
    word: int | None = None,
    has_unknown: bool = False,
    **labels: str,
) -> Meta:
    """Declares a field: its meaning, without a full stop; its metric; how many of its unit are one
    of the metric's; and its word of a shard. For a list of Structs, ``by`` names those of its
    fields that are labels. Null is 0 in a metric, or no sample if it ``has_unknown`` values."""
    family = metric if isinstance(metric, Family) else Family(metric, says) if metric else None
    found = Figure(says, family, tuple(by.split()), labels, per, word, has_unknown)
    return Meta(description=says or None, extra={"figure": found})


@cache
def figures_of(kind: type) -> Mapping[str, tuple[Figure, inspect.Type]]:
    """The fields of a Struct that are figures, with their types."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return figures_in(info)


def figures_in(info: inspect.StructType) -> Mapping[str, tuple[Figure, inspect.Type]]:
    """The same, of a Struct whose types are known."""
    return {
        each.name: (each.type.extra["figure"], each.type.type)
        for each in info.fields
        if isinstance(each.type, inspect.Metadata) and each.type.extra is not None
    }


@cache
def words_of(kind: type) -> Mapping[str, int]:
    """The figures that are words of a shard, or their sums: the words by field."""
    words = {name: found.word for name, (found, _) in figures_of(kind).items()}
    return {name: word for name, word in words.items() if word is not None}


def values_of(kind: type, row: Any) -> dict[str, Any]:
    """The fields of a Struct as another object has them."""
    return {name: getattr(row, name) for name in kind.__struct_fields__}  # type: ignore[attr-defined]


_OUTCOMES = Family(
    "headgate_subscription_outcomes_total",
    "outcomes of messages; redelivered ones come again",
)


class SubscriptionCounts(Struct, frozen=True, kw_only=True):
    """What a subscription is doing, in numbers."""

    lag: Annotated[
        int, figure("records that are not finished", "headgate_subscription_lag_records")
    ] = 0
    drainable_lag: Annotated[
        int,
        figure(
            "messages that consumers could work on simultaneously",
            "headgate_subscription_drainable_lag_records",
        ),
    ] = 0
    in_flight: Annotated[
        int, figure("messages that consumers have", "headgate_subscription_in_flight_messages")
    ] = 0
    waiting: Annotated[
        int,
        figure(
            "messages that are read ahead and that nobody has yet",
            "headgate_subscription_waiting_messages",
        ),
    ] = 0
    blocked_keys: Annotated[
        int,
        figure(
            "keys whose first message waits for `retry` or `skip`",
            "headgate_subscription_blocked_keys",
        ),
    ] = 0
    oldest_unacknowledged_ms: Annotated[
        int,
        figure(
            "the longest time for which a consumer has had a message; 0: none",
            "headgate_subscription_oldest_unacknowledged_seconds",
            per=1e3,
        ),
    ] = 0
    delivered: Annotated[
        int,
        figure(
            "messages sent to consumers, each time anew",
            "headgate_subscription_delivered_messages_total",
        ),
    ] = 0
    acknowledged: Annotated[int, figure("", _OUTCOMES, outcome="acknowledged")] = 0
    redelivered: Annotated[int, figure("messages sent again", _OUTCOMES, outcome="redelivered")] = 0
    refused: Annotated[
        int,
        figure(
            "messages whose acknowledgment was refused: too late, or never sent to that consumer",
            "headgate_subscription_refused_messages_total",
        ),
    ] = 0
    dropped: Annotated[
        int,
        figure(
            "messages given up by `poison`, or, without `reliable`, because their"
            " consumer was full",
            _OUTCOMES,
            outcome="dropped",
        ),
    ] = 0
    skipped: Annotated[
        int, figure("messages given up by an operator", _OUTCOMES, outcome="skipped")
    ] = 0
    dead_lettered: Annotated[int, figure("", _OUTCOMES, outcome="dead_lettered")] = 0
    evicted: Annotated[
        int,
        figure(
            "records that retention removed before they were finished", _OUTCOMES, outcome="evicted"
        ),
    ] = 0
    unmatched: Annotated[
        int,
        figure(
            "messages that no consumer's filter matched and that were skipped; without"
            " `reliable`, also those that found no consumer",
            _OUTCOMES,
            outcome="unmatched",
        ),
    ] = 0
    filtered: Annotated[
        int,
        figure(
            "records that the subscription's filter left out, each time they were read",
            _OUTCOMES,
            outcome="filtered",
        ),
    ] = 0


class SubscriptionCounters(SubscriptionCounts, frozen=True, kw_only=True):
    """Figures of one subscription, or of all together. Counts are since the daemon started."""

    consumers: Annotated[
        int, figure("consumers that are present", "headgate_subscription_consumers")
    ] = 0
    oldest_unfinished_ms: Annotated[
        int,
        figure(
            "how long ago the oldest record that is not finished was stored",
            "headgate_subscription_oldest_unfinished_seconds",
            per=1e3,
        ),
    ] = 0


class RouterCounts(Struct, frozen=True, kw_only=True):
    """What a router has done, in records of its source."""

    copied: Annotated[
        int, figure("records that it copied", "headgate_router_copied_records_total")
    ] = 0
    filtered: Annotated[
        int, figure("records that its filter left out", "headgate_router_filtered_records_total")
    ] = 0
    skipped: Annotated[
        int,
        figure(
            "offsets that were evicted before they were copied",
            "headgate_router_skipped_records_total",
        ),
    ] = 0


class RouterCounters(RouterCounts, frozen=True, kw_only=True):
    """Figures of one router, or of all together. Counts are since the daemon started."""

    lag: Annotated[
        int, figure("offsets of the source that are not dealt with", "headgate_router_lag_records")
    ] = 0


class KafkaGroupCounters(Struct, frozen=True, kw_only=True):
    """Figures of a group of Kafka's consumers in a topic, or of all together."""

    lag: Annotated[
        int,
        figure(
            "records that are there and follow what the group has committed",
            "headgate_kafka_group_lag_records",
        ),
    ] = 0
