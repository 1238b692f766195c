"""Writes one file group: extents of a topic, and the rows of small files that join them.

A *file group* is what one task writes together, of one topic, sorted by (partition, offset). Its
extents may come in any order. A small file that *joins* is read whole before the first row is
written. If it cannot be read, it stays in the table, the reason is reported, and the group is
written without it. An extent that cannot be decoded is a hole.

Without extents files are only *merged*: they are sorted by (partition, offset) and may interleave,
and are read side by side, a row group of each in memory, so they may be large. Rows up to the
smallest last place of these row groups can be written: no file has earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from compaction.inputs.objects import ExtentBytes
from compaction.inputs.place import Place
from compaction.parquet.row_builder import RowBuilder, TimesSetAside
from compaction.parquet.writer import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    FileNames,
    PartitionSizes,
    Syncs,
    TopicWriter,
    WrittenFile,
)
from compaction.tables.schema import Column, arrow_schema, field_ids_of
from ledger.lake.types import Hole, LakeRange
from uploader.l0 import L0Error


class JoiningFile(Struct, frozen=True):
    """A small file of the table whose rows are written again. ``path`` is its location."""

    path: str
    size_bytes: int
    ranges: tuple[LakeRange, ...]

    @property
    def l0_bytes(self) -> int:
        """The bytes of its rows in L0, about what they take in memory."""
        return sum(each.bytes for each in self.ranges)


class TopicWork(Struct, frozen=True):
    """A topic to compact: the ``location`` of its table, without a slash at the end, the typed
    columns, the files that join, and sets of files that are merged into one each."""

    topic_id: int
    location: str
    columns: tuple[Column, ...] = ()
    joining: tuple[JoiningFile, ...] = ()
    merged: tuple[tuple[JoiningFile, ...], ...] = ()

    @property
    def rewritten(self) -> tuple[JoiningFile, ...]:
        """All files whose rows are written again."""
        return (*self.joining, *(file for some in self.merged for file in some))


class FileGroupResult(NamedTuple):
    """What was written of a group, and what could not be read."""

    files: list[WrittenFile]
    holes: list[Hole]
    joined: list[str]
    kept: list[tuple[str, str]]
    """Files that could not be read, with the reason. They stay as they are."""
    set_aside: list[TimesSetAside]


def write_file_group(
    place: Place,
    syncs: Syncs,
    topic: TopicWork,
    extents: list[ExtentBytes],
    joining: Sequence[JoiningFile],
    run: str,
    task: int,
    first_number: int,
) -> FileGroupResult:
    """Writes the files of a group. Empties ``extents`` on the way, to free their memory.

    ``task`` is a number of this task attempt alone, ``first_number`` that of its next file. Raises
    OSError or errors of pyarrow if the lake cannot be written; files that were written are then
    removed if possible. The files are durable after ``syncs.wait()``.
    """
    result = FileGroupResult([], [], [], [], [])
    names = FileNames(topic.location, topic.topic_id, run, task)
    writer = TopicWriter(place, names, syncs, topic.columns, first_number=first_number)
    try:
        if joining and not extents:
            merge_files(place, writer, topic, joining, result)
        else:
            _write_all(writer, topic, extents, _old_rows(place, topic, joining, result), result)
        result.files.extend(writer.close())
    except FileUnreadable as error:
        writer.abort()
        return FileGroupResult([], [], [], [(each.path, str(error)) for each in joining], [])
    except BaseException:
        writer.abort()
        raise
    return result


class _Old(NamedTuple):
    rows: pa.Table | None
    sizes: PartitionSizes
    partitions: dict[int, tuple[int, int]]  # partition: (first row, rows)


def _write_all(
    writer: TopicWriter,
    topic: TopicWork,
    extents: list[ExtentBytes],
    old: _Old,
    result: FileGroupResult,
) -> None:
    extents.sort(key=lambda extent: (extent.partition, extent.first_offset), reverse=True)
    builder = RowBuilder(topic.columns)
    for partition in sorted(old.partitions):
        while extents and extents[-1].partition < partition:
            _add(builder, extents.pop(), topic, result)
            _write_full(writer, builder)
        start, count = old.partitions[partition]
        assert old.rows is not None
        rows = old.rows.slice(start, count)
        last_old = rows.column("offset")[count - 1].as_py()
        sizes = {partition: old.sizes[partition]}
        overlap = bool(
            extents and extents[-1].partition == partition and extents[-1].first_offset <= last_old
        )
        writer.write(*builder.take())
        if not overlap:
            writer.write(rows, sizes)
            continue
        # An earlier run wrote rows after a hole that is filled now: sort both, in memory.
        while extents and extents[-1].partition == partition:
            _add(builder, extents.pop(), topic, result)
        new, new_sizes = builder.take()
        both = pa.concat_tables([rows, new]).sort_by("offset")
        ours, theirs = sizes[partition], new_sizes.get(partition, [0, 0])
        writer.write(both, {partition: [ours[0] + theirs[0], ours[1] + theirs[1]]})
    while extents:
        _add(builder, extents.pop(), topic, result)
        _write_full(writer, builder)
    writer.write(*builder.take())
    result.set_aside.extend(builder.set_aside())


def _write_full(writer: TopicWriter, builder: RowBuilder) -> None:
    if builder.bytes >= ROW_GROUP_BYTES or builder.rows >= ROW_GROUP_ROWS:
        writer.write(*builder.take())


def _add(
    builder: RowBuilder, extent: ExtentBytes, topic: TopicWork, result: FileGroupResult
) -> None:
    try:
        builder.add(extent)
    except L0Error as error:
        result.holes.append(
            Hole(
                topic.topic_id,
                extent.partition,
                extent.first_offset,
                extent.last_offset,
                extent.key,
                f"damaged: {error}",
            )
        )


def _old_rows(
    place: Place, topic: TopicWork, joining: Sequence[JoiningFile], result: FileGroupResult
) -> _Old:
    tables, sizes = _those_that_can_be_read(place, topic, joining, result, TableFile.all)
    if not tables:
        return _Old(None, {}, {})
    rows = pa.concat_tables(tables).sort_by([("partition", "ascending"), ("offset", "ascending")])
    counts = pc.value_counts(rows.column("partition")).to_pylist()
    partitions = {}
    start = 0
    for partition, count in sorted((each["values"], each["counts"]) for each in counts):
        partitions[partition] = (start, count)
        start += count
    return _Old(rows, sizes, partitions)


Found = TypeVar("Found")
_ORDER = [("partition", "ascending"), ("offset", "ascending")]


class FileUnreadable(Exception):
    """A file that could be opened and not be read to its end."""


class TableFile:
    """A file of the table, read in the table's columns."""

    def __init__(self, place: Place, file: JoiningFile, schema: pa.Schema) -> None:
        """Raises ValueError if the file does not fit the table or the ledger, OSError,
        pa.ArrowException."""
        filesystem, _ = place.filesystem()
        self._schema = schema
        self._path = file.path
        self._file = pq.ParquetFile(
            place.path_of(file.path), filesystem=filesystem, page_checksum_verification=True
        )
        self._left = list(range(self._file.num_row_groups))[::-1]
        found, wanted = self._file.metadata.num_rows, sum(each.rows for each in file.ranges)
        if found != wanted:
            raise ValueError(f"it has {found} rows, the ledger says {wanted}")
        missing = set(field_ids_of(self._file.schema_arrow)) - set(field_ids_of(schema))
        if missing:
            raise ValueError(
                f"it has columns that the table does not have, with the field ids {missing}"
            )

    def all(self) -> pa.Table:
        """All rows."""
        return self._in_columns(self._file.read())

    def next(self) -> pa.Table | None:
        """The rows of the next row group that has some; None after the last. Raises
        FileUnreadable."""
        while self._left:
            try:
                rows = self._in_columns(self._file.read_row_group(self._left.pop()))
            except (OSError, ValueError, pa.ArrowException) as error:
                raise FileUnreadable(f"{self._path}: {type(error).__name__}: {error}") from error
            if rows.num_rows:
                return rows
        return None

    def _in_columns(self, table: pa.Table) -> pa.Table:
        by_id = dict(zip(field_ids_of(table.schema), table.columns, strict=True))
        arrays = [
            by_id[field_id].cast(field.type)
            if field_id in by_id
            else pa.nulls(table.num_rows, field.type)
            for field_id, field in zip(field_ids_of(self._schema), self._schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def merge_files(
    place: Place,
    writer: TopicWriter,
    topic: TopicWork,
    joining: Sequence[JoiningFile],
    result: FileGroupResult,
) -> None:
    """Writes the rows of files in one order. A file that cannot be opened stays as it is. Raises
    FileUnreadable: then all have to stay."""
    files, left = _those_that_can_be_read(place, topic, joining, result, lambda file: file)
    for rows in _in_order(files):
        writer.write(rows, _taken(rows, left))


def _those_that_can_be_read(
    place: Place,
    topic: TopicWork,
    joining: Sequence[JoiningFile],
    result: FileGroupResult,
    read: Callable[[TableFile], Found],
) -> tuple[list[Found], PartitionSizes]:
    """What is read of each file, and the sizes of their partitions together. Others stay."""
    schema = arrow_schema(topic.columns)
    found: list[Found] = []
    sizes: PartitionSizes = {}
    for each in joining:
        try:
            found.append(read(TableFile(place, each, schema)))
        except (OSError, ValueError, pa.ArrowException) as error:
            result.kept.append((each.path, f"{type(error).__name__}: {error}"))
            continue
        result.joined.append(each.path)
        for part in each.ranges:
            size = sizes.setdefault(part.partition, [0, 0])
            size[0] += part.rows
            size[1] += part.bytes
    return found, sizes


def _in_order(files: Sequence[TableFile]) -> Iterator[pa.Table]:
    heads = [(file, rows) for file in files if (rows := file.next()) is not None]
    while heads:
        bound = min(_place(rows, rows.num_rows - 1) for _, rows in heads)
        parts, left = [], []
        for file, rows in heads:
            count = _count_up_to(rows, bound)
            if count:
                parts.append(rows.slice(0, count))
            rest = rows.slice(count) if count < rows.num_rows else file.next()
            if rest is not None:
                left.append((file, rest))
        heads = left
        yield parts[0] if len(parts) == 1 else pa.concat_tables(parts).sort_by(_ORDER)


def _place(rows: pa.Table, at: int) -> tuple[int, int]:
    return rows.column("partition")[at].as_py(), rows.column("offset")[at].as_py()


def _count_up_to(rows: pa.Table, bound: tuple[int, int]) -> int:
    if _place(rows, 0) > bound:
        return 0
    partition, offset = rows.column("partition"), rows.column("offset")
    same = pc.and_(pc.equal(partition, bound[0]), pc.less_equal(offset, bound[1]))
    return int(pc.sum(pc.or_(pc.less(partition, bound[0]), same)).as_py())


def _taken(rows: pa.Table, left: PartitionSizes) -> PartitionSizes:
    """The rows of each partition, with their share of what is left of its bytes."""
    taken: PartitionSizes = {}
    for each in pc.value_counts(rows.column("partition")).to_pylist():
        of_partition = left[each["values"]]
        count = each["counts"]
        size = of_partition[1] * count // of_partition[0]
        taken[each["values"]] = [count, size]
        of_partition[0] -= count
        of_partition[1] -= size
    return taken
