"""Reading committed extents from the store: range reads, a bounded cache, no fetch twice at once.

The ledger says which extents hold an offset; their bytes come by one range read each, are checked
against the ledger's CRC32C (a wrong one is read again first) and kept in a cache of bounded bytes,
least recently used first out.
Readers that want the same object at the same time wait for one fetch.

Ledger and store block, so both are called in the reading pool given here; the ledger has one
connection and is used by one of its threads at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from delivery.attempts import attempted
from ledger.ledger import Ledger
from ledger.types import Extent
from shards.checksum import crc32c
from uploader.l0 import L0Error
from uploader.stores.base import ObjectStore
from uploader.stores.verified import verified

CACHE_BYTES_MAX = 64 << 20

T = TypeVar("T")


class L0Reader:
    """Extents by (topic id, partition, offset), from ledger and store."""

    def __init__(
        self,
        ledger: Ledger,
        store: ObjectStore,
        ledger_thread: Executor,
        store_threads: Executor,
        count_get: Callable[[int], None],
        rng: random.Random,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._ledger_thread = ledger_thread
        self._store_threads = store_threads
        self._count_get = count_get
        self._rng = rng
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._cache_bytes = 0
        self._fetching: dict[str, asyncio.Future[None]] = {}

    async def ask(self, question: Callable[[Ledger], T]) -> T:
        """A read of the ledger, in its thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._ledger_thread, question, self._ledger)

    def has(self, extent: Extent) -> bool:
        """Whether an extent's bytes are in the cache."""
        return (extent.locator, extent.byte_start) in self._cache

    async def bytes_of(self, extent: Extent) -> bytes:
        """An extent's bytes, checked. Raises StoreError, L0Error for a corrupt object."""
        key = (extent.locator, extent.byte_start)
        while True:
            cached = self._cache.get(key)
            if cached is not None:
                self._cache.move_to_end(key)
                return cached
            other = self._fetching.get(extent.locator)
            if other is None:
                break
            await asyncio.shield(other)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fetching[extent.locator] = done
        try:
            data = await self._fetch(extent)
            self._keep(key, data)
            return data
        finally:
            del self._fetching[extent.locator]
            done.set_result(None)

    async def _fetch(self, extent: Extent) -> bytes:
        return await attempted(
            lambda: self._read(extent), self._store_threads, self._rng,
            lambda: self._count_get(extent.byte_length),
        )  # fmt: skip

    def _read(self, extent: Extent) -> bytes:
        """An extent's bytes; blocks. Raises StoreError, L0Error."""

        def read() -> bytes:
            data = self._store.get(extent.locator, extent.byte_start, extent.byte_length)
            found = crc32c(data)
            if len(data) != extent.byte_length or found != extent.crc32c:
                raise L0Error(
                    extent.locator,
                    extent.byte_start,
                    f"{extent.byte_length} bytes with CRC32C {extent.crc32c:08x}",
                    f"{len(data)} bytes with {found:08x}",
                )
            return data

        return verified(read, self._store.reconnect, L0Error, extent.locator)

    def _keep(self, key: tuple[str, int], data: bytes) -> None:
        if len(data) > self._cache_bytes_max:
            return
        self._cache[key] = data
        self._cache_bytes += len(data)
        while self._cache_bytes > self._cache_bytes_max:
            _, dropped = self._cache.popitem(last=False)
            self._cache_bytes -= len(dropped)
