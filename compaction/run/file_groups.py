"""Writes one file group: extents of a topic, and the rows of small files that join them.

A *file group* is what one task writes together, of one topic, sorted by (partition, offset). Its
extents may come in any order. A small file that *joins* is read whole before the first row is
written. If it cannot be read, it stays in the table, the reason is reported, and the group is
written without it. An extent that cannot be decoded is a hole.

Without extents files are only *merged*: read side by side, a row group of each in memory
(``merging.py``), so they may be large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
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
from compaction.run.merging import FileUnreadable, TableFile, merge_files
from compaction.tables.schema import Column, arrow_schema
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
    zstd_level: int,
    file_bytes_max: int,
) -> FileGroupResult:
    """Writes the files of a group. Empties ``extents`` on the way, to free their memory.

    ``task`` is a number of this task attempt alone, ``first_number`` that of its next file. Raises
    OSError or errors of pyarrow if the lake cannot be written; files that were written are then
    removed if possible. The files are durable after ``syncs.wait()``.
    """
    result = FileGroupResult([], [], [], [], [])
    names = FileNames(topic.location, topic.topic_id, run, task)
    writer = TopicWriter(
        place,
        names,
        syncs,
        topic.columns,
        zstd_level=zstd_level,
        file_bytes_max=file_bytes_max,
        first_number=first_number,
    )
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
    schema = arrow_schema(topic.columns)
    tables = []
    sizes: PartitionSizes = {}
    for each in joining:
        try:
            tables.append(TableFile(place, each, schema).all())
        except (OSError, ValueError, pa.ArrowException) as error:
            result.kept.append((each.path, f"{type(error).__name__}: {error}"))
            continue
        result.joined.append(each.path)
        for part in each.ranges:
            size = sizes.setdefault(part.partition, [0, 0])
            size[0] += part.rows
            size[1] += part.bytes
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
