"""The commit log: the last few hundred commits, in shared memory, for every shard to follow.

Commit number n is in slot n mod size; the ``commits`` word is the log's end and is stored last.
Only the holder of the ledger lock writes. A reader copies an entry and then checks whether the
writer may have reused the slot; if so, or if the commit was too large for its slot, it reads the
ledger.
"""

from __future__ import annotations

import struct

import msgspec

from ledger.types import Commit
from shards import layout as at
from shards.barrier import fence
from shards.segment import Segment

_HEAD = struct.Struct("=QQ")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Commit)


class CommitLog:
    """One process's view of the log."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        self._data = segment.data
        self._layout = segment.layout

    @property
    def end(self) -> int:
        """The number of the last commit in the log."""
        return int(self._words[at.G_COMMITS])

    def start(self, number: int) -> None:
        """Begins an empty log after commit ``number``, before any shard runs."""
        self._words[at.G_COMMITS] = number

    def publish(self, commit: Commit) -> None:
        """Writes the next commit and moves the end; the caller holds the ledger lock.

        A commit at or below the end is a repeat and is there already.
        """
        if commit.number <= self.end:
            return
        if commit.number != self.end + 1:
            raise ValueError(f"commit {commit.number} cannot follow {self.end} in the commit log")
        offset = self._layout.commit_slot(commit.number)
        entry = _encoder.encode(commit)
        fits = len(entry) <= self._layout.commit_slot_bytes - at.C_BYTES
        length = len(entry) if fits else 0
        if fence is not None:
            fence()  # a reader of the slot's former entry sees the end that was stored before
        _HEAD.pack_into(self._data, offset, commit.number, length)
        if fits:
            start = offset + at.C_BYTES
            self._data[start : start + length] = entry
        if fence is not None:
            fence()
        self._words[at.G_COMMITS] = commit.number

    def read(self, number: int) -> Commit | None:
        """Commit ``number`` <= end; None if it must be read from the ledger instead."""
        if fence is not None:
            fence()
        offset = self._layout.commit_slot(number)
        found, length = _HEAD.unpack_from(self._data, offset)
        if found != number or not length:
            return None
        start = offset + at.C_BYTES
        entry = bytes(self._data[start : start + length])
        if fence is not None:
            fence()
        # The writer may already be filling the slot of end + 1.
        if self.end + 1 - number >= self._layout.commit_slots:
            return None
        return _decoder.decode(entry)

    def recent(self, last: int, count: int) -> list[Commit]:
        """The newest commits up to ``last`` that the log holds, ascending and without a gap."""
        found: list[Commit] = []
        for number in range(last, max(0, last - count), -1):
            commit = self.read(number)
            if commit is None:
                break
            found.append(commit)
        return found[::-1]
