"""Writes the rows of a topic to Parquet files: sorted, one UTC day per file, limited in size.

Rows come in *batches*: tables sorted by (partition, offset), each of which continues the one before
it. Rows of a day go to the *open* file of that day. At most OPEN_DAYS_MAX days are open; rows of
other days are *spilled* to a local file, sorted by day, and written day by day at the end. So any
number of days needs the memory of a few.

Lifecycle of a file: it is opened with its first row group, gets row groups, is closed when it is
large enough or the rows end, and is described. It is part of the table only once its description is
committed; a file that a killed attempt left has a name of its own and belongs to no table. On a
local disk a file is durable before its description is committed, because L0 is deleted later.

Columns whose values repeat have dictionaries. ``data`` and ``meta`` have neither dictionary nor
statistics, because their values are long and differ.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from compaction.inputs.output import open_output
from compaction.inputs.place import Place
from compaction.parquet.spill import Spill
from compaction.tables.schema import RANGES_KEY, RUN_KEY, TOPIC_ID_KEY, Column, arrow_schema
from ledger.lake.types import LakeRange, NewFile
from ledger.private_files import make_file, make_folders

MIB = 1 << 20
DAY_US = 86_400_000_000

ZSTD_LEVEL = 1
FILE_BYTES_MAX = 512 * MIB
ROW_GROUP_BYTES = 16 * MIB
ROW_GROUP_ROWS = 65_536
OPEN_DAYS_MAX = 8  # on S3 each holds the parts of an upload, 10 MiB or so
PENDING_BYTES_MAX = 64 * MIB  # rows that wait for a row group, over all open days
SYNC_THREADS = 4
SYNCED_LATE_BYTES_MAX = 1 * MIB

_PLAIN = frozenset({"data", "meta", "offset", "timestamp", "data_is_base64"})
_NO_STATISTICS = frozenset({"data", "meta"})

PartitionSizes = dict[int, list[int]]
"""By partition: [rows, bytes in L0] of a batch."""


class WrittenFile(Struct, frozen=True):
    """A closed file: its description, its day (since 1970), and its Parquet footer as
    ``pyarrow.parquet.read_metadata`` reads it."""

    topic_id: int
    day: int
    file: NewFile
    footer: bytes


def day_text(day: int) -> str:
    """A day since 1970 as YYYY-MM-DD."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


class FileNames(Struct, frozen=True):
    """The names of the files of one topic and task attempt: ``<run>-<task>-<n>.parquet`` below the
    table's ``location``. ``task`` is a number of this attempt alone."""

    location: str
    topic_id: int
    run: str
    task: int

    def path(self, day: int, number: int) -> str:
        """The location of the attempt's file ``number``."""
        folder = f"{self.location}/data/timestamp_day={day_text(day)}"
        return f"{folder}/{self.run}-{self.task}-{number}.parquet"


