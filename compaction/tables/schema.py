"""Columns of a topic's table: names, types, field ids, and the Arrow schema of its files.

Vocabulary: the *base columns* are those that every table has; *typed columns* are taken out of
``data``, a JSON object, by the topic's configuration ``columns`` (field -> type). A field's value
that is absent or does not fit its type is null; ``data`` keeps the truth:

    string     a JSON string
    long       a JSON integer that fits 64 bits (``1.0`` is none)
    double     any JSON number that fits
    boolean    ``true`` or ``false``
    timestamp  an integer of epoch milliseconds, or an RFC 3339 text; one without offset is UTC;
               in the years 1 to 9999

Field ids are Iceberg's: 1 to 9 for base columns, from 1000 up for typed ones in the order in which
they were first added; the table's schema says which. A field whose name is a base column's, in
whatever case, stands in the column ``data_<field>``.

Pure data; Parquet is written in ``parquet.py``, tables are made in ``tables.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from msgspec import Struct

ColumnType = Literal["string", "long", "double", "boolean", "timestamp"]

FIRST_TYPED_ID = 1000
FIELD_ID = b"PARQUET:field_id"

# Keys of a file's footer: what it holds, for who finds it without a ledger.
RANGES_KEY = b"headgate.ranges"
TOPIC_ID_KEY = b"headgate.topic_id"
RUN_KEY = b"headgate.run"

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_MS_MIN = -62_135_596_800_000  # the year 1; TIMESTAMP_MS_MAX ends the year 9999


class BaseColumn(Struct, frozen=True):
    """A column that every table has."""

    name: str
    field_id: int
    arrow: pa.DataType
    required: bool


BASE: tuple[BaseColumn, ...] = (
    BaseColumn("partition", 1, pa.int32(), required=True),
    BaseColumn("offset", 2, pa.int64(), required=True),
    BaseColumn("timestamp", 3, TIMESTAMP, required=True),
    BaseColumn("key", 4, pa.string(), required=False),
    BaseColumn("tag", 5, pa.string(), required=False),
    BaseColumn("node", 6, pa.string(), required=False),
    BaseColumn("meta", 7, pa.string(), required=False),
    BaseColumn("data", 8, pa.string(), required=True),
    BaseColumn("data_is_base64", 9, pa.bool_(), required=True),
)

ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": TIMESTAMP,
}

_BASE_NAMES = {column.name for column in BASE}


class Column(Struct, frozen=True):
    """A typed column: the ``field`` of ``data`` that it holds, its ``name`` in the table."""

    field: str
    name: str
    type: ColumnType
    field_id: int


class ColumnClash(ValueError):
    """Two fields that would be one column."""


def column_name(field: str) -> str:
    """The column that a field of ``data`` stands in. Iceberg's names regard no case in Spark."""
    return f"data_{field}" if field.lower() in _BASE_NAMES else field


def typed_columns(
    columns: Mapping[str, ColumnType], field_ids: Mapping[str, int] | None = None
) -> tuple[Column, ...]:
    """Typed columns in the order of their ids. ``field_ids`` are those of the table, by column
    name; a column that is not there gets the next free one. Raises ColumnClash."""
    known = dict(field_ids or {})
    free = max([FIRST_TYPED_ID - 1, *known.values()]) + 1
    found: list[Column] = []
    names: dict[str, str] = {}
    for field, kind in columns.items():
        name = column_name(field)
        other = names.setdefault(name.lower(), field)
        if other != field:
            raise ColumnClash(
                f"the fields {other!r} and {field!r} would both be the column {name!r}:"
                " names of columns regard no case; take one of them out of the topic's columns"
            )
        field_id = known.get(name)
        if field_id is None:
            field_id, free = free, free + 1
        found.append(Column(field, name, kind, field_id))
    return tuple(sorted(found, key=lambda column: column.field_id))


@functools.lru_cache(maxsize=1024)
def arrow_schema(columns: tuple[Column, ...] = ()) -> pa.Schema:
    """The schema of a topic's files, with field ids."""
    fields = [_field(c.name, c.arrow, c.field_id, c.required) for c in BASE]
    fields += [_field(c.name, ARROW_TYPES[c.type], c.field_id, required=False) for c in columns]
    return pa.schema(fields)


def _field(name: str, kind: pa.DataType, field_id: int, required: bool) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={FIELD_ID: str(field_id).encode()})


def field_ids_of(schema: pa.Schema) -> Sequence[int | None]:
    """The field id of each column of a file's schema; None for a column without."""
    found = [(field.metadata or {}).get(FIELD_ID) for field in schema]
    return [None if each is None else int(each) for each in found]
