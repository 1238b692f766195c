"""Offsets that are finished ahead: runs and rows against a set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.subscriptions.window.finished_ahead import FinishedAhead
from ledger.delivery.progress import ROW_OFFSETS

LAST = 8 * ROW_OFFSETS
bounds = st.tuples(st.integers(0, LAST), st.integers(0, LAST)).map(sorted)


@given(st.lists(bounds, max_size=6), st.lists(st.integers(0, LAST), max_size=8))
def test_rows_and_runs_tell_what_a_set_of_offsets_would(
    ranges: list[list[int]], asked: list[int]
) -> None:
    offsets = {offset for first, last in ranges for offset in range(first, last)}
    found = FinishedAhead()
    for row in range(LAST // ROW_OFFSETS + 1):
        first = row * ROW_OFFSETS
        here = range(first, first + ROW_OFFSETS)
        found.add(row, sum(1 << offset - first for offset in here if offset in offsets))
    for offset in sorted(asked):
        found.forget_before(offset)
        left = {each for each in offsets if each >= offset}
        assert found.count_from(offset) == len(left)
        assert (offset in found) == (offset in offsets)
        run = 0
        while offset + run in offsets:
            run += 1
        assert found.run_from(offset) == run
    found.forget_before(LAST + ROW_OFFSETS)
    assert not found and found.count_from(LAST + ROW_OFFSETS) == 0


def test_a_billion_finished_offsets_take_as_little_as_one_and_are_passed_in_one_step() -> None:
    rows = 1_000_000_000 // ROW_OFFSETS
    found = FinishedAhead()
    found.add(0, 0b1110)
    for row in range(1, rows):  # as the ledger tells of them
        found.add(row, (1 << ROW_OFFSETS) - 1)
    found.add(rows, 1)
    assert found.run_from(ROW_OFFSETS) == (rows - 1) * ROW_OFFSETS + 1
    assert found.bytes < 2_000
