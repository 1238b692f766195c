"""From a Parquet file's footer to what an Iceberg manifest says of the file.

A footer is what ``FileMetaData.write_metadata_file`` makes: a Parquet file without rows. The task
that wrote a file sends it along, so no file is read again to be committed. Bounds are those of the
row groups, by field id: exact for numbers and times, for texts cut to TEXT_BOUND characters. A
column without statistics (``data``, ``meta``) has none. pyiceberg's own helper goes through
Python's datetimes, a value at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from compaction.tables.schema import RANGES_KEY, TIMESTAMP_MS_MIN, field_ids_of
from ledger.lake.types import LakeRange, NewFile
from uploader.l0.records import TIMESTAMP_MS_MAX

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

TEXT_BOUND = 16  # Iceberg's default, truncate(16)
_DAY_US = 86_400_000_000
_TIMESTAMP = 3  # field id

_ranges_decoder = msgspec.json.Decoder(tuple[LakeRange, ...])


class _Column:
    """What the row groups so far say of a column."""

    def __init__(self) -> None:
        self.bytes = self.values = self.nulls = 0
        self.counted = self.bounded = True
        self.low: Any = None
        self.high: Any = None

    def add(self, chunk: Any) -> None:
        self.bytes += chunk.total_compressed_size
        self.values += chunk.num_values
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            self.counted = self.bounded = False
            return
        self.nulls += statistics.null_count
        if not statistics.has_min_max:
            # All null is as good as bounded; a chunk of NaNs is not.
            self.bounded = self.bounded and statistics.null_count == chunk.num_values
            return
        text = chunk.physical_type == "BYTE_ARRAY"
        low = statistics.min if text else statistics.min_raw
        high = statistics.max if text else statistics.max_raw
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


class DataFiles:
    """Makes data files of one table."""

    def __init__(self, metadata: TableMetadata, sort_order_id: int | None) -> None:
        from pyiceberg.types import PrimitiveType

        self._types = {
            field.field_id: field.field_type
            for field in metadata.schema().fields
            if isinstance(field.field_type, PrimitiveType)
        }
        self._spec_id = metadata.default_spec_id
        self._sort_order_id = sort_order_id

    def of(self, file: NewFile, footer: bytes) -> DataFile:
        """The data file. Raises ValueError for a footer that is not the file's."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        parquet = pq.read_metadata(pa.BufferReader(footer))
        if parquet.num_rows != file.rows or not file.rows:
            raise ValueError(f"{file.path} has {file.rows} rows, its footer {parquet.num_rows}")
        columns, starts = self._columns(parquet, file.path)
        lower, upper = self._bounds(columns)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(_day_of(columns, file.path)),
            record_count=parquet.num_rows,
            file_size_in_bytes=file.size_bytes,
            column_sizes={i: column.bytes for i, column in columns.items()},
            value_counts={i: column.values for i, column in columns.items()},
            null_value_counts={i: c.nulls for i, c in columns.items() if c.counted},
            nan_value_counts={},
            lower_bounds=lower,
            upper_bounds=upper,
            split_offsets=starts,
            sort_order_id=self._sort_order_id,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
        )

    def _columns(self, parquet: Any, path: str) -> tuple[dict[int, _Column], list[int]]:
        ids = field_ids_of(parquet.schema.to_arrow_schema())
        columns: dict[int, _Column] = {}
        for field_id in ids:
            if field_id is None or field_id not in self._types:
                raise ValueError(f"{path} has a column with the field id {field_id}, its table not")
            columns[field_id] = _Column()
        starts = []
        for number in range(parquet.num_row_groups):
            group = parquet.row_group(number)
            first = group.column(0)
            dictionary = first.dictionary_page_offset if first.has_dictionary_page else None
            starts.append(first.data_page_offset if dictionary is None else dictionary)
            for position, column in enumerate(columns.values()):
                column.add(group.column(position))
        return columns, sorted(starts)

    def _bounds(self, columns: dict[int, _Column]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.utils.truncate import truncate_upper_bound_text_string

        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for field_id, column in columns.items():
            if not column.bounded or column.low is None:
                continue
            kind, low, high = self._types[field_id], column.low, column.high
            if isinstance(low, str):
                low = low[:TEXT_BOUND]
                high = truncate_upper_bound_text_string(high, TEXT_BOUND)
            lower[field_id] = to_bytes(kind, low)
            if high is not None:
                upper[field_id] = to_bytes(kind, high)
        return lower, upper


def ranges_of(footer: Any) -> tuple[LakeRange, ...] | None:
    """What a file says it holds, from its metadata; None for a file that is not ours."""
    found = (footer.metadata or {}).get(RANGES_KEY)
    return None if found is None else _ranges_decoder.decode(found)


def _day_of(columns: dict[int, _Column], path: str) -> int:
    times = columns.get(_TIMESTAMP)
    if times is None or not times.bounded or times.low is None:
        raise ValueError(f"{path} has no bounds of its timestamps")
    day = times.low // _DAY_US
    if times.high // _DAY_US != day:
        raise ValueError(f"{path} has rows of several days; a file holds one")
    if not TIMESTAMP_MS_MIN <= times.low // 1000 <= times.high // 1000 <= TIMESTAMP_MS_MAX:
        raise ValueError(f"{path} has times outside the years 1 to 9999: {times.high // 1000} ms")
    return int(day)
