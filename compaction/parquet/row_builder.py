"""From extents of L0 to Arrow: records become lists of values, lists become columns.

A ``RowBuilder`` gathers rows of one topic, about a row group of a file, in the order in which they
are added. msgspec decodes the records, one L0 batch at a time, into objects that are dropped as
soon as their fields are in the lists. That costs a microsecond or two per record, and a generator
of records costs several times as much.

An extent is added whole or, if it is damaged, not at all. Void records are left out. ``data`` that
is bytes becomes base64, and ``data_is_base64`` says so. ``typed_columns.py`` decodes typed columns.

A time outside the years 1 to 9999 is *set aside* (docs/decisions/0008): the row has the time of
arrival, like a record without ``ts``, and the value is reported.

This module reads no store and writes no file.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from compaction.inputs.objects import ExtentBytes
from compaction.parquet.typed_columns import TypedReader
from compaction.tables.schema import TIMESTAMP, TIMESTAMP_MS_MIN, Column, arrow_schema
from shards.checksum import crc32c
from shards.frame import BATCH, BATCH_BYTES, CODEC_KAFKA
from uploader.l0 import L0Error, kafka_stored
from uploader.l0.reader import check_codec
from uploader.l0.records import TIMESTAMP_MS_MAX, RecordsError

_US_PER_MS = pa.scalar(1000, pa.int64())


class _TextRow(msgspec.Struct, array_like=True, gc=False):
    """A record as in ``uploader/l0/records.py``, but cheaper: text only, and not tracked by gc."""

    data: str
    ts: int | None = None
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A record whose data may be bytes."""

    data: Any
    ts: int | None = None
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None


_decode_texts = msgspec.msgpack.Decoder(list[_TextRow]).decode
_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode


class TimesSetAside(msgspec.Struct, frozen=True, array_like=True):
    """Times of a partition that a table cannot hold, of ``records`` records between two offsets.
    ``value`` is the first of them, in milliseconds as it was sent."""

    partition: int
    first_offset: int
    last_offset: int
    records: int
    value: int


Strays = list[tuple[int, int]]
"""(position, milliseconds) of times to set aside."""


class RowBuilder:
    """Gathers rows of one topic from extents, and makes tables of them."""

    def __init__(self, columns: Sequence[Column] = ()) -> None:
        self.schema = arrow_schema(columns)
        self._typed = TypedReader(columns) if columns else None
        self._set_aside: dict[int, TimesSetAside] = {}
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._sizes: dict[int, list[int]] = {}
        self._partition: list[int] = []
        self._offset: list[int] = []
        self._ts_ms: list[int] = []
        self._rows: list[_TextRow | _Row] = []
        self._mixed = False

    def add(self, extent: ExtentBytes) -> int:
        """Appends the live records of an extent and returns their number. Raises L0Error and adds
        none if the extent is damaged."""
        rows, ts_ms, mixed, strays = _rows_of(extent)
        count = extent.last_offset - extent.first_offset + 1
        if len(rows) != count:
            raise L0Error(
                extent.key,
                0,
                f"{count} live records of partition {extent.partition}, as the ledger says",
                f"{len(rows)}",
            )
        size = len(extent.data)
        if strays:
            self._note(extent.partition, extent.first_offset, strays)
        self._rows += rows
        self._ts_ms += ts_ms
        self._mixed |= mixed
        self._partition += [extent.partition] * count
        self._offset += range(extent.first_offset, extent.last_offset + 1)
        sizes = self._sizes.setdefault(extent.partition, [0, 0])
        sizes[0] += count
        sizes[1] += size
        self.rows += count
        self.bytes += size
        return count

    def _note(self, partition: int, first_offset: int, strays: Strays) -> None:
        first, value = strays[0]
        new = TimesSetAside(
            partition, first_offset + first, first_offset + strays[-1][0], len(strays), value
        )
        old = self._set_aside.get(partition)
        if old is not None:
            begins = min(old, new, key=lambda each: each.first_offset)
            last = max(old.last_offset, new.last_offset)
            records = old.records + new.records
            new = TimesSetAside(partition, begins.first_offset, last, records, begins.value)
        self._set_aside[partition] = new

    def set_aside(self) -> list[TimesSetAside]:
        """Times that were set aside since the builder was made, one entry per partition."""
        return [self._set_aside[partition] for partition in sorted(self._set_aside)]

    def take(self) -> tuple[pa.Table, dict[int, list[int]]]:
        """The rows so far, and by partition [rows, bytes in L0]. The builder is empty then."""
        rows = self._rows
        data = [row.data for row in rows]
        columns: tuple[list[str | None], ...] = (
            [row.key for row in rows],
            [row.tag for row in rows],
            [row.node for row in rows],
            [row.meta for row in rows],
        )
        arrays = [
            pa.array(self._partition, pa.int32()),
            pa.array(self._offset, pa.int64()),
            pc.multiply(pa.array(self._ts_ms, pa.int64()), _US_PER_MS).cast(TIMESTAMP),
            *(
                pa.nulls(self.rows, pa.string())
                if column.count(None) == self.rows
                else pa.array(column, pa.string())
                for column in columns
            ),
            *(_mixed_arrays(data) if self._mixed else _text_arrays(data)),
        ]
        if self._typed is not None:
            arrays += self._typed.arrays(data)
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        sizes = self._sizes
        self._clear()
        return table, sizes


