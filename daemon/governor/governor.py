"""The governor: takes samples of all sensors, and says what the daemon does about them.

    readings -> pressures (daemon/config/sensors.py) -> level (level_of) -> ladder (ladder.py)

The commit window follows the level slowly (*steadily*): a wider window makes clients that wait for
their answers send less, and what that does to the sensors shows only after a window. At the pace of
the samples, the window would swing between its limits, at any load that needs one in between.

The scaling signal says how much more CPU would help, 0 to 100. Only what more CPU would drain
counts: topics that wait for their turn, and shards whose CPU is busy. A slow store, a ledger that
is waited for, a ring that waits for them, memory and disks ask for other things: with more CPU, no
record would be stored or delivered earlier. So a store that is down does not ask for machines. Nor
do weights change the signal: they say how the daemon reacts. One daemon owns a prefix, so more CPU
means more shards on a larger machine, or topics that move to another prefix. A second daemon on the
same prefix would not help.

Pure: readings and ``now`` in, a Governed out. The supervisor samples every 100 ms, and stores the
result in shared words that the shards follow. Nothing here refuses a request: a full ring does
(daemon/intake/producer.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from daemon.config.sensors import INDEX, SENSORS, Reading
from daemon.governor.ladder import Edge, Ladder, coalesce_ns, window_ms
from shards.smoothed import Smoothed

# The time constant of what the window follows: four times the longest delay with which a window
# takes effect, and five samples at least. A test runs the loop with clients that wait.
STEADY_WINDOWS = 4
STEADY_S_MIN = 0.5
# What the scaling signal follows: whoever asks for it every 15 or 30 s must not see a moment.
SCALING_TAU_S = 15.0


class Level(Struct, frozen=True):
    """``value`` is the pressure of the daemon, ``hard`` that of its hard sensors alone."""

    value: float
    hard: float


def level_of(pressures: Sequence[float], weights: Mapping[str, float]) -> Level:
    """The level from the sensors' pressures, in the order of SENSORS; a weight is 1 if it is not
    given.

        level = max(hard sensors, weight x soft sensors)

    A hard sensor is never masked by soft ones, and each sensor alone can drive the level to 1.
    """
    hard = soft = 0.0
    for sensor, pressure in zip(SENSORS, pressures, strict=True):
        if sensor.hard:
            hard = max(hard, pressure)
        else:
            soft = max(soft, weights.get(sensor.name, 1.0) * pressure)
    return Level(max(hard, soft), hard)


def wanted(pressures: Sequence[float]) -> float:
    """How much more CPU would help now, 0 to 1, from the sensors' pressures."""
    return max(
        pressure for sensor, pressure in zip(SENSORS, pressures, strict=True) if sensor.by_cpu
    )


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
