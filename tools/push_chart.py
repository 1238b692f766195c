"""Draws docs/push-rates.svg: how the rate of a push sender follows its receiver, and how two share
the rate of a subscription. Under a virtual clock, so it is the same each time.

    python -m tools.push_chart docs/push-rates.svg
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from commands.simulating.chart import Axis, Line, Panel, draw
from tools.push_model import SECOND, Receiver, Sharing, follow

MAXIMUM = 20.0
MINUTES = 100
CAPACITIES = ((0, 8.0), (25, 4.0), (45, 8.0), (68, 0.0), (74, 8.0))  # minute, requests a second
JOINS, RESTS, RETURNS, LEAVES = 15, 35, 55, 85  # minutes of the second sender


def capacity(at_s: float) -> float:
    """What the receiver of the first panel takes."""
    return next(each for minute, each in reversed(CAPACITIES) if at_s >= minute * 60)


def _following() -> Panel:
    samples = follow(capacity, MAXIMUM, MINUTES * 2)
    ends = [minute for minute, _ in CAPACITIES[1:]] + [MINUTES]
    edges = [
        (float(minute), each)
        for (start, each), end in zip(CAPACITIES, ends, strict=True)
        for minute in (start, end)
    ]
    rates = [(each.until_s / 60, each.rate) for each in samples]
    axis = Axis(f"one sender, maximum {MAXIMUM:g}: POSTs a second", _number)
    return Panel(axis, [Line(0, rates), Line(1, edges)])


def _sharing() -> Panel:
    sharing, receiver = Sharing(MAXIMUM, SECOND), Receiver(lambda _: math.inf)

    def demand(at_s: float) -> float:
        return 2.0 if RESTS * 60 <= at_s < RETURNS * 60 else 10.5

    sharing.join(0)
    sharing.run(receiver, JOINS * 60)
    sharing.join(1, demand)
    sharing.run(receiver, LEAVES * 60)
    del sharing.senders[1]
    sharing.run(receiver, MINUTES * 60)
    lines = [
        Line(
            2 + sender,
            [(at_s / 60, maxima.get(sender, 0.0)) for at_s, maxima in sharing.samples],
        )
        for sender in (0, 1)
    ]
    axis = Axis(f"two senders, rate {MAXIMUM:g}: shares, POSTs a second", _number)
    return Panel(axis, lines)


def chart() -> str:
    """The picture."""
    return draw(
        "The rate of push, simulated",
        ["rate", "capacity of the receiver", "share of sender 0", "share of sender 1"],
        Axis("minutes", _number),
        [_following(), _sharing()],
    )


def _number(value: float) -> str:
    return f"{value:g}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(chart())