def _text_arrays(data: list[Any]) -> tuple[pa.Array, pa.Array]:
    return pa.array(data, pa.string()), pa.repeat(False, len(data))


def _mixed_arrays(data: list[Any]) -> tuple[pa.Array, pa.Array]:
    coded = [type(each) is bytes for each in data]
    texts = [
        binascii.b2a_base64(each, newline=False).decode() if is_bytes else each
        for each, is_bytes in zip(data, coded, strict=True)
    ]
    return pa.array(texts, pa.string()), pa.array(coded, pa.bool_())


def _rows_of(extent: ExtentBytes) -> tuple[list[_TextRow | _Row], list[int], bool, Strays]:
    """Live records, their times, whether some may be bytes, times to set aside. Raises L0Error,
    whose ``byte`` counts from the start of the extent."""
    view = memoryview(extent.data)
    end = len(view)
    rows: list[_TextRow | _Row] = []
    ts_ms: list[int] = []
    mixed = False
    strays: Strays = []
    position = 0
    while position < end:
        start = position + BATCH_BYTES
        if start > end:
            raise L0Error(extent.key, position, "a whole batch", "the extent's end in its head")
        length, count, arrival_ms, checksum, codec, _ = BATCH.unpack_from(view, position)
        stop = start + length
        if stop > end:
            raise L0Error(
                extent.key, position, f"a batch up to byte {stop}", f"the extent's end at {end}"
            )
        check_codec(codec, extent.key, position)
        payload = view[start:stop]
        if crc32c(payload) != checksum:
            raise L0Error(extent.key, start, f"a payload with CRC32C {checksum:08x}", "another")
        batch: list[_TextRow] | list[_Row]
        if codec == CODEC_KAFKA:
            batch = _kafka_rows(payload, count, extent.key, start)
            mixed = True
        else:
            try:
                batch = _decode_texts(payload)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                batch = _any_rows(payload, extent.key, start)
                mixed = True
        if len(batch) != count:
            raise L0Error(extent.key, position, f"{count} records", f"{len(batch)}")
        if rows:
            rows += batch
        else:
            rows = cast("list[_TextRow | _Row]", batch)  # mostly the only one
        times = [arrival_ms if row.ts is None else row.ts for row in batch]
        if times and (min(times) < TIMESTAMP_MS_MIN or max(times) > TIMESTAMP_MS_MAX):
            strays += _set_aside(times, arrival_ms, len(ts_ms))
        ts_ms += times
        position = stop
    for first, count in reversed(extent.voids):
        del rows[first : first + count]
        del ts_ms[first : first + count]
        strays = [
            (index if index < first else index - count, value)
            for index, value in strays
            if not first <= index < first + count
        ]
    return rows, ts_ms, mixed, strays


def _set_aside(times: list[int], arrival_ms: int, start: int) -> Strays:
    """Replaces times that a table cannot hold by the arrival, and returns them with positions that
    count from ``start``."""
    there = min(max(arrival_ms, TIMESTAMP_MS_MIN), TIMESTAMP_MS_MAX)
    strays = [
        (index, time)
        for index, time in enumerate(times)
        if not TIMESTAMP_MS_MIN <= time <= TIMESTAMP_MS_MAX
    ]
    for index, _ in strays:
        times[index] = there
    return [(start + index, value) for index, value in strays]


def _kafka_rows(payload: memoryview, count: int, key: str, byte: int) -> list[_Row]:
    try:
        return kafka_stored.decode(payload, count, _Row)
    except RecordsError as error:
        raise L0Error(key, byte, f"records of codec {CODEC_KAFKA}", str(error)) from error


def _any_rows(payload: memoryview, key: str, byte: int) -> list[_Row]:
    try:
        batch = _decode_rows(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise L0Error(key, byte, "a msgpack array of records", str(error)) from error
    odd = {type(row.data) for row in batch} - {str, bytes}
    if odd:
        raise L0Error(key, byte, "records of text or bytes", ", ".join(sorted(map(repr, odd))))
    return batch
