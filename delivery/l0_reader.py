"""Reading committed extents from the store: range reads through a bounded cache.

The ledger says which extents hold an offset; each is read by one range request, checked against
the ledger's CRC32C (bytes that do not match are read again first), and kept in a cache.

Ledger and store block. The ledger is asked in ``ledger_thread``, which is the only user of its
connection; the store is read in ``store_threads``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Concatenate

from delivery.single_flight import SingleFlightCache
from delivery.store_threads import StoreThreads
from ledger.ledger import Ledger
from ledger.tx import P, ReadTx, T, WriteTx
from ledger.types import Extent
from shards.checksum import crc32c
from uploader.l0 import L0Error
from uploader.lru import LruCache
from uploader.stores.base import ObjectStore
from uploader.stores.verified import verified

CACHE_BYTES_MAX = 64 << 20
EXTENTS_MAX = 100_000  # of a few bytes each


class L0Reader:
    """Extents, from ledger and store."""

    def __init__(
        self,
        ledger: Ledger,
        store: ObjectStore,
        ledger_thread: Executor,
        store_threads: StoreThreads,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._ledger_thread = ledger_thread
        self._threads = store_threads
        kept: LruCache[tuple[str, int], bytes] = LruCache(EXTENTS_MAX, cache_bytes_max, len)
        self._cache = SingleFlightCache(kept)

    async def ask(
        self, question: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """A read of the ledger, in its thread."""
        asked = partial(self._ledger.read, question, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._ledger_thread, asked)

    async def change(
        self, change: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """A write to the ledger, in its thread."""
        done = partial(self._ledger.write, change, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._ledger_thread, done)

    def has(self, extent: Extent) -> bool:
        """Whether an extent's bytes are in the cache."""
        return (extent.locator, extent.byte_start) in self._cache.kept

    async def bytes_of(self, extent: Extent) -> bytes:
        """An extent's bytes, checked. Raises StoreError, L0Error for a corrupt object."""
        return await self._cache.get(
            (extent.locator, extent.byte_start),
            lambda: self._threads.read(partial(self._read, extent), extent.byte_length),
        )

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
