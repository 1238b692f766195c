"""Reading L1 within the daemon: what is fetched is kept within bounds, and never fetched twice.

Files of the lake are opened by pyarrow, in the threads of the reading pool and never in the loop;
it is loaded at the first read of a process. Kept are, each within its bound and least recently
used first out:

- footers;
- row groups as they were fetched (compressed, a fraction of what they hold), with their index;
- decoded blocks of about a megabyte, as Arrow. A reader makes records of the rows that it takes,
  so 65,536 rows are never Python objects, nor 16 MiB decoded for 256 records.

A reader that goes along decodes each block once, as long as its row group is kept: some dozen
readers at different places of a shard's lake. FETCHES_AT_ONCE are fetched and decoded at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from compaction.parquet import blocks, reader
from compaction.parquet.file_bytes import keep_pyarrow_small
from compaction.parquet.merge import EVER_MS, RECORDS_AT_ONCE, NeedFooter, NeedRows, merged
from compaction.parquet.reader import Footer
from compaction.parquet.rows import Block, Rows
from delivery.attempts import attempted
from ledger.lake.types import FileRange
from uploader.l0.records import Record

if TYPE_CHECKING:
    from compaction.place import Place

ROWS_BYTES_MAX = 48 << 20  # a usual row group of 16 MiB is fetched as 2 to 8
BLOCKS_BYTES_MAX = 32 << 20
FOOTERS_BYTES_MAX = 16 << 20
FOOTERS_MAX = 1_024  # on S3 each keeps an opened file
KEPT_MAX = 100_000  # row groups and blocks that are nearly empty
FETCHES_AT_ONCE = 2  # one is on its way while the other is decoded
# What one fetch takes: a row group of 16 MiB, at worst not compressed at all, and its copy.
FETCH_BYTES = 32 << 20
# pyarrow's libraries and pools, and S3's connections.
LIBRARY_BYTES = 96 << 20

Item = tuple[int, int, Record]
"""(offset, epoch milliseconds, record)."""


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


V = TypeVar("V", bound=_Sized)


class _Kept(Generic[V]):
    """Values within a bound of bytes and of their number, least recently used first out."""

    def __init__(self, bytes_max: int, count_max: int) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self.size_bytes = 0

    def get(self, key: Hashable) -> V | None:
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def keep(self, key: Hashable, value: V) -> None:
        """Keeps a value that is not there; one that is larger than the bound is not kept."""
        if value.size_bytes > self._bytes_max:
            return
        self._values[key] = value
        self.size_bytes += value.size_bytes
        while self.size_bytes > self._bytes_max or len(self._values) > self._count_max:
            _, dropped = self._values.popitem(last=False)
            self.size_bytes -= dropped.size_bytes


class LakeReader:
    """Rows of L1 by the ranges that the ledger names."""

    def __init__(
        self,
        open_place: Callable[[], Place],
        threads: Executor,
        count_get: Callable[[int], None],
        rng: random.Random,
        rows_bytes_max: int = ROWS_BYTES_MAX,
        blocks_bytes_max: int = BLOCKS_BYTES_MAX,
    ) -> None:
        self._open_place = open_place
        self._threads = threads
        self._count_get = count_get
        self._rng = rng
        self._place: Place | None = None
        self._footers: _Kept[Footer] = _Kept(FOOTERS_BYTES_MAX, FOOTERS_MAX)
        self._rows: _Kept[Rows] = _Kept(rows_bytes_max, KEPT_MAX)
        self._blocks: _Kept[Block] = _Kept(blocks_bytes_max, KEPT_MAX)
        self._fetching: dict[Hashable, asyncio.Future[None]] = {}
        self._slots = asyncio.Semaphore(FETCHES_AT_ONCE)

    async def chunks(
        self,
        ranges: Sequence[FileRange],
        partition: int,
        offset: int,
        last: int,
        since_ms: int = EVER_MS,
    ) -> AsyncGenerator[Chunk, None]:
        """Rows with offsets [offset, last], in order; those that are before ``since_ms`` are left
        out as far as that spares reading them. Raises StoreError, ObjectMissing, LakeFileDamaged.
        """
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
                first = need.rows.first_since(need.start, need.stop, since_ms)
                if first is None:
                    await asyncio.sleep(0)  # a long search lets others in
                    continue
                for number, start, stop in need.rows.blocks(first, need.stop):
                    block = await self._block(need.rows, number)
                    yield Chunk(need.rows, block, start, stop)

    async def _footer(self, need: NeedFooter) -> Footer:
        def read() -> Footer:
            return reader.read_footer(self._opened(), need.path, need.size_bytes)

        tail_bytes = min(need.size_bytes, reader.TAIL_BYTES)
        return await self._once(need.path, self._footers, read, tail_bytes)

    async def _rows_of(self, need: NeedRows) -> Rows:
        footer, group = need

        def read() -> Rows:
            return blocks.open_rows(footer, group)

        return await self._once((footer.path, group.index), self._rows, read, group.length)

    async def _block(self, rows: Rows, number: int) -> Block:
        key = (rows.path, rows.number, number)
        return await self._once(key, self._blocks, lambda: rows.block(number), 0)

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
                    read, self._threads, self._rng, lambda: self._counted(get_bytes)
                )
            kept.keep(key, value)
            return value
        finally:
            del self._fetching[key]
            done.set_result(None)

    def _counted(self, get_bytes: int) -> None:
        if get_bytes:
            self._count_get(get_bytes)

    def _opened(self) -> Place:
        """In a thread, for it loads pyarrow."""
        if self._place is None:
            place = self._open_place()
            keep_pyarrow_small()
            self._place = place
        return self._place


class Chunk(NamedTuple):
    """Rows [start, stop) of a block, which is decoded."""

    rows: Rows
    block: Block
    start: int
    stop: int

    @property
    def last_offset(self) -> int:
        return int(self.rows.offsets[self.stop - 1])

    def records(self) -> Iterator[Item]:
        """(offset, epoch milliseconds, record) of all, a few made at a time."""
        for start in range(self.start, self.stop, RECORDS_AT_ONCE):
            stop = min(start + RECORDS_AT_ONCE, self.stop)
            yield from self.rows.records_of(self.block, start, stop)
