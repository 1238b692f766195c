"""When the next attempt of a sender may begin, at a rate that changes (a token bucket).

A permit is one attempt. Permits come at ``rate`` a second, and up to 50 ms of them wait, but always
up to one (``bucket``). What must hold:

- In any time there are at most ``bucket`` attempts more than the rates of that time allow.
- A bucket that grew is as full as it was before, and one that was at 0 is empty: nobody gets
  permits for a time in which the rate was another one's.
- After the rate fell, the next attempt is at least one interval of the new rate after the last one.
- A caller that waits asks ``next_ns`` again after each change of the rate: the time moves with it.

Pure: ``now_ns`` is an argument. ``take`` is not refused; one that comes too early is owed, and
those after it wait for it.
"""

from __future__ import annotations

import math

NEVER_NS = 1 << 62  # no attempt at all: the rate is 0
BURST_S = 0.05
# A timer is late by milliseconds. What comes meanwhile is kept also where there is one permit; it
# is less than another one.
LATE_S = 0.01
_ALMOST = 1.0 - 1e-6  # of a permit: times are integers, so the last part of one may be missing


class Pacer:
    """A bucket of permits. It starts empty: what came before it may just have sent something."""

    __slots__ = ("_at_ns", "_last_ns", "_level", "came", "lost", "rate")

    def __init__(self, rate: float, now_ns: int) -> None:
        self.rate = rate  # permits a second
        self._level = 0.0  # permits that wait; below 0, permits that are owed
        self._at_ns = now_ns
        self._last_ns = now_ns  # of the last attempt
        self.came = 0.0  # permits, ever
        self.lost = 0.0  # of these, while the bucket was full: nobody wanted them

    @property
    def bucket(self) -> float:
        """How many permits may wait."""
        return max(1.0 + self.rate * LATE_S, self.rate * BURST_S) if self.rate > 0 else 0.0

    def set_rate(self, rate: float, now_ns: int) -> None:
        """Permits come at another rate from now on."""
        self.catch_up(now_ns)
        if rate < self.rate:
            since_s = max(0, self._at_ns - self._last_ns) / 1e9
            self._level = min(self._level, since_s * rate)
        self.rate = rate
        self._level = min(self._level, self.bucket)

    def next_ns(self, now_ns: int) -> int:
        """When there is a permit; now or earlier if there is one, NEVER_NS at a rate of 0."""
        self.catch_up(now_ns)
        if self._level >= _ALMOST:
            return now_ns
        if self.rate <= 0:
            return NEVER_NS
        return min(NEVER_NS, self._at_ns + math.ceil((1.0 - self._level) / self.rate * 1e9))

    @property
    def last_ns(self) -> int:
        """When the last attempt began."""
        return self._last_ns

    def take(self, now_ns: int) -> None:
        """An attempt begins."""
        self.catch_up(now_ns)
        self._level -= 1.0
        self._last_ns = self._at_ns

    def catch_up(self, now_ns: int) -> None:
        """Puts the permits of the time until now into the bucket; counts those that are lost."""
        passed_ns = now_ns - self._at_ns
        if passed_ns <= 0:
            return
        came = passed_ns * self.rate / 1e9
        level = self._level + came
        bucket = self.bucket
        if level > bucket:
            self.lost += level - bucket
            level = bucket
        self.came += came
        self._level = level
        self._at_ns = now_ns

    def check_invariants(self) -> None:
        """Raises AssertionError if a rule of the head is broken; for tests."""
        assert self.rate >= 0 and math.isfinite(self.rate)
        assert self._level <= self.bucket + 1e-9, (self._level, self.bucket)
        assert 0 <= self.lost <= self.came + 1e-6, (self.lost, self.came)
