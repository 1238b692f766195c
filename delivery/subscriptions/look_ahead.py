"""The messages of one partition that a subscription knows and has not finished with.

Vocabulary: the *floor* is the last offset that, with all before it, is finished; ``end`` is the
last offset that was admitted. Between them is the *look-ahead*: for each offset its state, and how
far on the next message of its key is. These are 5 bytes per message and no object, so a key with a
million messages takes 5 MB, and finding what is finished or loose is a search for a byte.

States::

    KEYED, in its key's queue      -> DONE
    LOOSE, without order           -> TAKEN (in flight, or waits to be sent again) -> DONE
                                      TAKEN -> LOOSE, given back

This module decides nothing; ``window.py`` does. Offsets are those of the partition.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence

from ledger.progress import ROW_OFFSETS

KEYED, DONE, LOOSE, TAKEN = 0, 1, 2, 3
MESSAGES_MAX = 2_000_000
MESSAGE_BYTES = 5
_TRIM = 65_536  # finished messages are forgotten in lots: each lot moves what follows
_NOT_DONE = re.compile(b"[^%c]" % DONE, re.DOTALL)
_DONE_ONLY = bytes(1 if state == DONE else 0 for state in range(256))
_LOOSE_DONE = bytes(DONE if state == LOOSE else state for state in range(256))
_DIGITS = bytes(0x31 if value else 0x30 for value in range(256))


class LookAhead:
    """One partition's messages after ``floor``."""

    def __init__(self, partition: int, floor: int) -> None:
        self.partition = partition
        self.floor = floor
        self.end = floor
        self.gone_before = 0  # retention removed what is below
        self.unfinished = 0
        self._first = floor + 1  # the offset of index 0
        self._states = bytearray()
        self._next = array("I")
        self._loose_from = 0  # no index before it is LOOSE
        self._finished: dict[int, int] = {}  # rows that a former process finished, as integers
        self.changed_rows: set[int] = set()

    def __len__(self) -> int:
        """Messages after the floor, finished ones too."""
        return self.end - self.floor

    @property
    def room(self) -> int:
        """How many more messages may be admitted."""
        return MESSAGES_MAX - len(self)

    def restore(self, row: int, bits: bytes) -> None:
        """Tells of finished offsets that will be admitted again (``row`` gave them)."""
        self._finished[row] = self._finished.get(row, 0) | int.from_bytes(bits, "little")

    def restore_offsets(self, offsets: Iterable[int]) -> None:
        """As ``restore``, of offsets that no stored row has yet, up to the floor or not."""
        for offset in offsets:
            if offset > self.floor:
                row = offset // ROW_OFFSETS
                self._finished[row] = self._finished.get(row, 0) | 1 << offset % ROW_OFFSETS
                self.changed_rows.add(row)

    @property
    def has_finished(self) -> bool:
        """Whether ``restore`` told of offsets that may still come."""
        return bool(self._finished)

    def was_finished(self, offset: int) -> bool:
        """Whether ``restore`` told that an offset is finished."""
        bits = self._finished.get(offset // ROW_OFFSETS) if self._finished else None
        return bits is not None and bool(bits >> offset % ROW_OFFSETS & 1)

    @property
    def finished_ahead(self) -> int:
        """How many of them are still to come. (Rows: 500 for a full look-ahead, 0.2 us each.)"""
        if not self._finished:
            return 0
        first, bit = divmod(self.end + 1, ROW_OFFSETS)
        return sum(
            (bits >> bit if row == first else bits).bit_count()
            for row, bits in self._finished.items()
            if row >= first
        )

    # Admission

    def add_keyed(self, count: int) -> int:
        """Admits the next offsets, each into the queue of its key; returns the first one."""
        self._add(count, KEYED)
        return self.end - count + 1

    def link(self, last: int, offset: int) -> None:
        """``offset`` follows ``last`` in their key's queue."""
        self._next[last - self._first] = offset - last

    def following(self, offset: int) -> int:
        """The message after one above the floor in its key's queue; 0 if it is the last."""
        step = self._next[offset - self._first]
        return step and offset + step

    def add_loose(self, count: int) -> None:
        """Admits the next offsets without order."""
        self._add(count, LOOSE)

    def add_done(self, count: int) -> None:
        """Passes over the next offsets: they hold nothing for this subscription."""
        if self.floor == self.end:
            self.floor += count
            self.end += count
            self._forget()
        else:
            self._add(count, DONE)
            self.unfinished -= count

    def _add(self, count: int, state: int) -> None:
        self._states += bytes((state,)) * count
        self._next.frombytes(bytes(self._next.itemsize * count))
        self.end += count
        self.unfinished += count

    # Reading

    def is_done(self, offset: int) -> bool:
        """Whether an admitted offset is finished."""
        return offset <= self.floor or self._states[offset - self._first] == DONE

    def is_finished(self, offset: int) -> bool:
        """Whether any offset is known to be finished, also one that was not admitted yet."""
        return self.is_done(offset) if offset <= self.end else self.was_finished(offset)

    def next_loose(self) -> int:
        """The first message without order that nobody has; 0 if there is none."""
        found = self._states.find(LOOSE, self._loose_from)
        self._loose_from = len(self._states) if found < 0 else found
        return 0 if found < 0 else self._first + found

    def loose_count(self) -> int:
        """How many messages without order nobody has."""
        return self._states.count(LOOSE, self._loose_from)

    # Progress

    def take_loose(self, count: int, before: int | None = None) -> list[int]:
        """Marks up to ``count`` loose messages as taken, those below ``before``; returns them."""
        states, index, first = self._states, self._loose_from, self._first
        end = len(states) if before is None else before - first
        taken: list[int] = []
        while len(taken) < count:
            index = states.find(LOOSE, index, end)
            if index < 0:
                break
            states[index] = TAKEN
            taken.append(first + index)
        return taken

    def finish_loose(self) -> int:
        """Finishes the loose messages below ``gone_before``; returns how many."""
        start, end = self.floor + 1 - self._first, self.gone_before - self._first
        part = self._states[start:end]
        count = part.count(LOOSE)
        if count:
            self._states[start:end] = part.translate(_LOOSE_DONE)
            self.unfinished -= count
            self.changed_rows.update(
                range((self.floor + 1) // ROW_OFFSETS, self.gone_before // ROW_OFFSETS + 1)
            )
            if self._states[start] == DONE:
                self._raise_floor(start)
        return count

    def give_back(self, offset: int) -> None:
        """Marks a taken message as loose again."""
        index = offset - self._first
        self._states[index] = LOOSE
        self._loose_from = min(self._loose_from, index)

    def finish_all(self, offsets: Sequence[int]) -> list[int]:
        """Marks offsets as finished; the floor moves if the first one is among them. Returns the
        message after each in its key's queue; 0 if it is the last."""
        states, steps, first = self._states, self._next, self._first
        following: list[int] = []
        for offset in offsets:
            index = offset - first
            states[index] = DONE
            step = steps[index]
            following.append(step and offset + step)
        self.unfinished -= len(offsets)
        index = self.floor + 1 - first
        if states[index] == DONE:
            self._raise_floor(index)
        if max(offsets) > self.floor:
            self.changed_rows.update({offset // ROW_OFFSETS for offset in offsets})
        return following

    def _raise_floor(self, index: int) -> None:
        states = self._states
        found = _NOT_DONE.search(states, index)
        done_to = len(states) if found is None else found.start()
        self.floor = self._first + done_to - 1
        if done_to >= _TRIM or done_to == len(states):
            self._forget()

    def _forget(self) -> None:
        count = self.floor - self._first + 1
        del self._states[:count], self._next[:count]
        self._first = self.floor + 1
        self._loose_from = max(0, self._loose_from - count)
        if self._finished:
            passed = self.floor // ROW_OFFSETS
            self._finished = {row: bits for row, bits in self._finished.items() if row >= passed}

    def row(self, row: int) -> bytes | None:
        """The finished offsets of a row as bits, 512 bytes; None if the floor has passed it."""
        start = row * ROW_OFFSETS
        if start + ROW_OFFSETS - 1 <= self.floor:
            return None
        bits = self._finished.get(row, 0)
        low, high = max(start, self.floor + 1), min(start + ROW_OFFSETS, self.end + 1)
        if low < high:
            states = self._states[low - self._first : high - self._first]
            text = states.translate(_DONE_ONLY).translate(_DIGITS)
            text.reverse()
            known = int(text.decode(), 2) << low - start
            mask = ((1 << high - low) - 1) << low - start
            bits = bits & ~mask | known
        return bits.to_bytes(ROW_OFFSETS // 8, "little")

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """All rows above the floor with something finished."""
        last = max([self.end // ROW_OFFSETS, *self._finished])
        for row in range((self.floor + 1) // ROW_OFFSETS, last + 1):
            bits = self.row(row)
            if bits is not None and any(bits):
                yield row, bits

    def check_invariants(self) -> None:
        """Raises AssertionError unless the arrays agree."""
        count = self.end - self._first + 1
        assert len(self._states) == len(self._next) == count
        assert self._first - 1 <= self.floor <= self.end
        done = self._states[: self.floor - self._first + 1]
        assert not done.strip(bytes((DONE,))), "all up to the floor is finished"
        assert self.floor == self.end or not self.is_done(self.floor + 1), "the floor is exact"
        assert LOOSE not in self._states[: self._loose_from]
        left = self._states[self.floor + 1 - self._first :]
        assert self.unfinished == len(left) - left.count(DONE)
        for index, step in enumerate(self._next):
            assert not step or index + step < count
