"""What all connections of a shard share: bytes, for which one waits in turn, and the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
ITEMS_A_TURN = 64  # that each take some 30 microseconds
ITEMS_OF_A_TURN = 1_000  # that are only read or written: about 3 ms


class Breaths:
    """Lets the loop serve others after every ITEMS_A_TURN items of a request."""

    def __init__(self) -> None:
        self._items = 0

    async def item(self) -> None:
        """Call it for each item."""
        self._items += 1
        if self._items % ITEMS_A_TURN == 0:
            await asyncio.sleep(0)


async def aside(items: int, make: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """What ``make`` returns; a thread calls it if there are many items."""
    if items <= 2 * ITEMS_OF_A_TURN:
        return make(*args, **more)
    return await asyncio.to_thread(make, *args, **more)


class SharedBytes:
    """Bytes that connections share, first come, first served."""

    def __init__(self, bytes_max: int) -> None:
        self._free_bytes = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Returns when they are there."""
        if not self._waiting and size <= self._free_bytes:
            self._free_bytes -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Takes back what ``take`` gave."""
        self._free_bytes += size
        while self._waiting and (
            self._waiting[0][1].done() or self._waiting[0][0] <= self._free_bytes
        ):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._free_bytes -= wanted
                turn.set_result(None)
