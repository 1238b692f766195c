"""The arithmetic of the table. Pure: counts in, figures out; no clock, no process.

The optimum of a PUT rate is ``max(1 / commit_window, put_bytes_per_s / object_bytes_target)``:
less than that would miss the window or the target. It is a ceiling for an idle daemon, which may
well put less.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MIB = 1 << 20
GIB = 1 << 30

MET = "met"
NOT_MET = "not met"


class Target(msgspec.Struct, frozen=True):
    """A figure with a bound. ``at_least`` or else at most."""

    name: str
    bound: float
    measured: float
    at_least: bool = True
    unit: str = ""

    @property
    def verdict(self) -> str:
        good = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        return MET if good else NOT_MET


def mib_per_s(acked: int, body_bytes: int, seconds: float) -> float:
    """Bodies acknowledged, in MiB/s."""
    return acked * body_bytes / MIB / seconds


def cpu_s_per_gib(cpu_s: float, acked: int, body_bytes: int) -> float | None:
    """CPU-seconds for each GiB of bodies acknowledged; None when there were none."""
    total_bytes = acked * body_bytes
    return cpu_s / (total_bytes / GIB) if total_bytes else None


def put_optimum_per_s(
    windows_ms: Sequence[float], put_bytes_per_s: float, object_bytes_target: int
) -> float:
    """PUTs a second that the windows in force and the bytes put make necessary (row L18)."""
    if not windows_ms or min(windows_ms) <= 0:
        raise ValueError(f"windows must be above 0 ms, there are {list(windows_ms)}")
    by_window = sum(1e3 / window_ms for window_ms in windows_ms) / len(windows_ms)
    return max(by_window, put_bytes_per_s / object_bytes_target)


def ratio(measured: float | None, other: float | None) -> float | None:
    """``measured / other``; None where there is nothing to compare."""
    return measured / other if measured is not None and other else None


def pause_ms(rate_per_s: float, connections: int, latency_ms: float) -> float:
    """The pause of each connection so that all together send ``rate_per_s``."""
    return max(0.0, 1e3 * connections / rate_per_s - latency_ms)


def share_cpus(cpus: Sequence[int], shards: int) -> tuple[set[int], set[int], bool]:
    """CPUs of the daemon, CPUs of the generator, and whether these overlap.

    The daemon gets the last CPUs, the generator the others; where none would be left, all.
    """
    ordered = sorted(cpus)
    daemon = set(ordered[-shards:])
    rest = set(ordered) - daemon
    return (daemon, rest, False) if rest else (daemon, set(ordered), True)
