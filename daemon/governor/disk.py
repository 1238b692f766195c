"""The disk sensor: how much of a disk's free space is spoken for.

The gate refuses requests when the reserve and what was accepted and is not stored yet would not fit
any more (``producers_gate.py``). The sensor is 1 at that point, and 0.5 while there is twice that
space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from daemon.governor.producers_gate import Disk, DiskSpace


def spoken_for(space: DiskSpace, pending_bytes: int) -> float:
    """The share of the free space that the reserve and pending bytes take; at most 1."""
    needed_bytes = space.spare_bytes + pending_bytes
    return min(1.0, needed_bytes / max(1, space.free_bytes))


class DiskSensor:
    """Reads the disks of the ledger and of an embedded store."""

    def __init__(self, disks: Iterable[Disk], space_of: Callable[[Path], DiskSpace | None]) -> None:
        self._disks = tuple(disks)
        self._space_of = space_of

    def share(self, pending_bytes: int) -> float:
        """The share of the fullest disk; NaN if one does not say how full it is."""
        worst = 0.0
        for disk in self._disks:
            space = self._space_of(disk.path)
            if space is None:
                return math.nan
            worst = max(worst, spoken_for(space, pending_bytes if disk.takes_objects else 0))
        return worst
