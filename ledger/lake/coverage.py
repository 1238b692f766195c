"""Ranges of offsets, and whether files of L1 hold each offset once.

Vocabulary: an *offset range* is [first, last], both included; a sorted list of ranges that do not
overlap represents the offsets in them. A *range of L1* says how many rows of a partition a file has
between two offsets, but not which: the others may be rows of another day's file.

Pure functions; they read nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

OffsetRange = tuple[int, int]
Rows = tuple[int, int, int]
"""(first offset, last offset, rows) of a range of L1"""


class OffsetRanges:
    """Offsets without a record to read: gaps, or gaps and holes."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self._ranges = sorted(ranges)
        self._firsts = [first for first, _ in self._ranges]
        self._before = [0]  # offsets in the ranges before each
        for first, last in self._ranges:
            self._before.append(self._before[-1] + last - first + 1)

    def overlapping(self) -> OffsetRange | None:
        """A range that begins before the end of another one."""
        for (_, last), following in zip(self._ranges, self._ranges[1:], strict=False):
            if following[0] <= last:
                return following
        return None

    def next_outside(self, offset: int) -> int:
        """The first offset from ``offset`` on that is in no range."""
        while (found := self._holding(offset)) is not None:
            offset = found[1] + 1
        return offset

    def last_outside(self, offset: int) -> int:
        """The last offset up to ``offset`` that is in no range; 0 if there is none."""
        while (found := self._holding(offset)) is not None:
            offset = found[0] - 1
        return offset

    def count_outside(self, first: int, last: int) -> int:
        """How many of the offsets from ``first`` to ``last`` are in no range."""
        if last < first:
            return 0
        return last - first + 1 - (self._up_to(last) - self._up_to(first - 1))

    def _holding(self, offset: int) -> OffsetRange | None:
        at = bisect_right(self._firsts, offset) - 1
        return self._ranges[at] if at >= 0 and self._ranges[at][1] >= offset else None

    def _up_to(self, offset: int) -> int:
        at = bisect_right(self._firsts, offset)
        if at == 0:
            return 0
        first, last = self._ranges[at - 1]
        return self._before[at - 1] + min(last, offset) - first + 1


def l1_problem(
    ranges: Sequence[Rows], without: OffsetRanges, earliest_seq: int, compacted_seq: int
) -> tuple[str, str] | None:
    """("gap" or "overlap", sentence) if L1 cannot hold each offset of a partition once.

    The offsets are those from ``earliest_seq`` to ``compacted_seq`` that are not in ``without``. Up
    to any of them, L1 holds at least the rows of the ranges that have ended and at most the rows of
    the ranges that have begun. If ranges do not overlap each other, both are the same. Below
    ``earliest_seq`` L1 may have rows or not: of a range across it, the lower bound counts the rows
    that must be above, the upper bound the rows that can be.
    """
    for first, last, rows in ranges:
        if last > compacted_seq:
            return "overlap", f"L1 holds offset {last}, but is compacted only up to {compacted_seq}"
        if not 1 <= rows <= without.count_outside(first, last):
            return "overlap", (
                f"a file has {rows} rows between offsets {first} and {last}, where"
                f" {without.count_outside(first, last)} are possible"
            )
    least, most = [], []
    for first, last, rows in ranges:
        below = without.count_outside(first, min(last, earliest_seq - 1))
        within = without.count_outside(max(first, earliest_seq), last)
        least.append((last, max(0, rows - below)))
        most.append((first, min(rows, within)))
    ended, begun = _totals(least), _totals(most)
    places = {last for _, last, _ in ranges} | {first - 1 for first, _, _ in ranges}
    for offset in sorted(places | {compacted_seq}):
        if offset < earliest_seq:
            continue
        there = without.count_outside(earliest_seq, offset)
        if (rows := _total(ended, offset)) > there:
            return "overlap", (
                f"L1 holds {rows} rows of the {there} offsets from {earliest_seq} to {offset}"
            )
        if (rows := _total(begun, offset)) < there:
            return "gap", (
                f"L1 holds at most {rows} rows of the {there} offsets from {earliest_seq} to"
                f" {offset}"
            )
    return None


Totals = tuple[list[int], list[int]]
"""Places in order, and the sum of rows before each and after the last"""


def _totals(pairs: Iterable[tuple[int, int]]) -> Totals:
    places: list[int] = []
    sums = [0]
    for place, rows in sorted(pairs):
        places.append(place)
        sums.append(sums[-1] + rows)
    return places, sums


def _total(totals: Totals, offset: int) -> int:
    places, sums = totals
    return sums[bisect_right(places, offset)]
