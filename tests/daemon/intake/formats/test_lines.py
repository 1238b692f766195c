"""NDJSON bodies: each line is a record as it was sent, or the body is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daemon.intake.formats import BodyLimits
from tests.daemon.intake.formats.sent import (
    JSON,
    NDJSON,
    json_values,
    parsed,
    refused,
    spelled,
    stored,
)
from tests.long import examples

ODD_VALUES = (
    '{"a":1,"a":2}', '{"k":"x","k":"y"}', "1e400", "-0.0E+7", "123456789012345678901234567890",
    '"\\u0041\\n\\ud83d\\ude00"', '"é\u2028\U0001f600"', '{ "a" : [ 1 ,\t2 ] }', '""', '"],["',
    '"1,2"', "null", "[]", "[1,[2,3]]", f'"{"x" * 1023}"', f'"{"é" * 700}"', "[" * 512 + "]" * 512,
)  # fmt: skip


class TestLines:
    @given(st.lists(json_values.flatmap(spelled), min_size=1, max_size=20), st.data())
    def test_each_line_is_kept_as_it_was_sent(self, lines: list[str], data: st.DataObject) -> None:
        pieces = []
        for line in lines:
            pieces.append(data.draw(st.sampled_from(["", "", "\n", "\r\n", " \t\n"])))
            pieces.append(line)
            pieces.append(data.draw(st.sampled_from(["\n", "\n", "\r\n", " \n"])))
        body = "".join(pieces)
        if data.draw(st.booleans()):
            body = body.rstrip("\r\n")
        assert [r.data for r in stored(parsed(NDJSON, body.encode()))] == lines

    @given(st.text(alphabet='12 \t\r\n[]{},:"a\\\x0c\u2028é', max_size=12))
    @example("1 2\n[1\n]")
    @example("1\r2")
    @example("[1\n,2]\n3 4")
    @example('1 ""\n2')
    @example("1,2\n3\n")
    @example("1,2\n[3\n4]\n")
    @example("[1\n2]\n3,4")
    @example('"a\n1"\n2')
    @example("1\n2]\n[3")
    @example("1\n\n2\n")
    @example(",1\n2")
    @example("1\n2,")
    @settings(max_examples=examples(400))
    def test_a_body_is_taken_exactly_when_every_line_is_one_value(self, text: str) -> None:
        wanted: list[str] = []
        at_fault = 0
        for number, line in enumerate(text.split("\n"), 1):
            stripped = line.strip(" \t\r")
            if stripped and not at_fault:
                try:
                    json.loads(stripped)
                    wanted.append(stripped)
                except ValueError:
                    at_fault = number
        if wanted and not at_fault:
            got = [r.data.strip(" \t\r") for r in stored(parsed(NDJSON, text.encode()))]
            assert got == wanted
        else:
            error = refused(NDJSON, text.encode())
            assert (error.status, error.detail.get("line", 0)) == (400, at_fault)

    @given(st.lists(st.sampled_from(ODD_VALUES), min_size=1, max_size=8), st.data())
    @settings(max_examples=examples(200))
    def test_odd_values_are_stored_as_they_came_in_lines_and_in_arrays(
        self, values: list[str], data: st.DataObject
    ) -> None:
        ends = st.sampled_from(["\n", "\n", "\r\n", "\n\n", " \n"])
        lines = "".join(value + data.draw(ends) for value in values)
        assert [r.data for r in stored(parsed(NDJSON, lines.encode()))] == values
        array = f"[{','.join(values)}]"
        assert [r.data for r in stored(parsed(JSON, array.encode()))] == values
        keyed = stored(parsed(NDJSON, lines.encode(), key="k"))
        assert keyed == stored(parsed(JSON, array.encode(), key="k"))
        assert [r.data for r in keyed] == values

    @pytest.mark.parametrize(
        ("body", "line"),
        [
            (b'{"a":1}\n{"a":}\n{"a":2}\n', 2),
            (b'{"a":1}\r\n\r\n{"a":}\r\n', 3),
            (b"1\n2 3\n", 2),
            (b'1\n{"a":\n1}\n', 2),
            (b"1\n\xff\n", 2),
            (b'1\n"\xc3\x28"\n', 2),
            (b"1\nNaN\n", 2),
            (b"1\n\n\n0x1", 4),
            (b"\xef\xbb\xbf1\n", 1),
            (b"1\r2", 1),
        ],
    )
    def test_the_line_at_fault_is_named(self, body: bytes, line: int) -> None:
        error = refused(NDJSON, body)
        assert (error.status, error.detail["line"]) == (400, line)
        assert f"line {line}" in error.message

    def test_lines_after_the_first_block_keep_their_numbers(self) -> None:
        good = b'{"text":"' + b"x" * 1000 + b'"}\n'
        body = good * 3000 + b"nope\n" + good * 10
        assert refused(NDJSON, body).detail["line"] == 3001

    def test_a_body_of_many_blocks_keeps_all_lines_in_order(self) -> None:
        lines = [f'{{"n":{n},"pad":"{"y" * 900}"}}' for n in range(5000)]
        got = stored(parsed(NDJSON, "\n".join(lines).encode()))
        assert [r.data for r in got] == lines

    def test_the_key_is_taken_from_a_field(self) -> None:
        body = b'{"k":"a","v":1}\n{"v":2}\n{"k":null}\n{"k":7.50}\n[1]\n{"k":"\\u00e9"}\n{"k":""}'
        records = stored(parsed(NDJSON, body, key="k"))
        assert [r.key for r in records] == ["a", None, None, "7.50", None, "é", ""]

    def test_a_key_field_that_is_no_string_or_number_is_refused_with_its_line(self) -> None:
        error = refused(NDJSON, b'\n{"k":"a"}\n{"k":[1]}', key="k")
        assert (error.status, error.detail) == (400, {"field": "k", "line": 3})

    def test_a_line_over_the_record_limit_is_refused_with_its_line(self) -> None:
        limits = BodyLimits(record_bytes_max=2000)
        fits = b'"' + b"x" * 1998 + b'"'
        assert len(stored(parsed(NDJSON, fits + b"\n" + fits, limits))) == 2
        error = refused(NDJSON, b"\n1\n" + fits[:-1] + b'x"', limits)
        assert (error.status, error.code, error.detail["line"]) == (413, "too_large", 3)

    def test_a_line_longer_than_a_block_is_taken_when_the_limit_allows_and_named_when_not(
        self,
    ) -> None:
        long = b'"' + b"x" * (3 << 20) + b'"'
        body = b"1\n" * 10 + long + b"\n2\n"
        assert len(stored(parsed(NDJSON, body, BodyLimits(record_bytes_max=4 << 20)))) == 12
        error = refused(NDJSON, body)
        assert (error.status, error.detail["line"]) == (413, 11)

    def test_the_record_limit_counts_bytes_and_not_characters(self) -> None:
        limits = BodyLimits(record_bytes_max=100)
        assert refused(NDJSON, ('"' + "é" * 50 + '"').encode(), limits).status == 413
        assert refused(NDJSON, ('"' + "\U0001f600" * 25 + '"').encode(), limits).status == 413
        assert len(stored(parsed(NDJSON, ('"' + "é" * 49 + '"').encode(), limits))) == 1
