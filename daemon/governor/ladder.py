"""The ladder: what the daemon does at which pressure. One table, RUNGS.

Pressure makes the daemon slower in the order of the table, and never loses anything. Two effects
are continuous functions of the level (``coalesce_ns``, ``window_ms``): a step there would make the
daemon jump between two states, each of which causes the other. Their rungs only say when the effect
begins. A rung goes into force when its input has been above ``above`` for ``enter_after_ns``, and
out of force when it has been below ``release`` for ``leave_after_ns``; each of these *edges* is
reported once.

Pure: the level and ``now`` in, edges out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from daemon.config.sensors import clamp
from shards.layout import RUNGS_MAX

COALESCE_ABOVE = 0.2
WIDEN_ABOVE = 0.4
COALESCE_NS_MAX = 20_000_000
_S = 1_000_000_000


Input = Literal["level", "steady", "ring"]


class Rung(Struct, frozen=True):
    """One row. ``of`` is the input: the level, the level that the window follows, or the ring.
    ``warns``: an operator should look, since some clients get less than others, or nothing."""

    name: str
    of: Input
    above: float
    release: float
    enter_after_ns: int
    leave_after_ns: int
    effect: str
    client_sees: str
    warns: bool = False


# The first two end late, so that a load that comes and goes does not fill the log. Nothing else
# depends on that, since their effects are continuous.
RUNGS: tuple[Rung, ...] = (
    Rung(
        "coalesce", "level", COALESCE_ABOVE, 0.15, 0, 5 * _S,
        "pushes wait up to 20 ms",
        "several records share a frame, up to 20 ms later",
    ),
    Rung(
        "widen", "steady", WIDEN_ABOVE, 0.35, 0, 5 * _S,
        "wider windows, fewer PUTs",
        "producers get their answers later, by a window at most",
    ),
    Rung(
        "defer", "level", 0.8, 0.6, _S, _S,
        "no pushes of negative priority",
        "pushes of topics with a negative priority pause; `diff` has their records",
        warns=True,
    ),
    Rung(
        "refuse", "ring", 0.99, 0.9, 0, _S,
        "429 before the body",
        "a write gets 429 with `Retry-After`, or waits if it asked to; nothing is stored",
        warns=True,
    ),
)  # fmt: skip


assert len(RUNGS) <= RUNGS_MAX


class Edge(Struct, frozen=True):
    """A rung went into force, or out of it."""

    rung: Rung
    begins: bool


def coalesce_ns(level: float) -> int:
    """How long pushes wait for others: 0 up to 0.2, then linear to 20 ms."""
    return int(COALESCE_NS_MAX * clamp((level - COALESCE_ABOVE) / (1 - COALESCE_ABOVE)))


def window_ms(level: float, min_ms: float, max_ms: float) -> float:
    """The commit window: ``min_ms`` up to 0.4, then linear to ``max_ms``."""
    return min_ms + (max_ms - min_ms) * clamp((level - WIDEN_ABOVE) / (1 - WIDEN_ABOVE))


class _State:
    """A rung, and since when its input has asked for a change; None if it does not."""

    def __init__(self) -> None:
        self.in_force = False
        self.asked_ns: int | None = None


class Ladder:
    """Which rungs are in force."""

    def __init__(self) -> None:
        self._states = [_State() for _ in RUNGS]

    def step(self, inputs: Mapping[Input, float], now_ns: int) -> list[Edge]:
        """Takes one sample; the edges that it caused, lowest rung first."""
        edges = []
        for rung, state in zip(RUNGS, self._states, strict=True):
            value = inputs[rung.of]
            if state.in_force:
                asks, after_ns = value < rung.release, rung.leave_after_ns
            else:
                asks, after_ns = value > rung.above, rung.enter_after_ns
            if not asks:
                state.asked_ns = None
                continue
            if state.asked_ns is None:
                state.asked_ns = now_ns
            if now_ns - state.asked_ns >= after_ns:
                state.in_force = not state.in_force
                state.asked_ns = None
                edges.append(Edge(rung, state.in_force))
        return edges

    @property
    def in_force(self) -> list[str]:
        """The names of the rungs in force, lowest first."""
        return [
            rung.name for rung, state in zip(RUNGS, self._states, strict=True) if state.in_force
        ]

    @property
    def mask(self) -> int:
        """The rungs in force as bits: bit n is RUNGS[n]."""
        return sum(1 << index for index, state in enumerate(self._states) if state.in_force)


def names_of(mask: int) -> list[str]:
    """The names of the rungs in a mask, lowest first."""
    return [rung.name for index, rung in enumerate(RUNGS) if mask >> index & 1]
