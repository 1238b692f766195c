"""The scaling signal: how much more CPU would help, 0 to 100.

Only what more CPU would drain counts: topics that wait for their turn, and shards whose CPU is
busy. A slow store, a ledger that is waited for, a ring that waits for them, memory and disks ask
for other things: with more CPU, no record would be stored or delivered earlier. So a store that is
down does not ask for machines. Nor do weights change the signal: they say how the daemon reacts.

One daemon owns a prefix, so more CPU means more shards on a larger machine, or topics that move to
another prefix. A second daemon on the same prefix would not help.

The signal follows the last SCALING_TAU_S, since whoever asks for it every 15 or 30 s must not see a
moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from daemon.config.sensors import SENSORS

SCALING_TAU_S = 15.0


def wanted(pressures: Sequence[float]) -> float:
    """How much more CPU would help now, 0 to 1, from the sensors' pressures."""
    return max(
        pressure for sensor, pressure in zip(SENSORS, pressures, strict=True) if sensor.by_cpu
    )
