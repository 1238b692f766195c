"""Records out of files and pipes: lines, keys, batches, and what is refused by its line."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.client.records import (
    CUT_OFF_HINT,
    SEVERAL_LINES_HINT,
    BadLine,
    Format,
    InputRecord,
    Numbered,
    RecordFields,
    batched,
    lines,
    records,
    size_of,
)


def found(text: bytes, form: Format = "ndjson", key: str | None = None) -> list[Numbered]:
    return [item for item in records(io.BytesIO(text), form, RecordFields(key)) if item is not None]


def data_of(items: list[Numbered]) -> list[tuple[int, bytes]]:
    return [(item.line, bytes(item.record.data)) for item in items]


@given(
    st.lists(st.binary(max_size=20).filter(lambda line: not {10, 13} & set(line))), st.booleans()
)
def test_lines_come_out_as_they_went_in_whatever_the_line_end(
    written: list[bytes], with_returns: bool
) -> None:
    end = b"\r\n" if with_returns else b"\n"
    source = io.BytesIO(b"".join(line + end for line in written))
    assert list(lines(source)) == list(enumerate(written, 1))


def test_a_last_line_without_its_end_counts() -> None:
    assert list(lines(io.BytesIO(b"a\nb"))) == [(1, b"a"), (2, b"b")]


def test_json_text_is_kept_as_it_was_written() -> None:
    assert data_of(found(b'{"a": 1.0}\n\n [1,\t2]\n"x"\n')) == [
        (1, b'{"a": 1.0}'), (3, b"[1,\t2]"), (4, b'"x"'),
    ]  # fmt: skip


def test_text_lines_become_json_strings_and_empty_lines_count() -> None:
    assert data_of(found('a "b"\n\nü\n'.encode(), "lines")) == [
        (1, b'"a \\"b\\""'), (2, b'""'), (3, '"ü"'.encode()),
    ]  # fmt: skip


def test_a_json_document_is_an_array_of_records_or_one_record() -> None:
    assert data_of(found(b'[{"a": 1},\n 2]', "json")) == [(1, b'{"a": 1}'), (2, b"2")]
    assert data_of(found(b'\n{"a":\n 1}\n', "json")) == [(1, b'{"a":\n 1}')]


@pytest.mark.parametrize(
    ("text", "form", "line", "problem"),
    [
        (b'{"a":1}\n{"a":}\n', "ndjson", 2, "is not JSON"),
        (b"1\n\n\nNaN\n", "ndjson", 4, "is not JSON"),
        (b'"\xff"\n', "ndjson", 1, "is not JSON"),
        (b"ok\n\xff\n", "lines", 2, "is not UTF-8 at byte 1"),
        (b"[1, 2", "json", 1, "is not a JSON document"),
        (b"", "json", 1, "is not JSON"),
        (b"[" * 100_000, "ndjson", 1, "is not JSON"),
    ],
)
def test_a_line_that_is_not_a_record_is_refused_with_its_number(
    text: bytes, form: Format, line: int, problem: str
) -> None:
    with pytest.raises(BadLine, match=problem) as caught:
        found(text, form)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "form", "hint"),
    [
        (b'{\n  "a": 1\n}\n', "ndjson", SEVERAL_LINES_HINT),
        (b'[{"a": 1}, {"b"', "json", CUT_OFF_HINT),
        (b"{a}", "ndjson", ""),
        (b"[1] 2", "json", ""),
    ],
)
def test_what_ends_too_early_has_a_hint(text: bytes, form: Format, hint: str) -> None:
    with pytest.raises(BadLine) as caught:
        found(text, form)
    assert caught.value.hint == hint


def test_a_line_without_an_end_in_sight_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.client.records.LINE_BYTES_MAX", 100)
    with pytest.raises(BadLine, match="line 2: is longer than 100 bytes"):
        found(b"1\n" + b"2" * 101)


def test_a_document_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.client.records.DOCUMENT_BYTES_MAX", 10)
    with pytest.raises(BadLine, match="send NDJSON"):
        found(b"[1,2,3,4,5,6]", "json")


def test_keys_are_texts_or_numbers_of_a_field() -> None:
    text = b'{"k":"a"}\n{"k":7}\n{"k":null}\n{}\n[1]\n{"k":""}\n{"k":1.5}\n'
    assert [item.record.key for item in found(text, key="k")] == [
        "a",
        "7",
        None,
        None,
        None,
        "",
        "1.5",
    ]
    for value in (b"true", b"[]", b"{}"):
        with pytest.raises(BadLine, match="'k' is the key: it must be"):
            found(b'{"k":' + value + b"}", key="k")


def numbered(count: int, size: int = 1) -> list[Numbered]:
    data = b"1" * size
    return [Numbered(line, InputRecord(data)) for line in range(1, count + 1)]  # type: ignore[arg-type]  # bytes do


def test_times_are_epoch_milliseconds_or_iso_8601_of_a_field() -> None:
    text = b'{"t": 5}\n{"t": "1970-01-01T00:00:01.5"}\n{"t": "1970-01-01T01:00:00+01:00"}\n{}\n1\n'
    fields = RecordFields(ts_field="t", tag="x", meta={"a": "b"})
    items = [item for item in records(io.BytesIO(text), "ndjson", fields) if item is not None]
    assert [item.record.ts for item in items] == [5, 1_500, 0, None, None]
    assert {(item.record.tag, str(item.record.meta)) for item in items} == {("x", "{'a': 'b'}")}


@pytest.mark.parametrize("value", ["true", "1.5", '"yesterday"', "[1]"])
def test_what_is_no_time_is_named_by_its_line(value: str) -> None:
    text = b'{"t": 5}\n{"t": %b}\n' % value.encode()
    with pytest.raises(BadLine, match="line 2: the time 't' must be epoch milliseconds or text"):
        list(records(io.BytesIO(text), "ndjson", RecordFields(ts_field="t")))


def test_a_batch_ends_at_its_number_of_records() -> None:
    assert [len(batch) for batch in batched(numbered(7), 3, 1_000)] == [3, 3, 1]


def test_a_batch_ends_before_its_bytes_are_exceeded() -> None:
    assert [len(batch) for batch in batched(numbered(5, 10), 100, 20)] == [2, 2, 1]


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    items = [*numbered(1, 5), *numbered(1, 50), *numbered(1, 5)]
    assert [len(batch) for batch in batched(items, 100, 20)] == [1, 1, 1]


def test_a_pause_ends_a_batch_and_an_empty_one_is_never_sent() -> None:
    first, second = numbered(2)
    assert list(batched([None, first, None, None, second], 9, 99)) == [[first], [second]]


def test_what_stands_before_a_bad_line_is_sent_first() -> None:
    def source() -> Iterator[Numbered]:
        yield from numbered(2)
        raise BadLine(3, "is not JSON")

    batches = batched(source(), 10, 1_000)
    assert len(next(batches)) == 2
    with pytest.raises(BadLine):
        next(batches)


def test_a_slow_pipe_is_not_held_back() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as sink:
        sink.write(b'{"n":1}\n{"n":')
        items = records(source, "ndjson", RecordFields(), linger_ms=1)
        first = next(items)
        assert first is not None and bytes(first.record.data) == b'{"n":1}'
        assert next(items) is None
        sink.write(b"2}\n")
        second = next(items)
        assert second is not None and (second.line, bytes(second.record.data)) == (2, b'{"n":2}')
        sink.close()
        assert all(item is None for item in items)


def test_only_files_have_a_size() -> None:
    assert size_of(io.BytesIO(b"abc")) == 0
    with open(__file__, "rb") as file:
        assert size_of(file) == os.path.getsize(__file__)
