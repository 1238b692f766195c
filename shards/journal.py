"""A shard's journal of what its subscriptions have finished since the last flush.

An acknowledgment is answered when it is here, and is in the ledger a second later, with the flush
(``delivery/flush.py``). The journal is in shared memory, so the death of a shard loses
nothing of it: its successor writes what it finds into the ledger before it delivers anything. Only
the end of all processes loses it, and then what came since the last flush is delivered again.

Positions are byte counts that only grow; the byte of position p is ``p % capacity``. Lifecycle of
an entry::

    its bytes are written -> head is stored, the entry counts -> a flush begins, and notes the head
    -> the flush is durable: tail is stored, the entry is gone

    tail <= head <= tail + capacity

An entry says which offsets of a partition are finished, in a *generation* of the subscription, so
that it means nothing after a seek. Entries may repeat one another: a reader adds up sets.

The shard itself writes both words, and nobody reads the bytes while it lives: a stopped owner is
killed, and has ended before its successor starts. What a dying process wrote after the head never
happened. Each entry has a checksum, which begins with its position, so that damage by a stray store
is found and not believed.

This module neither logs nor decides.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shards import layout as at
from shards.barrier import fence
from shards.checksum import crc32c
from shards.segment import Segment

# 4 bytes for each offset: half of it holds 500,000 acknowledgments, which is five seconds of what a
# core delivers. One acknowledgment of the most that may be in flight (1,000,000) still fits.
JOURNAL_BYTES = 4 << 20

# Of what follows the checksum: count, subscription, generation, first offset, partition, 0. The
# distances of all offsets from the first follow, 4 bytes each.
_CHECKSUM = struct.Struct("=I")
_HEAD = struct.Struct("=IQQQII")
_HEAD_BYTES = _CHECKSUM.size + _HEAD.size
_OFFSET_BYTES = 4
_POSITION_MASK = (1 << 32) - 1


class JournalFull(Exception):
    """There is no space for an entry before a flush."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"the journal has {free_bytes} free bytes, {needed_bytes} are needed")
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class JournalDamaged(Exception):
    """An entry is not what its writer wrote; neither it nor what follows it can be read."""

    def __init__(self, position: int, lost_bytes: int) -> None:
        super().__init__(f"the entry at {position} is damaged; {lost_bytes} bytes cannot be read")


class JournalEntry(NamedTuple):
    """Offsets of a partition that are finished; their order has no meaning."""

    subscription_id: int
    generation: int
    partition: int
    offsets: Sequence[int]


class FinishedJournal:
    """The journal of one shard; belongs to its loop."""

    def __init__(self, segment: Segment, shard: int) -> None:
        self._words = segment.words
        self._data = segment.journal(shard)
        base = segment.layout.shard(shard)
        self._head_at = base + at.S_JOURNAL_HEAD
        self._tail_at = base + at.S_JOURNAL_TAIL
        self._waits_at = base + at.S_JOURNAL_WAITS
        self.capacity = segment.layout.journal_bytes
        self.head: int = self._words[self._head_at]
        self.tail: int = self._words[self._tail_at]

    @property
    def used_bytes(self) -> int:
        """Bytes of the entries that no flush has written yet."""
        return self.head - self.tail

    @property
    def is_half_full(self) -> bool:
        """Nothing is to be delivered until a flush: what is in flight needs the other half."""
        return 2 * self.used_bytes >= self.capacity

    def append(
        self, subscription_id: int, generation: int, partition: int, offsets: Sequence[int]
    ) -> None:
        """Appends an entry. Raises JournalFull, and has appended nothing.

        ``offsets`` is not empty, and they are less than 2^32 apart.
        """
        needed = entry_bytes(len(offsets))
        head = self.head
        if needed > self.capacity - head + self.tail:
            raise JournalFull(needed, self.capacity - self.used_bytes)
        first = min(offsets)
        content = (
            _HEAD.pack(len(offsets), subscription_id, generation, first, partition, 0)
            + array("I", [offset - first for offset in offsets]).tobytes()
        )
        checksum = _CHECKSUM.pack(crc32c(content, head & _POSITION_MASK))
        self._write(head, checksum + content)
        if fence is not None:
            fence()
        self._words[self._head_at] = self.head = head + needed

    def entries(self) -> Iterator[JournalEntry]:
        """All entries, oldest first. Raises JournalDamaged after those before the damage."""
        position, head = self.tail, self.head
        if not 0 <= head - position <= self.capacity:
            raise JournalDamaged(position, self.capacity)
        while position < head:
            (checksum,) = _CHECKSUM.unpack(self._read(position, _CHECKSUM.size))
            fixed = self._read(position + _CHECKSUM.size, _HEAD.size)
            count, subscription_id, generation, first, partition, _ = _HEAD.unpack(fixed)
            end = position + entry_bytes(count)
            if end > head:
                raise JournalDamaged(position, head - position)
            steps = self._read(position + _HEAD_BYTES, count * _OFFSET_BYTES)
            if crc32c(fixed + steps, position & _POSITION_MASK) != checksum:
                raise JournalDamaged(position, head - position)
            offsets = [first + step for step in array("I", steps)]
            yield JournalEntry(subscription_id, generation, partition, offsets)
            position = end

    def empty_up_to(self, position: int) -> None:
        """Frees the entries before a position, which was the head when a flush collected what they
        say; it is durable now."""
        if not self.tail <= position <= self.head:
            raise ValueError(f"{position} is not between {self.tail} and {self.head}")
        self._words[self._tail_at] = self.tail = position

    def clear(self) -> None:
        """Frees all entries, whatever their bytes are."""
        self._words[self._tail_at] = self.tail = self.head

    def count_wait(self) -> None:
        """Counts an acknowledgment that has to wait for space."""
        self._words[self._waits_at] += 1

    def _write(self, position: int, entry: bytes) -> None:
        start = position % self.capacity
        before_end = self.capacity - start
        if len(entry) <= before_end:
            self._data[start : start + len(entry)] = entry
        else:
            self._data[start:] = entry[:before_end]
            self._data[: len(entry) - before_end] = entry[before_end:]

    def _read(self, position: int, length: int) -> bytes:
        start = position % self.capacity
        found = bytes(self._data[start : start + length])
        return found + bytes(self._data[: length - len(found)])

    def check_invariants(self) -> None:
        """Raises AssertionError unless words and entries are as the head of the module says."""
        assert self.tail == self._words[self._tail_at] <= self.head == self._words[self._head_at]
        assert self.used_bytes <= self.capacity
        sizes = (entry_bytes(len(entry.offsets)) for entry in self.entries())
        assert sum(sizes) == self.used_bytes


def entry_bytes(offsets: int) -> int:
    """What an entry of that many offsets takes."""
    return _HEAD_BYTES + offsets * _OFFSET_BYTES
