"""OffsetRanges of offsets against plain sets; and L1 that lacks a row or has one twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledger.lake.coverage import OffsetRanges, l1_problem

MAX = 40


@st.composite
def offset_ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """OffsetRanges that do not overlap, in any order; some touch."""
    places = sorted(draw(st.sets(st.integers(1, MAX), max_size=8)))
    found = list(zip(places[::2], places[1::2], strict=False))
    return draw(st.permutations(found))


def offsets_of(some: list[tuple[int, int]]) -> set[int]:
    return {offset for first, last in some for offset in range(first, last + 1)}


@given(offset_ranges(), st.integers(1, MAX + 2), st.integers(0, MAX + 2))
def test_spans_answer_as_the_offsets_in_them_do(
    some: list[tuple[int, int]], first: int, last: int
) -> None:
    inside = offsets_of(some)
    which = OffsetRanges(some)
    assert which.overlapping() is None
    assert which.count_outside(first, last) == len(set(range(first, last + 1)) - inside)
    assert which.next_outside(first) == min(set(range(first, MAX + 9)) - inside)
    assert which.last_outside(first) == max(set(range(first + 1)) - inside)


def test_spans_that_share_an_offset_are_told() -> None:
    assert OffsetRanges([(5, 9), (1, 4)]).overlapping() is None
    assert OffsetRanges([(4, 9), (1, 4)]).overlapping() == (4, 9)


Files = list[list[int]]
"""Offsets of each file"""


@st.composite
def lakes(draw: st.DrawFn, interleaved: bool) -> tuple[list[tuple[int, int]], Files, int, int]:
    """(no rows there, files, earliest, compacted): each readable offset in one file. Of those
    below earliest some are in one and some in none; all or none, where files do not interleave."""
    without = draw(offset_ranges())
    compacted = draw(st.integers(1, MAX))
    earliest = draw(st.integers(1, compacted + 3))
    files: Files = [[] for _ in range(draw(st.integers(1, 5)))]
    at, all_below = 0, draw(st.booleans())
    for offset in range(1, compacted + 1):
        below = draw(st.booleans()) if interleaved else all_below
        if offset in offsets_of(without) or (offset < earliest and not below):
            continue
        if interleaved:
            at = draw(st.integers(0, len(files) - 1))
        else:
            at = min(at + draw(st.integers(0, 1)), len(files) - 1)
        files[at].append(offset)
    return without, [file for file in files if file], earliest, compacted


def ranges(files: Files) -> list[tuple[int, int, int]]:
    return [(file[0], file[-1], len(file)) for file in files]


@given(lakes(interleaved=True))
def test_what_holds_each_offset_once_is_no_problem(
    lake: tuple[list[tuple[int, int]], Files, int, int],
) -> None:
    without, files, earliest, compacted = lake
    assert l1_problem(ranges(files), OffsetRanges(without), earliest, compacted) is None


@given(lakes(interleaved=False), st.data())
def test_a_readable_row_that_is_missing_or_doubled_in_files_one_after_another_is_found(
    lake: tuple[list[tuple[int, int]], Files, int, int], data: st.DataObject
) -> None:
    without, files, earliest, compacted = lake
    at = data.draw(st.integers(0, len(files))) if files else 0
    if at == len(files) or files[at][0] < earliest:
        return
    lacking = [file for number, file in enumerate(files) if number != at]
    found = l1_problem(ranges(lacking), OffsetRanges(without), earliest, compacted)
    assert found is not None and found[0] == "gap"
    less = [
        (first, last, rows - (number == at))
        for number, (first, last, rows) in enumerate(ranges(files))
    ]
    assert l1_problem(less, OffsetRanges(without), earliest, compacted) is not None
    twice = [*ranges(files), ranges(files)[at]]
    found = l1_problem(twice, OffsetRanges(without), earliest, compacted)
    assert found is not None and found[0] == "overlap"


def test_the_sentence_says_where() -> None:
    assert l1_problem([(1, 10, 10), (21, 30, 10)], OffsetRanges([]), 1, 30) == (
        "gap", "L1 holds at most 10 rows of the 20 offsets from 1 to 20"
    )  # fmt: skip
    assert l1_problem([(1, 10, 10), (5, 30, 21)], OffsetRanges([]), 1, 30) == (
        "overlap", "L1 holds 31 rows of the 30 offsets from 1 to 30"
    )  # fmt: skip
    assert l1_problem([(1, 4, 5)], OffsetRanges([]), 1, 4) == (
        "overlap", "a file has 5 rows between offsets 1 and 4, where 4 are possible"
    )  # fmt: skip
    assert l1_problem([(1, 5, 5)], OffsetRanges([]), 1, 4) == (
        "overlap", "L1 holds offset 5, but is compacted only up to 4"
    )  # fmt: skip
