"""The load: rates, ranges, curves and traces; arrivals follow it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.simulation.load import (
    LoadCurve,
    LoadPiece,
    Rate,
    RateRange,
    constant,
    read_load,
    read_rate,
)

KIB, MIB = 1 << 10, 1 << 20
NDJSON = """
{"time": 5, "bytes_per_s": 1000, "request_bytes": 100}

{"time": 65, "bytes_per_s": "3000", "request_bytes": 300, "host": "a"}
"""


def curve_of(text: str) -> LoadCurve:
    found = read_load(text, KIB)
    assert isinstance(found, LoadCurve)
    return found


@pytest.mark.parametrize(
    ("text", "rate"), [("20MiB/s", 20 * MIB), ("1/s", 1), ("1.5KiB/s", 1536), (" 2G/s ", 2 << 30)]
)
def test_a_rate_is_a_size_per_second(text: str, rate: float) -> None:
    assert read_rate(text) == rate
    assert read_load(text, KIB) == Rate(rate)


def test_a_range_has_rates_in_equal_ratios_and_both_ends() -> None:
    load = read_load("1KiB/s..16KiB/s", KIB)
    assert isinstance(load, RateRange)
    assert load.rates(5) == pytest.approx([KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB])
    assert load.rates(2) == [KIB, 16 * KIB]


def test_a_curve_is_a_straight_line_between_points_and_two_points_of_one_time_are_a_step() -> None:
    curve = curve_of("10=0,20=100KiB/s,20=10KiB/s,40=10KiB/s")
    assert curve.duration_s == 30
    assert curve.at(5) == (50 * KIB, KIB)
    assert curve.at(25) == (10 * KIB, KIB)
    assert curve.bytes == pytest.approx(500 * KIB + 200 * KIB)
    assert curve.bytes_per_s == pytest.approx(700 * KIB / 30)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "time,bytes_per_s,request_bytes\n0,1000,100\n60,3000,300\n"),
        ("a.csv", "\ufeffrequest_bytes, bytes_per_s ,time\n100,1000,0\n300,3000,60\n"),
        ("a.csv", "1700000000,1000,100\n1700000060,3000,300\n"),
        ("a.csv", "2026-10-25T02:59:30,1000,100\n2026-10-25T03:00:30+00:00,3000,300\n"),
        ("a.ndjson", NDJSON),
    ],
)  # fmt: skip
def test_rows_of_a_trace_hold_until_the_next_one(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    curve = curve_of(str(tmp_path / name))
    assert curve.pieces == (
        LoadPiece(0, 60, 1000, 1000, 100), LoadPiece(60, 120, 3000, 3000, 300),
    )  # fmt: skip
    assert curve.requests == pytest.approx(60 * 10 + 60 * 10)


def test_a_trace_without_sizes_has_the_given_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,bytes_per_s\n0,0\n1,50\n3,70\n")
    curve = curve_of(str(tmp_path / "a.csv"))
    assert {piece.request_bytes for piece in curve.pieces} == {KIB}
    assert curve.duration_s == 5
    assert curve.bytes == pytest.approx(100 + 140)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fast", "a rate must be like 20MiB/s, got 'fast'"),
        ("20MB/s", "got '20MB/s'"),
        ("20MiB", "got '20MiB'"),
        ("-1KiB/s", "got '-1KiB/s'"),
        ("0/s", "above 0"),
        ("nan/s", "got 'nan/s'"),
        ("9999999TiB/s", "at most 1024 TiB/s"),
        ("2KiB/s..1KiB/s", "must be below the second"),
        ("1KiB/s..", "got ''"),
        ("0=1KiB/s", "two points or more"),
        ("0=1KiB/s,x=2KiB/s", "the time of 'x=2KiB/s' in the load must be a number"),
        ("0=1KiB/s,inf=2KiB/s", "must be a finite number"),
        ("5=1KiB/s,4=2KiB/s", "4 comes after 5"),
        ("5=1KiB/s,5=2KiB/s", "no duration"),
        ("0=0,5=0", "0 all the time"),
        ("missing.csv", "cannot read the trace missing.csv: No such file"),
    ],
)
def test_a_bad_load_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_load(text, KIB)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.csv", b"", "has 0 rows"),
        ("a.csv", b"time,bytes_per_s\n0,1\n", "has 1 rows"),
        ("a.csv", b"when,how_much\n0,1\n", "line 1: the head must name the columns"),
        ("a.csv", b"time,bytes_per_s\n0,1\n0,2\n", "line 3: times must rise"),
        ("a.csv", b"time,bytes_per_s\n0,1\n1,fast\n", "line 3: bytes_per_s must be a number"),
        ("a.csv", b"time,bytes_per_s\n0,1\n1,-5\n", "line 3: bytes_per_s must be 0 to"),
        ("a.csv", b"time,bytes_per_s\n0,1\nnoon,5\n", "must be a number of seconds or an ISO"),
        ("a.csv", b"time,bytes_per_s,request_bytes\n0,1,0\n", "line 2: request_bytes must be 1"),
        ("a.csv", b'time,bytes_per_s\n0,"1\n', "not CSV"),
        ("a.csv", b"time,bytes_per_s\n0,\xff\n", "not UTF-8"),
        ("a.csv", b"time,bytes_per_s\n0,0\n1,0\n", "0 all the time"),
        ("a.ndjson", b'{"time": 0, "bytes_per_s": 1}\n{"time"', "line 2: not JSON"),
        ("a.ndjson", b"[0, 1]\n", "line 1: a line must be an object"),
        ("a.ndjson", b'{"time": 0, "bytes_per_s": true}\n', "line 1: bytes_per_s must be a number"),
        ("a.ndjson", b'{"time": 0}\n', "line 1: bytes_per_s must be a number, got ''"),
    ],
)
def test_a_bad_trace_is_refused_with_the_line(
    name: str, data: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_load(str(tmp_path / name), KIB)


pieces = st.tuples(st.floats(0.01, 100), st.floats(0, 1e9), st.floats(0, 1e9), st.integers(1, 9999))


def joined(found: list[tuple[float, float, float, int]]) -> LoadCurve:
    start, made = 0.0, []
    for duration_s, first, last, request_bytes in found:
        made.append(LoadPiece(start, start + duration_s, first, last, request_bytes))
        start += duration_s
    return LoadCurve(made)


@given(st.lists(pieces, min_size=1, max_size=5), st.floats(0, 1))
def test_the_time_until_which_requests_are_expected_is_the_inverse_of_how_many_are(
    found: list[tuple[float, float, float, int]], share: float
) -> None:
    curve = joined(found)
    wanted = curve.requests * share * 0.999
    at_s, _ = curve.when(wanted)
    if at_s < math.inf:
        assert 0 <= at_s <= curve.duration_s * (1 + 1e-9)
        assert curve.requests_until(at_s) == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert curve.when(curve.requests * 1.01 + 1)[0] == math.inf


def test_a_curve_played_faster_has_the_same_rates() -> None:
    curve = curve_of("0=1MiB/s,60=3MiB/s").within(6)
    assert curve.duration_s == pytest.approx(6)
    assert curve.bytes_per_s == pytest.approx(2 * MIB)
    assert curve.at(3)[0] == pytest.approx(2 * MIB)
    assert constant(5, 1, 10).bytes == 50
