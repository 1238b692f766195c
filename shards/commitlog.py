"""The commit log: the last few hundred commits, in shared memory, for every shard to follow.

Commit number n has slot n mod ``commit_slots``, and its entry a contiguous range of a ring of
bytes. Positions in the ring are monotonic byte counts. The words, in the order in which they move
for one commit::

    commits reserved   raised first: bytes more than the ring before it may be overwritten from now
    (bytes, slot)      the entry, and where it is
    commits            the log's end, stored last: the commit is *published*

Only the holder of the ledger lock writes. A holder that died in between left bytes that no slot
names; the next one continues after them. A reader copies slot and bytes first and then checks both
words: whether the writer may have reused the slot, or reserved the bytes. If so, or if the commit
was larger than an entry may be, it reads the ledger.
"""

from __future__ import annotations

import struct

import msgspec

from ledger.types import Commit
from shards import layout as at
from shards.barrier import keep_order
from shards.segment import Segment

_SLOT = struct.Struct("=QQQQ")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Commit)


class CommitLog:
    """One process's view of the log."""

    def __init__(self, segment: Segment) -> None:
        layout = segment.layout
        self._words = segment.words
        self._slots = segment.data
        self._data = segment.data[layout.commit_log : layout.commit_log + layout.commit_log_bytes]
        self._layout = layout

    @property
    def end(self) -> int:
        """The number of the last commit in the log."""
        return int(self._words[at.G_COMMITS])

    def start(self, number: int) -> None:
        """Begins an empty log after commit ``number``, before any shard runs."""
        self._words[at.G_COMMITS] = number

    def publish(self, commit: Commit, now_ns: int = 0) -> None:
        """Writes the next commit and moves the end; the caller holds the ledger lock.

        A commit at or below the end is a repeat and is there already.
        """
        if commit.number <= self.end:
            return
        if commit.number != self.end + 1:
            raise ValueError(f"commit {commit.number} cannot follow {self.end} in the commit log")
        words, capacity = self._words, self._layout.commit_log_bytes
        entry = _encoder.encode(commit)
        length = len(entry)
        position = int(words[at.G_COMMITS_RESERVED])
        if length > self._layout.commit_bytes_max:
            length = 0
        else:
            left = capacity - position % capacity
            if length > left:
                position += left
            words[at.G_COMMITS_RESERVED] = position + length
        keep_order()  # a reader of what was here sees the words that were stored before
        if length:
            start = position % capacity
            self._data[start : start + length] = entry
        slot = self._layout.commit_slot(commit.number) * at.WORD_BYTES
        _SLOT.pack_into(self._slots, slot, commit.number, position, length, now_ns)
        keep_order()
        words[at.G_COMMITS] = commit.number

    def read(self, number: int) -> Commit | None:
        """Commit ``number`` <= end; None if it must be read from the ledger instead."""
        keep_order()
        found, position, length, published_ns = self._slot(number)
        if found != number or not length:
            return None
        capacity = self._layout.commit_log_bytes
        start = position % capacity
        entry = bytes(self._data[start : start + length])
        keep_order()
        # The writer may already be filling the slot of end + 1.
        if self.end + 1 - number >= self._layout.commit_slots:
            return None
        if self._words[at.G_COMMITS_RESERVED] - position > capacity:
            return None
        commit = _decoder.decode(entry)
        return msgspec.structs.replace(commit, published_ns=published_ns)

    def published_ns(self, number: int) -> int:
        """When commit ``number`` <= end was published; 0 if that is not known any more."""
        keep_order()
        found, _, _, published_ns = self._slot(number)
        keep_order()
        is_overtaken = self.end + 1 - number >= self._layout.commit_slots
        return 0 if found != number or is_overtaken else published_ns

    def _slot(self, number: int) -> tuple[int, int, int, int]:
        slot = self._layout.commit_slot(number) * at.WORD_BYTES
        return _SLOT.unpack_from(self._slots, slot)

    def recent(self, last: int, count: int) -> list[Commit]:
        """The newest commits up to ``last`` that the log holds, ascending and without a gap."""
        found: list[Commit] = []
        for number in range(last, max(0, last - count), -1):
            commit = self.read(number)
            if commit is None:
                break
            found.append(commit)
        return found[::-1]
