"""Files of the lake that are being written.

pyarrow writes them, except where S3 shall encrypt them: pyarrow cannot ask for that, so our own
client puts them in parts. This costs two PUTs more for each file.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

from compaction.inputs.place import PLACES_MAX, Place
from uploader.lru import LruCache
from uploader.stores.base import PartedStore, StoreError
from uploader.stores.retry import BULK
from uploader.stores.retrying import Retry, RetryingParts

if TYPE_CHECKING:
    from typing_extensions import Buffer

PART_BYTES = 8 << 20  # S3 takes 10,000 parts: files of 80 GB

_lock = threading.Lock()
_stores: LruCache[Place, PartedStore] = LruCache(PLACES_MAX)


def open_output(place: Place, location: str) -> Any:
    """A new file of the lake: ``write``, ``tell`` and ``close``. Raises OSError."""
    if place.encryption is None or not location.startswith("s3://"):
        filesystem, _ = place.filesystem()
        return filesystem.open_output_stream(place.path_of(location))
    with _lock:
        store = _stores.get(place)
        if store is None:
            store = place.open_lake()
            _stores.keep(place, store)
    return _OutputInParts(store, location.removeprefix(f"{place.lake}/"))


class _OutputInParts:
    """One file; it is there once it is closed. Used by one thread."""

    def __init__(self, store: PartedStore, key: str) -> None:
        self.closed = False
        self._parts = RetryingParts(
            store.put_in_parts(key), Retry(BULK, random.Random(key), time.sleep)
        )
        self._pending = bytearray()
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        self._pending += view
        self._written += len(view)
        while len(self._pending) >= PART_BYTES:
            self._put(bytes(self._pending[:PART_BYTES]))
            del self._pending[:PART_BYTES]
        return len(view)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """Parts are put when they are full."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._put(bytes(self._pending))
        try:
            self._parts.finish()
        except StoreError as error:
            raise OSError(str(error)) from error

    def __enter__(self) -> _OutputInParts:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.closed = True
            self._parts.abandon()

    def _put(self, part: bytes) -> None:
        try:
            self._parts.put(part)
        except StoreError as error:
            raise OSError(str(error)) from error
