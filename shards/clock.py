"""The only module that reads clocks; everything else takes ``now`` as an argument.

``wall_ms`` is for times that people and other machines see (of records, objects, topics).
``monotonic_ns`` is for intervals, and is the same clock in all processes of the machine.
"""

from __future__ import annotations

import time
from pathlib import Path


def wall_ms() -> int:
    """Milliseconds since 1970 by the wall clock; may jump."""
    return time.time_ns() // 1_000_000


def wall_ns() -> int:
    """Nanoseconds since 1970 by the wall clock; may jump."""
    return time.time_ns()


def monotonic_ns() -> int:
    """Nanoseconds of the machine's monotonic clock, comparable between its processes."""
    return time.monotonic_ns()


def boottime_ns() -> int:
    """Nanoseconds since the boot, including the time while the machine was suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boottime_ms() -> int:
    """Milliseconds since the boot, including the time while the machine was suspended."""
    return boottime_ns() // 1_000_000


def boot_id() -> str:
    """The id of this boot of the machine; ``boottime_ns`` counts within it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_cpu_ns() -> int:
    """Nanoseconds of CPU that all threads of this process have used."""
    return time.process_time_ns()
