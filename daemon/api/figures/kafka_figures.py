"""The board of Kafka's groups as figures: for the status, and for metrics with few series.

As for subscriptions (``subscription_figures.py``), the first SERIES_MAX slots have series of their
own, and all others are added up. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from daemon.api.figures.metric_kinds import OTHERS
from daemon.api.figures.subscription_figures import SERIES_MAX, SHOWN_MAX
from daemon.schemas.kafka import KafkaGroupFigures, KafkaGroupScaling, KafkaStatus
from shards.boards.rowboard import KafkaGroupRow, Placed


def kafka_series(rows: Iterable[Placed[KafkaGroupRow]], unplaced_lag: int) -> list[KafkaGroupRow]:
    """The rows that have series of their own, after all others together."""
    own: list[KafkaGroupRow] = []
    others_lag = unplaced_lag
    for slot, _, row in rows:
        if slot < SERIES_MAX:
            own.append(row)
        else:
            others_lag += row.lag
    return [KafkaGroupRow(topic=OTHERS, group=OTHERS, lag=others_lag), *own]


def status_of(
    rows: Sequence[Placed[KafkaGroupRow]], unplaced: int, unplaced_lag: int, **words: int
) -> KafkaStatus:
    """All together, and those with the most lag. ``words``: those of shards."""
    first = sorted((each.row for each in rows), key=lambda row: (-row.lag, row.topic, row.group))
    return KafkaStatus(
        pairs=len(rows) + unplaced,
        lag=sum(each.row.lag for each in rows) + unplaced_lag,
        first=[
            KafkaGroupFigures(
                topic=row.topic, group=row.group, partitions=row.partitions, lag=row.lag
            )
            for row in first[:SHOWN_MAX]
        ],
        **words,
    )


def scaling_of(rows: Iterable[Placed[KafkaGroupRow]]) -> list[KafkaGroupScaling]:
    """Each of them, by topic and group."""
    found = [KafkaGroupScaling(row.topic, row.group, row.lag, row.partitions) for _, _, row in rows]
    return sorted(found, key=lambda each: (each.topic, each.group))
