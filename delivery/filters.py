"""Filters of records by tag, node, key and fields of the data: exact text, or patterns with ``*``
and ``?``.

``*`` stands for any text, also none; ``?`` for one character; a backslash takes the character after
it as it is. A pattern matches the whole text. A record without a field does not match a pattern
for it, not even ``*``; a Filter without patterns matches every record.

A *condition*, ``FIELD=PATTERN``, is about a field of the data, if that is a JSON object. Texts are
compared as they are, numbers, true, false and null as they are spelled in JSON: 1e3 is not 1000. A
field that is missing, or that is a list or an object, matches nothing; nor does anything of data
that is bytes.

A client chooses both pattern and text, so matching must not be expensive for any pair of them. A
pattern is cut at its stars. The first and the last piece are compared in place, and each piece
between them is taken where it occurs first: an earlier occurrence leaves more text for the rest, so
nothing is ever tried a second time. A piece without ``?`` is found by ``str.find``. One with ``?``
is looked for at all places of the text together, which are the bits of one integer (the idea of
Shift-And, Baeza-Yates and Gonnet, "A New Approach to Text Searching", 1992, with text and pattern
exchanged): each character of the piece removes the places where it is not. So a piece takes one
step per character of its own, about 0.2 us of a text of 1,024 characters, and a text that is
compared with many patterns is read once. Labels are no longer than that; a text in data that is
longer matches no pattern with ``?``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from ledger.delivery.record_filter import RecordFilter
from uploader.l0.records import Record

PATTERN_CHARACTERS_MAX = 1_024
# Compiled patterns that are kept, as measured: one of 64 characters takes 15 KB at most (half of
# them stars), one of 1,024 characters 280 KB; the places of the last text 200 KB.
SHORT_CHARACTERS_MAX = 64
SHORT_MAX = 512
LONG_MAX = 32
KEPT_BYTES_MAX = 20 << 20  # 512 x 15 KB + 32 x 280 KB + 200 KB, and a reserve
PLACES_AT_ONCE = 1_024  # of a text, in one integer
LOT_STEPS = 4_096
FIELDS_BYTES = 16  # that a byte of data takes at most while its fields are looked for, as measured
LONG_CHARACTERS = 1_024  # of a text in data, as labels have at most
LEVELS_MAX = 8  # of objects in each other, on the way to a field: each is a pass over what it has

_text = msgspec.json.Decoder(str).decode
_QUOTE = ord('"')
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Matcher = Callable[[str], bool]
Fields = Mapping[str, msgspec.Raw]


class FilterError(ValueError):
    """A pattern that cannot be used. ``field`` says which: tag, node, key, or where[N]."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


