"""The governor: pressure from the machine's state, and the commit window from pressure.

Pure: inputs in, level and window out; the supervisor samples every 100 ms and stores both words.
The finer ladder (coalescing, deferral, the gate's hysteresis) is not here yet: of its rungs this
one widens the window, and a full ring refuses by itself (daemon/intake/producer.py).

    level   max of the inputs, each in [0, 1]; the busy ratio is smoothed
    window  min + (max - min) * clamp((level - 0.4) / 0.6): continuous and monotone
"""

from __future__ import annotations

from msgspec import Struct

WIDEN_ABOVE = 0.4
# Half of a new sample counts at once: a second of load is seen within three samples, one
# hiccup of a noisy machine does not throw the window about.
SMOOTHING = 0.5


class Inputs(Struct, frozen=True):
    """``busy``: CPU that the busiest shard used over the time that passed; ``ring``: how full the
    fullest ring is with uncommitted requests. Both in [0, 1] after clamping."""

    busy: float
    ring: float


def clamp(value: float) -> float:
    """``value`` held to [0, 1]; what is no number counts as 1, a broken sensor fails safe."""
    return min(1.0, max(0.0, value)) if value == value else 1.0


def window_ms(level: float, min_ms: float, max_ms: float) -> float:
    """The commit window at a pressure level."""
    return min_ms + (max_ms - min_ms) * clamp((level - WIDEN_ABOVE) / (1 - WIDEN_ABOVE))


def rung(level: float) -> str:
    """The name of the ladder's rung in force."""
    return "widen" if level > WIDEN_ABOVE else "none"


class Governor:
    """Smooths the inputs; ``sample`` is called at a steady pace."""

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
