"""Blocking reads of the store for an event loop: in threads, counted, repeated while that helps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from uploader.stores.retry import READER
from uploader.stores.retrying import retried

T = TypeVar("T")


class StoreThreads:
    """The threads of one shard that read the store."""

    def __init__(
        self, threads: Executor, count_get: Callable[[int], None], rng: random.Random
    ) -> None:
        self._threads = threads
        self._count_get = count_get
        self._rng = rng

    async def read(self, call: Callable[[], T], get_bytes: int) -> T:
        """What ``call`` returns. Each attempt counts as a GET of ``get_bytes``, if these are not
        0. Raises StoreError, and what ``call`` raises in addition."""
        loop = asyncio.get_running_loop()

        async def attempt() -> T:
            try:
                return await loop.run_in_executor(self._threads, call)
            finally:
                if get_bytes:
                    self._count_get(get_bytes)

        return await retried(attempt, READER, self._rng)