class Filter(Struct, frozen=True):
    """Which records are kept: those that match every pattern that is given."""

    tag: str | None = None
    node: str | None = None
    key: str | None = None
    where: tuple[str, ...] = ()

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
                raise FilterError(field, f"is a pattern {_ENDS_IN_ESCAPE}")
        for index, text in enumerate(self.where):
            try:
                parse_condition(text)
            except ValueError as error:
                raise FilterError(f"where[{index}]", f"cannot be used: {error}") from error

    def matches(self, record: Record) -> bool:
        """Whether a record is kept."""
        tag, node, key = self.tag, self.node, self.key
        return (
            (tag is None or (record.tag is not None and compiled(tag)(record.tag)))
            and (node is None or (record.node is not None and compiled(node)(record.node)))
            and (key is None or (record.key is not None and compiled(key)(record.key)))
            and (not self.where or _fields_match(self.where, record.data))
        )

    def work(self, records: Sequence[Record]) -> int:
        """How many characters are compared to filter these, about, and at most."""
        return sum(
            len(pattern) * sum(len(text) for each in records if (text := getattr(each, field)))
            for field in ("tag", "node", "key")
            if (pattern := getattr(self, field)) is not None
        )

    @property
    def slow(self) -> int:
        """How many steps a text of 1,024 characters may take."""
        patterns = [self.tag, self.node, self.key, *self.where]
        return sum(len(each) for each in patterns if each is not None and "?" in each)

    @property
    def lot(self) -> int:
        """How many records may be compared without a look at what else there is to do."""
        return max(1, LOT_STEPS // (1 + self.slow))

    def cost(self, records: Sequence[Record]) -> int:
        """What it costs to compare records, in units of about 2 us."""
        slow, count = self.slow, len(records)
        size = sum(len(each.data) for each in records) if self.where else 0
        levels = max((each.field.count(".") for each in _conditions(self.where)), default=0) + 1
        return count + levels * size // 512 + slow * count // 10

    def __bool__(self) -> bool:
        """Whether any pattern is given."""
        return bool(self.where) or any(
            pattern is not None for pattern in (self.tag, self.node, self.key)
        )


def filter_of(wanted: RecordFilter | None) -> Filter | None:
    """The filter of a router or a subscription; None: everything passes."""
    if wanted is None:
        return None
    return Filter(wanted.tag, wanted.node, wanted.key, wanted.where) or None


class FieldCondition(NamedTuple):
    """The value of a field matches a pattern."""

    field: str
    pattern: str

    def matches(self, fields: Fields, inner: dict[str, Fields] | None = None) -> bool:
        """Whether it does among the fields of some data. ``inner`` has the fields of objects in the
        same data, which conditions share."""
        text = _text_at(fields, self.field, {} if inner is None else inner)
        if text is None or (len(text) > LONG_CHARACTERS and "?" in self.pattern):
            return False
        return compiled(self.pattern)(text)


def parse_condition(text: str) -> FieldCondition:
    """``FIELD=PATTERN``. Raises ValueError, which says where the text is wrong."""
    field, equals, pattern = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} has no = after the field; write FIELD=PATTERN, like level=err*")
    if not field:
        raise ValueError(f"{text!r} has no field before =; write FIELD=PATTERN, like level=err*")
    check_levels(field)
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(
            f"the pattern of {field!r} has {len(pattern):,} characters, the limit is"
            f" {PATTERN_CHARACTERS_MAX:,}"
        )
    if _ends_in_escape(pattern):
        raise ValueError(
            f"character {len(text)} of {text!r} is the end of a pattern {_ENDS_IN_ESCAPE}"
        )
    return FieldCondition(field, pattern)


def check_levels(field: str) -> None:
    """Raises ValueError for a path of too many objects."""
    levels = field.count(".") + 1
    if levels > LEVELS_MAX:
        raise ValueError(f"the field {field!r} is {levels} levels deep, the limit is {LEVELS_MAX}")


def fields_of(data: Any) -> Fields:
    """The fields of data that is an object in JSON; none, if it is anything else. Values are not
    decoded: they may be long, or numbers that no type of ours can hold."""
    try:
        return {} if isinstance(data, bytes) else _decode_fields(data)
    except _UNREADABLE:
        return {}


def text_at(data: Any, field: str) -> str | None:
    """A field of a record's data as a pattern is compared with it; None if nothing is."""
    return _text_at(fields_of(data), field, {})


def _text_at(fields: Fields, field: str, inner: dict[str, Fields]) -> str | None:
    """What a pattern is compared with: texts as they are, numbers, true, false and null as they are
    spelled in JSON. A field that is not there under its whole name is a path of fields with dots
    between them."""
    try:
        found = fields.get(field)
        if found is None:
            *path, last = field.split(".")
            place = ""
            for name in path:
                place += name + "."
                if place not in inner:
                    inner[place] = _decode_fields(fields[name])
                fields = inner[place]
            found = fields[last]
        if memoryview(found)[0] in b"[{":
            return None
        return _text(found) if memoryview(found)[0] == _QUOTE else str(found, "utf-8")
    except (KeyError, *_UNREADABLE):
        return None


def _fields_match(where: tuple[str, ...], data: Any) -> bool:
    fields = fields_of(data)
    inner: dict[str, Fields] = {}
    return all(condition.matches(fields, inner) for condition in _conditions(where))


@lru_cache(1_024)
def _conditions(where: tuple[str, ...]) -> list[FieldCondition]:
    return [*map(parse_condition, where)]


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


_ENDS_IN_ESCAPE = (
    "that ends with a backslash, which takes the character after it as it is; write"
    r" \\ for a backslash"
)


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
