"""Long polls: which requests wait for which partition. What they then read is not known here."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

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
        with self.noting([key]) as event:
            try:
                async with asyncio.timeout(timeout_s):
                    await event.wait()
            except TimeoutError:
                return  # the answer then says that there was nothing new

    @contextmanager
    def noting(self, keys: Collection[Key]) -> Iterator[asyncio.Event]:
        """An event that is set by the next commit in one of the partitions, from now on."""
        event = asyncio.Event()
        if self._ended:
            event.set()
        for key in keys:
            self._waiting.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in set(keys):
                waiting = self._waiting[key]
                waiting.discard(event)
                if not waiting:
                    del self._waiting[key]

    @property
    def has_ended(self) -> bool:
        """Whether the process ends."""
        return self._ended

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
