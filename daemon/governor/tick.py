"""The supervisor's tick of the governor: reads, decides, tells.

    readings -> Governor -> shared words, alarms, log lines

``governor.py`` decides; this module has no rule of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from daemon.config import Config
from daemon.governor.board import store
from daemon.governor.cgroup import CgroupMemory
from daemon.governor.disk import DiskSensor
from daemon.governor.governor import Governed, Governor
from daemon.governor.memory import MemorySensor
from daemon.governor.producers_gate import disks_of, space_of
from daemon.governor.readings import STALE_AFTER, Readings, Sample
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.clock import monotonic_ns
from shards.segment import Segment

log = logging.getLogger("headgate.governor")


class GovernorTick:
    """Call ``tick`` every 100 ms. ``bodies_bytes`` says what all bodies on their way may take in
    each shard, if the kernel kills above a limit."""

    def __init__(
        self,
        segment: Segment,
        config: Config,
        alarms: AlarmBoard,
        bodies_bytes: Callable[[Config, int | None], int],
    ) -> None:
        self._words = segment.words
        self._alarms = alarms
        self._bodies_bytes = bodies_bytes
        self._governor = Governor(config.pressure_weights, reacts=config.governor == "on")
        self.memory = MemorySensor(
            segment.layout.size_bytes, lambda: self._readings.allocated_bytes(), CgroupMemory()
        )
        self._readings = Readings(segment, DiskSensor(disks_of(config), space_of), self.memory)
        self._limit_memory(config, monotonic_ns())

    def tick(
        self, config: Config, now_ns: int, budgeted: Callable[[float, int], float]
    ) -> Governed:
        """Takes a sample, and stores what follows from it. ``budgeted`` says which commit window
        the PUT budget makes of the governor's, now."""
        sample = self._readings.take(now_ns)
        self._governor.weights = config.pressure_weights
        governed = self._governor.sample(
            sample.readings, config.commit_window_min_ms, config.commit_window_max_ms, now_ns
        )
        self._tell(sample, now_ns)
        left_bytes = self.memory.left_bytes
        self._words[at.G_MEMORY_LEFT_BYTES] = 0 if left_bytes is None else left_bytes + 1
        self._limit_memory(config, now_ns)
        for edge in governed.edges:
            log.log(logging.WARNING if edge.rung.warns else logging.INFO, "%s", governed.line(edge))
        store(self._words, governed, budgeted(governed.window_ms, now_ns))
        return governed

    def _limit_memory(self, config: Config, now_ns: int) -> None:
        """Says what bodies on their way may take; shards read it when their bells ring."""
        limit_bytes = self.memory.limit_bytes(now_ns)
        self._words[at.G_BODIES_BYTES] = self._bodies_bytes(config, limit_bytes)

    def _tell(self, sample: Sample, now_ns: int) -> None:
        """Raises the alarms of sensors, or ends them."""
        if sample.broken:
            text = ", ".join(sample.broken)
            self._alarms.raise_(AlarmKind.SENSOR_BROKEN, text, now_ns)
        else:
            self._alarms.clear(AlarmKind.SENSOR_BROKEN)
        if sample.stale:
            text = (
                f"no report for {STALE_AFTER} samples from shards"
                f" {', '.join(map(str, sample.stale))}; their soft sensors count as full"
            )
            self._alarms.raise_(AlarmKind.SENSOR_STALE, text, now_ns)
        else:
            self._alarms.clear(AlarmKind.SENSOR_STALE)
