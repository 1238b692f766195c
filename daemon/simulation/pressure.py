"""The governor of a simulated daemon: the shipped one, over the sensors that the model has.

Modeled are the rings and the lease slots. The others read 0: there is no CPU, no memory, no disk,
and the store is as fast as its distribution says all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from daemon.governor import board
from daemon.governor.governor import Governed, Governor
from daemon.governor.sensors import SENSORS, Reading

SAMPLE_NS = 100_000_000


class VirtualGovernor:
    """Samples the model and stores what follows in the words that the pullers read."""

    def __init__(
        self,
        words: memoryview,
        measured: Mapping[str, Callable[[], float]],
        window_min_ms: float,
        window_max_ms: float,
        *,
        reacts: bool,
    ) -> None:
        self._words = words
        self._sensors = [measured.get(sensor.name, lambda: 0.0) for sensor in SENSORS]
        self._window_min_ms = window_min_ms
        self._window_max_ms = window_max_ms
        self._governor = Governor({}, reacts=reacts)

    def sample(self, now_ns: int) -> Governed:
        """One sample."""
        readings = [Reading(measure()) for measure in self._sensors]
        governed = self._governor.sample(readings, self._window_min_ms, self._window_max_ms, now_ns)
        board.store(self._words, governed)
        return governed
