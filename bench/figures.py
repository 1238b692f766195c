"""The arithmetic of the tables. Pure.

The optimum of a PUT rate is ``max(1 / commit_window, put_bytes_per_s / object_bytes_target)``: a
lower rate would miss the window or the target. An idle daemon may well put less.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MIB = 1 << 20
GIB = 1 << 30

NONE = "-"  # a figure that is not known
MET = "met"
NOT_MET = "not met"


class Target(msgspec.Struct, frozen=True):
    """A figure with a bound, which is a minimum if ``at_least``, else a maximum."""

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
    """CPU-seconds for each GiB of acknowledged bodies; None if there were none."""
    total_bytes = acked * body_bytes
    return cpu_s / (total_bytes / GIB) if total_bytes else None


def put_optimum_per_s(
    windows_ms: Sequence[float], put_bytes_per_s: float, object_bytes_target: int
) -> float:
    """The PUTs a second that the windows in force and the bytes put require."""
    if not windows_ms or min(windows_ms) <= 0:
        raise ValueError(f"windows must be above 0 ms, got {list(windows_ms)}")
    by_window = sum(1e3 / window_ms for window_ms in windows_ms) / len(windows_ms)
    return max(by_window, put_bytes_per_s / object_bytes_target)


def ratio(measured: float | None, other: float | None) -> float | None:
    """``measured / other``; None if there is nothing to compare."""
    return measured / other if measured is not None and other else None


def pause_ms(rate_per_s: float, connections: int, latency_ms: float) -> float:
    """The pause of each connection with which all of them send ``rate_per_s``."""
    return max(0.0, 1e3 * connections / rate_per_s - latency_ms)


def share_cpus(cpus: Sequence[int], shards: int) -> tuple[set[int], set[int], bool]:
    """The CPUs of the daemon and of the generator, and whether they overlap.

    The daemon gets the last CPUs and the generator the others, or all if none is left.
    """
    ordered = sorted(cpus)
    daemon = set(ordered[-shards:])
    rest = set(ordered) - daemon
    return (daemon, rest, False) if rest else (daemon, set(ordered), True)


def number(value: float | None) -> str:
    """A figure with three significant digits; above 100 whole, with commas for thousands."""
    if value is None:
        return NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"
