"""What a receiver was sent over time, and when that has settled. Pure.

A series has, for each tenth of a second in which something came, the POSTs that were served and
those that were not.
"""

from __future__ import annotations

from collections.abc import Mapping

Series = Mapping[int, tuple[int, int]]

STEPS_PER_S = 10
WINDOWS_S = (1, 10)
SERVED_SHARE = 0.9  # of the capacity
FAILED_SHARE_MAX = 0.05  # of the POSTs


def counted(series: Series, first: int, last: int) -> tuple[int, int]:
    """What was served and what not, from step ``first`` to before step ``last``."""
    found = [series.get(step, (0, 0)) for step in range(first, last)]
    return sum(served for served, _ in found), sum(others for _, others in found)


def settled_after_s(
    series: Series, began: int, end: int, capacity: float, hold_s: float
) -> float | None:
    """How long after step ``began`` the first time begins from which on, over ``hold_s`` and for
    as long as there are figures (to ``end``), enough was served and little failed."""
    hold = int(hold_s * STEPS_PER_S)
    settled: int | None = None
    for first in range(began, end - hold + 1):
        served, others = counted(series, first, first + hold)
        is_good = (
            served >= SERVED_SHARE * capacity * hold_s
            and others <= FAILED_SHARE_MAX * (served + others)
        )  # fmt: skip
        if not is_good:
            settled = None
        elif settled is None:
            settled = first
    return (settled - began) / STEPS_PER_S if settled is not None else None


def oversteps(
    series: Series, rate: float, more: float, first: int, last: int
) -> list[tuple[int, int]]:
    """The windows, of a second or of ten, in which more came than the rate allows and ``more``:
    where each begins, and how many came. In ten seconds ``more`` is little, so that is strict.

    ``more`` are bursts, and POSTs that were under way when the window began: however late sender
    or receiver are, each connection has one at most."""
    return [
        (step, posts)
        for seconds in WINDOWS_S
        for step in range(first, last)
        if (posts := sum(counted(series, step, step + seconds * STEPS_PER_S)))
        > rate * seconds + more
    ]


def peak(series: Series, first: int, last: int) -> int:
    """The most POSTs in a second that begins with a step."""
    return max(
        (sum(counted(series, step, step + STEPS_PER_S)) for step in range(first, last)), default=0
    )
