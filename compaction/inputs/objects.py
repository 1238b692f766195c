"""Reads the planned extents of L0 objects, each object once, and verifies them.

An object is read whole with one request, or by ranges if much of it is not needed. Errors that may
pass (503, a lost connection) are retried; if they stay, the task fails, because the store is at
fault. An object that is missing, torn, or foreign, also when read on a new connection, is a *hole*:
its extents come with the reason, and the other objects are read. A footer that is damaged or names
another lease makes the whole object a hole; an extent with a wrong checksum is a hole of its own.

Only the footer is decoded here.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from msgspec import Struct

from compaction.inputs.place import Place
from ledger.types import Extent
from shards.checksum import crc32c
from shards.frame import Buffer
from uploader.l0 import L0Error, object_key, read_footer
from uploader.stores.base import ObjectMissing, ObjectStore, StoreError, StoreRefused
from uploader.stores.counted import CountedStore
from uploader.stores.retry import BULK
from uploader.stores.retrying import RetryingStore
from uploader.stores.verified import verified

THREADS = 4
AHEAD = 8  # objects that are being read or wait to be taken, at most

# An object is read by ranges if more than this of it would be read for nothing.
WASTE_SHARE_MAX = 0.05
WASTE_BYTES_MIN = 64 * 1024  # a footer's size; below it another request costs more
GAP_SHARE_MAX = 0.04  # of gaps between ranges that are read as one
GAP_BYTES_MAX = 16 * 1024


class TaskExtent(Struct, frozen=True, array_like=True, gc=False):
    """The ledger's extent, as far as a task needs it. ``group`` says what it is read for: the file
    group of a compaction, the topic's id for other readers."""

    group: int
    partition: int
    first_offset: int
    last_offset: int
    byte_start: int
    byte_length: int
    crc32c: int
    voids: tuple[tuple[int, int], ...]

    @staticmethod
    def of(extent: Extent, group: int) -> TaskExtent:
        return TaskExtent(
            group, extent.partition, extent.first_offset, extent.last_offset,
            extent.byte_start, extent.byte_length, extent.crc32c, extent.voids,
        )  # fmt: skip


class TaskObject(Struct, frozen=True, array_like=True):
    """An object and those of its extents that are needed, in the order of their bytes. An object
    that is ``shared`` is read by other tasks too, so only by ranges."""

    key: str
    locator: str
    size_bytes: int
    extents: tuple[TaskExtent, ...]
    shared: bool = False


class ExtentBytes(Struct, array_like=True, gc=False):
    """An extent to decode: its offsets [first_offset, last_offset], its bytes, its object's key."""

    partition: int
    first_offset: int
    last_offset: int
    voids: tuple[tuple[int, int], ...]
    data: Buffer
    key: str


Extents = list[tuple[TaskExtent, ExtentBytes | str]]
"""Extents with their bytes, or with what is wrong with them."""


class Fetched(Struct, frozen=True):
    """An object's extents, each with its bytes or with the reason for a hole."""

    key: str
    extents: Extents
    bytes_read: int
    requests: int


class StoreFailed(Exception):
    """The store failed, and not only for a moment. The run fails, and nothing is a hole."""


def fetch_all(place: Place, objects: Sequence[TaskObject]) -> Iterator[Fetched]:
    """Reads objects in order, some of them ahead. Raises StoreFailed."""
    store = place.store()
    with ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-get") as pool:
        waiting: deque[Future[Fetched]] = deque()
        try:
            for each in objects:
                if len(waiting) >= AHEAD:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(fetch, store, each))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def fetch(store: ObjectStore, wanted: TaskObject) -> Fetched:
    """Reads one object. Raises StoreFailed."""
    reads = _Reads(store, wanted)
    needed = sum(extent.byte_length for extent in wanted.extents)
    waste = wanted.size_bytes - needed
    try:
        if wanted.shared or waste > max(WASTE_BYTES_MIN, int(needed * WASTE_SHARE_MAX)):
            found = _by_ranges(reads, wanted)
        else:
            found = _whole(reads, wanted)
    except _Hole as hole:
        found = [(extent, str(hole)) for extent in wanted.extents]
    return Fetched(wanted.key, found, reads.bytes, reads.requests)


def ranges_of(extents: Iterable[TaskExtent]) -> list[tuple[int, int]]:
    """Byte ranges [start, end) that cover the extents, which are in the order of their bytes.
    Small gaps are read too, within a share of what is needed."""
    extents = tuple(extents)
    allowed = int(sum(extent.byte_length for extent in extents) * GAP_SHARE_MAX)
    found: list[tuple[int, int]] = []
    for extent in extents:
        end = extent.byte_start + extent.byte_length
        if found:
            gap = extent.byte_start - found[-1][1]
            if gap <= min(GAP_BYTES_MAX, allowed):
                allowed -= gap
                found[-1] = (found[-1][0], end)
                continue
        found.append((extent.byte_start, end))
    return found


