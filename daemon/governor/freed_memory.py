"""What a shard does in case memory is short: it gives what it freed back to the kernel, and is the
first that the kernel may kill.

The C library keeps what Python frees for the next allocation: after a burst of bodies a process has
as much memory as it ever had, though it uses little. Without this the memory sensor would stay
where the burst took it, and a gate that closed would never open again.

It takes some milliseconds of the loop, so it is done only under pressure, at most once a second.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from pathlib import Path

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
    """Of one process. ``pressure`` is that of the memory sensor."""

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
