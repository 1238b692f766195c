"""The gate of a shard's routers: they read nothing new while something runs out.

Its level is the pressure of the shard's own ring, of memory and of the disks. The ring of another
shard does not count: a shard that one busy client fills must not stop the routers of all. Copies
that are in the ring already are stored, and the routers' cursors stay where they are, so nothing is
skipped or copied twice.

The shard looks at each heartbeat. What closed the gate is in the shard's words: the number of the
sensor (``config/sensors.py``), plus 1.
"""

from __future__ import annotations

from collections.abc import Callable

from daemon.config.sensors import BY_NAME, INDEX, SENSORS
from daemon.governor.board import pressure_of, store_gate
from daemon.governor.gate import Band, Gate
from shards import layout as at
from shards.segment import Segment

_RING = BY_NAME["ring"]
_SHARED = tuple(sensor.name for sensor in SENSORS if sensor.hard and sensor is not _RING)


class RoutersGate:
    """``used_bytes`` is what the shard's ring holds that is not durable, ``in_flight_bytes`` the
    routers' part of it. ``pause`` is told why."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        band: Band,
        used_bytes: Callable[[], int],
        in_flight_bytes: Callable[[], int],
        pause: Callable[[str], object],
        resume: Callable[[], object],
    ) -> None:
        self._words = segment.words
        self._gate_at = segment.layout.shard(shard) + at.S_GATE
        store_gate(self._words, self._gate_at, 0, 0)  # a predecessor's may have been closed
        self._ring_bytes = segment.layout.ring_bytes
        self._used_bytes = used_bytes
        self._in_flight_bytes = in_flight_bytes
        self._cause = _RING.name
        self._level = 0.0
        self._band = band
        self._gate = Gate(band, lambda: pause(self._why()), resume)

    def look(self, now_ns: int) -> bool:
        """Takes a sample; returns whether the gate is open."""
        self._cause, self._level = _RING.name, _RING.pressure(self._used_bytes() / self._ring_bytes)
        for name in _SHARED:
            pressure = pressure_of(self._words, name)
            if pressure > self._level:  # one that is broken does not count
                self._cause, self._level = name, pressure
        was_open = self._gate.is_open
        is_open = self._gate.look(self._level, now_ns, is_drained=not self._in_flight_bytes())
        if is_open != was_open:
            why = 0 if is_open else INDEX[self._cause] + 1
            store_gate(self._words, self._gate_at, why, now_ns)
        return is_open

    def _why(self) -> str:
        return (
            f"under pressure: {self._cause} is at {self._level:.2f}, the limit is"
            f" {self._band.pause_above:g} (gate_pause_above); it goes on below"
            f" {self._band.resume_below:g}"
        )
