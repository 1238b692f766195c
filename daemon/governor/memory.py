"""Memory: how much of what the daemon may have is used, and what a shard does if it is short.

Where the kernel limits the daemon (``cgroup.py``), that limit counts. Elsewhere the machine's
memory does: what the processes of the daemon have allocated, over that and what is still available.
What other programs use is not held against the daemon, only what they leave.

If memory is short, a shard gives what it freed back to the kernel, and is the first that the kernel
may kill. The C library keeps what Python frees for the next allocation: after a burst of bodies a
process has as much memory as it ever had, though it uses little. Without this the sensor would stay
where the burst took it, and a gate that closed would never open again. It takes some milliseconds
of the loop, so it is done only under pressure, at most once a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from daemon.governor.cgroup import CgroupMemory

# Of a machine's memory, what the kernel needs when everything else is taken.
RESERVED_SHARE = 0.05
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MachineMemory(NamedTuple):
    """A machine's memory: all of it, and what programs may still have without swapping."""

    total_bytes: int
    available_bytes: int


def machine_memory() -> MachineMemory:
    """As the kernel says. Raises OSError."""
    import psutil  # only the supervisor needs it, and only without a limit

    found = psutil.virtual_memory()
    return MachineMemory(found.total, found.available)


def allocated_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """What this process has allocated for itself: neither files nor the shared segment."""
    _, resident, shared, *_ = statm.read_text().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


class MemorySensor:
    """Reads the memory sensor. ``allocated`` says what all processes of the daemon have."""

    def __init__(
        self,
        segment_bytes: int,
        allocated: Callable[[], int],
        cgroup: CgroupMemory,
        machine: Callable[[], MachineMemory] = machine_memory,
    ) -> None:
        self._segment_bytes = segment_bytes
        self._allocated = allocated
        self._cgroup = cgroup
        self._machine = machine
        # What may still be used, at the last ``share``; None: that is not known.
        self.left_bytes: int | None = None

    def limit_bytes(self, now_ns: int) -> int | None:
        """The smallest limit that the kernel enforces, less its share; None if it has none, or
        does not say."""
        try:
            return min((g.limit_bytes for g in self._cgroup.groups(now_ns)), default=None)
        except (OSError, ValueError):
            return None

    def share(self, now_ns: int) -> float:
        """0 to 1, or more; NaN if it cannot be measured."""
        try:
            share = self._cgroup.share(self._segment_bytes, now_ns)
            self.left_bytes = self._cgroup.left_bytes
            return self._of_machine() if share is None else share
        except (OSError, ValueError, KeyError):
            self.left_bytes = None
            return math.nan

    def grant(self, now_ns: int) -> int:
        """What is used now, under a limit of the kernel, counts no more (``cgroup.py``). Returns
        how many bytes more than before."""
        with contextlib.suppress(OSError, ValueError, KeyError):  # the sensor is broken, and told
            return self._cgroup.grant(self._segment_bytes, now_ns)
        return 0

    def _of_machine(self) -> float:
        machine, allocated = self._machine(), self._allocated()
        left = max(0.0, machine.available_bytes - RESERVED_SHARE * machine.total_bytes)
        self.left_bytes = int(left)
        return allocated / max(1.0, allocated + left)


PRESSURE_MIN = 0.5  # the gate opens well above
EVERY_NS = 1_000_000_000
# In thousandths of the memory that the group, or the machine, may have.
KILLED_FIRST = 300


def be_killed_first(adjustment: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Offers this process, a shard, to the kernel before the supervisor if memory is short: the
    others take its uploads over, while without the supervisor all of them end."""
    with contextlib.suppress(OSError, ValueError):  # then the kernel chooses
        adjustment.write_text(str(max(KILLED_FIRST, int(adjustment.read_text()))))


def c_library_trim() -> Callable[[int], int] | None:
    """``malloc_trim`` of glibc; None where the C library has none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


class FreedMemory:
    """What one process gives back. ``pressure`` is that of the memory sensor."""

    def __init__(
        self, pressure: Callable[[], float], trim: Callable[[int], int] | None = None
    ) -> None:
        self._pressure = pressure
        self._trim = trim or c_library_trim()
        self._due_ns = 0

    def look(self, now_ns: int) -> None:
        """Call it regularly."""
        if self._trim is not None and now_ns >= self._due_ns and self._pressure() >= PRESSURE_MIN:
            self._due_ns = now_ns + EVERY_NS
            self._trim(0)
