"""The messages of one partition that a subscription knows and has not finished with.

Vocabulary: the *floor* is the last offset that, with all before it, is finished; ``end`` is the
last offset that was admitted. Between them is the *look-ahead*: for each message its state, and how
far on the next message of its key is.

Only what is unfinished takes anything. The look-ahead is cut into *segments* of 4,096 offsets, as
the rows of the ledger are, and there is a segment only while it has an unfinished message: what is
in none is finished. So a gap of a billion offsets, or the messages that were finished since one is
blocked, cost nothing. A message that waits takes 5 bytes and no object: a key with a million
messages takes 5 MB, and finding what is finished or loose is a search for a byte. A segment of
which three quarters are finished is *sparse*: it has places (2 bytes more) for the rest only.

States::

    KEYED, in its key's queue      -> DONE
    LOOSE, without order           -> TAKEN (in flight, or waits to be sent again) -> DONE
                                      TAKEN -> LOOSE, given back

This module decides nothing; ``deliveries.py`` does. Offsets are those of the partition.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import compress

from delivery.subscriptions.window.finished_ahead import FinishedAhead
from ledger.delivery.progress import ROW_OFFSETS

KEYED, DONE, LOOSE, TAKEN = 0, 1, 2, 3
MESSAGES_MAX = 2_000_000  # unfinished, of one partition: 10 MB
MESSAGE_BYTES = 5
PLACE_BYTES = 2
SEGMENT_BYTES = 500  # of the objects of a segment
_SPARSE = 4  # a segment becomes sparse when at most one of this many is unfinished
_FAR = 0xFFFF_FFFF  # a distance that has no place in 4 bytes is kept apart
_NOT_DONE = re.compile(b"[^%c]" % DONE, re.DOTALL)
_OPEN = bytes(0 if state == DONE else 1 for state in range(256))
_OPEN_DIGITS = bytes(0x30 if state == DONE else 0x31 for state in range(256))
_LOOSE_DONE = bytes(DONE if state == LOOSE else state for state in range(256))


class Tally:
    """What the look-ahead of some partitions has and takes together."""

    __slots__ = ("bytes", "unfinished")

    def __init__(self) -> None:
        self.bytes = 0
        self.unfinished = 0


class LookAheadSegment:
    """The messages of up to 4,096 offsets from ``first`` on. Index 0 is that offset, or if the
    segment is sparse the one that ``places`` says."""

    __slots__ = ("first", "is_listed", "loose_from", "places", "states", "steps", "unfinished")

    def __init__(self, first: int) -> None:
        self.first = first
        self.places: array[int] | None = None
        self.states = bytearray()
        self.steps = array("I")
        self.unfinished = 0
        self.loose_from = 0  # no index before it is LOOSE
        self.is_listed = False  # it may have loose messages

    @property
    def bytes(self) -> int:
        """What it takes."""
        each = MESSAGE_BYTES if self.places is None else MESSAGE_BYTES + PLACE_BYTES
        return SEGMENT_BYTES + each * len(self.states)

    def index(self, offset: int) -> int:
        """The index of an offset; -1: there is none, since it is finished."""
        index = self.index_from(offset)
        if index < len(self.states) and self.offset(index) == offset:
            return index
        return -1

    def index_from(self, offset: int) -> int:
        """The index of the first offset that is not before this one."""
        at = max(0, offset - self.first)
        return at if self.places is None else bisect_left(self.places, at)

    def offset(self, index: int) -> int:
        """The offset of an index."""
        return self.first + (index if self.places is None else self.places[index])

    def make_sparse(self) -> None:
        """Forgets what is finished."""
        is_open = self.states.translate(_OPEN)
        places = range(len(self.states)) if self.places is None else self.places
        self.places = array("H", compress(places, is_open))
        self.steps = array("I", compress(self.steps, is_open))
        self.states = bytearray(compress(self.states, is_open))
        self.loose_from = 0

    def open_bits(self) -> int:
        """What is unfinished, as bits: the lowest one stands for ``first``."""
        digits = self.states.translate(_OPEN_DIGITS)
        if self.places is not None:
            spread = bytearray(b"0" * ROW_OFFSETS)
            for place, digit in zip(self.places, digits, strict=True):
                spread[place] = digit
            digits = spread
        digits.reverse()
        return int(digits.decode(), 2)


class LookAhead:
    """One partition's messages after ``floor``. ``tally`` counts what they take."""

    def __init__(self, partition: int, floor: int, tally: Tally | None = None) -> None:
        self.partition = partition
        self.floor = floor
        self.end = floor
        self.gone_before = 0  # retention removed what is below
        self.unfinished = 0
        self._tally = tally or Tally()
        self._segments: dict[int, LookAheadSegment] = {}  # by number, ascending
        self._far: dict[int, int] = {}  # what follows an offset in its key's queue
        self._with_loose: list[int] = []  # a heap of the segments that may have some
        self._finished = FinishedAhead()
        self.changed_rows: set[int] = set()

    @property
    def room(self) -> int:
        """How many more messages may be admitted."""
        return MESSAGES_MAX - self.unfinished

    # What a former process finished

    def restore(self, row: int, bits: bytes) -> None:
        """Tells of finished offsets that will be admitted again (``row`` gave them), row by row."""
        if row >= (self.end + 1) // ROW_OFFSETS:
            self._tally.bytes -= self._finished.bytes
            self._finished.add(row, int.from_bytes(bits, "little"))
            self._tally.bytes += self._finished.bytes

    def take_over(self, former: LookAhead) -> None:
        """Tells of what another look-ahead has finished after the same floor."""
        finished, row = FinishedAhead(), (former.floor + 1) // ROW_OFFSETS
        last = former.end // ROW_OFFSETS
        for number in sorted({*former._segments, last}):
            finished.add_run(row, number - 1)
            bits = former.row(number)
            if bits is not None:
                finished.add(number, int.from_bytes(bits, "little"))
            row = number + 1
        finished.add_all(former._finished, last)
        self._tally.bytes += finished.bytes - self._finished.bytes
        self._finished = finished
        self.changed_rows |= former.changed_rows

    @property
    def has_finished(self) -> bool:
        """Whether ``restore`` told of offsets that may still come."""
        return bool(self._finished)

    def was_finished(self, offset: int) -> bool:
        """Whether ``restore`` told that an offset is finished."""
        return bool(self._finished) and offset in self._finished

    @property
    def finished_ahead(self) -> int:
        """How many of them are still to come."""
        return self._finished.count_from(self.end + 1) if self._finished else 0

    @property
    def finished_next(self) -> int:
        """How many of the next offsets, one after the other, are finished."""
        return self._finished.run_from(self.end + 1) if self._finished else 0

    # Admission

    def add_keyed(self, count: int) -> int:
        """Admits the next offsets, each into the queue of its key; returns the first one."""
        self._add(count, KEYED)
        return self.end - count + 1

    def link(self, last: int, offset: int) -> None:
        """``offset`` follows ``last``, which is not finished, in their key's queue; 0: nothing."""
        segment = self._segments[last // ROW_OFFSETS]
        index = last - segment.first if segment.places is None else segment.index(last)
        step = offset and offset - last
        if self._far:
            self._far.pop(last, None)
        if step >= _FAR:
            self._far[last] = offset
            step = _FAR
        segment.steps[index] = step

    def following(self, offset: int) -> int:
        """The message after one that is not finished in its key's queue; 0 if it is the last."""
        segment = self._segments[offset // ROW_OFFSETS]
        step = segment.steps[segment.index(offset)]
        return self._far[offset] if step == _FAR else step and offset + step

    def add_loose(self, count: int) -> None:
        """Admits the next offsets without order."""
        self._add(count, LOOSE)

    def add_done(self, count: int) -> None:
        """Passes over the next offsets: they hold nothing for this subscription."""
        if self.floor == self.end:
            self.floor += count
        self._advance(count)

    def _add(self, count: int, state: int) -> None:
        self._unfinished(count)
        while count:
            offset = self.end + 1
            number = offset // ROW_OFFSETS
            part = min(count, ROW_OFFSETS - offset % ROW_OFFSETS)
            self._advance(part)
            segment = self._segments.get(number)
            if segment is None:
                segment = self._segments[number] = LookAheadSegment(offset)
                self._tally.bytes += SEGMENT_BYTES
            passed = offset - segment.first - len(segment.states)
            segment.states += bytes((DONE,)) * passed + bytes((state,)) * part
            segment.steps.frombytes(bytes(segment.steps.itemsize * (passed + part)))
            segment.unfinished += part
            self._tally.bytes += MESSAGE_BYTES * (passed + part)
            if state == LOOSE:
                self._list(number, segment)
            count -= part

    def _advance(self, count: int) -> None:
        number = self.end // ROW_OFFSETS
        self.end += count
        if self._finished:
            self._tally.bytes -= self._finished.bytes
            self._finished.forget_before(self.end + 1)
            self._tally.bytes += self._finished.bytes
        if self.end // ROW_OFFSETS != number and number in self._segments:
            self._tidy(number)

    def _unfinished(self, more: int) -> None:
        self.unfinished += more
        self._tally.unfinished += more

    def _list(self, number: int, segment: LookAheadSegment) -> None:
        if not segment.is_listed:
            segment.is_listed = True
            heappush(self._with_loose, number)

    # Reading

    def is_done(self, offset: int) -> bool:
        """Whether an admitted offset is finished."""
        if offset <= self.floor:
            return True
        segment = self._segments.get(offset // ROW_OFFSETS)
        if segment is None:
            return True
        index = segment.index(offset)
        return index < 0 or segment.states[index] == DONE

    def is_finished(self, offset: int) -> bool:
        """Whether any offset is known to be finished, also one that was not admitted yet."""
        return self.is_done(offset) if offset <= self.end else self.was_finished(offset)

    def next_loose(self) -> int:
        """The first message without order that nobody has; 0 if there is none."""
        while self._with_loose:
            segment = self._segments.get(self._with_loose[0])
            if segment is not None:
                found = segment.states.find(LOOSE, segment.loose_from)
                if found >= 0:
                    segment.loose_from = found
                    return segment.offset(found)
                segment.is_listed = False
            heappop(self._with_loose)
        return 0

    @property
    def loose_behind(self) -> int:
        """How many offsets there are from the first message without order that nobody has."""
        first = self.next_loose()
        return self.end + 1 - first if first else 0

    def loose_count(self) -> int:
        """How many messages without order nobody has."""
        return sum(segment.states.count(LOOSE) for segment in self._segments.values())

    # Progress

    def take_loose(self, count: int, before: int | None = None) -> list[int]:
        """Marks up to ``count`` loose messages as taken, those below ``before``; returns them."""
        taken: list[int] = []
        while len(taken) < count:
            first = self.next_loose()
            if not first or (before is not None and first >= before):
                break
            segment = self._segments[first // ROW_OFFSETS]
            states, index = segment.states, segment.loose_from
            end = len(states) if before is None else segment.index_from(before)
            while index >= 0 and len(taken) < count:
                states[index] = TAKEN
                taken.append(segment.offset(index))
                segment.loose_from = index + 1
                index = states.find(LOOSE, index, end)
        return taken

    def finish_loose(self) -> int:
        """Finishes the loose messages below ``gone_before``; returns how many."""
        total = 0
        for number in set(self._with_loose):
            segment = self._segments.get(number)
            if segment is None or segment.first >= self.gone_before:
                continue
            end = segment.index_from(self.gone_before)
            part = segment.states[:end]
            count = part.count(LOOSE)
            if count:
                segment.states[:end] = part.translate(_LOOSE_DONE)
                segment.unfinished -= count
                self.changed_rows.add(number)
                self._tidy(number)
                total += count
        self._unfinished(-total)
        if total:
            self._raise_floor()
        return total

    def evict(self, before: int) -> bool:
        """Retention removed what is below an offset; returns whether that is new."""
        before = min(before, self.end + 1)
        if before <= max(self.gone_before, self.floor + 1):
            return False
        self.gone_before = before
        return True

    def give_back(self, offset: int) -> None:
        """Marks a taken message as loose again."""
        number = offset // ROW_OFFSETS
        segment = self._segments[number]
        index = segment.index(offset)
        segment.states[index] = LOOSE
        segment.loose_from = min(segment.loose_from, index)
        self._list(number, segment)

    def finish_all(self, offsets: Sequence[int]) -> list[int]:
        """Marks offsets as finished; the floor moves if the first one is among them. Returns the
        message after each in its key's queue; 0 if it is the last."""
        following: list[int] = []
        rows: set[int] = set()
        number = -1
        for offset in offsets:
            if offset // ROW_OFFSETS != number:
                number = offset // ROW_OFFSETS
                rows.add(number)
                segment = self._segments[number]
                states, steps, first = segment.states, segment.steps, segment.first
            index = offset - first if segment.places is None else segment.index(offset)
            states[index] = DONE
            step = steps[index]
            if step == _FAR:
                following.append(self._far.pop(offset))
                steps[index] = 0
            else:
                following.append(step and offset + step)
            segment.unfinished -= 1
        self._unfinished(-len(offsets))
        for number in rows:
            self._tidy(number)
        self._raise_floor()
        if max(offsets) > self.floor:
            self.changed_rows |= rows
        return following

    def _tidy(self, number: int) -> None:
        """A segment has less that is unfinished, or ``end`` has left it."""
        segment = self._segments[number]
        before = segment.bytes
        if not segment.unfinished:
            del self._segments[number]
            self._tally.bytes -= before
        elif number < self.end // ROW_OFFSETS and _SPARSE * segment.unfinished <= len(
            segment.states
        ):  # only the last one grows
            segment.make_sparse()
            self._tally.bytes += segment.bytes - before

    def _raise_floor(self) -> None:
        if not self.is_done(self.floor + 1):
            return
        first = next(iter(self._segments.values()), None)
        if first is None:
            self.floor = self.end
            return
        found = _NOT_DONE.search(first.states, first.index_from(self.floor + 1))
        assert found is not None
        self.floor = first.offset(found.start()) - 1

    def row(self, row: int) -> bytes | None:
        """The finished offsets of a row as bits, 512 bytes; None if the floor has passed it."""
        start = row * ROW_OFFSETS
        if start + ROW_OFFSETS - 1 <= self.floor:
            return None
        bits = self._finished.bits(row)
        low, high = max(start, self.floor + 1), min(start + ROW_OFFSETS, self.end + 1)
        if low < high:
            known = ((1 << high - low) - 1) << low - start
            segment = self._segments.get(row)
            is_open = 0 if segment is None else segment.open_bits() << segment.first - start
            bits = (bits | known) & ~is_open
        return bits.to_bytes(ROW_OFFSETS // 8, "little")

    def check_invariants(self) -> None:
        """Raises AssertionError unless the segments agree."""
        assert self.floor <= self.end and list(self._segments) == sorted(self._segments)
        assert self.floor == self.end or not self.is_done(self.floor + 1), "the floor is exact"
        assert self.floor == self.end or self._segments, "what is in none is finished"
        far = 0
        for number, segment in self._segments.items():
            count = len(segment.states)
            offsets = [segment.offset(index) for index in range(count)]
            assert len(segment.steps) == count and offsets == sorted(offsets)
            assert all(at // ROW_OFFSETS == number and at <= self.end for at in offsets)
            assert 0 < segment.unfinished == count - segment.states.count(DONE)
            assert segment.places is None or number < self.end // ROW_OFFSETS
            assert LOOSE not in segment.states[: segment.loose_from]
            assert LOOSE not in segment.states or segment.is_listed
            assert not segment.is_listed or number in self._with_loose
            is_below = [at <= self.floor for at in offsets]
            assert not any(compress(segment.states.translate(_OPEN), is_below))
            far += list(segment.steps).count(_FAR)
        assert self.unfinished == sum(each.unfinished for each in self._segments.values())
        assert far == len(self._far), "what is far is known"
