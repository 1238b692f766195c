"""Places for POSTs: how many may be under way from this shard.

    take -> a place, or none -> give

All endpoints together have at most ``total`` places; beyond it, an endpoint that has none gets one.
So endpoints that hang cannot keep the others from being called, and the bound is ``total`` plus one
for each endpoint. How many an endpoint has is for its senders to bound (``connections_max``).

Nobody waits for a place: what had waited would begin together when places come free, faster than
its rate allows.
"""

from __future__ import annotations


class Places:
    """The places of a shard."""

    __slots__ = ("_taken", "_total", "taken")

    def __init__(self, total: int) -> None:
        self._total = total
        self.taken = 0
        self._taken: dict[str, int] = {}

    def take(self, endpoint: str) -> bool:
        """Whether there is a place, which is then taken. Who has one must ``give`` it."""
        taken = self._taken.get(endpoint, 0)
        if taken and self.taken >= self._total:
            return False
        self._taken[endpoint] = taken + 1
        self.taken += 1
        return True

    def give(self, endpoint: str) -> None:
        """Gives a place back."""
        left = self._taken[endpoint] - 1
        if left:
            self._taken[endpoint] = left
        else:
            del self._taken[endpoint]
        self.taken -= 1

    def check_invariants(self) -> None:
        """What holds after each step."""
        assert self.taken == sum(self._taken.values())
        assert all(count > 0 for count in self._taken.values())
        # What is beyond the total are first places.
        assert sum(count - 1 for count in self._taken.values()) <= max(0, self._total - 1)
