"""Typed columns: decodes fields of ``data`` into arrays. ``schema.py`` says which values fit.

All texts of a chunk are decoded as one JSON array of a Struct with just the fields of columns, so
other fields are only scanned. If a value does not fit, its chunk is decoded record by record, and
its record field by field.

Pure functions of the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec import Meta

from compaction.tables.schema import ARROW_TYPES, TIMESTAMP_MS_MIN, Column, ColumnType
from uploader.l0.records import TIMESTAMP_MS_MAX

CHUNK_ROWS = 256  # decoded one by one if one of them does not fit

_INT64_MAX = 2**63 - 1
_Long = Annotated[int, Meta(ge=-_INT64_MAX - 1, le=_INT64_MAX)]
_Milliseconds = Annotated[int, Meta(ge=TIMESTAMP_MS_MIN, le=TIMESTAMP_MS_MAX)]
_TYPES: dict[ColumnType, Any] = {
    "string": str | None,
    "long": _Long | None,
    "double": float | None,
    "boolean": bool | None,
    "timestamp": _Milliseconds | datetime | None,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MISFIT = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class TypedReader:
    """Decodes the typed columns of one topic."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._decoders: list[Callable[[msgspec.Raw], Any]] = [
            msgspec.json.Decoder(_TYPES[column.type]).decode for column in columns
        ]
        names = [f"column_{index}" for index in range(len(columns))]
        self._names = names
        self._decode_chunk: Callable[[bytes], list[Any]] | None = None
        self._decode_one: Callable[[str], Any] | None = None
        try:
            row = msgspec.defstruct(
                "TypedRow",
                [
                    (name, _TYPES[column.type], None)
                    for name, column in zip(names, columns, strict=True)
                ],
                rename=dict(zip(names, (column.field for column in columns), strict=True)),
                gc=False,
            )
        except ValueError:
            # msgspec does not accept a field's name: fields are decoded one by one.
            return
        self._decode_chunk = msgspec.json.Decoder(list[row]).decode  # type: ignore[valid-type]  # a class made at run time
        self._decode_one = msgspec.json.Decoder(row).decode

    def arrays(self, data: Sequence[str | bytes]) -> list[pa.Array]:
        """An array per column; a record of bytes has null in all of them."""
        columns: list[list[Any]] = [[] for _ in self._columns]
        for start in range(0, len(data), CHUNK_ROWS):
            rows = self._chunk(data[start : start + CHUNK_ROWS])
            for values, name in zip(columns, self._names, strict=True):
                values += [None if row is None else getattr(row, name) for row in rows]
        return [
            _array(values, column.type)
            for values, column in zip(columns, self._columns, strict=True)
        ]

    def _chunk(self, data: Sequence[str | bytes]) -> list[Any]:
        if self._decode_chunk is not None and bytes not in set(map(type, data)):
            try:
                rows = self._decode_chunk(f"[{','.join(data)}]".encode())  # type: ignore[arg-type]  # all are str
            except _MISFIT:
                rows = []
            # Another number of rows: a text was not one JSON value.
            if len(rows) == len(data):
                return rows
        return [None if isinstance(text, bytes) else self._one(text) for text in data]

    def _one(self, text: str) -> Any:
        if self._decode_one is not None:
            try:
                return self._decode_one(text)
            except _MISFIT:
                pass  # one field does not fit, others may
        try:
            fields = _fields_of(text)
        except _MISFIT:
            return None
        row = _Fields()
        for name, column, decode in zip(self._names, self._columns, self._decoders, strict=True):
            value = None
            raw = fields.get(column.field)
            if raw is not None:
                try:
                    value = decode(raw)
                except _MISFIT:
                    value = None
            setattr(row, name, value)
        return row


class _Fields:
    """A row whose fields were decoded one by one."""


def _array(values: list[Any], kind: ColumnType) -> pa.Array:
    if kind == "timestamp":
        micros = [None if value is None else _micros(value) for value in values]
        return pa.array(micros, pa.int64()).cast(ARROW_TYPES[kind])
    return pa.array(values, ARROW_TYPES[kind])


def _micros(value: int | datetime) -> int | None:
    if isinstance(value, int):
        return value * 1000
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    micros = (value - _EPOCH) // _MICROSECOND
    # With its UTC offset, a text may be outside the years 1 to 9999.
    return micros if TIMESTAMP_MS_MIN <= micros // 1000 <= TIMESTAMP_MS_MAX else None
