"""A bounded cache whose values are loaded once, however many readers ask for them together.

The first reader loads the value and the others wait. If the load fails or its reader is cancelled,
the next reader loads the value again; an error reaches only the reader whose load it was. For one
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from uploader.lru import LruCache

K = TypeVar("K")
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """Values within the bounds of ``kept``, each loaded by one reader at a time."""

    def __init__(self, kept: LruCache[K, V]) -> None:
        self.kept = kept
        self._loading: dict[K, asyncio.Future[None]] = {}

    async def get(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """The value, loaded if it is not kept. Raises what ``load`` raises."""
        while True:
            value = self.kept.get(key)
            if value is not None:
                return value
            other = self._loading.get(key)
            if other is None:
                break
            await asyncio.shield(other)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loading[key] = done
        try:
            value = await load()
            self.kept.keep(key, value)
            return value
        finally:
            del self._loading[key]
            done.set_result(None)
