"""Columns of a topic's table: names, types, field ids, and the Arrow schema of its files.

Every table has the *base columns*. *Typed columns* are fields of ``data``, a JSON object, that the
topic's setting ``columns`` names (field -> type). The value is null if the field is absent or does
not fit the type; ``data`` has the original:

    string     a JSON string
    long       a JSON integer of 64 bits (``1.0`` is not an integer)
    double     any JSON number that fits
    boolean    ``true`` or ``false``
    timestamp  epoch milliseconds as an integer, or an RFC 3339 text, UTC if it has no offset; in
               the years 1 to 9999

Field ids are those of the table's schema: 1 to 9 for base columns, further ones for typed columns
in the order in which they were added. If a field has the name of a base column, in any case, its
column is ``data_<field>``.

Pure data and functions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from msgspec import Struct

ColumnType = Literal["string", "long", "double", "boolean", "timestamp"]
BaseType = ColumnType | Literal["int"]

FIRST_TYPED_ID = 1000
FIELD_ID = b"PARQUET:field_id"

# Keys in a file's footer, which say what it holds to a reader without a ledger.
RANGES_KEY = b"headgate.ranges"
TOPIC_ID_KEY = b"headgate.topic_id"
RUN_KEY = b"headgate.run"

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_MS_MIN = -62_135_596_800_000  # the year 1; TIMESTAMP_MS_MAX ends the year 9999


# Arrow's types by the names of ours; "int" is for base columns only.
ARROW_TYPES: dict[BaseType, pa.DataType] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": TIMESTAMP,
    "string": pa.string(),
}


class BaseColumn(Struct, frozen=True):
    """A column that every table has."""

    name: str
    field_id: int
    type: BaseType
    required: bool


BASE: tuple[BaseColumn, ...] = (
    BaseColumn("partition", 1, "int", required=True),
    BaseColumn("offset", 2, "long", required=True),
    BaseColumn("timestamp", 3, "timestamp", required=True),
    BaseColumn("key", 4, "string", required=False),
    BaseColumn("tag", 5, "string", required=False),
    BaseColumn("node", 6, "string", required=False),
    BaseColumn("meta", 7, "string", required=False),
    BaseColumn("data", 8, "string", required=True),
    BaseColumn("data_is_base64", 9, "boolean", required=True),
)

_BASE_NAMES = {column.name for column in BASE}


class Column(Struct, frozen=True):
    """A typed column: the ``field`` of ``data`` that it holds, its ``name`` in the table."""

    field: str
    name: str
    type: ColumnType
    field_id: int


class ColumnClash(ValueError):
    """Two fields have the same column."""


def column_name(field: str) -> str:
    """The column of a field of ``data``. In Spark, the names of columns are not case-sensitive."""
    return f"data_{field}" if field.lower() in _BASE_NAMES else field


def typed_columns(
    columns: Mapping[str, ColumnType], field_ids: Mapping[str, int] | None = None
) -> tuple[Column, ...]:
    """Typed columns in the order of their ids. ``field_ids`` are those of the table, by column
    name; a column without one gets the next free id. Raises ColumnClash."""
    known = dict(field_ids or {})
    free = max([FIRST_TYPED_ID - 1, *known.values()]) + 1
    found: list[Column] = []
    names: dict[str, str] = {}
    for field, kind in columns.items():
        name = column_name(field)
        other = names.setdefault(name.lower(), field)
        if other != field:
            raise ColumnClash(
                f"the fields {other!r} and {field!r} have the same column {name!r}, because names"
                " are not case-sensitive; remove one of them from the topic's columns"
            )
        field_id = known.get(name)
        if field_id is None:
            field_id, free = free, free + 1
        found.append(Column(field, name, kind, field_id))
    return tuple(sorted(found, key=lambda column: column.field_id))


@functools.lru_cache(maxsize=1024)
def arrow_schema(columns: tuple[Column, ...] = ()) -> pa.Schema:
    """The schema of a topic's files, with field ids."""
    fields = [_field(c.name, ARROW_TYPES[c.type], c.field_id, c.required) for c in BASE]
    fields += [_field(c.name, ARROW_TYPES[c.type], c.field_id, required=False) for c in columns]
    return pa.schema(fields)


def _field(name: str, kind: pa.DataType, field_id: int, required: bool) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={FIELD_ID: str(field_id).encode()})


def field_ids_of(schema: pa.Schema) -> Sequence[int | None]:
    """The field id of each column of a file's schema, or None."""
    found = [(field.metadata or {}).get(FIELD_ID) for field in schema]
    return [None if each is None else int(each) for each in found]