class Syncs:
    """Makes local files durable in threads, while other work goes on: fsync waits without CPU.

    A large file is synced when it is closed; small files, and the folders that were made for files,
    at the end, because most of a sync is one write of the file system's journal for all of them.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: list[Future[None]] = []
        self._small: set[Path] = set()
        self._folders: set[Path] = set()

    def folder(self, path: Path) -> None:
        """Makes a folder and its parents; their names are synced later."""
        if path in self._folders:
            return
        missing = [each for each in (path, *path.parents) if not each.exists()]
        make_folders(path)
        self._folders.add(path)
        self._folders.update(each.parent for each in missing)

    def file(self, path: Path, size_bytes: int) -> None:
        """A closed file is to be made durable."""
        if size_bytes < SYNCED_LATE_BYTES_MAX:
            self._small.add(path)
        else:
            self._begin(path)

    def removed(self, path: Path) -> None:
        """A file is not there any more."""
        self._small.discard(path)

    def _begin(self, path: Path) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="headgate-sync")
        self._waiting.append(self._pool.submit(_sync, path))

    def wait(self) -> None:
        """Returns when all files are durable. Raises OSError."""
        try:
            for path in (*sorted(self._small), *sorted(self._folders)):
                self._begin(path)
            for each in self._waiting:
                each.result()
        finally:
            self.close()

    def close(self) -> None:
        """Ends the threads. Files may not be durable unless ``wait`` returned before."""
        self._waiting.clear()
        self._small.clear()
        self._folders.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class TopicWriter:
    """The files of one topic in one task attempt. They are durable after ``syncs.wait()``."""

    def __init__(
        self,
        place: Place,
        names: FileNames,
        syncs: Syncs,
        columns: tuple[Column, ...] = (),
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        first_number: int = 0,
    ) -> None:
        self._place = place
        self._names = names
        self._syncs = syncs
        self._schema = arrow_schema(columns)
        self._file_bytes_max = file_bytes_max
        self._next_number = first_number
        self._days: dict[int, _Day] = {}
        self._spill: Spill | None = None
        self._written: list[WrittenFile] = []

    def write(self, batch: pa.Table, sizes: PartitionSizes) -> None:
        """Appends rows, sorted by (partition, offset), whose offsets continue those before."""
        if batch.num_rows == 0:
            return
        for day, part, ranges in _by_day(batch, sizes):
            open_day = self._days.get(day)
            if open_day is None and len(self._days) >= OPEN_DAYS_MAX:
                if self._spill is None:
                    self._spill = Spill(self._schema)
                self._spill.add(day, part, ranges)
                continue
            if open_day is None:
                open_day = self._days[day] = _Day(day)
            self._append(open_day, part, ranges)
        while sum(day.pending_bytes for day in self._days.values()) > PENDING_BYTES_MAX:
            self._flush(max(self._days.values(), key=lambda day: day.pending_bytes))

    def close(self) -> list[WrittenFile]:
        """Writes what is left, and returns the descriptions of all files."""
        self._end_days()
        if self._spill is not None:
            for day, parts in self._spill.days():
                open_day = self._days[day] = _Day(day)
                for part, ranges in parts:
                    self._append(open_day, part, ranges)
                self._end_days()
            self._spill.close()
            self._spill = None
        return self._written

    def abort(self) -> None:
        """Gives up, and removes what was written if possible."""
        filesystem, _ = self._place.filesystem()
        for day in self._days.values():
            if day.file is not None:
                with suppress(OSError, pa.ArrowException):
                    day.file.close()
                self._remove(filesystem, day.file.location)
        for written in self._written:
            self._remove(filesystem, written.file.path)
        if self._spill is not None:
            self._spill.close()

    def _remove(self, filesystem: Any, location: str) -> None:
        # A file that stays is an orphan, which a collection finds.
        if location.startswith("file://"):
            self._syncs.removed(Path(self._place.path_of(location)))
        with suppress(OSError, pa.ArrowException):
            filesystem.delete_file(self._place.path_of(location))

    def _append(self, day: _Day, rows: pa.Table, ranges: Sequence[LakeRange]) -> None:
        day.pending.append(rows)
        day.pending_rows += rows.num_rows
        day.pending_bytes += rows.nbytes
        day.pending_ranges += ranges
        if day.pending_rows >= ROW_GROUP_ROWS or day.pending_bytes >= ROW_GROUP_BYTES:
            self._flush(day)

    def _flush(self, day: _Day) -> None:
        if not day.pending:
            return
        if day.file is None:
            location = self._names.path(day.day, self._next_number)
            self._next_number += 1
            day.file = _File(self._place, self._syncs, location, self._schema)
        day.file.write(pa.concat_tables(day.pending), day.pending_ranges)
        day.pending, day.pending_rows, day.pending_bytes = [], 0, 0
        day.pending_ranges = []
        if day.file.size_bytes >= self._file_bytes_max:
            self._end(day)

    def _end(self, day: _Day) -> None:
        if day.file is not None:
            file, day.file = day.file, None
            new, footer = file.finish(self._names.topic_id, self._names.run)
            self._written.append(WrittenFile(self._names.topic_id, day.day, new, footer))

    def _end_days(self) -> None:
        for day in self._days.values():
            self._flush(day)
            self._end(day)
        self._days.clear()


class _Day:
    """An open day: rows that wait for a row group, and the file once it has one."""

    def __init__(self, day: int) -> None:
        self.day = day
        self.pending: list[pa.Table] = []
        self.pending_rows = 0
        self.pending_bytes = 0
        self.pending_ranges: list[LakeRange] = []
        self.file: _File | None = None


class _File:
    """One Parquet file that is being written."""

    def __init__(self, place: Place, syncs: Syncs, location: str, schema: pa.Schema) -> None:
        self.location = location
        self._local = Path(place.path_of(location)) if location.startswith("file://") else None
        if self._local is not None:
            syncs.folder(self._local.parent)
            make_file(self._local)
        self._syncs = syncs
        self._sink = open_output(place, location)
        names = schema.names
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=[name for name in names if name not in _PLAIN],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            write_statistics=[name for name in names if name not in _NO_STATISTICS],
            store_schema=False,
            # A byte that changed in the store is detected, as in L0; costs 5 % of the writing.
            write_page_checksum=True,
        )
        self._rows = 0
        self._ranges: dict[int, LakeRange] = {}

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table, ranges: Sequence[LakeRange]) -> None:
        self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        self._rows += rows.num_rows
        for each in ranges:
            before = self._ranges.get(each.partition)
            self._ranges[each.partition] = each if before is None else _joined(before, each)

    def finish(self, topic_id: int, run: str) -> tuple[NewFile, bytes]:
        ranges = tuple(self._ranges[partition] for partition in sorted(self._ranges))
        self._writer.add_key_value_metadata(
            {
                RANGES_KEY: json.dumps([_as_list(each) for each in ranges]).encode(),
                TOPIC_ID_KEY: str(topic_id).encode(),
                RUN_KEY: run.encode(),
            }
        )
        self._writer.close()
        size_bytes = self.size_bytes
        footer = io.BytesIO()
        self._writer.writer.metadata.write_metadata_file(footer)
        self._sink.close()
        if self._local is not None:
            self._syncs.file(self._local, size_bytes)
        return NewFile(self.location, size_bytes, self._rows, ranges), footer.getvalue()

    def close(self) -> None:
        self._writer.close()
        self._sink.close()


def _as_list(each: LakeRange) -> list[int]:
    return [getattr(each, name) for name in LakeRange.__struct_fields__]


def _joined(one: LakeRange, other: LakeRange) -> LakeRange:
    return LakeRange(
        one.partition,
        min(one.first_offset, other.first_offset),
        max(one.last_offset, other.last_offset),
        one.rows + other.rows,
        one.bytes + other.bytes,
        min(one.first_timestamp_ms, other.first_timestamp_ms),
        max(one.last_timestamp_ms, other.last_timestamp_ms),
    )


def _by_day(
    batch: pa.Table, sizes: PartitionSizes
) -> Iterator[tuple[int, pa.Table, list[LakeRange]]]:
    """The rows of each day in their order, with their ranges. Bytes are divided in proportion to
    rows."""
    left = {partition: list(each) for partition, each in sizes.items()}
    times = batch.column("timestamp").cast(pa.int64())
    ends = pc.min_max(times).as_py()
    first, last = ends["min"] // DAY_US, ends["max"] // DAY_US
    if first == last:
        yield first, batch, _ranges(batch, times, left)
        return
    days = pa.array([time // DAY_US for time in times.to_pylist()], pa.int64())
    order = pc.array_sort_indices(days)  # stable
    start = 0
    for day, count in _runs(days.take(order)):
        # Taken, not sliced: a slice that waits for its row group would keep the whole batch.
        chosen = order.slice(start, count)
        part = batch.take(chosen)
        yield day, part, _ranges(part, times.take(chosen), left)
        start += count


def _runs(values: pa.Array) -> list[tuple[int, int]]:
    """(value, length) of each run of equal values."""
    encoded = pc.run_end_encode(values)
    ends = encoded.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    return [
        (value, end - start)
        for value, start, end in zip(encoded.values.to_pylist(), starts, ends, strict=True)
    ]


def _ranges(rows: pa.Table, times: pa.ChunkedArray, left: PartitionSizes) -> list[LakeRange]:
    found = []
    offsets = rows.column("offset")
    start = 0
    for partition, count in _runs(rows.column("partition").combine_chunks()):
        ends = pc.min_max(times.slice(start, count)).as_py()
        rows_left, bytes_left = left[partition]
        size = bytes_left * count // rows_left
        left[partition] = [rows_left - count, bytes_left - size]
        found.append(
            LakeRange(
                partition,
                offsets[start].as_py(),
                offsets[start + count - 1].as_py(),
                count,
                size,
                ends["min"] // 1000,
                ends["max"] // 1000,
            )
        )
        start += count
    return found
