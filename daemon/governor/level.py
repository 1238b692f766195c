"""The level: one pressure of all sensors.

    level = max(hard sensors, weight x soft sensors)

A hard sensor is never masked by soft ones, and each sensor alone can drive the level to 1. This is
the only place with the formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from daemon.config.sensors import SENSORS


class Level(Struct, frozen=True):
    """``value`` is the pressure of the daemon, ``hard`` that of its hard sensors alone."""

    value: float
    hard: float


def level_of(pressures: Sequence[float], weights: Mapping[str, float]) -> Level:
    """The level from the sensors' pressures, in the order of SENSORS; a weight is 1 if it is not
    given."""
    hard = soft = 0.0
    for sensor, pressure in zip(SENSORS, pressures, strict=True):
        if sensor.hard:
            hard = max(hard, pressure)
        else:
            soft = max(soft, weights.get(sensor.name, 1.0) * pressure)
    return Level(max(hard, soft), hard)
