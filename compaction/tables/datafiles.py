"""What an Iceberg manifest says of a data file, from the Parquet footer of that file.

The task that wrote a file sends its footer along (``FileMetaData.write_metadata_file``, a Parquet
file without rows), so no file is read again to be committed. Counts, sizes, bounds, and the day are
pyiceberg's, except that a column has no bounds if one of its row groups has none: Parquet writers
omit bounds of more than 4 KiB, and pyiceberg then gives those of the other row groups
(docs/decisions/0008-compaction.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from compaction.tables.schema import RANGES_KEY, field_ids_of
from compaction.tables.table_state import METRICS
from ledger.lake.types import LakeRange, NewFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

_ranges_decoder = msgspec.json.Decoder(tuple[LakeRange, ...])


class DataFiles:
    """Makes data files of one table."""

    def __init__(self, metadata: TableMetadata, sort_order_id: int | None) -> None:
        from pyiceberg.io.pyarrow import compute_statistics_plan

        self._spec = metadata.spec()
        self._schema = metadata.schema()
        self._columns = compute_statistics_plan(self._schema, METRICS)
        self._sort_order_id = sort_order_id

    def of(self, file: NewFile, footer: bytes) -> DataFile:
        """The data file. Raises ValueError or ArithmeticError for a footer that is not the file's,
        and for a file that does not fit the table."""
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

        parquet = pq.read_metadata(pa.BufferReader(footer))
        if parquet.num_rows != file.rows or not file.rows:
            raise ValueError(f"{file.path} has {file.rows} rows, its footer {parquet.num_rows}")
        field_ids = self._field_ids(parquet, file.path)
        statistics = data_file_statistics_from_parquet_metadata(parquet, self._columns, field_ids)
        for name in _unbounded(parquet):
            statistics.column_aggregates.pop(field_ids[name], None)
        partition = statistics.partition(self._spec, self._schema)
        if partition[0] is None:
            raise ValueError(f"{file.path} has no bounds of its timestamps")
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=file.size_bytes,
            sort_order_id=self._sort_order_id,
            spec_id=self._spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _field_ids(self, parquet: Any, path: str) -> dict[str, int]:
        """The table's field ids of the file's columns, by name."""
        schema = parquet.schema.to_arrow_schema()
        found: dict[str, int] = {}
        for name, field_id in zip(schema.names, field_ids_of(schema), strict=True):
            if field_id is None or field_id not in self._columns:
                raise ValueError(
                    f"{path} has the column {name!r} with the field id {field_id}, which its table"
                    " does not have"
                )
            found[name] = field_id
        return found


def _unbounded(parquet: Any) -> set[str]:
    """Columns with a row group that has values and no bounds of them."""
    found = set()
    for number in range(parquet.num_row_groups):
        group = parquet.row_group(number)
        for position in range(parquet.num_columns):
            chunk = group.column(position)
            statistics = chunk.statistics
            if statistics is None or statistics.has_min_max:
                continue  # a column without statistics has no bounds anyway
            if statistics.null_count != chunk.num_values:
                found.add(chunk.path_in_schema)
    return found


def ranges_of(footer: Any) -> tuple[LakeRange, ...] | None:
    """What a file holds, by its own metadata; None for a file that a run did not write."""
    found = (footer.metadata or {}).get(RANGES_KEY)
    return None if found is None else _ranges_decoder.decode(found)
