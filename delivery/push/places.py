"""Places for POSTs: how many may be under way to an endpoint, and from this shard.

    take -> (wait, in the order of arrival at the endpoint) -> taken -> give

An endpoint has at most as many places as its subscription allows. All together have at most
``total``; beyond it, an endpoint that has none gets one. So endpoints that hang cannot keep the
others from being called, and the bound is ``total`` plus one for each endpoint.

The wait is not part of a POST's timeout: it is none of the receiver's business. Only one task a
place waits, so what waits is bounded by its callers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple


class _Waiter(NamedTuple):
    future: asyncio.Future[None]
    most: int


class Places:
    """The places of a shard. Not for use from several threads."""

    __slots__ = ("_taken", "_total", "_waiting", "taken")

    def __init__(self, total: int) -> None:
        self._total = total
        self.taken = 0
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[_Waiter]] = {}

    async def take(self, endpoint: str, most: int) -> None:
        """Waits for one of ``most`` places of an endpoint. Who returns from it must ``give``."""
        if endpoint not in self._waiting and self._is_free(endpoint, most):
            self._occupy(endpoint)
            return
        waiter = _Waiter(asyncio.get_running_loop().create_future(), most)
        self._waiting.setdefault(endpoint, deque()).append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                self.give(endpoint)  # it came too late
            else:
                self._leave(endpoint, waiter)
            raise

    def give(self, endpoint: str) -> None:
        """Gives a place back, to whoever may have it next."""
        self.taken -= 1
        left = self._taken[endpoint] - 1
        if left:
            self._taken[endpoint] = left
        else:
            del self._taken[endpoint]
        if not self._waiting or self._wake(endpoint):
            return
        # The endpoint needs no more, so the shard has one to spare for another.
        for other in list(self._waiting):
            if self._wake(other):
                # Whoever was served goes to the end of the line.
                if other in self._waiting:
                    self._waiting[other] = self._waiting.pop(other)
                return

    def check_invariants(self) -> None:
        """What holds after each step."""
        assert self.taken == sum(self._taken.values())
        assert all(count > 0 for count in self._taken.values())
        assert all(self._waiting.values()), "an empty line"
        assert self.taken <= self._total + len(self._taken)
        for endpoint, line in self._waiting.items():
            assert not self._is_free(endpoint, line[0].most), f"{endpoint} waits for a free place"

    def _is_free(self, endpoint: str, most: int) -> bool:
        taken = self._taken.get(endpoint, 0)
        return taken < most and (self.taken < self._total or not taken)

    def _occupy(self, endpoint: str) -> None:
        self._taken[endpoint] = self._taken.get(endpoint, 0) + 1
        self.taken += 1

    def _wake(self, endpoint: str) -> bool:
        line = self._waiting.get(endpoint)
        if line is None or not self._is_free(endpoint, line[0].most):
            return False
        waiter = line.popleft()
        if not line:
            del self._waiting[endpoint]
        self._occupy(endpoint)
        waiter.future.set_result(None)
        return True

    def _leave(self, endpoint: str, waiter: _Waiter) -> None:
        line = self._waiting[endpoint]
        line.remove(waiter)
        if not line:
            del self._waiting[endpoint]
