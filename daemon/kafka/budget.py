"""What all connections of a shard share: bytes, for which one waits in turn, the loop, and the
log."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
ITEMS_A_TURN = 64  # that each take some 30 microseconds
ITEMS_OF_A_TURN = 1_000  # that are only read or written: about 3 ms


class Said(NamedTuple):
    """An answer that is not made yet: about how many bytes and items it has."""

    size: int
    items: int
    make: Callable[[], bytearray]


Turn = Callable[[], Awaitable[Said | None]]
"""What answers a request when the answers before its own are written; None: it has written its
answer itself."""


class Breaths:
    """Lets the loop serve others after every ITEMS_A_TURN items of a request."""

    def __init__(self) -> None:
        self._items = 0

    async def item(self) -> None:
        """Call it for each item."""
        self._items += 1
        if self._items % ITEMS_A_TURN == 0:
            await asyncio.sleep(0)


class Repeated:
    """Counts what clients may do again and again. The log must not grow as fast: it has a line for
    the first time, and whenever the count has doubled."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.count = 0

    def log(self, what: str) -> None:
        """It was done once more."""
        self.count += 1
        if not self.count & (self.count - 1):
            self._log.warning("%d %s", self.count, what)


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

    def take_now(self, size: int) -> bool:
        """Takes them if they are there, and nobody waits."""
        if size and (self._waiting or size > self._free_bytes):
            return False
        self._free_bytes -= size
        return True

    async def take(self, size: int) -> None:
        """Returns when they are free; immediately if it needs none."""
        if self.take_now(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except BaseException:  # also if what waits is dropped
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            turn.cancel()
            raise

    def part(self, least: int, most: int) -> int:
        """A quarter of what is left, within these; the least while anybody waits."""
        return least if self._waiting else max(least, min(most, self._free_bytes // 4))

    def resize(self, before: int, after: int) -> bool:
        """Takes more, or takes back what is too much; False if it is not there now."""
        if after > before and (self._waiting or after - before > self._free_bytes):
            return False
        self.give_back(before - after)
        return True

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
