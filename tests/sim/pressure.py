"""The governor of a simulated machine: its words move while everything else runs.

    still    as they are
    moving   at each tick of the supervisor the level jumps, or creeps, or stays; window and object
             target follow it
    pinned   the level is 1 and stays there, and the ladder is at its end: the longest window, the
             largest target, the longest coalescing, deferral
    closed   pinned, and the gate is closed: nothing new is taken in, routers are paused

Each episode begins with one of them. A pinned or closed one keeps it until everything has come to
rest: pressure slows sources, and never what drains them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from daemon.governor.ladder import coalesce_ns, window_ms
from daemon.governor.producers_gate import ClosedBy
from shards import layout as at
from shards.layout import Layout
from tests.sim.schedule import Words, log_uniform

STILL, MOVING, PINNED, CLOSED = MODES = ("still", "moving", "pinned", "closed")


class Pressure:
    """What the supervisor stores, tick by tick."""

    def __init__(
        self, rng: random.Random, layout: Layout, target_bytes: int, log: Callable[[str], None]
    ) -> None:
        self._rng = rng
        self._log = log
        self._min_ms = log_uniform(rng, 1, 100)
        self._max_ms = self._min_ms * log_uniform(rng, 1, 10)
        self._targets = (target_bytes, max(target_bytes, layout.ring_bytes // 8))
        self._level = 0.0
        self._told: tuple[float, str] | None = None
        self.mode = STILL
        self.moves = 0  # ticks in which window or target changed
        self.drains = 0  # under the highest pressure

    @property
    def window_ns(self) -> int:
        """The window in force."""
        return int(window_ms(self._level, self._min_ms, self._max_ms) * 1e6)

    @property
    def target_bytes(self) -> int:
        """The object target in force: it too grows with the level here."""
        low, high = self._targets
        return int(low + (high - low) * self._level)

    @property
    def is_pinned(self) -> bool:
        """Whether the level is 1 and stays there."""
        return self.mode in (PINNED, CLOSED)

    def begin(self) -> None:
        """An episode begins."""
        self.mode = self._rng.choice(MODES)

    def tick(self, words: Words) -> None:
        """The supervisor's part."""
        if self.is_pinned:
            self._level = 1.0
        elif self.mode == MOVING:
            rng = self._rng
            crept = min(1.0, max(0.0, self._level + rng.uniform(-0.1, 0.1)))
            self._level = rng.choice((0.0, 1.0, rng.random(), crept, crept, self._level))
        if self._told == (self._level, self.mode):
            return
        self._told = self._level, self.mode
        self.moves += 1
        self._log(f"pressure {self._level:.3f}, {self.mode}")
        words[at.G_PRESSURE_PPM] = words[at.G_HARD_PPM] = int(self._level * 1e6)
        words[at.G_COALESCE_NS] = coalesce_ns(self._level)
        words[at.G_DEFERRING] = self._level > 0.8
        words[at.G_TARGET_BYTES] = self.target_bytes
        words[at.G_WINDOW_NS] = self.window_ns
        words[at.G_GATE] = ClosedBy.STORE_FAILING if self.mode == CLOSED else 0
