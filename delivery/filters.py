"""Filters of records by tag, node and key: exact text, or patterns with ``*`` and ``?``.

``*`` stands for any text, also none; ``?`` for one character; a backslash takes the character after
it as it is. A pattern matches the whole text. A record without a field does not match a pattern
for it, not even ``*``; a Filter without patterns matches every record.

A client chooses both pattern and text, so matching must not be expensive for any pair of them. A
pattern is cut at its stars. The first and the last piece are compared in place, and each piece
between them is taken where it occurs first: an earlier occurrence leaves more text for the rest, so
nothing is ever tried a second time. A piece without ``?`` is found by ``str.find``; one with ``?``
by the Shift-And algorithm (Baeza-Yates and Gonnet, "A New Approach to Text Searching", 1992), one
step per character of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from uploader.l0.records import Record

PATTERN_CHARACTERS_MAX = 1_024
# Compiled patterns that are kept, as measured: one of 64 characters takes 15 KB at most (half of
# them stars), one of 1,024 characters 280 KB; a table of Shift-And 150 KB.
SHORT_CHARACTERS_MAX = 64
SHORT_MAX = 512
LONG_MAX = 32
MASKS_MAX = 16
KEPT_BYTES_MAX = 20 << 20  # 512 x 15 KB + 32 x 280 KB + 16 x 150 KB

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
    last = len(piece.text) - 1

    def find(text: str, start: int, stop: int) -> int:
        # Bit i of ``state``: the characters up to here match the piece up to its index i.
        state = 0
        masks, wild = _masks(piece), piece.wild
        for at in range(start, stop):
            state = (state << 1 | 1) & masks.get(text[at], wild)
            if state >> last & 1:
                return at - last
        return -1

    return find


@lru_cache(MASKS_MAX)
def _masks(piece: _Piece) -> dict[str, int]:
    """For each character of a piece, the indexes where it may be, as bits."""
    masks: dict[str, int] = {}
    for index, character in enumerate(piece.text):
        if not piece.wild >> index & 1:
            masks[character] = masks.get(character, piece.wild) | 1 << index
    return masks
