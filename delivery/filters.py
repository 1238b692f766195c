"""Filters of records by tag, node and key: exact text, or patterns with ``*`` and ``?``.

``*`` stands for any text, also none; ``?`` for one character; a backslash takes the character after
it as it is. A pattern matches the whole text. A record without a field does not match a pattern
for it, not even ``*``; a Filter without patterns matches every record.

A client chooses both pattern and text, so matching must not be expensive for any pair of them. A
pattern is cut at its stars. The first and the last piece are compared in place, and each piece
between them is taken where it occurs first: an earlier occurrence leaves more text for the rest, so
nothing is ever tried a second time. A piece without ``?`` is found by ``str.find``. One with ``?``
is looked for at all places of the text together, which are the bits of one integer (the idea of
Shift-And, Baeza-Yates and Gonnet, "A New Approach to Text Searching", 1992, with text and pattern
exchanged): each character of the piece removes the places where it is not. So a piece takes one
step per character of its own, about 0.2 us of a text of 1,024 characters, and a text that is
compared with many patterns is read once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

from msgspec import Struct

from uploader.l0.records import Record

PATTERN_CHARACTERS_MAX = 1_024
# Compiled patterns that are kept, as measured: one of 64 characters takes 15 KB at most (half of
# them stars), one of 1,024 characters 280 KB; the places of the last text 200 KB.
SHORT_CHARACTERS_MAX = 64
SHORT_MAX = 512
LONG_MAX = 32
KEPT_BYTES_MAX = 20 << 20  # 512 x 15 KB + 32 x 280 KB + 200 KB, and a reserve
PLACES_AT_ONCE = 1_024  # of a text, in one integer

Matcher = Callable[[str], bool]


class FilterError(ValueError):
    """A pattern that cannot be used. ``field`` says which: tag, node or key."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


class Filter(Struct, frozen=True):
    """Which records are kept: those that match every pattern that is given."""

    tag: str | None = None
    node: str | None = None
    key: str | None = None

    def check(self) -> None:
        """Raises FilterError for a pattern that cannot be used."""
        for field in ("tag", "node", "key"):
            pattern = getattr(self, field)
            if pattern is None:
                continue
            if len(pattern) > PATTERN_CHARACTERS_MAX:
                raise FilterError(
                    field,
                    f"is a pattern of {len(pattern)} characters, the limit is"
                    f" {PATTERN_CHARACTERS_MAX}",
                )
            if _ends_in_escape(pattern):
                raise FilterError(
                    field,
                    "is a pattern that ends with a backslash, which takes the character after it as"
                    r" it is; write \\ for a backslash",
                )

    def matches(self, record: Record) -> bool:
        """Whether a record is kept."""
        tag, node, key = self.tag, self.node, self.key
        return (
            (tag is None or (record.tag is not None and compiled(tag)(record.tag)))
            and (node is None or (record.node is not None and compiled(node)(record.node)))
            and (key is None or (record.key is not None and compiled(key)(record.key)))
        )

    def work(self, records: Sequence[Record]) -> int:
        """How many characters are compared to filter these, about, and at most."""
        return sum(
            len(pattern) * sum(len(text) for each in records if (text := getattr(each, field)))
            for field in ("tag", "node", "key")
            if (pattern := getattr(self, field)) is not None
        )

    def __bool__(self) -> bool:
        """Whether any pattern is given."""
        return self.tag is not None or self.node is not None or self.key is not None


def compiled(pattern: str) -> Matcher:
    """A function that says whether a text matches the pattern."""
    return _short(pattern) if len(pattern) <= SHORT_CHARACTERS_MAX else _long(pattern)


def _compile(pattern: str) -> Matcher:
    pieces = _pieces(pattern)
    if len(pieces) == 1:
        return _whole(pieces[0])
    return _starred(pieces)


_short = lru_cache(SHORT_MAX)(_compile)
_long = lru_cache(LONG_MAX)(_compile)


def _ends_in_escape(pattern: str) -> bool:
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


class _Piece(NamedTuple):
    """What stands between two stars. Bit i of ``wild`` says that any character may be at i."""

    text: str
    wild: int


def _pieces(pattern: str) -> list[_Piece]:
    pieces: list[_Piece] = []
    text: list[str] = []
    wild = 0
    characters = iter(pattern)
    for character in characters:
        if character == "*":
            pieces.append(_Piece("".join(text), wild))
            text, wild = [], 0
            continue
        if character == "?":
            wild |= 1 << len(text)
        text.append(next(characters, "\\") if character == "\\" else character)
    pieces.append(_Piece("".join(text), wild))
    return pieces


def _whole(piece: _Piece) -> Matcher:
    """A pattern without a star."""
    if not piece.wild:
        return piece.text.__eq__
    is_at = _comparison(piece)
    length = len(piece.text)
    return lambda text: len(text) == length and is_at(text, 0)


def _starred(pieces: list[_Piece]) -> Matcher:
    first, *between, last = pieces
    is_first, is_last = _comparison(first), _comparison(last)
    begins, ends = len(first.text), len(last.text)
    searches = [(_search(piece), len(piece.text)) for piece in between if piece.text]

    def matches(text: str) -> bool:
        stop = len(text) - ends
        if stop < begins or not is_first(text, 0) or not is_last(text, stop):
            return False
        at = begins
        for find, length in searches:
            found = find(text, at, stop)
            if found < 0:
                return False
            at = found + length
        return True

    return matches


def _comparison(piece: _Piece) -> Callable[[str, int], bool]:
    """Whether a piece is at an index of a text that is long enough."""
    if not piece.wild:
        return lambda text, at: text.startswith(piece.text, at)
    # Without repetition, an expression takes one step per character.
    spelled = "".join(
        "." if piece.wild >> index & 1 else re.escape(character)
        for index, character in enumerate(piece.text)
    )
    at_index = re.compile(spelled, re.DOTALL).match
    return lambda text, at: at_index(text, at) is not None


def _search(piece: _Piece) -> Callable[[str, int, int], int]:
    """Where a piece occurs first within a part of a text; -1 if it does not."""
    if not piece.wild:
        return lambda text, start, stop: text.find(piece.text, start, stop)
    length = len(piece.text)
    is_literal = bytes(not piece.wild >> index & 1 for index in range(length))

    def find(text: str, start: int, stop: int) -> int:
        ends = stop - length + 1  # the piece begins before this
        for base in range(start - start % PLACES_AT_ONCE, ends, PLACES_AT_ONCE):
            places = _places(text[base : base + PLACES_AT_ONCE + length - 1])
            first = max(0, start - base)
            found = (1 << min(PLACES_AT_ONCE, ends - base)) - 1 >> first << first
            for index, character in compress(enumerate(piece.text), is_literal):
                found &= places[character] >> index
                if not found:
                    break
            else:
                return base + (found & -found).bit_length() - 1
        return -1

    return find


class _Places(dict[str, int]):
    """Where each character is in a text, as bits, found when it is asked for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def __missing__(self, character: str) -> int:
        found = 0
        if character in self._text:
            between = self._text.split(character)
            found = int("1".join(["0" * len(each) for each in reversed(between)]), 2)
        self[character] = found
        return found


_places = lru_cache(1)(_Places)
