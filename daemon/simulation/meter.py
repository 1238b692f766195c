"""What a simulated daemon did in the measured time: counts, time-weighted means, percentiles."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

S = 1_000_000_000
DAY_S = 86_400
WINDOW_S = 10  # the longest time in which the PUT rate may be twice the optimum
_STEPS = 64  # buckets per doubling: 1.1 % wide
_PERCENTILES = (0.5, 0.99, 0.999)


class OverTime:
    """A number that changes at points in time: its integral, mean and peak."""

    def __init__(self, at_ns: int, value: int = 0) -> None:
        self._since_ns = self._begun_ns = at_ns
        self._value = self.peak = value
        self._integral = 0

    def set(self, now_ns: int, value: int) -> None:
        """The number from now on."""
        self._integral += self._value * (now_ns - self._since_ns)
        self._since_ns = now_ns
        self._value = value
        if value > self.peak:
            self.peak = value

    def integral(self, now_ns: int) -> int:
        """The number times nanoseconds, until now."""
        return self._integral + self._value * (now_ns - self._since_ns)

    def begin(self, now_ns: int) -> None:
        """Forgets what was before."""
        self._since_ns = self._begun_ns = now_ns
        self._integral = 0
        self.peak = self._value

    def mean(self, now_ns: int) -> float:
        """Over the time since the beginning."""
        passed = now_ns - self._begun_ns
        return self.integral(now_ns) / passed if passed else float(self._value)


class Latencies:
    """A histogram of latencies with buckets of 1 %."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, latency_ns: float, count: int) -> None:
        """``count`` requests took this long."""
        bucket = math.ceil(math.log2(max(1.0, latency_ns)) * _STEPS)
        self._counts[bucket] = self._counts.get(bucket, 0) + count

    @property
    def count(self) -> int:
        """How many requests."""
        return sum(self._counts.values())

    def percentile_ms(self, share: float) -> float | None:
        """The latency that ``share`` of the requests did not exceed; None without requests."""
        rest = share * self.count
        for bucket in sorted(self._counts):
            rest -= self._counts[bucket]
            if rest <= 0:
                return float(2 ** (bucket / _STEPS)) / 1e6
        return None

    def percentiles_ms(self) -> list[float | None]:
        """p50, p99 and p99.9."""
        return [self.percentile_ms(share) for share in _PERCENTILES]


class PutBegun(NamedTuple):
    """A PUT that was begun."""

    at_ns: int
    size_bytes: int


class TimelineMark(NamedTuple):
    """The sums at the end of a step of the timeline."""

    at_ns: int
    puts: int
    put_bytes: int
    groups: int  # integral
    in_flight: int  # integral


class Meter:
    """Everything that is measured of one daemon."""

    def __init__(self, now_ns: int, groups: int, window_ns: int, target_bytes: int) -> None:
        self.windows_per_day = OverTime(now_ns, _windows_per_day(window_ns))
        self.target_bytes = OverTime(now_ns, target_bytes)
        self.pressure_ppm = OverTime(now_ns)
        self.groups = OverTime(now_ns, groups)
        self.in_flight = OverTime(now_ns)
        self.latencies = Latencies()
        self.since_ns = now_ns
        self.puts: list[PutBegun] = []
        self.put_bytes = 0
        self.requests = 0
        self.refused = 0
        self.marks: list[TimelineMark] = []

    def begin(self, now_ns: int) -> None:
        """Measures from now on: the time before was for coming to rest."""
        self.windows_per_day.begin(now_ns)
        self.target_bytes.begin(now_ns)
        self.pressure_ppm.begin(now_ns)
        self.groups.begin(now_ns)
        self.in_flight.begin(now_ns)
        self.since_ns = now_ns
        self.puts.clear()
        self.put_bytes = self.requests = self.refused = 0
        self.marks.clear()
        self.mark(now_ns)

    def governed(self, now_ns: int, level: float, window_ns: int, target_bytes: int) -> None:
        """A sample of the governor; window and object target that are in force now."""
        self.pressure_ppm.set(now_ns, int(level * 1e6))
        self.windows_per_day.set(now_ns, _windows_per_day(window_ns))
        self.target_bytes.set(now_ns, target_bytes)

    def window_s(self, now_ns: int) -> float:
        """The mean window, as far as the rate of PUTs follows from it."""
        return DAY_S / self.windows_per_day.mean(now_ns)

    def put(self, begun: PutBegun) -> None:
        """A PUT was begun."""
        self.puts.append(begun)
        self.put_bytes += begun.size_bytes

    def mark(self, now_ns: int) -> None:
        """Ends a step of the timeline."""
        self.marks.append(
            TimelineMark(
                now_ns, len(self.puts), self.put_bytes,
                self.groups.integral(now_ns), self.in_flight.integral(now_ns),
            )
        )  # fmt: skip


def _windows_per_day(window_ns: int) -> int:
    return DAY_S * S // window_ns


def over_optimum(
    puts: int, put_bytes: int, seconds: float, window_s: float, target: float
) -> float:
    """PUTs over what the bytes need: one per window, or one per object if that is more."""
    return puts / seconds / max(1 / window_s, put_bytes / seconds / target)


def worst_over_optimum(puts: Iterable[PutBegun], window_s: float, target: float) -> float | None:
    """The most in any ten seconds; None if less than that was measured."""
    found = list(puts)
    times = [put.at_ns for put in found]
    sums = [0]
    for put in found:
        sums.append(sums[-1] + put.size_bytes)
    worst = None
    for first, start_ns in enumerate(times):
        if start_ns + WINDOW_S * S > times[-1]:
            break
        stop = bisect_left(times, start_ns + WINDOW_S * S)
        ratio = over_optimum(stop - first, sums[stop] - sums[first], WINDOW_S, window_s, target)
        worst = ratio if worst is None else max(worst, ratio)
    return worst
