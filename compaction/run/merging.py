"""Reads files of a table that are written again: whole, or side by side in their order.

Files that are merged are sorted by (partition, offset) and may interleave. Of each file one row
group is in memory. Rows up to the smallest last place of these row groups can be written: no file
has earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.inputs.place import Place
from compaction.parquet.writer import PartitionSizes, TopicWriter
from compaction.tables.schema import arrow_schema, field_ids_of

if TYPE_CHECKING:
    from compaction.run.file_groups import FileGroupResult, JoiningFile, TopicWork

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
    schema = arrow_schema(topic.columns)
    files = []
    left: PartitionSizes = {}
    for each in joining:
        try:
            files.append(TableFile(place, each, schema))
        except (OSError, ValueError, pa.ArrowException) as error:
            result.kept.append((each.path, f"{type(error).__name__}: {error}"))
            continue
        result.joined.append(each.path)
        for part in each.ranges:
            size = left.setdefault(part.partition, [0, 0])
            size[0] += part.rows
            size[1] += part.bytes
    for rows in _in_order(files):
        writer.write(rows, _taken(rows, left))


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
