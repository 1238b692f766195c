"""A gate: pauses one source of new records under pressure, and resumes it well below.

    open -> (the level is above ``pause_above``: ``pause`` is called) -> closed
         -> (it is below ``resume_below``: ``resume`` is called) -> open

A source is whatever brings records in: the producers of HTTP (``producers_gate.py``), the routers
of a shard (``routers_gate.py``). Each has a gate of its own, with what stops that kind of source.
Where records leave there is no gate, ever: if uploads, commits or deliveries had to wait for
pressure to fall, nothing would make it fall.

Between the two thresholds a gate stays as it is, so a level that hovers around one of them does
not open and close it all the time. Pressure may also stay between them for good, because of what
the source has nothing to do with (memory of readers, say). So once nothing that the source brought
in is left, for ``DRAINED_NS``, ``pause_above`` alone decides: a closed gate cannot lower the level
any more. Above it the gate stays closed, and says that it waits for nothing (``is_stuck``).

Pure: level and time in; ``pause`` and ``resume`` are each called once per edge.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from daemon.config import Config

DRAINED_NS = 10_000_000_000


class Band(Struct, frozen=True):
    """The thresholds; between them a gate stays as it is. Nothing is above 1, so a gate with
    ``pause_above`` = 1 never closes."""

    pause_above: float = 0.80
    resume_below: float = 0.65

    def __post_init__(self) -> None:
        if not 0 < self.resume_below < self.pause_above <= 1:
            raise ValueError(
                f"a gate cannot pause above {self.pause_above:g} and resume below"
                f" {self.resume_below:g}: resume must be above 0 and below pause, pause at most 1"
            )


def gate_band(config: Config) -> Band:
    """The band of all gates."""
    return Band(config.gate_pause_above, config.gate_resume_below)


class Gate:
    """The gate of one source.

    A level that is not a number changes nothing. A broken sensor makes the daemon slower
    (``governor.py``) and raises an alarm, but it must not stop a source, since nothing would ever
    let the source go on.
    """

    def __init__(
        self, band: Band, pause: Callable[[], object], resume: Callable[[], object]
    ) -> None:
        self.band = band
        self.is_open = True
        self._pause = pause
        self._resume = resume
        self._drained_since_ns: int | None = None

    def look(self, level: float, now_ns: int, *, is_drained: bool = False) -> bool:
        """Takes one sample of the level; returns whether the gate is open. ``is_drained``: nothing
        that the source brought in is left."""
        if not is_drained:
            self._drained_since_ns = None
        elif self._drained_since_ns is None:
            self._drained_since_ns = now_ns
        if self.is_open:
            if level > self.band.pause_above:
                self.is_open = False
                self._pause()
        elif level < self.band.resume_below or (
            level <= self.band.pause_above and self._has_been_drained(now_ns)
        ):
            self.is_open = True
            self._resume()
        return self.is_open

    def is_stuck(self, now_ns: int) -> bool:
        """Whether it is closed though nothing that the source brought in has been left for
        DRAINED_NS."""
        return not self.is_open and self._has_been_drained(now_ns)

    def _has_been_drained(self, now_ns: int) -> bool:
        since_ns = self._drained_since_ns
        return since_ns is not None and now_ns - since_ns >= DRAINED_NS
