"""From a Parquet file's footer to what an Iceberg manifest says of the file.

A footer is what ``FileMetaData.write_metadata_file`` makes: a Parquet file without rows. The task
that wrote a file sends it along, so no file is read again to be committed. Bounds are those of the
row groups: exact for numbers and times, cut to 16 characters for texts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from compaction.schema import RANGES_KEY
from ledger.lake_types import LakeRange, NewFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

_DAY_S = 86_400
_TIMESTAMP = 2  # position of the column

_ranges_decoder = msgspec.json.Decoder(tuple[LakeRange, ...])


class DataFiles:
    """Makes data files of one table; what depends on the table alone is worked out once."""

    def __init__(self, metadata: TableMetadata, sort_order_id: int | None) -> None:
        from pyiceberg.io.pyarrow import compute_statistics_plan, parquet_path_to_id_mapping

        schema = metadata.schema()
        self._spec_id = metadata.default_spec_id
        self._sort_order_id = sort_order_id
        self._plan = compute_statistics_plan(schema, metadata.properties)
        self._ids = parquet_path_to_id_mapping(schema)

    def of(self, file: NewFile, footer: bytes) -> DataFile:
        """The data file. Raises ValueError for a footer that is not the file's."""
        from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        parquet = pq.read_metadata(pa.BufferReader(footer))
        if parquet.num_rows != file.rows or not file.rows:
            raise ValueError(f"{file.path} has {file.rows} rows, its footer {parquet.num_rows}")
        statistics = data_file_statistics_from_parquet_metadata(parquet, self._plan, self._ids)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(_day_of(parquet, file.path)),
            file_size_in_bytes=file.size_bytes,
            sort_order_id=self._sort_order_id,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def ranges_of(footer: Any) -> tuple[LakeRange, ...] | None:
    """What a file says it holds, from its metadata; None for a file that is not ours."""
    found = (footer.metadata or {}).get(RANGES_KEY)
    return None if found is None else _ranges_decoder.decode(found)


def _day_of(parquet: Any, path: str) -> int:
    days = set()
    for group in range(parquet.num_row_groups):
        statistics = parquet.row_group(group).column(_TIMESTAMP).statistics
        if statistics is None or not statistics.has_min_max:
            raise ValueError(f"{path} has no bounds of its timestamps")
        days |= {_day(statistics.min), _day(statistics.max)}
    if len(days) != 1:
        raise ValueError(f"{path} has rows of {len(days)} days; a file holds one")
    return int(days.pop())


def _day(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() // _DAY_S)
