"""From extents of L0 to Arrow: batches become lists of columns, lists become arrays.

Vocabulary: a *piece* is what is decoded before it is written, rows of one topic in the order in
which they were added, about one row group of a file. Records are decoded by msgspec, a batch at a
time, into objects that are dropped as soon as their fields stand in the lists: that costs a
microsecond or two a record, a generator of records several times as much.

An extent is added whole or, when it is damaged, not at all. Void records are passed over. ``data``
that is bytes becomes base64 with ``data_is_base64``. Typed columns are decoded by ``typed.py``.

This module reads no store and writes no file.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from compaction.schema import BASE, TIMESTAMP, Column, arrow_schema
from compaction.typed import TypedReader
from shards.checksum import crc32c
from shards.frame import BATCH, BATCH_BYTES, CODEC_RECORDS, Buffer
from uploader.l0 import L0Error

# Microseconds of 64 bits reach 9.2e15 ms; the daemon takes times up to 2**53 ms.
TIMESTAMP_MS_MAX = 2**53
_US_PER_MS = pa.scalar(1000, pa.int64())
_MIXED = {str, bytes}
_KINDS = ({str}, {bytes}, _MIXED)


class _Row(msgspec.Struct, array_like=True, gc=False):
    """A record as in ``uploader/records.py``, cheaper: it cannot be part of a cycle."""

    data: Any
    ts: int | None = None
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None


_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode


class ExtentBytes(NamedTuple):
    """An extent to decode: offsets [first_offset, last_offset], its bytes, its object's key."""

    partition: int
    first_offset: int
    last_offset: int
    voids: Sequence[tuple[int, int]]
    data: Buffer
    key: str


class Piece:
    """Rows of one topic on their way from extents to a table."""

    def __init__(self, columns: Sequence[Column] = ()) -> None:
        self.schema = arrow_schema(columns)
        self._typed = TypedReader(columns) if columns else None
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.bytes = 0
        self._shares: dict[int, list[int]] = {}
        self._partition: list[int] = []
        self._offset: list[int] = []
        self._data: list[Any] = []
        self._ts: list[int] = []
        self._key: list[str | None] = []
        self._tag: list[str | None] = []
        self._node: list[str | None] = []
        self._meta: list[str | None] = []
        self._mixed = False

    def add(self, extent: ExtentBytes) -> int:
        """Appends the extent's live records and returns how many. Raises L0Error, adding none."""
        rows, ts_ms = _rows_of(extent)
        wanted = extent.last_offset - extent.first_offset + 1
        if len(rows) != wanted:
            raise L0Error(
                extent.key,
                0,
                f"{wanted} live records of partition {extent.partition}, as the ledger says",
                f"{len(rows)}",
            )
        if not rows:
            return 0
        data = [row.data for row in rows]
        kinds = set(map(type, data))
        if kinds not in _KINDS:
            raise L0Error(extent.key, 0, "records of text or bytes", f"{kinds - _MIXED}")
        if max(ts_ms) > TIMESTAMP_MS_MAX or min(ts_ms) < -TIMESTAMP_MS_MAX:
            raise L0Error(extent.key, 0, f"times within {TIMESTAMP_MS_MAX} ms", f"{max(ts_ms)}")
        self._mixed |= bytes in kinds
        self._data += data
        self._ts += ts_ms
        self._key += [row.key for row in rows]
        self._tag += [row.tag for row in rows]
        self._node += [row.node for row in rows]
        self._meta += [row.meta for row in rows]
        self._partition += [extent.partition] * wanted
        self._offset += range(extent.first_offset, extent.last_offset + 1)
        share = self._shares.setdefault(extent.partition, [0, 0])
        share[0] += wanted
        share[1] += len(extent.data)
        self.rows += wanted
        self.bytes += len(extent.data)
        return wanted

    def take(self) -> tuple[pa.Table, dict[int, list[int]]]:
        """The rows so far, and by partition [rows, bytes of L0]; the piece is empty again."""
        data, is_base64 = self._data_arrays()
        arrays = [
            pa.array(self._partition, pa.int32()),
            pa.array(self._offset, pa.int64()),
            pa.compute.multiply(pa.array(self._ts, pa.int64()), _US_PER_MS).cast(TIMESTAMP),
            *(
                pa.array(column, pa.string()) if any_set else pa.nulls(self.rows, pa.string())
                for column, any_set in (
                    (column, column.count(None) < self.rows)
                    for column in (self._key, self._tag, self._node, self._meta)
                )
            ),
            data,
            is_base64,
        ]
        if self._typed is not None:
            arrays += self._typed.arrays(self._data)
        table = pa.Table.from_arrays(arrays, schema=self.schema)
        shares = self._shares
        self._clear()
        return table, shares

    def _data_arrays(self) -> tuple[pa.Array, pa.Array]:
        if not self._mixed:
            return pa.array(self._data, pa.string()), pa.repeat(False, self.rows)
        coded = [type(each) is bytes for each in self._data]
        texts = [
            binascii.b2a_base64(each, newline=False).decode() if is_bytes else each
            for each, is_bytes in zip(self._data, coded, strict=True)
        ]
        return pa.array(texts, pa.string()), pa.array(coded, pa.bool_())


def _rows_of(extent: ExtentBytes) -> tuple[list[_Row], list[int]]:
    """Live records and their times. Raises L0Error; its ``byte`` counts from the extent's."""
    view = memoryview(extent.data)
    end = len(view)
    rows: list[_Row] = []
    ts_ms: list[int] = []
    position = 0
    while position < end:
        start = position + BATCH_BYTES
        if start > end:
            raise L0Error(extent.key, position, "a whole batch", "the extent's end in its head")
        length, count, arrival_ms, checksum, codec, _ = BATCH.unpack_from(view, position)
        stop = start + length
        if stop > end:
            raise L0Error(
                extent.key, position, f"a batch up to {stop}", f"the extent ends at {end}"
            )
        if codec != CODEC_RECORDS:
            raise L0Error(
                extent.key, position, f"codec {CODEC_RECORDS}", f"{codec}: upgrade this reader"
            )
        payload = view[start:stop]
        if crc32c(payload) != checksum:
            raise L0Error(extent.key, start, f"a payload with CRC32C {checksum:08x}", "another")
        try:
            batch = _decode_rows(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise L0Error(extent.key, start, "a msgpack array of records", str(error)) from error
        if len(batch) != count:
            raise L0Error(extent.key, position, f"{count} records", f"{len(batch)}")
        rows += batch
        ts_ms += [arrival_ms if row.ts is None else row.ts for row in batch]
        position = stop
    for first, count in reversed(extent.voids):
        del rows[first : first + count]
        del ts_ms[first : first + count]
    return rows, ts_ms


BASE_COUNT = len(BASE)
