"""What stands still, and what has changed its state, by the boards of subscriptions and routers.

Owners tell since when nothing goes on at a message although it could (``delivery/standstill.py``).
Here that becomes an alarm, once it has lasted ``standstill_after_ms``, and lines of the log: one
when something begins to stand or changes its state, one when it goes on. Pure functions of the
segment and ``now``; a supervisor's tick reads two columns of each board.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from msgspec import Struct

from daemon.config import Config
from daemon.schemas.status import StandingStatus
from shards.boards.rowboard import (
    RouterRow,
    RowPhase,
    SubscriptionRow,
    router_board,
    subscription_board,
)
from shards.segment import Segment

# What comes and goes (a destination that takes a record now and then) counts as one that lasts.
OVER_AFTER_NS = 3_000_000_000
# What is held for less is not told: a new subscription is, until its first number is in the ledger.
HELD_AFTER_NS = 5_000_000_000
Line = tuple[int, str]


def standing(segment: Segment, config: Config, now_ns: int) -> list[StandingStatus]:
    """What has stood still for long enough, the longest first."""
    until_ns = now_ns - config.standstill_after_ms * 1_000_000
    found = [
        (
            row.stands_since_ns,
            StandingStatus(
                "push" if row.is_pushed else "subscription", row.topic, row.subscription,
                (now_ns - row.stands_since_ns) // 1_000_000, row.stands,
            ),
        )
        for _, _, row in subscription_board(segment).standing()
        if row.stands_since_ns <= until_ns
    ] + [
        (
            row.stands_since_ns,
            StandingStatus(
                "router", row.source, row.router, (now_ns - row.stands_since_ns) // 1_000_000,
                row.stands,
            ),
        )
        for _, _, row in router_board(segment).standing()
        if row.stands_since_ns <= until_ns
    ]  # fmt: skip
    return [status for _, status in sorted(found, key=lambda each: each[0])]


def says(each: StandingStatus) -> str:
    """Which one stands still, at what, and why."""
    return f"{_named(each.kind, each.topic, each.name)} stands still: {each.message}"


def _named(kind: str, topic: str, name: str) -> str:
    what = {"push": "push subscription", "router": "router"}.get(kind, "subscription")
    return f"{what} {name} of topic {topic}"


class StandingLog:
    """The lines about what stands still."""

    def __init__(self) -> None:
        # By kind, topic and name, so at most as many as there are slots: since when, and seen last.
        self._told: dict[tuple[str, str, str], tuple[int, int]] = {}

    def lines(self, found: Iterable[StandingStatus], now_ns: int) -> list[Line]:
        """The lines that are due, with their levels."""
        lines: list[Line] = []
        for each in found:
            key = (each.kind, each.topic, each.name)
            if key not in self._told:
                lines.append((logging.ERROR, f"{says(each)} ({each.age_ms // 1000} s)"))
            since_ns, _ = self._told.get(key, (now_ns - each.age_ms * 1_000_000, 0))
            self._told[key] = since_ns, now_ns
        for key, (since_ns, seen_ns) in [*self._told.items()]:
            if now_ns - seen_ns >= OVER_AFTER_NS:
                del self._told[key]
                lasted_s = (seen_ns - since_ns) // 1_000_000_000
                lines.append((logging.WARNING, f"{_named(*key)} stood still for {lasted_s} s"))
        return lines


class _State(Struct):
    """What a slot is: its id, its phase, since when it runs again, if it does, and whether that
    it does not run was told."""

    id: int
    phase: int
    since_ns: int
    runs_ns: int = 0
    is_told: bool = False


class StateLog:
    """The lines about subscriptions and routers that are paused, held or stopped, or run again."""

    def __init__(self, segment: Segment) -> None:
        self._subscriptions = subscription_board(segment)
        self._routers = router_board(segment)
        self._told: tuple[dict[int, _State], dict[int, _State]] = ({}, {})

    def lines(self, now_ns: int) -> list[Line]:
        """The lines that are due, with their levels."""
        found: list[Line] = []
        for slot, id_, word in _changed(self._subscriptions.phases(), self._told[0], now_ns):
            row = self._subscriptions.read(slot, id_)
            if row is not None:
                found.append(_line(_of_subscription(row), row.reason, word))
        for slot, id_, word in _changed(self._routers.phases(), self._told[1], now_ns):
            router = self._routers.read(slot, id_)
            if router is not None:
                found.append(_line(_of_router(router), router.reason, word))
        return found


def _changed(
    phases: tuple[Sequence[int], Sequence[int]], told: dict[int, _State], now_ns: int
) -> list[tuple[int, int, str]]:
    """The slots and ids whose change is to be told now, and to what. ``told`` has those that do
    not run, also while that is not told yet."""
    found: list[tuple[int, int, str]] = []
    # Of a thousand slots, almost all are free or run.
    slots = {slot for slot, phase in enumerate(phases[1]) if phase} if any(phases[1]) else set()
    for slot in sorted(slots.union(told)):
        id_, phase = phases[0][slot], phases[1][slot]
        there = told.get(slot)
        if there is not None and there.id != id_:
            del told[slot]
            there = None
        if not id_:
            continue
        if not phase:
            if there is not None:
                there.runs_ns = there.runs_ns or now_ns
                if now_ns - there.runs_ns >= OVER_AFTER_NS:
                    del told[slot]
                    lasted_s = (there.runs_ns - there.since_ns) // 1_000_000_000
                    if there.is_told:
                        found.append((slot, id_, f"runs again after {lasted_s} s"))
            continue
        if there is None or there.phase != phase:
            there = told[slot] = _State(id_, phase, now_ns)
        there.runs_ns = 0
        is_due = phase != RowPhase.HELD or now_ns - there.since_ns >= HELD_AFTER_NS
        if is_due and not there.is_told:
            there.is_told = True
            found.append((slot, id_, _WORDS[RowPhase(phase)]))
    return found


_WORDS = {
    RowPhase.PAUSED: "is paused",
    RowPhase.HELD: "is held",
    RowPhase.STOPPED: "is stopped",
}


def _of_subscription(row: SubscriptionRow) -> str:
    return _named("push" if row.is_pushed else "subscription", row.topic, row.subscription)


def _of_router(row: RouterRow) -> str:
    return f"router {row.router} from topic {row.source} to topic {row.dest}"


def _line(who: str, reason: str, word: str) -> Line:
    is_bad = word in ("is held", "is stopped")
    why = f": {reason}" if is_bad and reason else ""
    return logging.WARNING if is_bad else logging.INFO, f"{who} {word}{why}"
