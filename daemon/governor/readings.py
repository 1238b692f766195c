"""Reads the raw values of all sensors. The supervisor does so once per tick.

Shards leave theirs in shared words with each heartbeat. A shard that does not serve yet does not
count: a restart must not raise the pressure of the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from daemon.governor.sensors import Reading
from shards import layout as at
from shards.segment import Segment


class Readings:
    """One sample after the other."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        self._layout = segment.layout
        self._cpu_ns = [0] * segment.layout.shards
        self._sampled_ns = 0

    def take(self, now_ns: int) -> list[Reading]:
        """In the order of SENSORS."""
        return [self._busy(now_ns), self._ring()]

    def _column(self, word: int) -> list[int]:
        """One word of each shard."""
        first, stop = self._layout.shard(0), self._layout.shard(self._layout.shards)
        return list(self._words[first + word : stop : at.SHARD_WORDS])

    def _busy(self, now_ns: int) -> Reading:
        passed_ns = max(1, now_ns - self._sampled_ns)
        before, self._cpu_ns = self._cpu_ns, self._column(at.S_CPU_NS)
        self._sampled_ns = now_ns
        # The clock of a shard's new process begins at 0.
        pairs = zip(self._cpu_ns, before, strict=True)
        return self._worst(max(0, now - was) / passed_ns for now, was in pairs)

    def _ring(self) -> Reading:
        heads, committed = self._column(at.S_HEAD), self._column(at.S_COMMITTED)
        size = self._layout.ring_bytes
        return self._worst((head - end) / size for head, end in zip(heads, committed, strict=True))

    def _worst(self, values: Iterable[float]) -> Reading:
        ready = self._column(at.S_READY)
        worst = Reading(0.0)
        for shard, value in enumerate(values):
            if ready[shard] and value != value:
                return Reading(value, shard)  # broken, which is worse than any value
            if ready[shard] and value > worst.raw:
                worst = Reading(value, shard)
        return worst
