"""A budget that does not change, for tests of what is governed by one."""

from __future__ import annotations


class FixedBudget:
    """This many bytes, whatever happens."""

    def __init__(self, count: int) -> None:
        self.bytes = count

    def in_use(self, leased_bytes: int) -> None:
        """Changes nothing."""

    def acked(self, count: int, latency_s: float, now: float) -> None:
        """Changes nothing."""

    def refused(self, retry_after_s: float, now: float) -> None:
        """Changes nothing."""
