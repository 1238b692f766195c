"""How many requests all connections of a shard may have taken in one turn of the loop.

    ``left`` is used up -> connections with more requests ``wait`` -> the next turn renews it and
    lets them in, in their order, until it is used up again; each has its own while much is kept

A connection may have thousands of requests without a pause: 256 KiB, as much as is received
together, have 7,000, each of which can be answered immediately and take 100 microseconds. So the
requests of a turn are limited, and not those of a connection: clients can have many connections.
The first request of what was received is taken always, so a client that sends one at a time waits
for nobody.

A usual request of a producer takes 10 microseconds, and so costs less, if it is taken in one step
and its head is known. An allowance of which less than half was used is not renewed: that would be a
call in each turn. So a turn has at least half of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

REQUESTS_A_TURN: Final = 64
REQUEST_COST: Final = 16
USUAL_COST: Final = 1
ALLOWANCE: Final = REQUESTS_A_TURN * REQUEST_COST


class Waits(Protocol):
    """A connection that has received more requests."""

    def its_turn(self) -> None:
        """Goes on with them."""


class RequestTurns:
    """The allowance of this turn, and the connections that wait for one. At most one entry each:
    who waits reads nothing. While much is kept for them (``is_urgent``), all are let in: some are
    closed soon otherwise, first those that have waited for longest."""

    def __init__(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        self.left = ALLOWANCE
        self._is_urgent = is_urgent
        self._waiting: deque[Waits] = deque()
        self._is_renewed_next = False

    def __len__(self) -> int:
        return len(self._waiting)

    def use(self, cost: int) -> None:
        """Requests of this cost were taken."""
        self.left -= cost
        if self.left <= ALLOWANCE // 2 and not self._is_renewed_next:
            self._renew_next()

    def wait(self, connection: Waits) -> None:
        """It has more requests than it may have taken in this turn."""
        self._waiting.append(connection)

    def _renew_next(self) -> None:
        self._is_renewed_next = True
        asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self.left = ALLOWANCE
        self._is_renewed_next = False
        waiting = self._waiting
        if waiting:  # first, so that an exception below leaves nobody waiting
            self._renew_next()
        for _ in range(len(waiting)):  # each once
            if self.left <= 0 and not self._is_urgent():
                break
            waiting.popleft().its_turn()
