"""Reading L1: footers and row groups of Parquet files, and rows of them as records.

Vocabulary: a file's *footer* says which *row groups* it has and what their columns range over. A
row group is fetched by one range read of exactly its base columns and decoded whole into Arrow;
that is the unit that readers keep. A *stretch* is a run of rows of one partition in a row group,
offsets rising.

Fetching and decoding are apart: what the store answers badly is a StoreError, as for objects of
L0 (ObjectMissing names a file that is gone), what the bytes answer badly is LakeFileDamaged.
Footers and row groups are plain values, kept or not by the caller; which ones hold what is asked
is decided in ``l1_merge.py``.

pyarrow is imported at the first call and not before: it costs a process 70 ms and 20 MB, which a
daemon that reads no L1 never pays. All calls block, and may be made from any thread.
"""

from __future__ import annotations

import binascii
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from compaction.l1_fetch import LakeFileDamaged, Window, fetcher
from uploader.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

    from compaction.place import Place

# What records are made of: the columns that every table has (compaction/schema.py, which imports
# pyarrow), and that stand before all others in a file.
COLUMNS = (
    "partition", "offset", "timestamp", "key", "tag", "node", "meta", "data", "data_is_base64",
)  # fmt: skip
TAIL_BYTES = 64 << 10  # the footers of all but very large files
_MAGIC = b"PAR1"
_END_BYTES = 8  # the footer's length and the magic
_UNKNOWN = 1 << 63


class RowGroup(Struct, frozen=True):
    """What a footer says of a row group. Bounds are inclusive, and wide open where the footer
    has none. ``first_byte`` and ``length`` are where its base columns lie."""

    index: int
    rows: int
    decoded_bytes: int
    first_byte: int
    length: int
    partition_min: int
    partition_max: int
    offset_min: int
    offset_max: int
    timestamp_ms_min: int
    timestamp_ms_max: int


class Footer(Struct, frozen=True):
    """A file's footer. ``metadata`` is pyarrow's, ``size_bytes`` about what that takes."""

    path: str
    groups: tuple[RowGroup, ...]
    metadata: Any
    size_bytes: int
    fetch: Callable[[int, int], bytes]


class Rows:
    """A decoded row group.

    ``offsets`` and ``timestamps_us`` are views without copies. ``stretches`` has, by partition,
    the (start, stop) of its rows, by offset.
    """

    __slots__ = (
        "_columns",
        "_is_base64",
        "offsets",
        "path",
        "size_bytes",
        "stretches",
        "timestamps_us",
    )

    def __init__(self, path: str, columns: Sequence[pa.Array]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        partition, offset, timestamp, *rest, is_base64 = columns
        self.path = path
        self.size_bytes = sum(column.nbytes for column in columns)
        self.offsets = _words(offset)
        self.timestamps_us = _words(timestamp.cast(pa.timestamp("us", tz="UTC")))
        self._columns = [None if column.null_count == len(column) else column for column in rest]
        self._is_base64 = is_base64 if pc.any(is_base64).as_py() else None
        self.stretches: dict[int, list[tuple[int, int]]] = {}
        runs = pc.run_end_encode(partition)
        start = 0
        for value, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            self.stretches.setdefault(value, []).append((start, stop))
            start = stop

    def records(self, start: int, stop: int) -> list[tuple[int, int, Record]]:
        """(offset, epoch milliseconds, record) of rows [start, stop).

        A record is what L0 gives, but that its ``ts`` is always there: L1 does not tell a
        producer's timestamp from the arrival.
        """
        count = stop - start
        key, tag, node, meta, data = (
            self._values(column, start, count) for column in self._columns
        )
        if self._is_base64 is not None:
            coded = self._is_base64.slice(start, count).to_pylist()
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
            raise LakeFileDamaged(self.path, f"text that is no UTF-8: {error}") from error
        return found

    def arrays(self, start: int, stop: int) -> list[pa.Array | None]:
        """Columns timestamp, key, tag, node, meta, data and data_is_base64 of rows [start, stop).

        None stands for a column that is null in the whole row group, or false.
        """
        import pyarrow as pa

        times = pa.py_buffer(self.timestamps_us[start:stop])
        return [
            pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), stop - start, [None, times]),
            *(
                None if column is None else column.slice(start, stop - start)
                for column in (*self._columns, self._is_base64)
            ),
        ]

    def first_since(self, start: int, stop: int, timestamp_ms: int) -> int | None:
        """The first of rows [start, stop) that is not before a time."""
        wanted = timestamp_ms * 1000
        for row, time in enumerate(self.timestamps_us[start:stop], start):
            if time >= wanted:
                return row
        return None

    def _bytes_of(self, text: str) -> bytes:
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error as error:
            raise LakeFileDamaged(self.path, f"bytes that are no base64: {error}") from error


