"""The sensors: what is measured, and how much pressure each value is.

A *sensor* turns a raw value, in its unit, into a pressure in [0, 1]: 0 up to ``zero``, 1 from
``full`` on, linear between. A *hard* sensor watches something that runs out (ring, memory, disk); a
*soft* one watches work that gets slower. This module measures nothing: the supervisor reads the raw
values (``readings.py``), ``level.py`` makes one level of them.

A sensor's place in SENSORS is its slot in shared memory (``shards/layout.py``), at most
SENSORS_MAX of them.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from shards.layout import SENSORS_MAX


class Sensor(Struct, frozen=True):
    """One sensor. ``newest`` is the share of a new sample in the smoothed value; 1: not smoothed.
    ``source`` says what is measured."""

    name: str
    unit: str
    hard: bool
    zero: float
    full: float
    source: str
    newest: float = 1.0

    def pressure(self, raw: float) -> float:
        """In [0, 1]. NaN counts as 1: a broken sensor must not release the brake."""
        return clamp((raw - self.zero) / (self.full - self.zero))


class Reading(NamedTuple):
    """A raw value, and the shard that it is of; None if it is of no shard."""

    raw: float
    shard: int | None = None


def clamp(value: float) -> float:
    """``value`` limited to [0, 1]; NaN counts as 1."""
    return min(1.0, max(0.0, value)) if value == value else 1.0


SENSORS: tuple[Sensor, ...] = (
    # A shard that uses half of its CPU is not loaded: its answers are as fast as an idle one's. A
    # lasting load is seen within three samples; one hiccup of a noisy machine does little.
    Sensor("busy", "cpu", False, 0.5, 0.95, "CPU time of the busiest shard", newest=0.5),
    Sensor("ring", "share", True, 0.0, 1.0, "the fullest ring: records that are not durable yet"),
)
assert len(SENSORS) <= SENSORS_MAX
BY_NAME = {sensor.name: sensor for sensor in SENSORS}
