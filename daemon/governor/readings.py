"""Reads the raw values of all sensors. The supervisor does so once per tick.

Shards leave theirs in shared words with each heartbeat (``shard_sensors.py``). A shard that does
not serve yet does not count: a restart must not raise the pressure of the others. One that serves
and has not beaten for STALE_AFTER samples is *stale*: its state is unknown, so its soft sensors
count as full. Its hard ones count as they were: what cannot be known does not refuse requests.

A tick reads a dozen columns of words: 0.1 ms with 64 shards.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence

from msgspec import Struct

from daemon.config.sensors import BY_NAME, SENSORS, Reading
from daemon.governor.disk import DiskSensor
from daemon.governor.memory import MemorySensor, allocated_bytes
from shards import layout as at
from shards.doubles import doubles_of
from shards.segment import Segment

STALE_AFTER = 5


class Sample(Struct, frozen=True):
    """One sample of all sensors: ``readings`` in the order of SENSORS, and which shards are
    stale."""

    readings: Sequence[Reading]
    stale: Sequence[int] = ()

    @property
    def broken(self) -> list[str]:
        """The sensors that say nothing, each with its shard."""
        return [
            sensor.name + ("" if reading.shard is None else f" of shard {reading.shard}")
            for sensor, reading in zip(SENSORS, self.readings, strict=True)
            if math.isnan(reading.raw)
        ]


class Readings:
    """One sample after the other."""

    def __init__(self, segment: Segment, disks: DiskSensor, memory: MemorySensor) -> None:
        self._words = segment.words
        self._layout = segment.layout
        self._disks = disks
        self._memory = memory
        shards = segment.layout.shards
        self._cpu_ns = [0] * shards
        self._beat_ns = [0] * shards
        self._used_cpu = [0.0] * shards
        self._beats = [0] * shards
        self._still = [0] * shards  # samples since the last heartbeat
        self._refused = [0] * shards

    def take(self, now_ns: int) -> Sample:
        """Reads everything."""
        ready = [bool(word) for word in self._column(at.S_READY)]
        stale = self._stale(ready)
        late = set(stale)
        heads, committed = self._column(at.S_HEAD), self._column(at.S_COMMITTED)
        used = [head - end for head, end in zip(heads, committed, strict=True)]
        found = {
            "ready": self._doubles(at.S_READY_MS),
            "scheduling": self._doubles(at.S_SCHEDULING_MS),
            "busy": self._busy(ready),
            "uploads": self._doubles(at.S_SLOTS_USED),
            "store": self._doubles(at.S_STORE_SLOWDOWN),
            "ledger": self._doubles(at.S_COMMIT_MS),
            "ring": self._ring(used, self._doubles(at.S_PROMISED_BYTES)),
        }
        worst = {
            name: _worst(values, ready, set() if BY_NAME[name].hard else late, BY_NAME[name].full)
            for name, values in found.items()
        }
        worst["memory"] = Reading(self._memory.share(now_ns))
        worst["disk"] = Reading(self._disks.share(sum(used)))
        return Sample([worst[sensor.name] for sensor in SENSORS], stale)

    def allocated_bytes(self) -> int:
        """What all processes of the daemon have allocated for themselves."""
        # A shard that ended has freed its memory, whatever it stored last.
        pairs = zip(self._column(at.S_PID), self._doubles(at.S_ALLOCATED_BYTES), strict=True)
        shards = sum(held for pid, held in pairs if pid and held == held)
        return int(shards) + allocated_bytes()

    def _column(self, word: int) -> list[int]:
        """One word of each shard."""
        first, stop = self._layout.shard(0), self._layout.shard(self._layout.shards)
        return self._words[first + word : stop : at.SHARD_WORDS].tolist()

    def _doubles(self, word: int) -> Sequence[float]:
        return doubles_of(self._column(word))

    def _stale(self, ready: Sequence[bool]) -> list[int]:
        before, self._beats = self._beats, self._column(at.S_HEARTBEAT)
        for shard, (beats, was) in enumerate(zip(self._beats, before, strict=True)):
            still = ready[shard] and beats == was
            self._still[shard] = self._still[shard] + 1 if still else 0
        return [shard for shard, still in enumerate(self._still) if still >= STALE_AFTER]

    def _busy(self, ready: Sequence[bool]) -> Sequence[float]:
        """By shard, how busy its CPU is with shards. Between two heartbeats, as before."""
        cpu_ns, beat_ns = self._column(at.S_CPU_NS), self._column(at.S_HEARTBEAT_NS)
        for shard, (cpu, beat) in enumerate(zip(cpu_ns, beat_ns, strict=True)):
            passed_ns = beat - self._beat_ns[shard]
            if passed_ns > 0:
                # The clock of a shard's new process begins at 0.
                used_ns = max(0, cpu - self._cpu_ns[shard])
                self._used_cpu[shard] = used_ns / passed_ns
        self._cpu_ns, self._beat_ns = cpu_ns, beat_ns
        cpus = self._column(at.S_CPU)
        sums = dict.fromkeys(cpus, 0.0)
        for cpu, used, serves in zip(cpus, self._used_cpu, ready, strict=True):
            sums[cpu] += used if serves else 0.0
        return [sums[cpu] for cpu in cpus]

    def _ring(self, used: Sequence[int], promised: Sequence[float]) -> Sequence[float]:
        """What takes space: records that are not durable yet, and promises to bodies on their way.
        A ring that has too little for a request is full, whatever is free."""
        before, self._refused = self._refused, self._column(at.S_RING_FULL)
        size = self._layout.ring_bytes
        return [
            1.0 if refused != was else (stored + coming) / size
            for stored, coming, refused, was in zip(
                used, promised, self._refused, before, strict=True
            )
        ]


def _worst(
    values: Iterable[float], ready: Sequence[bool], stale: Container[int], full: float
) -> Reading:
    """The largest value of the shards that serve, and whose it is; one that is not a number is
    worse than any other."""
    worst = Reading(0.0)
    for shard, measured in enumerate(values):
        if not ready[shard]:
            continue
        if measured != measured:
            return Reading(measured, shard)
        value = max(measured, full) if shard in stale else measured
        if value > worst.raw:
            worst = Reading(value, shard)
    return worst
