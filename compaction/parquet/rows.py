"""Rows of a row group, and the records that are made of them.

The *index* of a row group is the columns by which rows are found; it is always decoded. The other
columns come in *blocks* of consecutive rows: one block for all rows (``WholeRows``), or blocks of
about a megabyte (``blocks.py``). A *row range* is consecutive rows of one partition with ascending
offsets.

Nothing here reads a file. pyarrow is imported when there are rows.
"""

from __future__ import annotations

import binascii
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from compaction.parquet.file_bytes import LakeFileDamaged
from uploader.l0.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

# Records are made of the columns that every table has (compaction/tables/schema.py, which imports
# pyarrow). In a file they come before all others.
COLUMNS = (
    "partition", "offset", "timestamp", "key", "tag", "node", "meta", "data", "data_is_base64",
)  # fmt: skip
INDEX_COLUMNS = 3  # the first of them are the index


class Block(NamedTuple):
    """Columns of consecutive rows of a row group, from row ``start`` on. None stands for a column
    that is null, or false, in all rows."""

    start: int
    stop: int
    columns: tuple[pa.Array | None, ...]  # key, tag, node, meta, data, data_is_base64
    size_bytes: int


class Rows(ABC):
    """Row group ``number`` of the file ``path``, with its index decoded.

    ``offsets`` and ``timestamps_us`` are views without copies. ``row_ranges`` has the (start, stop)
    of rows by partition. The other columns come in blocks of ``block_rows`` rows.
    """

    def __init__(
        self, path: str, number: int, partition: pa.Array, offset: pa.Array, time: pa.Array
    ) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.path = path
        self.number = number
        self.size_bytes = partition.nbytes + offset.nbytes + time.nbytes
        self.offsets = _words(offset)
        self.timestamps_us = _words(time.cast(pa.timestamp("us", tz="UTC")))
        self.row_ranges: dict[int, list[tuple[int, int]]] = {}
        runs = pc.run_end_encode(partition)
        start = 0
        for value, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            self.row_ranges.setdefault(value, []).append((start, stop))
            start = stop
        self.block_rows = max(1, len(self.offsets))

    @abstractmethod
    def block(self, number: int) -> Block:
        """A block, decoded if necessary."""

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Rows [start, stop) by block: (block number, first row, last row + 1)."""
        while start < stop:
            number = start // self.block_rows
            end = min(stop, (number + 1) * self.block_rows)
            yield number, start, end
            start = end

    def records(self, start: int, stop: int) -> list[tuple[int, int, Record]]:
        """(offset, epoch milliseconds, record) of rows [start, stop)."""
        found: list[tuple[int, int, Record]] = []
        for number, first, end in self.blocks(start, stop):
            found += self.records_of(self.block(number), first, end)
        return found

    def records_of(self, block: Block, start: int, stop: int) -> list[tuple[int, int, Record]]:
        """(offset, epoch milliseconds, record) of rows [start, stop), all of one block.

        A record is as in L0, except that it always has a ``ts``: L1 does not distinguish a
        producer's timestamp from the arrival.
        """
        count = stop - start
        first = start - block.start
        key, tag, node, meta, data, coded = (
            self._values(column, first, count) for column in block.columns
        )
        if block.columns[-1] is not None:
            for index, is_bytes in enumerate(coded):
                if is_bytes:
                    data[index] = self._bytes_of(data[index])
        times_ms = [time // 1000 for time in self.timestamps_us[start:stop]]
        records = map(Record, data, times_ms, key, tag, node, meta)
        return list(zip(self.offsets[start:stop], times_ms, records, strict=True))

    def _values(self, column: pa.Array | None, start: int, count: int) -> list[Any]:
        if column is None:
            return [None] * count
        try:
            found: list[Any] = column.slice(start, count).to_pylist()
        except UnicodeDecodeError as error:
            raise LakeFileDamaged(self.path, f"its text is not UTF-8: {error}") from error
        return found

    def arrays(self, start: int, stop: int) -> list[pa.Array | None]:
        """Columns timestamp, key, tag, node, meta, data and data_is_base64 of rows [start, stop).

        None stands for a column that is null, or false, in all blocks of these rows.
        """
        import pyarrow as pa

        times = pa.py_buffer(self.timestamps_us[start:stop])
        found = [pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), stop - start, [None, times])]
        parts = [
            (self.block(number), first, end) for number, first, end in self.blocks(start, stop)
        ]
        for column, kind in enumerate((*[pa.string()] * 5, pa.bool_())):
            if all(block.columns[column] is None for block, _, _ in parts):
                found.append(None)
                continue
            empty = pa.scalar(False if kind == pa.bool_() else None, kind)
            slices = [
                pa.repeat(empty, end - first)
                if (values := block.columns[column]) is None
                else values.slice(first - block.start, end - first)
                for block, first, end in parts
            ]
            found.append(slices[0] if len(slices) == 1 else pa.concat_arrays(slices))
        return found

    def first_since(self, start: int, stop: int, timestamp_ms: int) -> int | None:
        """The first of rows [start, stop) whose time is not before ``timestamp_ms``."""
        wanted = timestamp_ms * 1000
        for row, time in enumerate(self.timestamps_us[start:stop], start):
            if time >= wanted:
                return row
        return None

    def _bytes_of(self, text: str) -> bytes:
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error as error:
            raise LakeFileDamaged(self.path, f"its bytes are not base64: {error}") from error


class WholeRows(Rows):
    """A row group that is decoded whole, for readers of all of it."""

    def __init__(self, path: str, number: int, table: pa.Table) -> None:
        columns = [one_chunk(table.column(name)) for name in COLUMNS]
        super().__init__(path, number, *columns[:INDEX_COLUMNS])
        self._block = block_of(0, columns[INDEX_COLUMNS:])
        self.size_bytes += self._block.size_bytes

    def block(self, number: int) -> Block:
        return self._block


def block_of(start: int, columns: Sequence[pa.Array]) -> Block:
    """A block of the columns key, tag, node, meta, data and data_is_base64."""
    import pyarrow.compute as pc

    *texts, is_base64 = columns
    kept = [None if column.null_count == len(column) else column for column in texts]
    kept.append(is_base64 if pc.any(is_base64).as_py() else None)
    size_bytes = sum(column.nbytes for column in kept if column is not None)
    return Block(start, start + len(is_base64), tuple(kept), size_bytes)


def _words(array: pa.Array) -> memoryview:
    buffer = array.buffers()[1]
    whole = memoryview(b"" if buffer is None else buffer).cast("q")
    return whole[array.offset : array.offset + len(array)]


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
