"""Reads the planned extents of L0 objects: each object once, verified, damage named.

An object is read whole by one request, unless much of it is not needed; then the needed extents
are read by ranges. What can be another time (503, a lost connection) is tried again; what stays
so fails the task, for the store is to blame. What a read on a new
connection cannot mend (an object that is missing, torn, foreign) is a *hole*: extents with a
reason, while the rest goes on. A footer that is damaged or names another lease makes holes of the
whole object; an extent whose bytes do not have the ledger's checksum is one by itself.

Nothing is decoded here beyond the footer.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from msgspec import Struct

from compaction.place import Place
from shards.checksum import crc32c
from uploader.l0 import L0Error, object_key, read_footer
from uploader.stores.base import ObjectMissing, ObjectStore, StoreError, StoreRefused
from uploader.stores.counted import CountedStore
from uploader.stores.retry import BULK
from uploader.stores.retrying import RetryingStore
from uploader.stores.verified import verified

THREADS = 4
AHEAD = 8  # objects that are read or wait to be taken, at most

# An object is read by ranges where more than this of it would be read for nothing.
WASTE_SHARE_MAX = 0.05
WASTE_BYTES_MIN = 64 * 1024  # and this is a footer's size; below it a request more costs more
GAP_SHARE_MAX = 0.04  # of gaps between ranges that are read as one
GAP_BYTES_MAX = 16 * 1024


class TaskExtent(Struct, frozen=True, array_like=True, gc=False):
    """An extent as a task needs it: of the group that it will be written in, its place in the
    object, and the offsets that the ledger gave it."""

    group: int
    partition: int
    first_offset: int
    last_offset: int
    byte_start: int
    byte_length: int
    crc32c: int
    voids: tuple[tuple[int, int], ...]


class TaskObject(Struct, frozen=True, array_like=True):
    """An object and its extents that are needed, in the order of their bytes. One that is
    ``split`` is read by other tasks too: only what is needed of it here."""

    key: str
    locator: str
    size_bytes: int
    extents: tuple[TaskExtent, ...]
    split: bool = False


Extents = list[tuple[TaskExtent, memoryview | str]]
"""Extents with their bytes, or with what is wrong with them"""


class Fetched(Struct, frozen=True):
    """An object's needed extents, each with its bytes or with the reason for a hole."""

    key: str
    extents: tuple[tuple[TaskExtent, memoryview | str], ...]
    bytes_read: int
    requests: int


class StoreFailed(Exception):
    """The store did not answer for good; one sentence. The run fails, nothing is a hole."""


def fetch_all(place: Place, objects: Sequence[TaskObject]) -> Iterator[Fetched]:
    """The objects in their order, a few read ahead. Raises StoreFailed."""
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
    """One object. Raises StoreFailed."""
    reads = _Reads(store, wanted)
    needed = sum(extent.byte_length for extent in wanted.extents)
    waste = wanted.size_bytes - needed
    try:
        if wanted.split or waste > max(WASTE_BYTES_MIN, int(needed * WASTE_SHARE_MAX)):
            found = _by_ranges(reads, wanted)
        else:
            found = _whole(reads, wanted)
    except _Hole as hole:
        found = [(extent, str(hole)) for extent in wanted.extents]
    return Fetched(wanted.key, tuple(found), reads.bytes, reads.requests)


def ranges_of(extents: Iterable[TaskExtent]) -> list[tuple[int, int]]:
    """Byte ranges [start, end) to read for extents in the order of their bytes; small gaps
    between them are read too, within a share of what is needed."""
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
    """Extents of which some are not what they should be."""

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
        """The extents in a range of the object; what stays wrong is told with them."""

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
        return _checked(wanted.extents, 0, body)

    return reads.verified(check)


def _object_problem(body: bytes, wanted: TaskObject) -> str:
    if len(body) != wanted.size_bytes:
        return f"torn: it has {len(body)} bytes, the ledger says {wanted.size_bytes}"
    try:
        name = object_key(read_footer(body, wanted.key).lease_id)
    except (L0Error, ValueError) as error:
        return f"damaged: {error}"
    return "" if name == wanted.key else f"foreign: its footer says that it is {name}"


def _by_ranges(reads: _Reads, wanted: TaskObject) -> Extents:
    found: Extents = []
    left = deque(wanted.extents)
    for start, end in ranges_of(wanted.extents):
        of_range: list[TaskExtent] = []
        while left and left[0].byte_start + left[0].byte_length <= end:
            of_range.append(left.popleft())
        found += reads.verified(partial(_checked, of_range, start), start, end - start)
    return found


def _checked(extents: Sequence[TaskExtent], start: int, body: bytes) -> Extents:
    """Extents in bytes that begin at ``start`` of the object."""
    view = memoryview(body)
    return [
        (extent, _checked_one(extent, view[extent.byte_start - start :][: extent.byte_length]))
        for extent in extents
    ]


def _checked_one(extent: TaskExtent, data: memoryview) -> memoryview | str:
    if len(data) != extent.byte_length:
        return f"torn: {len(data)} of the {extent.byte_length} bytes at {extent.byte_start}"
    found = crc32c(data)
    if found != extent.crc32c:
        return (
            f"damaged: the {extent.byte_length} bytes at {extent.byte_start} have CRC32C"
            f" {found:08x}, the ledger says {extent.crc32c:08x}"
        )
    return data
