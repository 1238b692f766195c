"""Offsets that are finished already, and that a subscription has not admitted yet.

A former process has finished them, or the subscription itself in another mode. They are kept as
they are stored, in rows of 4,096 bits; rows in which all is finished, however many follow each
other, are one *run*. So a billion of them takes as little as one, and is passed over as quickly.

Rows are added in ascending order, as the ledger gives them.
"""

from __future__ import annotations

from bisect import bisect_right

from ledger.delivery.progress import ROW_OFFSETS

ROW_BYTES_HELD = 680  # of a row by itself: its integer, and its place
_FULL = (1 << ROW_OFFSETS) - 1


class FinishedAhead:
    """The finished offsets of one partition, as far as they are told and not passed."""

    __slots__ = ("_count", "_rows", "_runs")

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._runs: list[tuple[int, int]] = []  # rows, first and last
        self._count = 0  # finished offsets

    def __bool__(self) -> bool:
        return bool(self._rows or self._runs)

    def __contains__(self, offset: int) -> bool:
        return bool(self.bits(offset // ROW_OFFSETS) >> offset % ROW_OFFSETS & 1)

    @property
    def bytes(self) -> int:
        """What they take."""
        return len(self._rows) * ROW_BYTES_HELD

    def bits(self, row: int) -> int:
        """What is finished of a row."""
        found = self._rows.get(row)
        if found is not None:
            return found
        return _FULL if self._run_end(row) else 0

    def _run_end(self, row: int) -> int:
        """The row after the run that has a row; 0 if none has it."""
        at = bisect_right(self._runs, row, key=lambda run: run[0]) - 1
        return self._runs[at][1] + 1 if at >= 0 and row <= self._runs[at][1] else 0

    def add(self, row: int, bits: int) -> None:
        """Finished offsets of a row."""
        if bits == _FULL:
            self.add_run(row, row)
        elif bits:
            self._rows[row] = bits
            self._count += bits.bit_count()

    def add_run(self, first: int, last: int) -> None:
        """All offsets of some rows."""
        if first > last:
            return
        self._count += (last - first + 1) * ROW_OFFSETS
        if self._runs and self._runs[-1][1] == first - 1:
            first, _ = self._runs.pop()
        self._runs.append((first, last))

    def add_all(self, others: FinishedAhead, after: int) -> None:
        """What others has of the rows after one."""
        for row, bits in others._rows.items():
            if row > after:
                self.add(row, bits)
        for first, last in others._runs:
            self.add_run(max(first, after + 1), last)

    def count_from(self, offset: int) -> int:
        """How many offsets from one on, up to which all is forgotten, are finished."""
        row, bit = divmod(offset, ROW_OFFSETS)
        return self._count - (self.bits(row) & ((1 << bit) - 1)).bit_count()

    def run_from(self, offset: int) -> int:
        """How many offsets from this one on are finished, without one between them that is not."""
        at = offset
        while True:
            row, bit = divmod(at, ROW_OFFSETS)
            end = self._run_end(row)
            if end:
                at = end * ROW_OFFSETS
                continue
            left = ~(self._rows.get(row, 0) >> bit)
            found = min((left & -left).bit_length() - 1, ROW_OFFSETS - bit)
            at += found
            if bit + found < ROW_OFFSETS:
                return at - offset

    def forget_before(self, offset: int) -> None:
        """Forgets the rows that are wholly before an offset."""
        row = offset // ROW_OFFSETS
        while self._rows and (first := next(iter(self._rows))) < row:
            self._count -= self._rows.pop(first).bit_count()
        while self._runs and self._runs[0][0] < row:
            first, last = self._runs.pop(0)
            self._count -= (min(last + 1, row) - first) * ROW_OFFSETS
            if last >= row:
                self._runs.insert(0, (row, last))
