"""The senders of push subscriptions as figures: for the status, and for metrics with few series.

As for all subscriptions (``subscription_figures.py``), the first SERIES_MAX slots have series of
their own. A subscription has its name from the row that its owner wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from daemon.api.figures.metric_kinds import OTHERS, PushSeries
from daemon.api.figures.subscription_figures import SERIES_MAX, SHOWN_MAX
from daemon.schemas.status import PushCounters, PushFigures, PushStatus
from delivery.dispatch import SLICE_NS
from shards.boards.figures import values_of
from shards.boards.pushboard import LimiterMode
from shards.boards.pushtotals import PushTotal, together, totals
from shards.boards.rowboard import Placed, SubscriptionRow
from shards.segment import Segment

Names = dict[int, tuple[str, str]]


async def in_slices(segment: Segment, now_ns: Callable[[], int]) -> list[PushTotal]:
    """All totals; the loop does other things in between."""
    found: list[PushTotal] = []
    until_ns = now_ns() + SLICE_NS
    for total in totals(segment):
        found.append(total)
        if now_ns() >= until_ns:
            await asyncio.sleep(0)
            until_ns = now_ns() + SLICE_NS
    return found


def push_series(
    found: Iterable[PushTotal], rows: Sequence[Placed[SubscriptionRow]]
) -> list[PushSeries]:
    """The rows that have series of their own, after all others together."""
    names, own, others = _names(rows), [], []
    for total in found:
        topic, subscription = names.get(total.subscription_id, ("", ""))
        if total.slot < SERIES_MAX and topic:
            own.append(_series(topic, subscription, total))
        else:
            others.append(total)
    return [_series(OTHERS, OTHERS, together(others)), *own]


def _series(topic: str, subscription: str, total: PushTotal) -> PushSeries:
    figures = values_of(PushCounters, total)
    return PushSeries(topic=topic, subscription=subscription, total=total, **figures)


def status_of(
    found: Sequence[PushTotal], rows: Sequence[Placed[SubscriptionRow]], now_ns: int
) -> PushStatus:
    """All together, and those that an operator should look at first."""
    names = _names(rows)
    first = sorted(found, key=lambda each: (-each.mode, -each.failures, each.slot))[:SHOWN_MAX]
    return PushStatus(
        count=len(found),
        slow=sum(each.mode > LimiterMode.NORMAL for each in found),
        first=[_figures(each, names, now_ns) for each in first],
        **values_of(PushCounters, together(found)),
    )


def _figures(total: PushTotal, names: Names, now_ns: int) -> PushFigures:
    topic, subscription = names.get(total.subscription_id, ("", ""))
    return PushFigures(
        topic=topic,
        subscription=subscription,
        mode=LimiterMode(total.mode).name.lower(),
        held_ms=max(0, total.held_until_ns - now_ns) // 1_000_000,
        outcomes=total.by_outcome,
        **values_of(PushCounters, total),
    )


def _names(rows: Sequence[Placed[SubscriptionRow]]) -> Names:
    return {each.id: (each.row.topic, each.row.subscription) for each in rows}
