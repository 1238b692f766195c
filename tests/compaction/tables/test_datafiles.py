"""What a manifest says of a file is what the file holds."""

from __future__ import annotations

import io
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata

from compaction.tables.datafiles import DataFiles, ranges_of
from compaction.tables.schema import RANGES_KEY, TIMESTAMP_MS_MIN, arrow_schema, typed_columns
from compaction.tables.table_state import new_schema, partition_spec, sort_order, wanted_columns
from ledger.lake.types import NewFile
from uploader.l0.records import TIMESTAMP_MS_MAX

COLUMNS = typed_columns({"price": "double"}, {"price": 10})
DAY_US = 86_400_000_000


def metadata() -> TableMetadata:
    schema: Schema = new_schema(wanted_columns("t", {"price": "double"}))
    return new_table_metadata(schema, partition_spec(), sort_order(), "file:///t", {})


def footer_of(
    rows: list[dict[str, Any]], row_group_rows: int = 1000, statistics: bool = True
) -> tuple[NewFile, bytes]:
    schema = arrow_schema(COLUMNS)
    base = {"partition": 0, "offset": 1, "timestamp": 0, "data": "{}", "data_is_base64": False}
    filled = [{**base, **row} for row in rows]
    table = pa.table(
        [pa.array([row.get(f.name) for row in filled], f.type) for f in schema], schema=schema
    )
    written: list[Any] = []
    pq.write_table(
        table, io.BytesIO(), row_group_size=row_group_rows, metadata_collector=written,
        write_statistics=statistics,
    )  # fmt: skip
    footer = io.BytesIO()
    written[0].write_metadata_file(footer)
    return NewFile("file:///t/data/x.parquet", 123, len(rows), ()), footer.getvalue()


offsets = st.integers(min_value=1, max_value=2**62)
times = st.integers(1000 * TIMESTAMP_MS_MIN, 1000 * TIMESTAMP_MS_MAX)  # the years 1 to 9999
rows_of_a_day = st.tuples(times, st.lists(
    st.tuples(offsets, st.integers(min_value=0, max_value=DAY_US - 1),
              st.none() | st.text(max_size=20),
              st.none() | st.floats(allow_nan=True, allow_infinity=True)),
    min_size=1, max_size=20))  # fmt: skip


@given(rows_of_a_day, st.integers(min_value=1, max_value=7))
def test_bounds_and_counts_hold_for_any_rows(
    day_and_rows: tuple[int, list[tuple[int, int, str | None, float | None]]], group: int
) -> None:
    day = day_and_rows[0] // DAY_US
    rows: list[dict[str, Any]] = [
        {"offset": o, "timestamp": day * DAY_US + t, "key": key, "price": price}
        for o, t, key, price in day_and_rows[1]
    ]
    file = DataFiles(metadata(), 1).of(*footer_of(rows, group))
    assert file.partition[0] == day and file.record_count == len(rows)
    assert file.value_counts[2] == len(rows)
    low, high = (struct.unpack("<q", b[2])[0] for b in (file.lower_bounds, file.upper_bounds))
    assert (low, high) == (min(r["offset"] for r in rows), max(r["offset"] for r in rows))
    stamps = [row["timestamp"] for row in rows]
    assert struct.unpack("<q", file.lower_bounds[3])[0] == min(stamps)
    assert struct.unpack("<q", file.upper_bounds[3])[0] == max(stamps)
    keys = [row["key"].encode() for row in rows if row["key"] is not None]
    assert file.null_value_counts[4] == len(rows) - len(keys)
    for key in keys:
        if 4 in file.lower_bounds:
            assert file.lower_bounds[4] <= key
        if 4 in file.upper_bounds:
            assert key <= file.upper_bounds[4]
    for row in rows:
        price = row["price"]
        if price is not None and price == price and 10 in file.lower_bounds:
            lower, upper = (struct.unpack("<d", b[10])[0]
                            for b in (file.lower_bounds, file.upper_bounds))  # fmt: skip
            assert lower <= price <= upper


@pytest.mark.parametrize("time_ms", [TIMESTAMP_MS_MIN - 1, TIMESTAMP_MS_MAX + 1])
def test_times_that_engines_cannot_read_are_never_committed(time_ms: int) -> None:
    file, footer = footer_of([{"timestamp": time_ms * 1000}])
    with pytest.raises(OverflowError, match="out of range"):
        DataFiles(metadata(), 1).of(file, footer)


@pytest.mark.parametrize("long_key", ["z" * 5000, "\x00" * 5000])
def test_a_key_too_long_for_statistics_leaves_its_column_without_bounds(long_key: str) -> None:
    """Parquet writers omit bounds of more than 4 KiB, for one row group alone."""
    for rows in ([{"key": "b"}, {"key": long_key}], [{"key": long_key}, {"key": "b"}]):
        file = DataFiles(metadata(), 1).of(*footer_of(rows, 1))
        assert 4 not in file.lower_bounds and 4 not in file.upper_bounds
        assert file.null_value_counts[4] == 0 and 2 in file.lower_bounds


def test_a_row_group_of_nulls_does_not_cost_a_column_its_bounds() -> None:
    file = DataFiles(metadata(), 1).of(*footer_of([{"key": None}, {"key": "b"}], 1))
    assert (file.lower_bounds[4], file.upper_bounds[4]) == (b"b", b"b")


def test_a_row_group_of_nan_alone_leaves_its_column_without_bounds() -> None:
    file = DataFiles(metadata(), 1).of(*footer_of([{"price": float("nan")}, {"price": 1.5}], 1))
    assert 10 not in file.lower_bounds and 10 not in file.upper_bounds


def test_row_groups_begin_where_the_file_says() -> None:
    file = DataFiles(metadata(), 1).of(*footer_of([{"offset": n} for n in range(1, 31)], 10))
    starts = file.split_offsets or []
    assert len(starts) == 3 and starts[0] == 4 and starts == sorted(starts)


def test_a_file_of_two_days_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one partition value"):
        DataFiles(metadata(), 1).of(*footer_of([{"timestamp": 0}, {"timestamp": DAY_US}]))


def test_a_file_without_bounds_of_its_times_is_refused() -> None:
    with pytest.raises(ValueError, match="no bounds"):
        DataFiles(metadata(), 1).of(*footer_of([{}], statistics=False))


def test_a_footer_of_another_file_is_refused() -> None:
    file, footer = footer_of([{}, {}])
    with pytest.raises(ValueError, match="has 3 rows, its footer 2"):
        DataFiles(metadata(), 1).of(NewFile(file.path, 1, 3, ()), footer)


def test_a_column_that_the_table_has_not_is_refused() -> None:
    narrow = new_table_metadata(new_schema(()), partition_spec(), sort_order(), "file:///t", {})
    with pytest.raises(ValueError, match="field id 10"):
        DataFiles(narrow, 1).of(*footer_of([{}]))


def test_a_file_that_no_run_wrote_has_no_ranges() -> None:
    written: list[Any] = []
    pq.write_table(pa.table({"x": [1]}), io.BytesIO(), metadata_collector=written)
    assert ranges_of(written[0]) is None
    ours = pa.table({"x": [1]}).replace_schema_metadata({RANGES_KEY: b"[[0,1,5,5,50,7,8]]"})
    pq.write_table(ours, io.BytesIO(), metadata_collector=written)
    found = ranges_of(written[1])
    assert found is not None and (found[0].first_offset, found[0].last_timestamp_ms) == (1, 8)
