"""The sensors: what is measured, and how much pressure each value is.

A *sensor* turns a raw value, in its unit, into a pressure in [0, 1]: 0 up to ``zero``, 1 from
``full`` on, linear between. A *hard* sensor watches something that runs out (ring, memory, disk); a
*soft* one watches work that gets slower. No sensor counts time for which the daemon waits
deliberately: neither the commit window, nor coalescing, nor deferral. Otherwise the reactions to
pressure would keep it up.

This module measures nothing: the supervisor reads the raw values (``daemon/governor/readings.py``),
and the governor makes one level of them. A sensor's place in SENSORS is its slot in shared memory
(``shards/layout.py``), at most SENSORS_MAX of them.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from shards.layout import SENSORS_MAX


class Sensor(Struct, frozen=True):
    """One sensor. ``tau_s`` is the time constant by which the supervisor smooths it; 0: it does
    not. ``by_cpu``: more CPU would lower it, so it counts for the scaling signal. ``source`` says
    what is measured."""

    name: str
    unit: str
    hard: bool
    zero: float
    full: float
    source: str
    tau_s: float = 0.0
    by_cpu: bool = False

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
    # The longest. From 1 s on, a watcher that takes everything is as late as one that has lagged.
    Sensor("ready", "ms", False, 5, 1000, "longest wait for a turn", by_cpu=True),
    # An average of 5 ms is the end of what delivery promises; up to 1 ms, most records are
    # delivered within 5. The shard smooths it.
    Sensor("scheduling", "ms", False, 1, 5, "average wait for a turn", by_cpu=True),
    # Clients that wait for answers send less when windows are wider, so the CPU settles where the
    # window fits it. It must not settle low: the window begins to grow at a level of 0.4, which is
    # 90 % of a CPU, so no more than a tenth of what it can do is given up. A lasting load is seen
    # within half a second; one hiccup of a noisy machine does little.
    Sensor("busy", "share", False, 0.85, 0.98, "CPU of the busiest shard", tau_s=0.5, by_cpu=True),
    # With three of four in use the store is used well; when all are, requests wait for one. There
    # are few, so only their average over many PUTs says anything.
    Sensor("uploads", "share", False, 0.75, 1, "upload slots in use", tau_s=2.0),
    # PUTs vary: the slowest of a hundred takes ten times as long as most, and a failed one counts
    # as ten times the usual (uploader/pipeline/health.py). The shard smooths it.
    Sensor("store", "times", False, 3, 10, "PUTs against their usual"),
    # A transaction and its fsync take 1 ms on a local disk and 10 on a slow one.
    Sensor("ledger", "ms", False, 10, 100, "commits, lock included"),
    # What is being uploaded fills a quarter of a ring in normal operation. It is 1 if there was no
    # space for a request.
    Sensor("ring", "share", True, 0.25, 1, "the fullest ring"),
    # Programs, caches and buffers that are empty take their part of a small limit.
    Sensor("memory", "share", True, 0.5, 1, "of what it may have"),
    # The disk has a reserve, below which requests are refused (producers_gate.py).
    Sensor("disk", "share", True, 0.5, 1, "needed of the free space"),
)  # fmt: skip
assert len(SENSORS) <= SENSORS_MAX
BY_NAME = {sensor.name: sensor for sensor in SENSORS}
INDEX = {sensor.name: index for index, sensor in enumerate(SENSORS)}
