"""Names and field ids of columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compaction.tables.schema import (
    ColumnClash,
    arrow_schema,
    column_name,
    field_ids_of,
    typed_columns,
)


def test_base_columns_have_the_ids_that_the_tables_are_made_with() -> None:
    schema = arrow_schema()
    assert schema.names == [
        "partition", "offset", "timestamp", "key", "tag", "node", "meta", "data", "data_is_base64"
    ]  # fmt: skip
    assert list(field_ids_of(schema)) == list(range(1, 10))
    assert [field.name for field in schema if not field.nullable] == [
        "partition", "offset", "timestamp", "data", "data_is_base64"
    ]  # fmt: skip
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_new_typed_columns_get_ids_from_1000_up_in_their_order() -> None:
    columns = typed_columns({"b": "long", "a": "string"})
    assert [(column.name, column.field_id) for column in columns] == [("b", 1000), ("a", 1001)]


def test_a_column_of_the_table_keeps_its_id_and_new_ones_come_last() -> None:
    columns = typed_columns({"new": "long", "a": "string"}, {"a": 1004, "gone": 1007})
    assert [(column.name, column.field_id) for column in columns] == [("a", 1004), ("new", 1008)]


def test_a_field_with_a_base_columns_name_has_a_column_of_another() -> None:
    assert [column_name(field) for field in ("key", "Offset", "keys")] == [
        "data_key", "data_Offset", "keys"
    ]  # fmt: skip


@pytest.mark.parametrize("fields", [("a", "A"), ("key", "data_key"), ("Key", "DATA_KEY")])
def test_fields_that_would_be_one_column_are_refused_by_name(fields: tuple[str, str]) -> None:
    with pytest.raises(ColumnClash, match=f"{fields[0]!r} and {fields[1]!r}"):
        typed_columns(dict.fromkeys(fields, "string"))
