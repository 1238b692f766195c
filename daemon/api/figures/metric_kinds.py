"""What a metric is, and the metrics of all declared figures (``shards/boards/figures.py``).

At import we walk all Structs in a scrape; each figure with a metric becomes a series. Figures of
Structs in a list get the labels of that list. Figures that a Struct inherits become series only
where there are such labels: elsewhere they are sums of these series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Struct, inspect

from daemon.schemas.status import PushCounters, Status
from shards.boards.figures import Figure, figure, figures_in
from shards.boards.pushtotals import PushTotal
from shards.boards.rowboard import KafkaGroupRow, RouterRow, SubscriptionRow
from shards.latency import Counted, Stage


class Histogram(NamedTuple):
    """A histogram whose buckets are not those of stages: where each but the last one ends."""

    counted: Counted
    bounds_s: Sequence[float]


Sample = tuple[tuple[str, ...], float | Counted | Histogram]  # values of the labels, value
Kind = Literal["counter", "gauge", "histogram", "info"]

OTHERS = "_other"  # no name of a topic or a token begins so


class TopicSeries(Struct, frozen=True):
    """A topic with series of its own, or the others together."""

    topic: str
    records: Annotated[
        int,
        figure(
            "records that were acknowledged",
            "headgate_topic_acked_records_total",
        ),
    ]
    bytes: Annotated[
        int,
        figure(
            "bytes of the bodies that were acknowledged",
            "headgate_topic_acked_bytes_total",
        ),
    ]


class TokenSeries(Struct, frozen=True):
    """A token with series of its own, or the others together."""

    token: str
    requests: Annotated[
        int,
        figure(
            "requests with the token that were taken in",
            "headgate_token_requests_total",
        ),
    ]
    bytes_in: Annotated[
        int, figure("bytes of the bodies of these requests", "headgate_token_received_bytes_total")
    ]
    bytes_out: Annotated[
        int,
        figure(
            "bytes of answers and of streams, other than acknowledgments and errors",
            "headgate_token_sent_bytes_total",
        ),
    ]
    refused: Annotated[
        int,
        figure(
            "requests with the token that were answered with an error, taken in or not",
            "headgate_token_refused_requests_total",
        ),
    ]


class PushSeries(PushCounters, frozen=True, kw_only=True):
    """A push subscription with series of its own, or the others together."""

    topic: str
    subscription: str
    total: PushTotal


class Scrape(Struct, frozen=True):
    """What the values are of: one moment of the daemon."""

    status: Status
    stages: Mapping[Stage, Counted]
    topics: Annotated[list[TopicSeries], figure(by="topic")]
    tokens: Annotated[list[TokenSeries], figure(by="token")]
    subscriptions: Annotated[list[SubscriptionRow], figure(by="topic subscription")]
    push: Annotated[list[PushSeries], figure(by="topic subscription")]
    routers: Annotated[list[RouterRow], figure(by="router source dest")]
    kafka_groups: Annotated[list[KafkaGroupRow], figure(by="topic group")] = []


class Metric(NamedTuple):
    """A metric; ``says`` is a phrase without a full stop, for HELP and the page of metrics."""

    name: str  # as queries have it, so with _total or _info
    kind: Kind
    says: str
    labels: tuple[str, ...]
    samples: Callable[[Scrape], Iterable[Sample]]


class _Place(NamedTuple):
    """Structs of a scrape: their labels, and each of them with the values of these."""

    labels: tuple[str, ...]
    rows: Callable[[Scrape], Iterable[tuple[tuple[str, ...], Any]]]

    def struct(self, name: str, labels: Mapping[str, str]) -> _Place:
        """The Structs in a field; null: there is none."""
        more = tuple(labels.values())

        def rows(scrape: Scrape) -> Iterable[tuple[tuple[str, ...], Any]]:
            for values, row in self.rows(scrape):
                if (inner := getattr(row, name)) is not None:
                    yield (*values, *more), inner

        return _Place((*self.labels, *labels), rows)

    def listed(self, name: str, by: tuple[str, ...]) -> _Place:
        """The place for figures of a list in a field."""

        def rows(scrape: Scrape) -> Iterable[tuple[tuple[str, ...], Any]]:
            for values, row in self.rows(scrape):
                for each in getattr(row, name):
                    yield (*values, *(str(getattr(each, label)) for label in by)), each

        return _Place((*self.labels, *by), rows)

    def metric(self, name: str, figure: Figure) -> Metric:
        """The metric of a field, or a part of it."""
        assert figure.metric is not None
        (by, *_), more, per = figure.by or ("",), tuple(figure.labels.values()), figure.per

        def samples(scrape: Scrape) -> Iterable[Sample]:
            for values, row in self.rows(scrape):
                value = getattr(row, name)
                if value is None and figure.has_unknown:
                    continue
                if not by:
                    yield (*values, *more), (value or 0) / per
                    continue
                pairs = value.items() if isinstance(value, dict) else enumerate(value)
                for key, one in pairs:
                    yield (*values, str(key)), one / per

        labels = (*self.labels, *figure.labels, *figure.by)
        kind: Kind = "counter" if figure.metric.name.endswith("_total") else "gauge"
        return Metric(figure.metric.name, kind, figure.metric.says, labels, samples)


def declared(kind: type = Scrape) -> list[Metric]:
    """The metrics of all figures that a scrape reaches."""
    info = inspect.type_info(kind)  # of all that it reaches: it takes milliseconds, so once
    assert isinstance(info, inspect.StructType)
    found: dict[str, Metric] = {}
    for part in _parts(info, _Place((), lambda scrape: [((), scrape)])):
        known = found.get(part.name)
        found[part.name] = part if known is None else _joined(known, part)
    return [*found.values()]


def _joined(first: Metric, second: Metric) -> Metric:
    assert first.labels == second.labels, f"{first.name} has one set of labels"

    def samples(scrape: Scrape) -> Iterable[Sample]:
        yield from first.samples(scrape)
        yield from second.samples(scrape)

    return first._replace(samples=samples)


def _parts(info: inspect.StructType, place: _Place) -> Iterator[Metric]:
    figures = figures_in(info)
    for field in info.fields:
        if not place.labels and field.name not in info.cls.__annotations__:
            continue
        found, type_ = figures.get(field.name, (None, field.type))
        if found is not None and found.metric is not None:
            yield place.metric(field.name, found)
        for each in type_.types if isinstance(type_, inspect.UnionType) else [type_]:
            if isinstance(each, inspect.StructType):
                inner = place.struct(field.name, {} if found is None else found.labels)
                yield from _parts(each, inner)
            if not isinstance(each, inspect.ListType) or found is None or not found.by:
                continue
            if isinstance(each.item_type, inspect.StructType):
                yield from _parts(each.item_type, place.listed(field.name, found.by))
