"""Leases of the byte budget: what an import may have read and not yet dealt with.

Lifecycle of a lease: taken for a sub-block -> given back when everything that the sub-block became
is stored, or when its source is given up. All sources of an import share one budget.

- ``leased`` is at most ``budget.bytes``, or one lease: what is larger than the budget passes alone,
  so an import never stops for want of budget.
- A budget that shrinks takes no lease back; new ones wait until ``leased`` is below it.

The budget decides how much may be in flight, from what its owner reports of answers. Nothing here
reads a clock.
"""

from __future__ import annotations

from typing import Protocol


class InFlightBudget(Protocol):
    """How many bytes may be in flight now. ``now`` is monotonic, in seconds."""

    @property
    def bytes(self) -> int:
        """What may be in flight, at least 1."""
        ...

    def in_use(self, leased_bytes: int) -> None:
        """This many bytes are leased now."""
        ...

    def acked(self, count: int, latency_s: float, now: float) -> None:
        """A request with ``count`` leased bytes was stored, this long after it was sent."""
        ...

    def refused(self, retry_after_s: float, now: float) -> None:
        """The daemon refused a request for now, with this Retry-After."""
        ...


class Leases:
    """The leases of one import."""

    def __init__(self, budget: InFlightBudget) -> None:
        self.budget = budget
        self.leased = 0
        self.peak = 0

    def take(self, size: int) -> bool:
        """Leases ``size`` bytes, if they fit or nothing else is leased."""
        if self.leased and self.leased + size > self.budget.bytes:
            return False
        self.leased += size
        self.peak = max(self.peak, self.leased)
        self.budget.in_use(self.leased)
        return True

    def give_back(self, size: int) -> None:
        """Ends a lease, or several of this size together."""
        if not 0 <= size <= self.leased:
            raise ValueError(f"{size} bytes are given back, {self.leased} are leased")
        self.leased -= size
        self.budget.in_use(self.leased)
