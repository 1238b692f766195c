"""Blocks of records: positions at the ends of records, and every problem by its place."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.importing.reading import reader
from commands.importing.reading.blocks import SourceRecord
from commands.importing.reading.problems import InvalidRecord, SourceChanged
from commands.importing.reading.reader import DocumentReader, LineReader, Reader
from commands.importing.reading.rules import Rules
from commands.importing.reading.text import SourceText
from delivery.filters import parse_condition
from tests.cli.importing.sources import Pieces, cut

VALUE = st.recursive(
    st.none() | st.integers(-9, 9) | st.text("ab[]{},\n é", max_size=5),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text("a,]", max_size=2), each),
    max_leaves=6,
)


def all_of(reader: Reader, block_bytes: int = 20) -> list[SourceRecord]:
    """All records; raises the problem."""
    found: list[SourceRecord] = []
    for _ in range(10_000):
        reading = reader.read(block_bytes)
        if reading.block is not None:
            block = reading.block
            while not block.is_empty:
                sub_block = block.first(1 << 30, 1 << 30)
                found += sub_block.records
                block.take(sub_block)
        if reading.problem is not None:
            raise reading.problem
        if reading.has_ended:
            return found
    raise AssertionError("the reader does not end")


def lines(data: bytes, rules: Rules | None = None, at: int = 0, **more: Any) -> LineReader:
    text = SourceText(Pieces(data))
    last = text.skip_to(at)
    return LineReader(text, rules or Rules(), line=None if at else 1,
                      within_line=last not in (b"", b"\n"), **more)  # fmt: skip


def document(data: bytes, at: int = 0, rules: Rules | None = None) -> DocumentReader:
    return DocumentReader(SourceText(Pieces(data)), rules or Rules(), at)


def data_of(records: list[SourceRecord]) -> list[Any]:
    return [json.loads(row)["data"] for record in records for row in record.rows]


@given(
    st.lists(VALUE, max_size=5),
    st.lists(st.integers(0, 400), max_size=6),
    st.booleans(),
    st.booleans(),
    st.integers(1, 60),
)
def test_every_position_of_lines_is_where_an_import_can_continue(
    values: list[Any], places: list[int], ends: bool, packed: bool, block_bytes: int
) -> None:
    data = "\n\n".join(json.dumps(value, ensure_ascii=False) for value in values).encode()
    data += b"\n" if ends and values else b""
    pieces = cut(gzip.compress(data) if packed else data, places)
    records = all_of(LineReader(SourceText(Pieces(*pieces)), Rules(), line=1), block_bytes)
    assert data_of(records) == values
    for number, record in enumerate(records):
        if record.next < len(data) or number + 1 == len(records):
            assert data_of(all_of(lines(data, at=record.next))) == values[number + 1 :]


@given(st.lists(VALUE, max_size=8), st.integers(0, 2), st.integers(1, 60))
def test_every_position_of_an_array_is_where_an_import_can_continue(
    values: list[Any], indent: int, block_bytes: int
) -> None:
    data = b" " + json.dumps(values, indent=indent or None, ensure_ascii=False).encode() + b"\n"
    records = all_of(document(data), block_bytes)
    assert data_of(records) == values
    for number, record in enumerate(records):
        assert data_of(all_of(document(data, record.next))) == values[number + 1 :]


def test_one_value_is_a_document_too() -> None:
    assert data_of(all_of(document(b'\xef\xbb\xbf{\n "a": [1, 2]\n}\n'))) == [{"a": [1, 2]}]


@pytest.mark.parametrize(
    ("half", "hint"),
    [
        (b"[1, 2", "ends too early"),
        (b"[1, 2,", "ends too early"),
        (b"", "ends too early"),
        (b"[1] [2]", "--format ndjson"),
        (b'[{"a": 1}, {"b"', "ends too early"),
    ],
)
def test_half_a_document_is_refused_as_a_whole(half: bytes, hint: str) -> None:
    half_read = document(half)
    for _ in range(2):
        problem = half_read.read(10).problem
        assert problem is not None and half_read.read(10).block is None
        assert "not one JSON document" in str(problem) and hint in problem.hint


def test_an_array_without_an_element_that_ends_at_the_position_is_another() -> None:
    with pytest.raises(SourceChanged, match="no element that ends at byte 2"):
        all_of(document(b"[10, 20]", at=2))


def test_a_mark_of_utf8_before_the_first_line_is_not_part_of_it() -> None:
    assert data_of(all_of(lines(b"\xef\xbb\xbf1\r\n2\r\n"))) == [1, 2]


def test_what_is_before_a_line_that_is_not_a_record_is_handed_out_first() -> None:
    source = lines(b"1\n2\n{\n4\n")
    reading = source.read(1_000)
    assert reading.block is not None and reading.block.end == 4 and not reading.has_ended
    for _ in range(2):
        again = source.read(1_000)
        assert again.block is None and isinstance(again.problem, InvalidRecord)
        assert again.problem.line == 3 and "line 3: is not JSON" in str(again.problem)


def test_an_element_that_is_not_a_record_is_named_by_its_place() -> None:
    with pytest.raises(InvalidRecord, match="line 2: has 5 bytes, the limit for a record is 3"):
        all_of(document(b'[1, "222", 3]', rules=Rules(record_bytes_max=3)))


def test_a_line_in_the_middle_of_a_source_is_named_by_its_byte() -> None:
    with pytest.raises(InvalidRecord, match="byte 4: is not JSON"):
        all_of(lines(b"1\n2\nx\n", at=4))


def test_the_first_line_of_a_document_over_several_lines_says_how_to_import_it() -> None:
    with pytest.raises(InvalidRecord) as caught:
        all_of(lines(b'{\n  "a": 1\n}\n'))
    assert caught.value.hint.startswith("a JSON document over several lines needs --format json; ")


def test_half_a_line_at_the_end_is_not_a_record_and_is_not_passed() -> None:
    source = lines(b'{"a":1}\n{"a":')
    block = source.read(1_000).block
    assert block is not None and block.end == 8
    assert "line 2: is not JSON" in str(source.read(1_000).problem)


def test_a_last_line_that_was_imported_without_its_end_must_not_have_grown() -> None:
    assert data_of(all_of(lines(b"1\n2", at=3))) == []
    assert data_of(all_of(lines(b"1\n2\n3\n", at=3))) == [3]
    assert data_of(all_of(lines(b"1\n2\r\n3", at=3))) == [3]
    with pytest.raises(SourceChanged, match="goes on at byte 3"):
        all_of(lines(b"1\n22\n3\n", at=3))


def test_a_file_that_grows_keeps_its_last_line_until_it_ends() -> None:
    text = SourceText(Pieces(b"1\n2", None, b"2\n3"))
    source = LineReader(text, Rules(), keeps_growing=True)
    first, second = source.read(1_000), source.read(1_000)
    assert first.block is not None and first.block.end == 2
    assert second.block is not None and second.block.end == 5
    for _ in range(3):
        assert source.read(1_000) == (None, False, None)
    source.grows_no_more()
    last = source.read(1_000)
    assert last.block is not None and last.block.end == 6 and last.has_ended


LONG = [b"1\n", *[b"x" * 1_000] * 99, b"y\n2\n"]


def test_a_line_that_is_too_long_to_be_kept_ends_its_source_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "LINE_BYTES_MAX", 9_999)
    with pytest.raises(InvalidRecord, match="line 2: has more than 9,999 bytes") as refused:
        all_of(LineReader(SourceText(Pieces(*LONG)), Rules(), line=1))
    assert "--format json" in str(refused.value)


@pytest.mark.parametrize(("pieces", "end"), [(LONG, 99_006), (LONG[:-1], 99_002)])
@pytest.mark.parametrize("block_bytes", [500, 200_000])
def test_a_line_that_is_too_long_to_be_kept_is_passed_and_its_beginning_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], end: int, block_bytes: int
) -> None:
    monkeypatch.setattr(reader, "LINE_BYTES_MAX", 9_999)
    rules = Rules(invalid="dead")
    records = all_of(LineReader(SourceText(Pieces(*pieces)), rules, line=1), block_bytes)
    assert data_of(records) == [1, 2][: len(records) - 1]
    assert (records[-1].next, rules.invalid) == (end, 1)
    letter = json.loads(records[1].dead[0])["data"]
    assert letter.pop("text").strip("x") == "" and records[1].size <= 10_000
    assert letter.pop("problem").startswith("has more than 9,999 bytes")
    size = 99_001 if pieces == LONG else 99_000
    assert letter == {"source": "pieces", "position": 2, "line": 2, "bytes": size}


def test_a_line_without_an_end_lets_its_reader_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LINE_BYTES_MAX", 9_999)
    source = LineReader(SourceText(Pieces(*[b"x" * 1_000] * 99)), Rules(invalid="drop"))
    assert [source.read(20_000) for _ in range(3)] == [(None, False, None)] * 3


def one(text: str, rules: Rules) -> SourceRecord:
    return rules.record(text.encode(), 100, 60, 7, "f")


def test_filters_compare_fields_as_text_and_all_must_match() -> None:
    record = '{"a":{"b":"error-1","n":5,"t":true,"z":null,"l":[1]},"c.d":"x"}'
    for where, is_kept in (
        (["a.b=err*"], True),
        (["a.b=err"], False),
        (["a.n=5"], True),
        (["a.t=true"], True),
        (["a.z=null"], True),
        (["a.l=*"], False),
        (["a.x=*"], False),
        (["c.d=?"], True),
        (["a.b=err*", "c.d=y"], False),
        (["a.b=*=*"], False),
    ):
        rules = Rules(where=tuple(parse_condition(each) for each in where))
        assert bool(one(record, rules).rows) is is_kept, where
        assert rules.filtered == (not is_kept)
    assert one("[1]", Rules(where=(parse_condition("a=*"),))).rows == ()


def test_keys_are_strings_or_the_texts_of_numbers_as_for_produce() -> None:
    rules = Rules(key="k.v", invalid="drop")
    for text, key in (
        ('{"k":{"v":"a\\"b"}}', 'a"b'), ('{"k":{"v":12}}', "12"), ('{"k":{"v":1.50}}', "1.50"),
        (' {"k": {"v": 1e3 }}', "1e3"), ('{"k":{"v":-0}}', "-0"), ('{"k.v":1,"k":{"v":2}}', "1"),
    ):  # fmt: skip
        assert json.loads(one(text, rules).rows[0]) == {"data": json.loads(text), "key": key}
    for text in ('{"k":{"v":null}}', '{"k":1}', "[]"):
        assert json.loads(one(text, rules).rows[0]) == {"data": json.loads(text)}
    for text in ('{"k":{"v":true}}', '{"k":{"v":[]}}'):
        assert one(text, rules).rows == ()
    assert rules.invalid == 2
    longest = "é" * 1_024
    assert json.loads(one(f'{{"k":{{"v":"{longest}"}}}}', rules).rows[0])["key"] == longest
    with pytest.raises(InvalidRecord, match=r"'k.v' is the key: it has 1025 characters, the limit"):
        one(f'{{"k":{{"v":"{longest}x"}}}}', Rules(key="k.v"))


def test_a_key_counts_for_the_size_of_a_record_as_it_does_for_the_daemon() -> None:
    text = '{"k":"abc"}'
    most = len(text) + 3
    assert one(text, Rules(key="k", invalid="drop", record_bytes_max=most)).rows
    with pytest.raises(InvalidRecord, match="has 14 bytes with its key, the limit for a record is"):
        one(text, Rules(key="k", record_bytes_max=most - 1))
    assert one('{"k":"é"}', Rules(key="k", invalid="drop", record_bytes_max=11)).rows == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "is not JSON"),
        (b"NaN", "is not JSON"),
        (b'"\xff"', "is not JSON"),
        (b"[" * 600 + b"]" * 600, "nested deeper than 512"),
        (b'"' + b"x" * 2_000 + b'"', "has 2,002 bytes, the limit for a record is 1,500"),
    ],
)
def test_what_the_daemon_would_refuse_becomes_a_dead_letter_that_says_why(
    text: bytes, why: str
) -> None:
    rules = Rules(invalid="dead", record_bytes_max=1_500)
    record = rules.record(text, 100, 60, 7, "file")
    assert record.rows == () and (record.next, record.size) == (100, 60)
    letter = json.loads(record.dead[0])["data"]
    assert why in letter.pop("problem")
    assert letter == {"source": "file", "position": 40, "line": 7, "bytes": len(text),
                      "text": text.decode(errors="replace")}  # fmt: skip
    assert Rules(invalid="drop", record_bytes_max=9).record(text, 9, 9, 1, "f")[2:] in (
        ((), ()),
        ((b'{"data":%b}' % text,), ()),
    )


def exploded(data: bytes, **options: Any) -> list[SourceRecord]:
    return all_of(lines(data, Rules(explode="a.b", **options)))


def test_an_array_explodes_into_its_elements_and_they_share_one_position() -> None:
    data = b'{"a": {"b": [{"k": 1}, {"k" :2}]}}\n{"a.b": []}\n{"a.b": ["x"], "a": {"b": [9]}}\n'
    found = exploded(data)
    assert [each.rows for each in found] == [
        (b'{"data":{"k": 1}}', b'{"data":{"k" :2}}'), (), (b'{"data":"x"}',),
    ]  # fmt: skip
    assert [each.next for each in found] == [35, 47, len(data)]


def test_keys_filters_and_dead_letters_are_those_of_the_elements() -> None:
    found = exploded(
        b'{"a": {"b": [{"k": "x"}, {"k": []}, {"k": "y"}]}}\n', key="k", invalid="letters",
        where=(parse_condition("k=x"),),
    )  # fmt: skip
    assert [each.rows for each in found] == [(b'{"data":{"k": "x"},"key":"x"}',)]
    found = exploded(b'{"a": {"b": [{"k": "x"}, {"k": []}]}}\n', key="k", invalid="letters")
    ((letter,),) = (each.dead for each in found)
    assert json.loads(letter)["data"]["text"] == '{"k": []}' and len(found[0].rows) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[1]", "has no array 'a.b' that can be exploded"),
        (b'{"a": 1}', "has no array 'a.b' that can be exploded"),
        (b'{"a": {}}', "has no field 'a.b'"),
        (b'{"a": {"b": {}}}', "has no array 'a.b'"),
        (b'{"a": {"b": [' + b",".join([b"1"] * 10_001) + b"]}}", "has 10,001 elements"),
        (b'{"a": {"b": ["' + b"x" * (8 << 20) + b'"]}}', "has 8,388,610 bytes of elements"),
    ],
)
def test_what_cannot_be_exploded_is_invalid_as_a_whole(text: bytes, why: str) -> None:
    with pytest.raises(InvalidRecord, match=f"line 2: {why}"):
        exploded(b'{"a.b": [1]}\n' + text)
    assert [each.rows for each in exploded(text, invalid="drop")] == [()]
