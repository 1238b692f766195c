"""The governor's words in shared memory: stored by the supervisor, read by all."""

from __future__ import annotations

from daemon.governor.governor import Governed
from daemon.governor.ladder import RUNGS
from daemon.governor.sensors import INDEX, SENSORS, Reading
from shards import layout as at
from shards.doubles import double_of, word_of


def store(words: memoryview[int], governed: Governed, window_ms: float) -> None:
    """Stores what follows from a sample, and the window, which a budget may have widened. The
    shards read it at their next heartbeat, the window immediately."""
    for index, (reading, pressure) in enumerate(
        zip(governed.readings, governed.pressures, strict=True)
    ):
        row = at.sensor(index)
        words[row + at.SENSOR_RAW] = word_of(reading.raw)
        words[row + at.SENSOR_PPM] = int(pressure * 1e6)
        words[row + at.SENSOR_SHARD] = 0 if reading.shard is None else reading.shard + 1
    for edge in governed.edges:
        if edge.begins:
            words[at.G_RUNGS_ENTERED + RUNGS.index(edge.rung)] += 1
    words[at.G_PRESSURE_PPM] = int(governed.level * 1e6)
    words[at.G_HARD_PPM] = int(governed.hard * 1e6)
    words[at.G_RUNGS] = governed.rungs
    words[at.G_COALESCE_NS] = governed.coalesce_ns
    words[at.G_DEFERRING] = governed.deferring
    words[at.G_WINDOW_NS] = int(window_ms * 1e6)


def pressure_of(words: memoryview[int], name: str) -> float:
    """A sensor's pressure in the last sample; NaN if the sensor is broken."""
    row = at.sensor(INDEX[name])
    raw = double_of(words[row + at.SENSOR_RAW])
    return raw if raw != raw else words[row + at.SENSOR_PPM] / 1e6


def readings(words: memoryview[int]) -> list[tuple[Reading, float]]:
    """The last sample: each sensor's reading and pressure, in the order of SENSORS."""
    found = []
    for index in range(len(SENSORS)):
        row = at.sensor(index)
        raw = double_of(words[row + at.SENSOR_RAW])
        shard = int(words[row + at.SENSOR_SHARD])
        pressure = words[row + at.SENSOR_PPM] / 1e6
        found.append((Reading(raw, shard - 1 if shard else None), pressure))
    return found
