"""The board of subscriptions as figures: for the status, and for metrics with few series.

The first SERIES_MAX slots have series of their own, and keep them as long as their subscription
lives; all others are added up. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from daemon.api.figures.metric_kinds import OTHERS
from daemon.schemas.status import SubscriptionFigures, SubscriptionsStatus
from shards.boards.figures import SubscriptionCounters, values_of
from shards.boards.rowboard import Placed, RowPhase, SubscriptionRow

SERIES_MAX = 128  # with 18 series each, and 22 more that push: 35 ms of a scrape, in slices
SHOWN_MAX = 20  # in the status
_AGES = ("oldest_unacknowledged_ms", "oldest_unfinished_ms")
_SUMS = [*set(SubscriptionCounters.__struct_fields__).difference(_AGES), "consumer_max"]


def series(rows: Iterable[Placed[SubscriptionRow]]) -> list[SubscriptionRow]:
    """The rows that have series of their own, after all others together."""
    own: list[SubscriptionRow] = []
    others: list[SubscriptionRow] = []
    for slot, _, row in rows:
        (own if slot < SERIES_MAX else others).append(row)
    return [together(others), *own]


def together(rows: Sequence[SubscriptionRow]) -> SubscriptionRow:
    """The sum of rows; of the ages, the greatest one. It is running if all are."""
    ages: dict[str, Any] = {
        name: max((getattr(row, name) for row in rows), default=0) for name in _AGES
    }
    sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in _SUMS}
    phase = max((row.phase for row in rows), default=RowPhase.RUNNING)
    return SubscriptionRow(OTHERS, OTHERS, phase, **ages, **sums)


def status_of(rows: Sequence[Placed[SubscriptionRow]]) -> SubscriptionsStatus:
    """All together, and those that an operator should look at first: that do not run, then with
    blocked keys, then with the most lag."""
    of_all = together([each.row for each in rows])
    first = sorted((each.row for each in rows), key=_rank)[:SHOWN_MAX]
    return SubscriptionsStatus(
        count=len(rows),
        held=sum(each.row.phase in (RowPhase.HELD, RowPhase.STOPPED) for each in rows),
        first=[
            SubscriptionFigures(
                topic=row.topic,
                subscription=row.subscription,
                state=row.phase.name.lower(),
                reason=row.reason,
                **values_of(SubscriptionCounters, row),
            )
            for row in first
        ],
        **values_of(SubscriptionCounters, of_all),
    )


def _rank(row: SubscriptionRow) -> tuple[bool, bool, int, str, str]:
    stands = row.phase in (RowPhase.HELD, RowPhase.STOPPED)
    return not stands, not row.blocked_keys, -row.lag, row.topic, row.subscription