def _words(array: pa.Array) -> memoryview:
    buffer = array.buffers()[1]
    whole = memoryview(b"" if buffer is None else buffer).cast("q")
    return whole[array.offset : array.offset + len(array)]


def read_footer(place: Place, path: str, size_bytes: int) -> Footer:
    """A file's footer. Raises StoreError, ObjectMissing, LakeFileDamaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fetch = fetcher(place, path)
    tail_bytes = min(size_bytes, TAIL_BYTES)
    tail = fetch(size_bytes - tail_bytes, tail_bytes)
    if tail[-len(_MAGIC) :] != _MAGIC:
        raise LakeFileDamaged(path, f"no Parquet footer ends at byte {size_bytes}")
    wanted = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
    if wanted > size_bytes:
        raise LakeFileDamaged(path, f"a footer of {wanted} bytes in a file of {size_bytes}")
    if wanted > tail_bytes:
        tail = fetch(size_bytes - wanted, wanted)
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        groups = _groups(metadata)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise LakeFileDamaged(path, f"its footer cannot be read: {error}") from error
    # Decoded it takes several times its length; measured 3 to 5.
    return Footer(path, groups, metadata, 5 * wanted, fetch)


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
        (partition_min, partition_max), (offset_min, offset_max), (us_min, us_max) = bounds
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
                us_min // 1000,
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


def read_rows(footer: Footer, group: RowGroup) -> Rows:
    """A row group, decoded. Raises StoreError, ObjectMissing, LakeFileDamaged."""
    data = footer.fetch(group.first_byte, group.length)
    table = _decoded(footer, group, Window(data, group.first_byte), COLUMNS)
    return Rows(footer.path, [_one_chunk(table.column(name)) for name in COLUMNS])


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _decoded(
    footer: Footer, group: RowGroup, window: Window, columns: Sequence[str] | None
) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(
            pa.PythonFile(window, mode="r"),
            metadata=footer.metadata,
            pre_buffer=False,  # all is here
            page_checksum_verification=True,
        ) as file:
            table = file.read_row_group(group.index, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise LakeFileDamaged(
            footer.path, f"its row group {group.index} cannot be decoded: {error}"
        ) from error
    if table.num_rows != group.rows:
        raise LakeFileDamaged(
            footer.path,
            f"its row group {group.index} has {table.num_rows} rows, its footer says {group.rows}",
        )
    return table


def batches(
    place: Place, path: str, size_bytes: int, partition: int, first_offset: int, last_offset: int
) -> Iterator[pa.RecordBatch]:
    """Rows of one partition with offsets [first_offset, last_offset] of one file, as it has them.

    All columns of the table, a row group at a time at most, in order of offsets. Row groups whose
    statistics say that they hold none are not fetched. Raises StoreError, ObjectMissing,
    LakeFileDamaged.
    """
    footer = read_footer(place, path, size_bytes)
    for group in footer.groups:
        if not may_hold(group, partition, first_offset, last_offset):
            continue
        first, length = _whole(footer.metadata.row_group(group.index))
        table = _decoded(footer, group, Window(footer.fetch(first, length), first), None)
        rows = Rows(path, [_one_chunk(table.column(name)) for name in COLUMNS])
        for start, stop in rows.stretches.get(partition, ()):
            low = bisect_left(rows.offsets, first_offset, start, stop)
            high = bisect_left(rows.offsets, last_offset + 1, low, stop)
            if low < high:
                yield from table.slice(low, high - low).to_batches()


def _whole(group: Any) -> tuple[int, int]:
    """(first byte, length) of all columns of a row group."""
    chunks = [group.column(column) for column in range(group.num_columns)]
    first = min(_start_of(chunk) for chunk in chunks)
    end = max(_start_of(chunk) + chunk.total_compressed_size for chunk in chunks)
    return first, end - first


def may_hold(
    group: RowGroup, partition: int, first_offset: int, last_offset: int, since_ms: int = -_UNKNOWN
) -> bool:
    """Whether statistics leave open that a row group has such a row."""
    return (
        group.partition_min <= partition <= group.partition_max
        and group.offset_max >= first_offset
        and group.offset_min <= last_offset
        and group.timestamp_ms_max >= since_ms
    )
