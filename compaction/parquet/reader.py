"""Reads footers and row groups of Parquet files of L1.

The *footer* of a file lists its *row groups* and the bounds of their columns. A row group is read
with one range read of exactly its base columns, and decoded whole or, for the daemon, block by
block: a reader that takes 256 of 65,536 records should neither wait until all are decoded nor keep
them all. So the encoded bytes are kept, which are a fraction of the decoded ones, and the caller
decides which blocks to keep. ``rows.py`` makes records of rows; ``merge.py`` decides which come
next.

Errors of the store are StoreError, as for objects of L0 (ObjectMissing: the file is gone). Errors
of the bytes are LakeFileDamaged. Footers and rows are plain values that the caller may cache.

pyarrow is imported at the first call: it costs a process 70 ms and 20 MB, which a daemon that reads
no L1 should not pay. All calls block, and may be made from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from compaction.parquet.file_bytes import LakeFileDamaged, Window, fetcher
from compaction.parquet.rows import (
    COLUMNS,
    INDEX_COLUMNS,
    Block,
    Rows,
    WholeRows,
    block_of,
    one_chunk,
)
from uploader.stores.verified import verified

if TYPE_CHECKING:
    import pyarrow as pa

    from compaction.inputs.place import Place

BLOCK_BYTES = 1 << 20  # a page of the data column; takes 1 to 2 ms to decode
TAIL_BYTES = 64 << 10  # holds the footer of all but very large files
_MAGIC = b"PAR1"
_END_BYTES = 8  # the footer's length and the magic
_UNKNOWN = 1 << 63


class RowGroup(Struct, frozen=True):
    """What a footer says of a row group. Bounds are inclusive, and infinite if the footer has none.
    ``first_byte`` and ``length`` are those of its base columns."""

    index: int
    rows: int
    decoded_bytes: int
    first_byte: int
    length: int
    partition_min: int
    partition_max: int
    offset_min: int
    offset_max: int
    timestamp_ms_max: int


class ParquetFooter(Struct, frozen=True):
    """A file's footer. ``metadata`` is pyarrow's, ``size_bytes`` about the memory it takes."""

    path: str
    groups: tuple[RowGroup, ...]
    metadata: Any
    size_bytes: int
    fetch: Callable[[int, int], bytes]
    reconnect: Callable[[], None]


def read_footer(place: Place, path: str, size_bytes: int) -> ParquetFooter:
    """Reads a footer. Raises StoreError, ObjectMissing, LakeFileDamaged."""
    return verified(
        lambda: _read_footer(place, path, size_bytes), place.reconnect, LakeFileDamaged, path
    )


def _read_footer(place: Place, path: str, size_bytes: int) -> ParquetFooter:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fetch = fetcher(place, path)
    tail_bytes = min(size_bytes, TAIL_BYTES)
    tail = fetch(size_bytes - tail_bytes, tail_bytes)
    if tail[-len(_MAGIC) :] != _MAGIC:
        raise LakeFileDamaged(path, f"it has no Parquet footer that ends at byte {size_bytes}")
    wanted = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
    if wanted > size_bytes:
        raise LakeFileDamaged(
            path, f"its footer should have {wanted} bytes, the file has {size_bytes}"
        )
    if wanted > tail_bytes:
        tail = fetch(size_bytes - wanted, wanted)
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        groups = _groups(metadata)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise LakeFileDamaged(path, f"its footer cannot be read: {error}") from error
    # Decoded, it takes 3 to 5 times its length.
    return ParquetFooter(path, groups, metadata, 5 * wanted, fetch, place.reconnect)


def _groups(metadata: Any) -> tuple[RowGroup, ...]:
    columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    base = [columns[name] for name in COLUMNS]
    ranged = [columns[name] for name in ("partition", "offset", "timestamp")]
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        chunks = [group.column(column) for column in base]
        starts = [_start_of(chunk) for chunk in chunks]
        ends = [
            start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)
        ]
        bounds = [_bounds(group.column(column).statistics) for column in ranged]
        (partition_min, partition_max), (offset_min, offset_max), (_, us_max) = bounds
        groups.append(
            RowGroup(
                index,
                group.num_rows,
                sum(chunk.total_uncompressed_size for chunk in chunks),
                min(starts),
                max(ends) - min(starts),
                partition_min,
                partition_max,
                offset_min,
                offset_max,
                us_max // 1000,
            )
        )
    return tuple(groups)


def _start_of(chunk: Any) -> int:
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < chunk.data_page_offset:
        return int(chunk.dictionary_page_offset)
    return int(chunk.data_page_offset)


def _bounds(statistics: Any) -> tuple[int, int]:
    if statistics is None or not statistics.has_min_max:
        return -_UNKNOWN, _UNKNOWN
    return statistics.min_raw, statistics.max_raw


def read_rows(footer: ParquetFooter, group: RowGroup) -> WholeRows:
    """Reads and decodes a row group. Raises StoreError, ObjectMissing, LakeFileDamaged."""

    def read() -> WholeRows:
        window = Window(footer.fetch(group.first_byte, group.length), group.first_byte)
        return WholeRows(footer.path, group.index, decoded(footer, group, window, COLUMNS))

    return verified(read, footer.reconnect, LakeFileDamaged, footer.path)


def opened(footer: ParquetFooter, window: Window) -> Any:
    """pyarrow's ParquetFile over a range of the file that was read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        pa.PythonFile(window, mode="r"),
        metadata=footer.metadata,
        pre_buffer=False,  # all bytes are in memory
        page_checksum_verification=True,
    )


