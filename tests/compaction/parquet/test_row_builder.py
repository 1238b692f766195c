"""Extents become the rows that ``records_of`` reads of them, or none at all."""

from __future__ import annotations

import tempfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.inputs.objects import ExtentBytes
from compaction.parquet.row_builder import RowBuilder, TimesSetAside
from compaction.tables.schema import arrow_schema, field_ids_of, typed_columns
from shards.frame import CODEC_RECORDS, encode_batch
from tests.compaction.objects import NOON_MS, Draft, Heads, Row, drafts, put, rows_of
from tests.long import examples
from uploader.l0 import L0Error, read_extent
from uploader.l0.records import TIMESTAMP_MS_MAX, Record, encode
from uploader.stores.open import open_store


def extent_of(*batches: bytes, count: int, voids: tuple[tuple[int, int], ...] = ()) -> ExtentBytes:
    """An extent of partition 0 from offset 1 on."""
    return ExtentBytes(0, 1, count, voids, b"".join(batches), "l0/key")


def batch(*records: Record) -> bytes:
    """A batch that arrived at noon."""
    return encode_batch(len(records), NOON_MS, encode(records), CODEC_RECORDS)


def taken_rows(builder: RowBuilder) -> list[Row]:
    """The base columns."""
    table, _ = builder.take()
    columns = [table.column(name) for name in table.schema.names[:9]]
    columns[2] = columns[2].cast(pa.int64())
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@settings(max_examples=examples(60))
@given(drafts())
def test_rows_are_what_records_of_reads(some: list[Draft]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"file://{folder}")
        planned = put(store, Heads(), some)
        expected = rows_of(store, [planned])
        body = store.get(planned.locator)
        store.close()
    for topic_id, rows in expected.items():
        builder = RowBuilder()
        wanted: dict[int, list[int]] = {}
        for extent in planned.extents:
            if extent.topic_id == topic_id:
                data = read_extent(body, extent, planned.key)
                added = builder.add(
                    ExtentBytes(extent.partition, extent.first_offset, extent.last_offset,
                                extent.voids, data, planned.key)
                )  # fmt: skip
                wanted[extent.partition] = [added, len(data)]
        assert builder.rows == len(rows)
        table, sizes = builder.take()
        assert sizes == wanted, "sizes are rows and bytes by partition"
        assert table.schema.equals(arrow_schema(), check_metadata=True)
        assert (builder.rows, builder.bytes) == (0, 0), "a builder that was taken is empty"
        columns = [table.column(name) for name in table.schema.names]
        columns[2] = columns[2].cast(pa.int64())
        assert list(zip(*(c.to_pylist() for c in columns), strict=True)) == rows


DAMAGED = [
    ("an extent that ends in a head", extent_of(batch(Record("1"))[:10], count=1), "whole batch"),
    ("one that ends in a payload", extent_of(batch(Record("1"))[:-1], count=1), "the extent's end"),
    ("a flipped bit", extent_of(batch(Record("1"))[:-1] + b"\x00", count=1), "CRC32C"),
    ("fewer live records", extent_of(batch(Record("1")), count=2), "2 live records"),
    ("more live records", extent_of(batch(Record("1"), Record("2")), count=1), "1 live records"),
    ("another codec", extent_of(encode_batch(1, 0, b"\x91\x91\xa11", 7), count=1), "upgrade it"),
    ("no batch of Kafka", extent_of(encode_batch(1, 0, b"\x91\x91\xa11", 2), count=1), "codec 2"),
    ("no msgpack", extent_of(encode_batch(1, 0, b"\xc1", CODEC_RECORDS), count=1), "msgpack"),
    ("data that is a number", extent_of(encode_batch(1, 0, b"\x91\x91\x07", 1), count=1), "text"),
    ("another count", extent_of(encode_batch(2, 0, b"\x91\x91\xa11", 1), count=1), "2 records"),
]


@pytest.mark.parametrize(("what", "extent", "words"), DAMAGED, ids=[d[0] for d in DAMAGED])
def test_a_damaged_extent_adds_nothing_and_is_named(
    what: str, extent: ExtentBytes, words: str
) -> None:
    builder = RowBuilder()
    builder.add(extent_of(batch(Record("0")), count=1))
    with pytest.raises(L0Error, match=words) as raised:
        builder.add(extent)
    assert raised.value.key == "l0/key"
    assert [row[7] for row in taken_rows(builder)] == ["0"], what


YEAR_10000_MS = TIMESTAMP_MS_MAX + 1


