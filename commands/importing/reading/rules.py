"""What a record of a source becomes: a row of the topic, nothing, or a dead letter. Pure.

A record that is valid here is valid for the daemon, as far as its limits are the ones given here:
both check with the same decoder (daemon/intake/formats/json_format.py).

With ``explode``, the elements of an array inside a source record become the rows, with their own
filters, keys and dead letters. They go into one request, because the cursor passes the source
record as a whole; hence the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from commands.importing.reading.blocks import SourceRecord
from commands.importing.reading.problems import InvalidRecord
from daemon.intake.formats.keys import key_field
from daemon.intake.formats.limits import NESTED_CHARACTERS_MIN
from daemon.intake.formats.nesting import nested_deeper
from daemon.schemas.decoding import NESTING_MAX, UNREADABLE
from daemon.schemas.errors import ApiError
from delivery.filters import FieldCondition, fields_of

DROP = "drop"
FAIL = "fail"
# Of a dead letter's text: at most 6 times as long in JSON, which is below every sensible limit.
DEAD_TEXT_BYTES_MAX = 64 << 10
# What one source record may become: the daemon's `records_max`, and half of its `body_bytes_max`.
EXPLODED_MAX = 10_000
EXPLODED_BYTES_MAX = 8 << 20

_check = msgspec.json.Decoder(msgspec.Raw).decode
_members: Callable[[bytes | msgspec.Raw], dict[str, msgspec.Raw]]
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements: Callable[[bytes | msgspec.Raw], list[msgspec.Raw]]
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Invalid(Exception):
    """Why a text is not a record."""


class Rules:
    """The options that say what becomes of records. ``invalid``: drop, fail, or dead letters."""

    def __init__(
        self,
        *,
        where: tuple[FieldCondition, ...] = (),
        key: str | None = None,
        explode: str | None = None,
        invalid: str = FAIL,
        record_bytes_max: int = 1 << 20,
    ) -> None:
        self.filtered = 0  # did not match
        self.invalid = 0
        self._where = where
        self._key = key
        self._explode = explode
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
        place = (source, position - size, line)
        rows: list[bytes] = []
        dead: list[bytes] = []
        texts: Sequence[bytes] = (text,)
        if self._explode is not None:
            try:
                texts = _exploded(text, self._explode)
            except Invalid as error:
                return SourceRecord(
                    position, size, (), self.dead(str(error), text, len(text), *place)
                )
        for each in texts:
            try:
                rows += self._rows(each)
            except Invalid as error:
                dead += self.dead(str(error), each, len(each), *place)
        return SourceRecord(position, size, tuple(rows), tuple(dead))

    def too_long(
        self, begin: bytes, length: int, problem: str, position: int, end: int, line: int | None,
        source: str,
    ) -> SourceRecord:  # fmt: skip
        """What becomes of a line from ``position`` to ``end``, whose beginning alone is kept and
        leased. Raises InvalidRecord."""
        dead = self.dead(problem, begin, length, source, position, line)
        return SourceRecord(end, len(begin), (), dead)

    def dead(
        self, problem: str, text: bytes, length: int, source: str, position: int, line: int | None,
        unit: str = "byte",
    ) -> tuple[bytes, ...]:  # fmt: skip
        """The dead letter, unless they are dropped. Raises InvalidRecord."""
        self.invalid += 1
        if self._policy == FAIL:
            raise InvalidRecord(problem, position, line, unit)
        if self._policy == DROP:
            return ()
        return (_dead_letter(source, position, line, problem, text, length),)

    def _rows(self, text: bytes) -> tuple[bytes, ...]:
        self.check_size(len(text), "")
        key = None
        try:
            _check(text)
            text.decode()
        except UNREADABLE as error:
            raise Invalid(f"is not JSON: {error}") from error
        if len(text) >= NESTED_CHARACTERS_MIN and nested_deeper(text, NESTING_MAX):
            raise Invalid(f"is nested deeper than {NESTING_MAX} levels")
        if not self.passes(text):
            return ()
        if self._key is not None:
            key = _key_of(text, self._key)
        if key is None:
            return (b'{"data":%b}' % text,)
        self.check_size(len(text) + len(key.encode()), " with its key")
        return (b'{"data":%b,"key":%b}' % (text, msgspec.json.encode(key)),)

    def passes(self, text: bytes) -> bool:
        """Whether a record is not filtered out. What is not JSON matches no filter."""
        if self._where:
            fields = fields_of(text.decode(errors="replace"))
            if not all(condition.matches(fields) for condition in self._where):
                self.filtered += 1
                return False
        return True

    def check_size(self, size: int, what: str) -> None:
        """Raises Invalid."""
        if size > self._record_bytes_max:
            raise Invalid(
                f"has {size:,} bytes{what}, the limit for a record is"
                f" {self._record_bytes_max:,} (--record-bytes)"
            )


def _exploded(text: bytes, field: str) -> list[bytes]:
    """The elements of an array inside a record, as they are written there. Raises Invalid."""
    try:
        found = _members(text)
        *outer, last = [field] if field in found else field.split(".")
        for name in outer:
            found = _members(found[name])
        elements = [bytes(each) for each in _elements(found[last])]
    except KeyError as error:
        raise Invalid(f"has no field {field!r}, whose array is to be exploded") from error
    except UNREADABLE as error:
        raise Invalid(f"has no array {field!r} that can be exploded: {error}") from error
    if len(elements) > EXPLODED_MAX:
        raise Invalid(
            f"has {len(elements):,} elements in {field!r}, and one record explodes into at most"
            f" {EXPLODED_MAX:,}"
        )
    size = sum(map(len, elements))
    if size > EXPLODED_BYTES_MAX:
        raise Invalid(
            f"has {size:,} bytes of elements in {field!r}, and one record explodes into at most"
            f" {EXPLODED_BYTES_MAX:,}"
        )
    return elements


def _key_of(text: bytes, field: str) -> str | None:
    """The key as ``?key=`` takes it from the same record. Raises Invalid."""
    try:
        return key_field(field).of(text.decode().lstrip(), {})
    except ApiError as error:
        raise Invalid(error.message.replace(" of the body", "", 1)) from error


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
