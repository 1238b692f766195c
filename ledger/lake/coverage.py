"""Which offsets lie where: spans of offsets, and whether files of L1 hold each once.

Vocabulary: a *span* is [first, last], both included; a sorted list of spans that do not overlap
stands for the offsets in them. A *range* of L1 says how many rows of a partition a file has
between two offsets, not which: the others may be rows of another day's file.

Pure functions; they read nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Span = tuple[int, int]
Rows = tuple[int, int, int]
"""(first offset, last offset, rows) of a range of L1"""


class Spans:
    """Offsets that are no live records in L0 or L1: gaps, or gaps and holes."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans)
        self._firsts = [first for first, _ in self._spans]
        self._before = [0]  # offsets in the spans before each
        for first, last in self._spans:
            self._before.append(self._before[-1] + last - first + 1)

    def overlapping(self) -> Span | None:
        """A span that begins before another one's end."""
        for (_, last), span in zip(self._spans, self._spans[1:], strict=False):
            if span[0] <= last:
                return span
        return None

    def behind(self, offset: int) -> int:
        """The first offset from ``offset`` on that lies in none."""
        while (span := self._over(offset)) is not None:
            offset = span[1] + 1
        return offset

    def before(self, offset: int) -> int:
        """The last offset up to ``offset`` that lies in none; 0 when there is no such."""
        while (span := self._over(offset)) is not None:
            offset = span[0] - 1
        return offset

    def outside(self, first: int, last: int) -> int:
        """How many of the offsets from ``first`` to ``last`` lie in none."""
        if last < first:
            return 0
        return last - first + 1 - (self._up_to(last) - self._up_to(first - 1))

    def _over(self, offset: int) -> Span | None:
        at = bisect_right(self._firsts, offset) - 1
        return self._spans[at] if at >= 0 and self._spans[at][1] >= offset else None

    def _up_to(self, offset: int) -> int:
        at = bisect_right(self._firsts, offset)
        if at == 0:
            return 0
        first, last = self._spans[at - 1]
        return self._before[at - 1] + min(last, offset) - first + 1


def l1_problem(
    ranges: Sequence[Rows], without: Spans, earliest_seq: int, compacted_seq: int
) -> tuple[str, str] | None:
    """("gap" or "overlap", sentence) where L1 cannot hold each offset of a partition once.

    Offsets are those from ``earliest_seq`` to ``compacted_seq`` outside ``without``. Up to any of
    them L1 holds at least the rows of ranges that end there, and at most those of ranges that
    began. Where ranges do not overlap each other, that is exact. Below ``earliest_seq`` L1 may
    have rows or not; of a range across it as many count as must, or as can.
    """
    for first, last, rows in ranges:
        if last > compacted_seq:
            return "overlap", f"L1 holds offset {last}, compacted is up to {compacted_seq} only"
        if not 1 <= rows <= without.outside(first, last):
            return "overlap", (
                f"a file says {rows} rows between offsets {first} and {last}, where"
                f" {without.outside(first, last)} are"
            )
    least, most = [], []
    for first, last, rows in ranges:
        below = without.outside(first, min(last, earliest_seq - 1))
        within = without.outside(max(first, earliest_seq), last)
        least.append((last, max(0, rows - below)))
        most.append((first, min(rows, within)))
    ended, begun = _totals(least), _totals(most)
    places = {last for _, last, _ in ranges} | {first - 1 for first, _, _ in ranges}
    for offset in sorted(places | {compacted_seq}):
        if offset < earliest_seq:
            continue
        there = without.outside(earliest_seq, offset)
        if (rows := _total(ended, offset)) > there:
            return "overlap", (
                f"L1 holds {rows} rows of offsets {earliest_seq} to {offset}, which are {there}"
            )
        if (rows := _total(begun, offset)) < there:
            return "gap", (
                f"L1 holds at most {rows} rows of offsets {earliest_seq} to {offset}, which are"
                f" {there}"
            )
    return None


Totals = tuple[list[int], list[int]]
"""Places in order, and the sum of rows before each and behind the last"""


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
