"""Which rows of L1 come next: merges files whose ranges overlap, by offset. Pure.

The rows of a partition may be in several files, one for each day of their timestamps, so offsets 1,
2, 3 can be rows of three files. A merge is a generator that asks for what it needs:

    merge = merged(ranges, partition, offset, last)
    need = next(merge)                                  NeedFooter, NeedRows, or RowRange
    need = merge.send(footer or rows), or next(merge) after a RowRange

It asks for something only when that may hold the next row, so a reader that stops early has read
little. It never asks for row groups that statistics exclude, including, with ``since_ms``, those
that end before that time.

Each range has a *cursor* with a lower bound of its next offset: from the ledger's range, then from
the footer, then from the rows. The cursor with the lowest bound is advanced. A cursor that has rows
yields those below the bounds of all others as one row range.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from compaction.parquet.file_bytes import LakeFileDamaged
from compaction.parquet.reader import ParquetFooter, RowGroup, may_hold, read_footer, read_rows
from compaction.parquet.rows import Rows
from ledger.lake.types import FileRange
from uploader.l0.records import Record

if TYPE_CHECKING:
    from compaction.inputs.place import Place

RECORDS_AT_ONCE = 256  # made at a time, so that a reader of one record does not make 65,536
EVER_MS = -(1 << 63)


class NeedFooter(NamedTuple):
    """Send the Footer of this file."""

    path: str
    size_bytes: int


class NeedRows(NamedTuple):
    """Send the Rows of this row group."""

    footer: ParquetFooter
    group: RowGroup


class RowRange(NamedTuple):
    """Rows [start, stop) come next."""

    rows: Rows
    start: int
    stop: int

    @property
    def first_offset(self) -> int:
        return int(self.rows.offsets[self.start])

    @property
    def last_offset(self) -> int:
        return int(self.rows.offsets[self.stop - 1])

    def records(self) -> Iterator[tuple[int, int, Record]]:
        """(offset, epoch milliseconds, record) of all rows; a few are made at a time."""
        for start in range(self.start, self.stop, RECORDS_AT_ONCE):
            yield from self.rows.records(start, min(start + RECORDS_AT_ONCE, self.stop))


Merge = Generator[NeedFooter | NeedRows | RowRange, ParquetFooter | Rows | None, None]


class _Cursor:
    """A position in one file: its footer, its row groups that may have rows, their row ranges."""

    __slots__ = ("bound", "footer", "groups", "range", "rows", "row_ranges")

    def __init__(self, file_range: FileRange, offset: int) -> None:
        self.range = file_range
        self.bound = max(offset, file_range.range.first_offset)
        self.footer: ParquetFooter | None = None
        self.groups: list[RowGroup] = []  # the next one last
        self.rows: Rows | None = None
        self.row_ranges: list[tuple[int, int]] = []  # the next one last

    def take(self, last: int) -> RowRange:
        """The rows of this row range up to ``last``, but at least one: another cursor with the same
        bound and no rows yet has its rows later."""
        assert self.rows is not None
        start, stop = self.row_ranges[-1]
        end = max(bisect_left(self.rows.offsets, last + 1, start, stop), start + 1)
        self.row_ranges[-1] = (end, stop)
        return RowRange(self.rows, start, end)

    def next_row_range(self) -> bool:
        """Updates the bound. Returns whether anything is left."""
        while self.rows is not None and self.row_ranges:
            start, stop = self.row_ranges[-1]
            if start < stop:
                self.bound = int(self.rows.offsets[start])
                return True
            self.row_ranges.pop()
        self.rows = None
        if not self.groups:
            return False
        group = self.groups[-1]
        if group.partition_min == group.partition_max:
            self.bound = max(self.bound, group.offset_min)
        return True


def merged(
    ranges: Sequence[FileRange],
    partition: int,
    offset: int,
    last: int,
    since_ms: int = EVER_MS,
) -> Merge:
    """Yields the rows with offsets [offset, last] in order. Raises LakeFileDamaged.

    ``since_ms`` excludes row groups, not rows: rows that are yielded may be older.
    """
    cursors = [
        _Cursor(each, offset)
        for each in ranges
        if each.range.first_offset <= last
        and each.range.last_offset >= offset
        and each.range.last_timestamp_ms >= since_ms
    ]
    heap = [(cursor.bound, number) for number, cursor in enumerate(cursors)]
    heapq.heapify(heap)
    reached = offset - 1
    while heap:
        bound, number = heapq.heappop(heap)
        if bound > last:
            return
        cursor = cursors[number]
        if cursor.rows is None:
            more = yield from _advance(cursor, partition, offset, last, since_ms)
        else:
            if bound <= reached:
                raise LakeFileDamaged(
                    cursor.range.path,
                    f"it has offset {bound} of partition {partition} twice or after a greater one",
                )
            span = cursor.take(min(heap[0][0] - 1, last) if heap else last)
            reached = span.last_offset
            yield span
            more = cursor.next_row_range()
        if more:
            heapq.heappush(heap, (cursor.bound, number))


def _advance(
    cursor: _Cursor, partition: int, offset: int, last: int, since_ms: int
) -> Generator[NeedFooter | NeedRows, ParquetFooter | Rows | None, bool]:
    """Reads the cursor's footer or next row group. Returns whether there may be rows."""
    low = max(offset, cursor.range.range.first_offset)
    high = min(last, cursor.range.range.last_offset)
    if cursor.footer is None:
        footer = yield NeedFooter(cursor.range.path, cursor.range.size_bytes)
        assert isinstance(footer, ParquetFooter)
        cursor.footer = footer
        cursor.groups = [
            group
            for group in reversed(footer.groups)
            if may_hold(group, partition, low, high, since_ms)
        ]
    else:
        group = cursor.groups.pop()
        rows = yield NeedRows(cursor.footer, group)
        assert isinstance(rows, Rows)
        row_ranges = []
        for start, stop in rows.row_ranges.get(partition, ()):
            begin = bisect_left(rows.offsets, low, start, stop)
            end = bisect_left(rows.offsets, high + 1, begin, stop)
            if begin < end:
                row_ranges.append((begin, end))
        cursor.rows = rows
        cursor.row_ranges = row_ranges[::-1]
    return cursor.next_row_range()


def records(
    place: Place,
    ranges: Sequence[FileRange],
    partition: int,
    offset: int,
    last: int,
    since_ms: int = EVER_MS,
) -> Iterator[tuple[int, int, Record]]:
    """(offset, epoch milliseconds, record) of offsets [offset, last] in order, of ``since_ms`` or
    later. Blocks. It keeps only one row group of each file, the one that it has reached.

    Raises StoreError, ObjectMissing, LakeFileDamaged.
    """
    merge = merged(ranges, partition, offset, last, since_ms)
    reply: ParquetFooter | Rows | None = None
    while True:
        try:
            need = merge.send(reply)
        except StopIteration:
            return
        reply = None
        if isinstance(need, NeedFooter):
            reply = read_footer(place, need.path, need.size_bytes)
        elif isinstance(need, NeedRows):
            reply = read_rows(need.footer, need.group)
        else:
            yield from (each for each in need.records() if each[1] >= since_ms)
