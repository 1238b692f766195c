"""What an import reads, and how it is cut into requests. Pure.

Vocabulary: a *source record* is a line or an element of the source; it becomes any number of rows:
one, or none if a filter drops it, or a *dead letter* if it is not valid. A *block* is what is read
together; a *sub-block* is a piece of it that is sent together.

A *position* is a place in a source: the bytes of its text up to there. Positions are at the ends of
source records only. The step of a sub-block goes from position to position, however many rows
are between them: that is what makes commit tokens independent of the number of records.

- The sub-blocks of a block are consecutive, and the last one ends where the block ends.
- A sub-block has at least one source record of a block that has any, so a large record passes
  alone, and the rows of one source record stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SourceRecord(NamedTuple):
    """One record of a source, which ends at ``next`` and has ``size`` bytes there."""

    next: int
    size: int
    rows: tuple[bytes, ...]  # records of the topic, as JSON
    dead: tuple[bytes, ...] = ()  # records of the topic of dead letters


class SubBlock(NamedTuple):
    """Source records that end at ``next``; ``size`` counts their bytes."""

    next: int
    records: Sequence[SourceRecord]
    size: int


class SourceBlock:
    """Source records from one read, up to the position ``end``; sub-blocks are taken off it."""

    def __init__(self, records: Sequence[SourceRecord], end: int) -> None:
        if records and records[-1].next > end:
            raise ValueError(f"a record ends at {records[-1].next}, after the block at {end}")
        self.end = end
        self._records = records
        self._taken = 0
        self._is_empty = False

    @property
    def is_empty(self) -> bool:
        """Whether all of it was taken."""
        return self._is_empty

    def first(self, bytes_max: int, records_max: int) -> SubBlock:
        """The next sub-block within both limits; it stays until it is taken."""
        size = rows = 0
        begin = at = self._taken
        records = self._records
        while at < len(records):
            record = records[at]
            size += record.size
            rows += max(1, len(record.rows), len(record.dead))
            if at > begin and (size > bytes_max or rows > records_max):
                return SubBlock(records[at - 1].next, records[begin:at], size - record.size)
            at += 1
        return SubBlock(self.end, records[begin:], size)

    def take(self, taken: SubBlock) -> None:
        """Takes off the sub-block that ``first`` returned."""
        self._taken += len(taken.records)
        self._is_empty = taken.next == self.end