def test_a_time_outside_the_years_1_to_9999_is_set_aside_and_its_row_has_its_arrival() -> None:
    micros = NOON_MS * 1000
    first = batch(Record("0"), Record("1", micros), Record("void"), Record("2", YEAR_10000_MS))
    second = batch(
        Record("3", TIMESTAMP_MS_MAX), Record("4", 2**63), Record("5", -62_135_596_800_001),
        Record("6", -62_135_596_800_000),
    )  # fmt: skip
    extent = ExtentBytes(3, 10, 16, ((2, 1),), first + second, "l0/key")
    builder = RowBuilder()
    assert builder.add(extent) == 7
    assert builder.set_aside() == [TimesSetAside(3, 11, 15, 4, micros)]
    rows = taken_rows(builder)
    arrival_us = rows[0][2]
    wanted = [arrival_us] * 7
    wanted[3] = TIMESTAMP_MS_MAX * 1000
    wanted[6] = -62_135_596_800_000_000
    assert [row[2] for row in rows] == wanted
    assert [row[7] for row in rows] == [str(number) for number in range(7)], "all records are there"
    # Extents before and after it, and of another partition, in any order.
    for partition, offset in ((3, 20), (3, 5), (1, 2)):
        data = batch(Record("late", micros + offset))
        builder.add(ExtentBytes(partition, offset, offset, (), data, "l0/key"))
    assert builder.set_aside() == [
        TimesSetAside(1, 2, 2, 1, micros + 2), TimesSetAside(3, 5, 20, 6, micros + 5)
    ]  # fmt: skip


def test_an_arrival_outside_the_years_is_clamped() -> None:
    builder = RowBuilder()
    late = encode_batch(1, 2**53, encode([Record("1")]), CODEC_RECORDS)
    builder.add(ExtentBytes(0, 1, 1, (), late, "l0/key"))
    assert builder.set_aside() == [TimesSetAside(0, 1, 1, 1, 2**53)]
    assert taken_rows(builder)[0][2] == TIMESTAMP_MS_MAX * 1000


def test_typed_columns_hold_what_fits_and_null_else() -> None:
    columns = typed_columns(
        {"s": "string", "n": "long", "x": "double", "b": "boolean", "at": "timestamp"}
    )
    fits = '{"s":"a","n":-7,"x":1,"b":true,"at":"2023-11-14T22:13:20.5+01:00","more":[1,2]}'
    texts = [
        fits,
        '{"s":1,"n":1.0,"x":"1","b":0,"at":"soon"}',
        '{"n":9223372036854775808,"x":1e400,"at":1700000000000}',
        '{"n":9223372036854775807,"x":-1.5e-3,"at":"2023-11-14T22:13:20"}',
        '{"n":1,"n":2}',
        "[1]",
        "null",
        '{"s":null}',
        '{"at":253402300800000}',
        '{"at":"9999-12-31T23:59:59-01:00"}',
        '{"at":253402300799999}',
    ]
    builder = RowBuilder(columns)
    rows = [Record(text) for text in texts] + [Record(b'{"s":"a"}')]
    builder.add(extent_of(batch(*rows), count=len(rows)))
    table, _ = builder.take()
    assert list(field_ids_of(table.schema))[9:] == [1000, 1001, 1002, 1003, 1004]
    assert table.column("s").to_pylist() == ["a", *[None] * 11]
    assert table.column("n").to_pylist() == [-7, None, None, 2**63 - 1, 2, *[None] * 7]
    assert table.column("x").to_pylist() == [1.0, None, None, -1.5e-3, *[None] * 8]
    assert table.column("b").to_pylist() == [True, *[None] * 11]
    at = table.column("at").cast(pa.int64()).to_pylist()
    assert at == [
        1_699_996_400_500_000,
        None,
        1_700_000_000_000_000,
        1_700_000_000_000_000,
        *[None] * 6,
        TIMESTAMP_MS_MAX * 1000,
        None,
    ]
    assert table.column("data").to_pylist()[:-1] == texts, "data keeps the truth"


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["n", "s", 'od"d', "other"]),
            st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3),
            max_size=4,
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_misfit_spoils_no_other_field_and_no_other_record(
    values: list[dict[str, object]],
) -> None:
    import msgspec

    for columns in ({"n": "long", "s": "string"}, {"n": "long", 'od"d': "string"}):
        typed = typed_columns(columns)  # type: ignore[arg-type]  # the literals are in a variable
        builder = RowBuilder(typed)
        texts = [msgspec.json.encode(value).decode() for value in values]
        builder.add(extent_of(batch(*map(Record, texts)), count=len(texts)))
        table, _ = builder.take()
        for value, row in zip(values, table.to_pylist(), strict=True):
            number = value.get("n")
            long = type(number) is int and -(2**63) <= number < 2**63
            assert row["n"] == (number if long else None)
            for field in columns.keys() - {"n"}:
                text = value.get(field)
                assert row[field] == (text if isinstance(text, str) else None)
