"""Reading L1 within the daemon: what is fetched is kept within bounds, and never fetched twice.

Files of the lake are opened by pyarrow, in the threads of the reading pool and never in the loop;
it is loaded at the first read of a process. What is decoded is kept as Arrow: a reader makes
records of the rows that it takes, so 65,536 rows are never Python objects at once.

Bounds: FOOTERS_BYTES_MAX and FOOTERS_MAX for footers, ROWS_BYTES_MAX for row groups, least recently
used first out; FETCHES_AT_ONCE row groups are fetched and decoded at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Generic, TypeVar

from compaction import l1
from compaction.l1 import Footer, RowGroup, Rows
from compaction.l1_fetch import keep_pyarrow_small, release_unused
from compaction.l1_merge import EVER_MS, NeedFooter, NeedRows, Span, merged
from delivery.attempts import attempted
from ledger.lake_types import FileRange

if TYPE_CHECKING:
    from compaction.place import Place

ROWS_BYTES_MAX = 64 << 20  # four of the usual row groups of 16 MiB
FOOTERS_BYTES_MAX = 16 << 20
FOOTERS_MAX = 1_024  # on S3 each keeps an opened file
FETCHES_AT_ONCE = 2  # one is on its way while the other is decoded
# What one fetch takes: a row group of 16 MiB, at worst uncompressible, and decoded.
FETCH_BYTES = 48 << 20
# pyarrow's libraries and pools, and S3's connections.
LIBRARY_BYTES = 96 << 20

V = TypeVar("V")


class _Kept(Generic[V]):
    """Values within a bound of bytes and of their number, least recently used first out."""

    def __init__(self, bytes_max: int, count_max: int) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._values: OrderedDict[Hashable, tuple[int, V]] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: Hashable) -> V | None:
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[1]

    def keep(self, key: Hashable, value: V, size_bytes: int) -> None:
        """Keeps a value that is not there; one that is larger than the bound is not kept."""
        if size_bytes > self._bytes_max:
            return
        self._values[key] = (size_bytes, value)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max or len(self._values) > self._count_max:
            _, (dropped_bytes, _) = self._values.popitem(last=False)
            self.size_bytes -= dropped_bytes


class LakeReader:
    """Rows of L1 by the ranges that the ledger names."""

    def __init__(
        self,
        open_place: Callable[[], Place],
        threads: Executor,
        count_get: Callable[[int], None],
        rng: random.Random,
        rows_bytes_max: int = ROWS_BYTES_MAX,
    ) -> None:
        self._open_place = open_place
        self._threads = threads
        self._count_get = count_get
        self._rng = rng
        self._place: Place | None = None
        self._footers: _Kept[Footer] = _Kept(FOOTERS_BYTES_MAX, FOOTERS_MAX)
        self._rows: _Kept[Rows] = _Kept(rows_bytes_max, rows_bytes_max)
        self._fetching: dict[Hashable, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def spans(
        self,
        ranges: Sequence[FileRange],
        partition: int,
        offset: int,
        last: int,
        since_ms: int = EVER_MS,
    ) -> AsyncIterator[Span]:
        """Spans of rows with offsets [offset, last], in order; row groups that end before
        ``since_ms`` are left out. Raises StoreError, ObjectMissing, LakeFileDamaged."""
        merge = merged(ranges, partition, offset, last, since_ms)
        reply: Footer | Rows | None = None
        while True:
            try:
                need = merge.send(reply)
            except StopIteration:
                return
            reply = None
            if isinstance(need, NeedFooter):
                reply = await self._footer(need)
            elif isinstance(need, NeedRows):
                reply = await self._rows_of(need)
            else:
                yield need

    async def _footer(self, need: NeedFooter) -> Footer:
        def read() -> Footer:
            return l1.read_footer(self._opened(), need.path, need.size_bytes)

        tail_bytes = min(need.size_bytes, l1.TAIL_BYTES)
        return await self._once(need.path, self._footers, read, tail_bytes)

    async def _rows_of(self, need: NeedRows) -> Rows:
        footer, group = need

        def read() -> Rows:
            return _read_rows(footer, group)

        return await self._once((footer.path, group.index), self._rows, read, group.length)

    async def _once(
        self, key: Hashable, kept: _Kept[V], read: Callable[[], V], get_bytes: int
    ) -> V:
        """A value that is kept, or read now: by one of those who want it at the same time."""
        while True:
            found = kept.get(key)
            if found is not None:
                return found
            other = self._fetching.get(key)
            if other is None:
                break
            await asyncio.shield(other)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fetching[key] = done
        try:
            async with self._slots:
                value = await attempted(
                    read, self._threads, self._rng, lambda: self._count_get(get_bytes)
                )
            kept.keep(key, value, _size_of(value))
            return value
        finally:
            del self._fetching[key]
            done.set_result(None)

    def _opened(self) -> Place:
        """In a thread, for it loads pyarrow."""
        if self._place is None:
            place = self._open_place()
            keep_pyarrow_small()
            self._place = place
        return self._place


def _read_rows(footer: Footer, group: RowGroup) -> Rows:
    # What readers have dropped since goes first, so that the new row group can take its place.
    release_unused()
    return l1.read_rows(footer, group)


def _size_of(value: object) -> int:
    assert isinstance(value, Footer | Rows)
    return value.size_bytes
