"""Reading L1 in the daemon, through bounded caches that fetch each part once.

pyarrow opens the files of the lake, in the threads of the reading pool and never in the loop. A
process loads it for its first read. There are three caches, each within its bounds:

- footers;
- row groups as they were fetched (compressed, so a fraction of their content), with their index;
- decoded blocks of about a megabyte, as Arrow. A reader makes records only of the rows that it
  takes, so 65,536 rows are never Python objects, and 16 MiB are not decoded for 256 records.

A sequential reader decodes each block once while its row group is kept; that holds for a dozen
readers at different places of a shard's lake. FETCHES_AT_ONCE are fetched or decoded
simultaneously.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from compaction.parquet import reader
from compaction.parquet.file_bytes import keep_pyarrow_small
from compaction.parquet.merge import EVER_MS, RECORDS_AT_ONCE, NeedFooter, NeedRows, merged
from compaction.parquet.reader import ParquetFooter
from compaction.parquet.rows import Block, Rows
from delivery.reading.single_flight import SingleFlightCache
from delivery.reading.store_threads import StoreThreads
from ledger.lake.types import FileRange
from uploader.l0.records import Record
from uploader.lru import LruCache

if TYPE_CHECKING:
    from compaction.inputs.place import Place

ROWS_BYTES_MAX = 48 << 20  # a usual row group of 16 MiB is fetched as 2 to 8 MiB
BLOCKS_BYTES_MAX = 32 << 20
FOOTERS_BYTES_MAX = 16 << 20
FOOTERS_MAX = 1_024  # on S3 each keeps an open file
KEPT_MAX = 100_000  # row groups and blocks that are nearly empty
FETCHES_AT_ONCE = 2  # one is in transit while the other is decoded
# What one fetch takes: a row group of 16 MiB, uncompressed in the worst case, and its copy.
FETCH_BYTES = 32 << 20
# pyarrow's libraries and pools, and S3's connections.
LIBRARY_BYTES = 96 << 20

Item = tuple[int, int, Record]
"""(offset, epoch milliseconds, record)."""

T = TypeVar("T")


class LakeReader:
    """Reads the rows of L1 in the ranges that the ledger names."""

    def __init__(
        self,
        open_place: Callable[[], Place],
        threads: StoreThreads,
        rows_bytes_max: int = ROWS_BYTES_MAX,
        blocks_bytes_max: int = BLOCKS_BYTES_MAX,
    ) -> None:
        self._open_place = open_place
        self._threads = threads
        self._place: Place | None = None
        self._footers: SingleFlightCache[str, ParquetFooter] = _cache(
            FOOTERS_MAX, FOOTERS_BYTES_MAX
        )
        self._rows: SingleFlightCache[tuple[str, int], Rows] = _cache(KEPT_MAX, rows_bytes_max)
        self._blocks: SingleFlightCache[tuple[str, int, int], Block] = _cache(
            KEPT_MAX, blocks_bytes_max
        )
        self._slots = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def chunks(
        self,
        ranges: Sequence[FileRange],
        partition: int,
        offset: int,
        last: int,
        since_ms: int = EVER_MS,
    ) -> AsyncGenerator[Chunk, None]:
        """Rows with offsets [offset, last], in order. Rows before ``since_ms`` are left out where
        that saves reading them. Raises StoreError, ObjectMissing, LakeFileDamaged.
        """
        merge = merged(ranges, partition, offset, last, since_ms)
        reply: ParquetFooter | Rows | None = None
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
                first = need.rows.first_since(need.start, need.stop, since_ms)
                if first is None:
                    await asyncio.sleep(0)  # a long search lets other tasks run
                    continue
                for number, start, stop in need.rows.blocks(first, need.stop):
                    block = await self._block(need.rows, number)
                    yield Chunk(need.rows, block, start, stop)

    async def _footer(self, need: NeedFooter) -> ParquetFooter:
        def read() -> ParquetFooter:
            return reader.read_footer(self._opened(), need.path, need.size_bytes)

        tail_bytes = min(need.size_bytes, reader.TAIL_BYTES)
        return await self._footers.get(need.path, lambda: self._read(read, tail_bytes))

    async def _rows_of(self, need: NeedRows) -> Rows:
        footer, group = need

        def read() -> Rows:
            return reader.open_rows(footer, group)

        key = (footer.path, group.index)
        return await self._rows.get(key, lambda: self._read(read, group.length))

    async def _block(self, rows: Rows, number: int) -> Block:
        key = (rows.path, rows.number, number)
        return await self._blocks.get(key, lambda: self._read(lambda: rows.block(number), 0))

    async def _read(self, call: Callable[[], T], get_bytes: int) -> T:
        async with self._slots:
            return await self._threads.read(call, get_bytes)

    def _opened(self) -> Place:
        """Called in a thread, since it loads pyarrow."""
        if self._place is None:
            place = self._open_place()
            keep_pyarrow_small()
            self._place = place
        return self._place


def _cache(count_max: int, bytes_max: int) -> SingleFlightCache[Any, Any]:
    return SingleFlightCache(LruCache(count_max, bytes_max, lambda each: each.size_bytes))


class Chunk(NamedTuple):
    """Rows [start, stop) of a decoded block."""

    rows: Rows
    block: Block
    start: int
    stop: int

    @property
    def last_offset(self) -> int:
        return int(self.rows.offsets[self.stop - 1])

    def records(self) -> Iterator[Item]:
        """(offset, epoch milliseconds, record) of all rows, a few at a time."""
        for start in range(self.start, self.stop, RECORDS_AT_ONCE):
            stop = min(start + RECORDS_AT_ONCE, self.stop)
            yield from self.rows.records_of(self.block, start, stop)
