"""The governor's words in shared memory: stored by the supervisor, read by all.

The process that decides a gate stores its words.
"""

from __future__ import annotations

from typing import NamedTuple

from daemon.config.sensors import INDEX, SENSORS, Reading, Sensor
from daemon.governor.governor import Governed
from daemon.governor.ladder import RUNGS
from shards import layout as at
from shards.doubles import double_of, word_of


def store(words: memoryview[int], governed: Governed, window_ms: float) -> None:
    """Stores what follows from a sample, and the window, which a budget may have widened. The
    shards read it at their next heartbeat, the window immediately."""
    sensed = zip(governed.readings, governed.pressures, governed.weights, strict=True)
    for index, (reading, pressure, weight) in enumerate(sensed):
        row = at.sensor(index)
        words[row + at.SENSOR_RAW] = word_of(reading.raw)
        words[row + at.SENSOR_PPM] = int(pressure * 1e6)
        words[row + at.SENSOR_SHARD] = 0 if reading.shard is None else reading.shard + 1
        words[row + at.SENSOR_WEIGHT_PPM] = int(weight * 1e6)
    for edge in governed.edges:
        if edge.begins:
            words[at.G_RUNGS_ENTERED + RUNGS.index(edge.rung)] += 1
    words[at.G_PRESSURE_PPM] = int(governed.level * 1e6)
    words[at.G_HARD_PPM] = int(governed.hard * 1e6)
    words[at.G_STEADY_PPM] = int(governed.steady * 1e6)
    words[at.G_SCALING_PPM] = int(governed.scaling * 1e6)
    words[at.G_RUNGS] = governed.rungs
    words[at.G_COALESCE_NS] = governed.coalesce_ns
    words[at.G_DEFERRING] = governed.deferring
    words[at.G_WINDOW_NS] = int(window_ms * 1e6)


def store_gate(words: memoryview[int], gate: int, why: int, now_ns: int) -> None:
    """Stores why the gate whose words begin at ``gate`` is closed; 0: it is open."""
    if why and not words[gate + at.GATE_WHY]:
        words[gate + at.GATE_SINCE_NS] = now_ns
        words[gate + at.GATE_PAUSES] += 1
    words[gate + at.GATE_WHY] = why


def pressure_of(words: memoryview[int], name: str) -> float:
    """A sensor's pressure in the last sample; NaN if the sensor is broken."""
    row = at.sensor(INDEX[name])
    raw = double_of(words[row + at.SENSOR_RAW])
    return raw if raw != raw else words[row + at.SENSOR_PPM] / 1e6


class Sensed(NamedTuple):
    """One sensor in the last sample."""

    sensor: Sensor
    reading: Reading
    pressure: float
    weight: float


def sensed(words: memoryview[int]) -> list[Sensed]:
    """The last sample, in the order of SENSORS."""
    found = []
    for index, sensor in enumerate(SENSORS):
        row = at.sensor(index)
        raw = double_of(words[row + at.SENSOR_RAW])
        shard = int(words[row + at.SENSOR_SHARD])
        pressure = words[row + at.SENSOR_PPM] / 1e6
        weight = words[row + at.SENSOR_WEIGHT_PPM] / 1e6
        found.append(Sensed(sensor, Reading(raw, shard - 1 if shard else None), pressure, weight))
    return found
