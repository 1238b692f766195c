"""How much CPU other programs used during a load, which disturbs the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import psutil

from shards.clock import monotonic_ns, process_cpu_ns


def share(busy_s: float, ours_s: float, seconds: float, cpus: int) -> float:
    """The share of ``cpus`` that other programs used; never below 0."""
    return max(0.0, busy_s - ours_s) / (seconds * cpus)


class Others:
    """A context manager around a load. ``ours_cpu_s`` adds up the CPU of our servers; the CPU of a
    generator that has ended is passed to ``share``."""

    def __init__(self, ours_cpu_s: Callable[[], float]) -> None:
        self._ours_cpu_s = ours_cpu_s
        self._before_s = (0.0, 0.0)
        self._started_ns = 0
        self._busy_s = 0.0
        self._ours_s = 0.0
        self._seconds = 1.0

    def __enter__(self) -> Self:
        self._before_s = self._now_s()
        self._started_ns = monotonic_ns()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            return
        self._seconds = (monotonic_ns() - self._started_ns) / 1e9
        busy_s, ours_s = self._now_s()
        self._busy_s = busy_s - self._before_s[0]
        self._ours_s = ours_s - self._before_s[1]

    def share(self, generator_cpu_s: float) -> float:
        """The share of all CPUs that went to other programs or, on a hypervisor, other machines."""
        ours_s = self._ours_s + generator_cpu_s
        return share(self._busy_s, ours_s, self._seconds, psutil.cpu_count() or 1)

    def _now_s(self) -> tuple[float, float]:
        times = psutil.cpu_times()
        busy_s = times.user + times.nice + times.system + times.steal
        return busy_s, self._ours_cpu_s() + process_cpu_ns() / 1e9
