"""Rows for Spark: the columns of Spark's Kafka source, as Arrow batches.

``key`` and ``value`` are bytes: ``value`` is the record's JSON text as it was received, or its
bytes. ``headers`` are those of ``tag``, ``node``, and ``meta`` that the record has, in this order,
or null.

Rows come from L0 (a table of ``parquet/row_builder.py``), from L1 (arrays of a row group), or from
``diff``. Spark gets the same from each.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from compaction.parquet.merge import RowRange
from compaction.tables.schema import TIMESTAMP

DDL = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
HEADER_NAMES = ("tag", "node", "meta")


class DiffRow(NamedTuple):
    """A record of an answer of ``diff``."""

    offset: int
    ts_ms: int
    key: str | None
    value: bytes
    headers: list[tuple[str, str]]


def of_table(topic: str, rows: pa.Table) -> pa.RecordBatch:
    """Rows of one topic from L0, as ``RowBuilder`` makes them."""
    columns = {name: _one(rows.column(name)) for name in rows.column_names}
    coded = columns["data_is_base64"]
    return _batch(
        topic, columns["partition"], columns["offset"], columns["timestamp"], columns["key"],
        columns["data"], coded if pc.any(coded).as_py() else None,
        [columns[name] for name in HEADER_NAMES],
    )  # fmt: skip


def of_row_range(topic: str, partition: int, span: RowRange) -> pa.RecordBatch:
    """Rows of one partition from L1."""
    count = span.stop - span.start
    timestamp, key, tag, node, meta, data, coded = span.rows.arrays(span.start, span.stop)
    offsets = pa.py_buffer(span.rows.offsets[span.start : span.stop])
    return _batch(
        topic, pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.Array.from_buffers(pa.int64(), count, [None, offsets]), timestamp, key, data, coded,
        [tag, node, meta],
    )  # fmt: skip


def of_diff(topic: str, partition: int, rows: Sequence[DiffRow]) -> pa.RecordBatch:
    """Records from an answer of ``diff``."""
    count = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(topic, count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array([row.offset for row in rows], pa.int64()),
            pa.array([row.ts_ms * 1000 for row in rows], pa.int64()).cast(TIMESTAMP),
            pa.array([row.key for row in rows], pa.binary()),
            pa.array([row.value for row in rows], pa.binary()),
            _headers(row.headers for row in rows),
        ],
        schema=SCHEMA,
    )


def _batch(
    topic: str,
    partition: pa.Array,
    offset: pa.Array,
    timestamp: pa.Array | None,
    key: pa.Array | None,
    data: pa.Array | None,
    coded: pa.Array | None,
    headers: Sequence[pa.Array | None],
) -> pa.RecordBatch:
    count = len(offset)
    if data is None:
        raise ValueError("a column data without any value")
    value = data.cast(pa.binary())
    if coded is not None:
        value = pa.array(
            [
                binascii.a2b_base64(each) if is_bytes else each
                for each, is_bytes in zip(value.to_pylist(), coded.to_pylist(), strict=True)
            ],
            pa.binary(),
        )
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(topic, count),
            partition,
            offset,
            timestamp,
            pa.nulls(count, pa.binary()) if key is None else key.cast(pa.binary()),
            value,
            _headers_of(headers, count),
        ],
        schema=SCHEMA,
    )


def _headers_of(columns: Sequence[pa.Array | None], count: int) -> pa.Array:
    present = [
        (name, column.to_pylist())
        for name, column in zip(HEADER_NAMES, columns, strict=True)
        if column is not None and column.null_count < count
    ]
    if not present:
        return pa.nulls(count, HEADERS)
    return _headers(
        [(name, value) for (name, _), value in zip(present, row, strict=True) if value is not None]
        for row in zip(*(values for _, values in present), strict=True)
    )


def _headers(rows: Iterable[list[tuple[str, str]]]) -> pa.Array:
    """Null for a row without headers."""
    lengths, names, values = [0], [], []
    is_null = []
    for row in rows:
        for name, value in row:
            names.append(name)
            values.append(value)
        lengths.append(len(names))
        is_null.append(not row)
    inner = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(HEADER)
    )
    return pa.ListArray.from_arrays(
        pa.array(lengths, pa.int32()), inner, type=HEADERS, mask=pa.array(is_null, pa.bool_())
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def sliced(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    """The batch, cut into batches of at most ``rows_max`` rows."""
    for start in range(0, batch.num_rows, rows_max):
        yield batch.slice(start, rows_max)
