"""How long a loop stood still, because its process got no CPU or something in it took long.

    beat ... beat ... (no beat: it stands still) ... beat

What stood still cannot have heard an answer, so a receiver is not to blame for that time. Pure:
times are arguments. Beats are expected every BEAT_NS; a gap counts as far as it is longer, and not
at all if it is shorter than two.
"""

from __future__ import annotations

BEAT_NS = 50_000_000


class Stalls:
    """The stalls of one loop."""

    __slots__ = ("_last_ns", "_lost_ns")

    def __init__(self) -> None:
        self._last_ns = 0
        self._lost_ns = 0

    def begin(self, now_ns: int) -> None:
        """Beats begin, or begin again."""
        self._last_ns = now_ns

    def beat(self, now_ns: int) -> None:
        """The loop turns."""
        self._lost_ns = self.lost_ns(now_ns)
        self._last_ns = now_ns

    def lost_ns(self, now_ns: int) -> int:
        """How long it stood still so far, ever; a difference of two is that of the time between."""
        gap_ns = now_ns - self._last_ns
        return self._lost_ns + (gap_ns - BEAT_NS if gap_ns >= 2 * BEAT_NS else 0)
