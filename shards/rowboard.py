"""Rows that an owner writes whole and any process reads: the boards of subscriptions and routers.

Lifecycle of a row: it is of a slot (``ledger/subscriptions.py``, ``ledger/routers.py``). Its owner
writes it, with its own id, numbers and texts -> again whenever something changes -> frees it when
its subject is deleted. Counts are since the daemon started: a successor of the owner goes on from
the row that it finds.

Ids only grow, so they are the generation of a slot: the owner of a former subject, perhaps another
process, which has not learned yet that this was deleted, does not write over a later one. If both
wrote at the same time, the owner of the later one finds that the row ``is_of`` another, and writes
again.

This module neither logs nor decides.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from shards import layout as at
from shards.barrier import fence
from shards.segment import Segment

_READS_MAX = 100  # of a row that is being written; then it is taken as it is
_SHORT_BYTES = 255  # of all texts but the last one, which has what is left


class WrittenRow(NamedTuple):
    """A row as it was read; ``id`` is 0 if nobody has written it."""

    id: int
    numbers: list[int]
    texts: list[str]


class RowBoard:
    """``slots`` rows from the word ``first`` on, each with N numbers and texts."""

    def __init__(self, segment: Segment, first: int, slots: int, numbers: int, texts: int) -> None:
        assert numbers <= at.B_NUMBERS_MAX and texts <= at.B_TEXTS_MAX
        self._words = segment.words
        self._data = segment.data
        self._first = first
        self._stop = first + slots * at.BOARD_ROW_WORDS
        self._numbers = numbers
        self._texts = texts

    def write(self, slot: int, id_: int, numbers: Sequence[int], texts: Sequence[str]) -> None:
        """Writes a row, unless it is a later one's; texts are cut to what it holds."""
        row, words = self._row(slot), self._words
        if words[row + at.B_ID] > id_:
            return
        encoded = [text.encode()[:_SHORT_BYTES] for text in texts[:-1]]
        left = at.B_TEXT_BYTES - sum(map(len, encoded))
        encoded.append(texts[-1].encode()[:left])
        text = b"".join(encoded)
        words[row + at.B_VERSION] |= 1
        _fence()
        words[row + at.B_ID] = id_
        _store(words, row + at.B_NUMBERS, numbers)
        _store(words, row + at.B_LENGTHS, [len(each) for each in encoded])
        start = (row + at.B_TEXT) * at.WORD_BYTES
        self._data[start : start + len(text)] = text
        _fence()
        words[row + at.B_VERSION] += 1

    def is_of(self, slot: int, id_: int) -> bool:
        """Whether a row has this id."""
        return bool(self._words[self._row(slot) + at.B_ID] == id_)

    def free(self, slot: int, id_: int) -> None:
        """Frees the row of what was deleted, unless it is another one's already."""
        if self.is_of(slot, id_):
            self._words[self._row(slot) + at.B_ID] = 0

    def numbers(self, index: int) -> list[tuple[int, int]]:
        """The id and one number of all rows, by slot; id 0: it is free. Takes microseconds."""
        ids, numbers = self._column(at.B_ID), self._column(at.B_NUMBERS + index)
        return list(zip(ids, numbers, strict=True))

    def slots(self, index: int | None = None) -> list[int]:
        """The slots of all rows; ``index``: of those where this number is not 0."""
        column = self._column(at.B_ID if index is None else at.B_NUMBERS + index)
        if index is None or not any(column):
            return [slot for slot, there in enumerate(column) if there]
        ids = self._column(at.B_ID)
        return [slot for slot, there in enumerate(column) if there and ids[slot]]

    def read(self, slot: int) -> WrittenRow:
        """A row, whole; if its writer died in it, as it is."""
        row, words = self._row(slot), self._words
        start = (row + at.B_TEXT) * at.WORD_BYTES
        for _ in range(_READS_MAX):
            version = words[row + at.B_VERSION]
            _fence()
            found = words[row : row + at.B_TEXT].tolist()
            text = bytes(self._data[start : start + at.B_TEXT_BYTES])
            _fence()
            if not version & 1 and words[row + at.B_VERSION] == version:
                break
        texts, begin = [], 0
        for length in found[at.B_LENGTHS : at.B_LENGTHS + self._texts]:
            texts.append(text[begin : begin + length].decode(errors="replace"))
            begin += length
        numbers = found[at.B_NUMBERS : at.B_NUMBERS + self._numbers]
        return WrittenRow(found[at.B_ID], numbers, texts)

    def _row(self, slot: int) -> int:
        return self._first + slot * at.BOARD_ROW_WORDS

    def _column(self, word: int) -> list[int]:
        return self._words[self._first + word : self._stop : at.BOARD_ROW_WORDS].tolist()


def _fence() -> None:
    if fence is not None:
        fence()


def _store(words: memoryview, index: int, values: Sequence[int]) -> None:
    words[index : index + len(values)] = array("Q", values)