def decoded(
    footer: ParquetFooter, group: RowGroup, window: Window, columns: Sequence[str]
) -> pa.Table:
    """Columns of a row group that was read. Raises LakeFileDamaged."""
    import pyarrow as pa

    try:
        with opened(footer, window) as file:
            table = file.read_row_group(group.index, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise undecodable(footer, group, str(error)) from error
    if table.num_rows != group.rows:
        raise LakeFileDamaged(
            footer.path,
            f"its row group {group.index} has {table.num_rows} rows, its footer says {group.rows}",
        )
    return table


def undecodable(footer: ParquetFooter, group: RowGroup, problem: str) -> LakeFileDamaged:
    """The error for a row group whose bytes cannot be decoded."""
    return LakeFileDamaged(footer.path, f"its row group {group.index} cannot be decoded: {problem}")


def may_hold(
    group: RowGroup, partition: int, first_offset: int, last_offset: int, since_ms: int = -_UNKNOWN
) -> bool:
    """Whether a row group can have such a row, by its statistics."""
    return (
        group.partition_min <= partition <= group.partition_max
        and group.offset_max >= first_offset
        and group.offset_min <= last_offset
        and group.timestamp_ms_max >= since_ms
    )


def open_rows(footer: ParquetFooter, group: RowGroup) -> BlockRows:
    """A row group's bytes and its index. Raises StoreError, ObjectMissing, LakeFileDamaged."""
    return verified(
        lambda: BlockRows(footer, group, footer.fetch(group.first_byte, group.length)),
        footer.reconnect, LakeFileDamaged, footer.path,
    )  # fmt: skip


class BlockRows(Rows):
    """A row group in encoded form, whose blocks are decoded one after the other.

    Parquet pages can be skipped only by decoding them. So a later block costs the decoding of those
    between, and an earlier one that of all blocks from the first on.
    """

    def __init__(self, footer: ParquetFooter, group: RowGroup, data: bytes) -> None:
        self._footer = footer
        self._group = group
        self._data = data
        index = decoded(footer, group, Window(data, group.first_byte), COLUMNS[:INDEX_COLUMNS])
        super().__init__(footer.path, group.index, *map(one_chunk, index.columns))
        # While it decodes, it holds one page of each column.
        self.size_bytes += len(data) + min(BLOCK_BYTES, group.decoded_bytes)
        self.block_rows = max(1, group.rows * BLOCK_BYTES // max(group.decoded_bytes, BLOCK_BYTES))
        self._lock = threading.Lock()
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._next = -1  # the block that the iterator yields next; -1: there is no iterator

    def block(self, number: int) -> Block:
        """A block. Raises LakeFileDamaged if its pages are wrong, also when they are read again;
        StoreError, ObjectMissing."""
        with self._lock:
            return verified(
                lambda: self._block(number), self._fetch_again, LakeFileDamaged, self.path
            )

    def _fetch_again(self) -> None:
        self._footer.reconnect()
        self._data = self._footer.fetch(self._group.first_byte, self._group.length)

    def _block(self, number: int) -> Block:
        if not 0 <= self._next <= number:
            self._batches = self._iterator()
            self._next = 0
        at, self._next = self._next, -1  # after an error it starts over
        batch: pa.RecordBatch | None = None
        while at <= number:
            batch = next(self._batches, None)
            wanted = min(self.block_rows, len(self.offsets) - at * self.block_rows)
            if batch is None or batch.num_rows != wanted:
                raise undecodable(self._footer, self._group, f"block {at} is incomplete")
            at += 1
        assert batch is not None
        self._next = at
        return block_of(number * self.block_rows, batch.columns)

    def _iterator(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            with opened(self._footer, Window(self._data, self._group.first_byte)) as file:
                yield from file.iter_batches(
                    self.block_rows, [self._group.index], COLUMNS[INDEX_COLUMNS:],
                    use_threads=False,
                )  # fmt: skip
        except (pa.ArrowException, OSError) as error:
            raise undecodable(self._footer, self._group, str(error)) from error
