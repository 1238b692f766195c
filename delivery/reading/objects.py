"""Reading committed extents from the store: range reads through a bounded cache.

The ledger says which extents hold an offset. Each is read by one range request, checked against
the ledger's CRC32C (bytes that do not match are read again first), and kept in a cache.
"""

from __future__ import annotations

from functools import partial

from delivery.reading.single_flight import SingleFlightCache
from delivery.reading.store_threads import StoreThreads
from ledger.types import Extent
from shards.checksum import crc32c
from uploader.l0 import L0Error
from uploader.lru import LruCache
from uploader.stores.base import ObjectStore
from uploader.stores.verified import verified

CACHE_BYTES_MAX = 64 << 20
EXTENTS_MAX = 100_000  # of a few bytes each


class L0Reader:
    """The bytes of extents."""

    def __init__(
        self,
        store: ObjectStore,
        store_threads: StoreThreads,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        self._store = store
        self._threads = store_threads
        kept: LruCache[tuple[str, int], bytes] = LruCache(EXTENTS_MAX, cache_bytes_max, len)
        self._cache = SingleFlightCache(kept)

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
