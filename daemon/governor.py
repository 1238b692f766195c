"""The governor: pressure from the state of the machine, and the commit window from pressure.

Pure: inputs in, level and window out. The supervisor samples every 100 ms and stores both in shared
words. The only rung of the ladder so far widens the window; a full ring refuses requests by itself
(daemon/intake/producer.py).

    level   max of the inputs, each in [0, 1]; the busy ratio is smoothed
    window  min + (max - min) * clamp((level - 0.4) / 0.6): continuous and monotone
"""

from __future__ import annotations

from msgspec import Struct

WIDEN_ABOVE = 0.4
# Half of a new sample counts immediately: a lasting load is seen within three samples, and one
# hiccup of a noisy machine does not change the window much.
SMOOTHING = 0.5


class Inputs(Struct, frozen=True):
    """``busy``: the CPU time of the busiest shard over the time that passed. ``ring``: how full of
    uncommitted requests the fullest ring is. Both are in [0, 1] after clamping."""

    busy: float
    ring: float


def clamp(value: float) -> float:
    """``value`` limited to [0, 1]; NaN counts as 1, so that a broken sensor fails safe."""
    return min(1.0, max(0.0, value)) if value == value else 1.0


def window_ms(level: float, min_ms: float, max_ms: float) -> float:
    """The commit window at a pressure level."""
    return min_ms + (max_ms - min_ms) * clamp((level - WIDEN_ABOVE) / (1 - WIDEN_ABOVE))


def rung(level: float) -> str:
    """The name of the rung in force."""
    return "widen" if level > WIDEN_ABOVE else "none"


class Governor:
    """Smooths the inputs; call ``sample`` at a steady pace."""

    def __init__(self) -> None:
        self.inputs = Inputs(0.0, 0.0)

    @property
    def level(self) -> float:
        """The pressure, in [0, 1]."""
        return max(self.inputs.busy, self.inputs.ring)

    def sample(self, busy: float, ring: float) -> float:
        """Takes one sample and returns the level."""
        smoothed = (1 - SMOOTHING) * self.inputs.busy + SMOOTHING * clamp(busy)
        self.inputs = Inputs(smoothed, clamp(ring))
        return self.level
