"""The board of routers as figures: for the status, and for metrics with few series.

As for subscriptions (``subscription_figures.py``), the first SERIES_MAX slots have series of their
own, and all others are added up. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from daemon.api.figures.metric_kinds import OTHERS
from daemon.api.figures.subscription_figures import SERIES_MAX, SHOWN_MAX
from daemon.schemas.status import RouterFigures, RoutersStatus
from shards.boards.figures import RouterCounters, values_of
from shards.boards.rowboard import Placed, RouterRow, RowPhase


def router_series(rows: Iterable[Placed[RouterRow]]) -> list[RouterRow]:
    """The rows that have series of their own, after all others together."""
    own: list[RouterRow] = []
    others: list[RouterRow] = []
    for slot, _, row in rows:
        (own if slot < SERIES_MAX else others).append(row)
    state = max((row.phase for row in others), default=RowPhase.RUNNING)
    together = RouterRow(state, router=OTHERS, source=OTHERS, dest=OTHERS, **_sums(others))
    return [together, *own]


def status_of(rows: Sequence[Placed[RouterRow]]) -> RoutersStatus:
    """All together, and those that an operator should look at first."""
    all_ = [each.row for each in rows]
    return RoutersStatus(
        count=len(all_),
        held=sum(row.phase is RowPhase.HELD for row in all_),
        stopped=sum(row.phase is RowPhase.STOPPED for row in all_),
        first=[
            RouterFigures(
                router=row.router, source=row.source, dest=row.dest,
                state=row.phase.name.lower(), reason=row.reason, **values_of(RouterCounters, row),
            )
            for row in sorted(all_, key=_rank)[:SHOWN_MAX]
        ],
        **_sums(all_),
    )  # fmt: skip


def _rank(row: RouterRow) -> tuple[bool, int, str]:
    return row.phase not in (RowPhase.HELD, RowPhase.STOPPED), -row.lag, row.router


def _sums(rows: Sequence[RouterRow]) -> dict[str, Any]:
    names = RouterCounters.__struct_fields__
    return {name: sum(getattr(row, name) for row in rows) for name in names}
