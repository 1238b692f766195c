"""What a record of a source becomes: a row of the topic, nothing, or a dead letter. Pure.

A record that is valid here is valid for the daemon, as far as its limits are the ones given here:
both check with the same decoder (daemon/intake/formats/json_format.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from commands.importing.reading.blocks import SourceRecord
from commands.importing.reading.problems import InvalidRecord
from daemon.intake.formats.limits import NESTED_CHARACTERS_MIN
from daemon.intake.formats.nesting import nested_deeper
from daemon.schemas.api import LABEL_CHARACTERS_MAX
from daemon.schemas.decoding import NESTING_MAX, UNREADABLE
from delivery.filters import PATTERN_CHARACTERS_MAX, Matcher, compiled

DROP = "drop"
FAIL = "fail"
# Of a dead letter's text: at most 6 times as long in JSON, which is below every sensible limit.
DEAD_TEXT_BYTES_MAX = 64 << 10
_ABSENT = object()

_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode = msgspec.json.Decoder().decode


class WhereField(NamedTuple):
    """A condition: the field's value matches the pattern as a whole."""

    field: str
    matches: Matcher


class Invalid(Exception):
    """Why a text is not a record."""


def parse_where(text: str) -> WhereField:
    """``FIELD=GLOB``. Raises ValueError."""
    field, equals, pattern = text.partition("=")
    if not equals or not field:
        raise ValueError(f"{text!r} is not FIELD=GLOB, like level=err*")
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(
            f"the pattern of {field!r} has {len(pattern):,} characters, the limit is"
            f" {PATTERN_CHARACTERS_MAX:,}"
        )
    return WhereField(field, compiled(pattern))


class Rules:
    """The options that say what becomes of records. ``invalid``: drop, fail, or dead letters."""

    def __init__(
        self,
        *,
        where: tuple[WhereField, ...] = (),
        key: str | None = None,
        invalid: str = FAIL,
        record_bytes_max: int = 1 << 20,
    ) -> None:
        self.filtered = 0  # did not match
        self.invalid = 0
        self._where = where
        self._key = key
        self._policy = invalid
        self._record_bytes_max = record_bytes_max

    @property
    def fails(self) -> bool:
        """Whether what is not a record ends its source."""
        return self._policy == FAIL

    def record(
        self, text: bytes, position: int, size: int, line: int | None, source: str
    ) -> SourceRecord:
        """What becomes of one record, which ends at ``position``. Raises InvalidRecord."""
        try:
            rows = self._rows(text)
        except Invalid as error:
            place = (source, position - size, line)
            return SourceRecord(position, size, (), self._dead(str(error), text, len(text), *place))
        return SourceRecord(position, size, rows)

    def too_long(
        self, begin: bytes, length: int, problem: str, position: int, end: int, line: int | None,
        source: str,
    ) -> SourceRecord:  # fmt: skip
        """What becomes of a line from ``position`` to ``end``, whose beginning alone is kept and
        leased. Raises InvalidRecord."""
        dead = self._dead(problem, begin, length, source, position, line)
        return SourceRecord(end, len(begin), (), dead)

    def _dead(
        self, problem: str, text: bytes, length: int, source: str, position: int, line: int | None
    ) -> tuple[bytes, ...]:
        """The dead letter, unless they are dropped. Raises InvalidRecord."""
        self.invalid += 1
        if self._policy == FAIL:
            raise InvalidRecord(problem, position, line)
        if self._policy == DROP:
            return ()
        return (_dead_letter(source, position, line, problem, text, length),)

    def _rows(self, text: bytes) -> tuple[bytes, ...]:
        self._check_size(len(text), "")
        key = None
        try:
            if self._where or self._key is not None:
                value = _decode(text)
            else:
                _check(text)
                value = None
            text.decode()
        except UNREADABLE as error:
            raise Invalid(f"is not JSON: {error}") from error
        if len(text) >= NESTED_CHARACTERS_MIN and nested_deeper(text, NESTING_MAX):
            raise Invalid(f"is nested deeper than {NESTING_MAX} levels")
        for field, matches in self._where:
            found = _text_of(value_at(value, field))
            if found is None or not matches(found):
                self.filtered += 1
                return ()
        if self._key is not None:
            key = _key_of(value_at(value, self._key), self._key)
        if key is None:
            return (b'{"data":%b}' % text,)
        self._check_size(len(text) + len(key.encode()), " with its key")
        return (b'{"data":%b,"key":%b}' % (text, msgspec.json.encode(key)),)

    def _check_size(self, size: int, what: str) -> None:
        if size > self._record_bytes_max:
            raise Invalid(
                f"has {size:,} bytes{what}, the limit for a record is"
                f" {self._record_bytes_max:,} (--record-bytes)"
            )


def value_at(value: Any, field: str) -> Any:
    """The value of a field; a field that the value lacks under its whole name is a path of fields
    with dots between them."""
    if not isinstance(value, dict):
        return _ABSENT
    if field in value:
        return value[field]
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = value[name]
    return value


def _text_of(value: Any) -> str | None:
    """What a pattern is compared with: texts as they are, numbers, true, false and null in JSON."""
    if isinstance(value, str):
        return value
    if value is _ABSENT or isinstance(value, dict | list):
        return None
    return msgspec.json.encode(value).decode()


def _key_of(value: Any, field: str) -> str | None:
    if value is None or value is _ABSENT:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Invalid(f"has a key {field!r} that is neither a string nor an integer")
    key = str(value)
    if len(key) > LABEL_CHARACTERS_MAX:
        raise Invalid(
            f"has a key {field!r} of {len(key):,} characters, more than {LABEL_CHARACTERS_MAX:,}"
        )
    return key


def _dead_letter(
    source: str, position: int, line: int | None, problem: str, text: bytes, length: int
) -> bytes:
    letter = {
        "source": source,
        "position": position,
        "line": line,
        "problem": problem,
        "bytes": length,
        "text": text[:DEAD_TEXT_BYTES_MAX].decode(errors="replace"),
    }
    return b'{"data":%b}' % msgspec.json.encode(letter)
