"""Long polls: which requests wait for which partition. What they then read is not known here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from delivery.reading.followed import Key


class Waiters:
    """The requests that wait for a commit in a partition."""

    def __init__(self) -> None:
        self._waiting: dict[Key, set[asyncio.Event]] = {}
        self._ended = False

    async def wait(self, key: Key, timeout_s: float) -> None:
        """Returns when the partition has a new commit or the time is over."""
        if self._ended:
            return
        event = asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return  # the answer then says that there was nothing new
        finally:
            waiting = self._waiting[key]
            waiting.discard(event)
            if not waiting:
                del self._waiting[key]

    def wake(self, keys: Iterable[Key]) -> None:
        """Wakes the requests that wait for one of these partitions."""
        for key in keys:
            for event in self._waiting.get(key, ()):
                event.set()

    def wake_all(self) -> None:
        """Wakes all requests: commits were missed."""
        self.wake(list(self._waiting))

    def end(self) -> None:
        """Ends all waits, also later ones: the process ends."""
        self._ended = True
        self.wake_all()
