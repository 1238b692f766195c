"""Positions as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.watch.positions import PositionError, format_position, parse_position
from ledger.types import INTEGER_MAX

NUMBERS = st.integers(0, INTEGER_MAX)


def test_a_position_names_topics_and_partitions_in_order() -> None:
    assert format_position({(9, 0): 4, (7, 1): 98, (7, 0): 120}) == "7:0=120,1=98;9:0=4"


@given(st.dictionaries(st.tuples(NUMBERS, NUMBERS), NUMBERS, max_size=64))
def test_a_position_is_read_as_it_was_written(offsets: dict[tuple[int, int], int]) -> None:
    assert parse_position(format_position(offsets)) == offsets


def test_no_position_is_an_empty_text() -> None:
    assert parse_position("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "7", "7:", "7:0", "7:0=", ":0=1", "7:0=1,", "7:0=1;", ";7:0=1", "7:0=-1", "7:0=1 ",
        " 7:0=1", "7:00=1", "07:0=1", "7:0=٣", "7:0=1;7:0=2", "7:0=1,0=1",
        "7:0=9223372036854775808", "7:0=1\n", "7=0:1", "7:0=1.0", "x" * 9_000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_a_short_sentence(text: str) -> None:
    with pytest.raises(PositionError) as told:
        parse_position(text)
    assert 20 < len(str(told.value)) < 250


def test_a_bad_position_says_what_to_do() -> None:
    with pytest.raises(PositionError) as told:
        parse_position("latest")
    assert str(told.value) == (
        "'latest' is not an event id of a stream, like 7:0=120,1=98; send the last one as it was"
        " received, or none to begin anew"
    )
