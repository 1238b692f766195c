"""A value that follows its samples with a time constant (a first-order low-pass filter).

After a lasting change by d, it is d/e away from the new value after ``tau_s``, however often it was
sampled. Pure: ``now`` is an argument.
"""

from __future__ import annotations

import math

_LONG_NS = 1 << 62  # ago: before the first sample


class Smoothed:
    """Follows samples. The first one is the value. One that is not a number makes the
    value not a number, until the next one."""

    def __init__(self, tau_s: float) -> None:
        self.tau_s = tau_s  # may be changed at any time
        self._at_ns = -_LONG_NS
        self.value = 0.0

    def add(self, sample: float, now_ns: int) -> float:
        """Takes a sample and returns the value."""
        if math.isnan(self.value) or math.isnan(sample):
            self.value = sample
        else:
            passed_ns = max(0, now_ns - self._at_ns)
            self.value += (sample - self.value) * -math.expm1(-passed_ns / (self.tau_s * 1e9))
        self._at_ns = now_ns
        return self.value
