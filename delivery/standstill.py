"""Whether a subscription or a router stands still, at which message, and why. Pure.

The invariant: while something is not finished and its receiver has room, something is sent. It is
judged by what can be observed, not by what each path remembers to say: the first unfinished message
of each partition (its *front*), since when it is that, and what it waits for.

    the front has not moved for LOOK_NS -> what does it wait for?
        -> something that ends by itself and in time: a receiver has it, or has no room -> no
        -> a known reason (blocked, held, ...) -> it stands still, since the front moved last
        -> nothing that is known -> since nothing at all was sent any more, though there is room

Who reads ``Standstill`` decides from when on it is an alarm (``daemon/alarms/standing.py``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

LOOK_NS = 1_000_000_000
LOOKED_MAX = 32  # fronts whose reason is looked up in one look, those that stand longest first
UNKNOWN = "waits for nothing that is known: report this, with the log; a restart may help"


class FirstUnfinished(NamedTuple):
    """The first message of a partition that is not finished, and since when it is that."""

    partition: int
    offset: int
    since_ns: int


class Why(NamedTuple):
    """What a front waits for, and since when that may be so."""

    text: str
    since_ns: int = 0


class Standstill(NamedTuple):
    """Since when nothing goes on at a message, and which one, and why."""

    since_ns: int
    text: str


class Fronts:
    """The fronts of one subscription or router."""

    __slots__ = ("_fronts",)

    def __init__(self) -> None:
        self._fronts: dict[int, FirstUnfinished] = {}

    def look(
        self, first: Mapping[int, int], now_ns: int, why: Callable[[FirstUnfinished], Why | None]
    ) -> Standstill | None:
        """``first`` has the first unfinished offset of each partition that has one. ``why`` says
        what a front waits for; None: it does not stand still."""
        known = self._fronts
        fronts = self._fronts = {}
        for partition, offset in first.items():
            there = known.get(partition)
            if there is None or there.offset != offset:
                there = FirstUnfinished(partition, offset, now_ns)
            fronts[partition] = there
        still = [front for front in fronts.values() if now_ns - front.since_ns >= LOOK_NS]
        found: Standstill | None = None
        for front in heapq.nsmallest(LOOKED_MAX, still, key=lambda each: each.since_ns):
            reason = why(front)
            if reason is not None:
                since_ns = max(front.since_ns, reason.since_ns)
                if found is None or since_ns < found.since_ns:
                    found = Standstill(since_ns, f"{front.partition}:{front.offset} {reason.text}")
        return found

    def clear(self) -> None:
        """What waits now may wait: it is paused."""
        self._fronts.clear()


class Since:
    """Since when an observed value has not changed."""

    __slots__ = ("_value", "since_ns")

    def __init__(self) -> None:
        self._value: object = None
        self.since_ns = 0

    def look(self, value: object, now_ns: int) -> int:
        """Takes what is observed now."""
        if value != self._value or not self.since_ns:
            self._value, self.since_ns = value, now_ns
        return self.since_ns