class _Hole(Exception):
    """Why an object cannot be read, whatever is tried."""


class _Damaged(Exception):
    """Some of the extents that were read are not what they should be."""

    def __init__(self, found: Extents) -> None:
        super().__init__(next(data for _, data in found if isinstance(data, str)))
        self.found = found


class _Reads:
    """Reads of one object, counted: repeated while the store fails, and on new connections while
    the object is missing, torn or damaged. After that Spark's own attempts repeat the task."""

    def __init__(self, store: ObjectStore, wanted: TaskObject) -> None:
        counted = CountedStore(store)
        self._requests = counted.requests
        self._store = RetryingStore(counted, BULK, random.Random(wanted.key), time.sleep)
        self._wanted = wanted
        self.bytes = 0

    @property
    def requests(self) -> int:
        return self._requests.gets

    def verified(
        self, check: Callable[[bytes], Extents], start: int = 0, length: int | None = None
    ) -> Extents:
        """The extents in a range of the object, each with its bytes or with what stays wrong."""

        def read() -> Extents:
            found = check(self.get(start, length))
            if any(isinstance(data, str) for _, data in found):
                raise _Damaged(found)
            return found

        try:
            return verified(read, self._store.reconnect, (_Damaged, _Hole), self._wanted.key)
        except _Damaged as damaged:
            return damaged.found

    def get(self, start: int = 0, length: int | None = None) -> bytes:
        try:
            body = self._store.get(self._wanted.locator, start, length)
        except ObjectMissing as error:
            raise _Hole(f"missing: {error}") from error
        except StoreRefused as error:
            raise StoreFailed(str(error)) from error
        except StoreError as error:
            if not error.retryable and self._store.url.startswith("file:"):
                raise _Hole(f"torn: {error}") from error  # a segment that was cut off
            raise StoreFailed(
                f"{self._wanted.key} cannot be read: {error}; nothing is lost, run it again when"
                " the store answers"
            ) from error
        self.bytes += len(body)
        return body


def _whole(reads: _Reads, wanted: TaskObject) -> Extents:
    def check(body: bytes) -> Extents:
        problem = _object_problem(body, wanted)
        if problem:
            return [(extent, problem) for extent in wanted.extents]
        return _checked(wanted.key, wanted.extents, 0, body)

    return reads.verified(check)


def _object_problem(body: bytes, wanted: TaskObject) -> str:
    if len(body) != wanted.size_bytes:
        return f"torn: it has {len(body)} bytes, the ledger says {wanted.size_bytes}"
    try:
        name = object_key(read_footer(body, wanted.key).lease_id)
    except (L0Error, ValueError) as error:
        return f"damaged: {error}"
    return "" if name == wanted.key else f"foreign: its footer names the object {name}"


def _by_ranges(reads: _Reads, wanted: TaskObject) -> Extents:
    found: Extents = []
    left = deque(wanted.extents)
    for start, end in ranges_of(wanted.extents):
        of_range: list[TaskExtent] = []
        while left and left[0].byte_start + left[0].byte_length <= end:
            of_range.append(left.popleft())
        found += reads.verified(partial(_checked, wanted.key, of_range, start), start, end - start)
    return found


def _checked(key: str, extents: Sequence[TaskExtent], start: int, body: bytes) -> Extents:
    """The extents out of a range that begins at byte ``start`` of the object."""
    view = memoryview(body)
    found: Extents = []
    for extent in extents:
        data = view[extent.byte_start - start :][: extent.byte_length]
        problem = _extent_problem(extent, data)
        found.append(
            (
                extent,
                problem
                or ExtentBytes(
                    extent.partition,
                    extent.first_offset,
                    extent.last_offset,
                    extent.voids,
                    data,
                    key,
                ),
            )
        )
    return found


def _extent_problem(extent: TaskExtent, data: memoryview) -> str:
    if len(data) != extent.byte_length:
        return f"torn: {len(data)} of the {extent.byte_length} bytes at {extent.byte_start}"
    found = crc32c(data)
    if found != extent.crc32c:
        return (
            f"damaged: the {extent.byte_length} bytes at {extent.byte_start} have CRC32C"
            f" {found:08x}, the ledger says {extent.crc32c:08x}"
        )
    return ""
