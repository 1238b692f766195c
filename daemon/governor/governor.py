"""The governor: takes samples of all sensors, and says what the daemon does about them.

    readings -> pressures (``sensors.py``) -> level (``level.py``) -> ladder (``ladder.py``)

The commit window follows the level slowly (*steadily*): a wider window makes clients that wait for
their answers send less, and what that does to the sensors shows only after a window. At the pace of
the samples, the window would swing between its limits, at any load that needs one in between.

Pure: readings and ``now`` in, a Governed out. The supervisor samples every 100 ms, and stores the
result in shared words that the shards follow. Nothing here refuses a request: a full ring does
(daemon/intake/producer.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from daemon.config.sensors import INDEX, SENSORS, Reading
from daemon.governor.ladder import Edge, Ladder, coalesce_ns, window_ms
from daemon.governor.level import level_of
from daemon.governor.scaling import SCALING_TAU_S, wanted
from shards.smoothed import Smoothed

# The time constant of what the window follows: four times the longest delay with which a window
# takes effect, and five samples at least. A test runs the loop with clients that wait.
STEADY_WINDOWS = 4
STEADY_S_MIN = 0.5


class Governed(Struct, frozen=True):
    """What follows from one sample. ``readings`` are smoothed, ``pressures`` are theirs; both are
    in the order of SENSORS. ``steady`` is the level that the window follows, ``scaling``
    says how much more CPU would help, 0 to 1."""

    readings: Sequence[Reading]
    pressures: Sequence[float]
    weights: Sequence[float]
    level: float
    hard: float
    steady: float
    scaling: float
    window_ms: float
    coalesce_ns: int
    deferring: bool
    rungs: int
    edges: Sequence[Edge]

    def line(self, edge: Edge) -> str:
        """What the log says of an edge: the level, what caused it, and what begins."""
        what = f"begins: {edge.rung.effect}" if edge.begins else "ends"
        causes = self.causes() or "no sensor presses"
        return f"pressure {self.level:.2f} ({causes}): {edge.rung.name} {what}"

    def causes(self) -> str:
        """The sensors that press most, with their weights, for a log line."""
        counted = (
            pressure if sensor.hard else weight * pressure
            for sensor, pressure, weight in zip(SENSORS, self.pressures, self.weights, strict=True)
        )
        found = sorted(
            zip(SENSORS, self.readings, counted, strict=True),
            key=lambda each: each[2], reverse=True,
        )  # fmt: skip
        return ", ".join(
            f"{sensor.name} {pressure:.2f}"
            + ("" if reading.shard is None else f" of shard {reading.shard}")
            for sensor, reading, pressure in found[:3]
            if pressure > 0
        )


class Governor:
    """Call ``sample`` at a steady pace. With ``reacts`` False it measures and shows, and asks for
    no latency."""

    def __init__(self, weights: Mapping[str, float], *, reacts: bool = True) -> None:
        self.weights = weights  # of soft sensors; may be replaced between two samples
        self._reacts = reacts
        self._ladder = Ladder()
        self._steady = Smoothed(STEADY_S_MIN)
        self._scaling = Smoothed(SCALING_TAU_S)
        self._smoothed = [Smoothed(sensor.tau_s) if sensor.tau_s else None for sensor in SENSORS]

    def sample(
        self, readings: Sequence[Reading], window_min_ms: float, window_max_ms: float, now_ns: int
    ) -> Governed:
        """Takes one sample, in the order of SENSORS."""
        smoothed = [self._smooth(index, each, now_ns) for index, each in enumerate(readings)]
        pressures = [
            sensor.pressure(reading.raw) for sensor, reading in zip(SENSORS, smoothed, strict=True)
        ]
        level = level_of(pressures, self.weights)
        acts_on = level.value if self._reacts else 0.0
        self._steady.tau_s = max(STEADY_S_MIN, STEADY_WINDOWS * window_max_ms / 1000)
        steady = self._steady.add(acts_on, now_ns)
        edges = self._ladder.step(
            {"level": acts_on, "steady": steady, "ring": pressures[INDEX["ring"]]}, now_ns
        )
        return Governed(
            readings=smoothed,
            pressures=pressures,
            weights=[self.weights.get(sensor.name, 1.0) for sensor in SENSORS],
            level=level.value,
            hard=level.hard,
            steady=steady,
            scaling=self._scaling.add(wanted(pressures), now_ns),
            window_ms=window_ms(steady, window_min_ms, window_max_ms),
            coalesce_ns=coalesce_ns(acts_on),
            deferring="defer" in self._ladder.in_force,
            rungs=self._ladder.mask,
            edges=edges,
        )

    def _smooth(self, index: int, reading: Reading, now_ns: int) -> Reading:
        smoothed, raw = self._smoothed[index], reading.raw
        if smoothed is None or raw != raw:
            return reading
        # An infinite or absurd value would never be forgotten.
        limit = 2 * SENSORS[index].full
        return Reading(smoothed.add(max(-limit, min(limit, raw)), now_ns), reading.shard)
