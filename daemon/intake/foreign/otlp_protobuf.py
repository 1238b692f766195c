"""OTLP's ExportLogsServiceRequest, from the bytes of protobuf (docs/decisions/0001-http-front.md).

Only what is read here is known: fields with other numbers, or another type on the wire, are
skipped, as newer senders need it. Raises ValueError for bytes that are not a message.

A message becomes a dict with the names of OTLP's JSON. Attributes become an object, and values what
JSON has for them: bytes are base64, and numbers that JSON cannot say are texts.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw

from daemon.schemas.errors import too_large

Record = dict[str, Any]
# Of records with the same resource and scope: these, and their records, each with its size.
Group = tuple[Record, Iterator[tuple[int, Callable[[], Record]]]]
_Reader = Callable[[bytes, int, int], Any]

_VARINT_BYTES_MAX = 10
# Of a message with records, or of one around it: a translation stops between records only.
_FIELDS_MAX = 20_000
_double = struct.Struct("<d").unpack_from


def groups(data: bytes, part_bytes_max: int) -> Iterator[Group]:
    """The request's log records by resource and scope, in their order. Raises ApiError 413 for a
    resource or a scope with more bytes than that."""
    for tag, at, end in _counted(data, 0, len(data)):
        if tag == 0x0A:
            # The resource may come after its records.
            shared = _shared(data, at, end, _RESOURCE_LOGS, part_bytes_max)
            for inner, start, stop in _fields(data, at, end):  # _shared has counted them
                if inner == 0x12:
                    scoped = _shared(data, start, stop, _SCOPE_LOGS, part_bytes_max)
                    yield shared | scoped, _records(data, start, stop)


def _shared(
    data: bytes, at: int, end: int, known: dict[int, tuple[str, _Reader]], part_bytes_max: int
) -> Record:
    part_bytes = 0
    for tag, start, stop in _counted(data, at, end):
        if tag == 0x0A:  # given again, it is read again
            part_bytes += stop - start
            check_part(part_bytes, part_bytes_max)
    return _message(data, at, end, known)


def _counted(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message, if they are not too many. Raises ApiError 413."""
    for number, field in enumerate(_fields(data, at, end)):
        if number == _FIELDS_MAX:
            raise too_large(
                f"a message with log records has more than {_FIELDS_MAX} fields; send smaller"
                " requests",
                limit=_FIELDS_MAX,
            )
        yield field


def check_part(size_bytes: int, limit_bytes: int) -> None:
    """Raises ApiError 413 for a resource or a scope that is too large."""
    if size_bytes > limit_bytes:
        raise too_large(
            f"a resource or scope has {size_bytes} bytes, and a record with it may have"
            f" {limit_bytes}",
            limit_bytes=limit_bytes,
        )


def _records(data: bytes, at: int, end: int) -> Iterator[tuple[int, Callable[[], Record]]]:
    for tag, start, stop in _fields(data, at, end):
        if tag == 0x12:

            def read(start: int = start, stop: int = stop) -> Record:
                return _message(data, start, stop, _LOG_RECORD)

            yield stop - start, read


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message: number and wire type as one, then where its bytes begin and end, or
    the value of a number and 0."""
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag > 0x7F:
                tag, at = _varint(data, at - 1)
            kind = tag & 7
            if kind == 2:
                size = data[at]
                at += 1
                if size > 0x7F:
                    size, at = _varint(data, at - 1)
                start, at = at, at + size
                if at <= end:
                    yield tag, start, at
            elif kind == 0:
                value, at = _varint(data, at)
                if at <= end:
                    yield tag, value, 0
            elif kind in (1, 5):
                start, at = at, at + (8 if kind == 1 else 4)
                if at <= end:
                    yield tag, int.from_bytes(data[start:at], "little"), 0
            else:
                raise ValueError(f"byte {at - 1} begins a field of the wire type {kind}")
    except IndexError:
        at = end + 1
    if at != end:
        raise ValueError(f"a field goes beyond the end of its message, at byte {end}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for _ in range(_VARINT_BYTES_MAX):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"the number before byte {at} has more than {_VARINT_BYTES_MAX} bytes")


def _message(data: bytes, at: int, end: int, known: dict[int, tuple[str, _Reader]]) -> Record:
    """What a message has of the fields that are known; those that are empty are left out."""
    found: Record = {}
    for tag, value, stop in _fields(data, at, end):
        field = known.get(tag)
        if field is None:
            continue
        name, read = field
        if read is _key_value:
            key, said = read(data, value, stop)
            found.setdefault(name, {})[key] = said
        else:
            said = read(data, value, stop)
            if said or name == "body":
                found[name] = said
    return found


def _key_value(data: bytes, at: int, end: int) -> tuple[str, Any]:
    key, said = "", None
    for tag, value, stop in _fields(data, at, end):
        if tag == 0x0A:
            key = str(data[value:stop], "utf-8")
        elif tag == 0x12:
            said = _any(data, value, stop)
    return key, said


def _any(data: bytes, at: int, end: int) -> Any:
    """An AnyValue; None if it has none."""
    found = None
    for tag, value, stop in _fields(data, at, end):
        read = _VALUES.get(tag)
        if read is not None:
            found = read(data, value, stop)
    return found


def _string(data: bytes, at: int, end: int) -> str:
    return str(data[at:end], "utf-8")


def _number(_: bytes, value: int, __: int) -> int:
    return value


def _nanoseconds(_: bytes, value: int, __: int) -> str:
    """As OTLP's JSON has them: 64 bits are more than many readers of JSON take as a number."""
    return str(value) if value else ""


def _signed(_: bytes, value: int, __: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _real(_: bytes, value: int, __: int) -> float | str:
    (real,) = _double(value.to_bytes(8, "little"))
    return real if math.isfinite(real) else json_name(real)


def json_name(real: float) -> str:
    """What protobuf's JSON calls a number that JSON has not."""
    return "NaN" if math.isnan(real) else "Infinity" if real > 0 else "-Infinity"


def _hex(data: bytes, at: int, end: int) -> str:
    return data[at:end].hex()


def _base64(data: bytes, at: int, end: int) -> str:
    return base64.b64encode(data[at:end]).decode()


def _array(data: bytes, at: int, end: int) -> list[Any]:
    return [_any(data, start, stop) for tag, start, stop in _fields(data, at, end) if tag == 0x0A]


def _object(data: bytes, at: int, end: int) -> Record:
    return dict(
        _key_value(data, start, stop) for tag, start, stop in _fields(data, at, end) if tag == 0x0A
    )


def _part(known: dict[int, tuple[str, _Reader]]) -> _Reader:
    """A message that many records share, encoded once."""

    def read(data: bytes, at: int, end: int) -> Raw | None:
        found = _message(data, at, end, known)
        return Raw(msgspec.json.encode(found)) if found else None

    return read


# By number * 8 + wire type.
_VALUES: dict[int, _Reader] = {
    0x0A: _string, 0x10: lambda _, value, __: bool(value), 0x18: _signed, 0x21: _real,
    0x2A: _array, 0x32: _object, 0x3A: _base64,
}  # fmt: skip
_RESOURCE: dict[int, tuple[str, _Reader]] = {
    0x0A: ("attributes", _key_value), 0x10: ("droppedAttributesCount", _number),
}  # fmt: skip
_SCOPE: dict[int, tuple[str, _Reader]] = {
    0x0A: ("name", _string), 0x12: ("version", _string), 0x1A: ("attributes", _key_value),
    0x20: ("droppedAttributesCount", _number),
}  # fmt: skip
_RESOURCE_LOGS = {0x0A: ("resource", _part(_RESOURCE)), 0x1A: ("resourceSchemaUrl", _string)}
_SCOPE_LOGS = {0x0A: ("scope", _part(_SCOPE)), 0x1A: ("scopeSchemaUrl", _string)}
_LOG_RECORD: dict[int, tuple[str, _Reader]] = {
    0x09: ("timeUnixNano", _nanoseconds), 0x59: ("observedTimeUnixNano", _nanoseconds),
    0x10: ("severityNumber", _number), 0x1A: ("severityText", _string),
    0x2A: ("body", _any), 0x32: ("attributes", _key_value),
    0x38: ("droppedAttributesCount", _number), 0x45: ("flags", _number), 0x4A: ("traceId", _hex),
    0x52: ("spanId", _hex), 0x62: ("eventName", _string),
}  # fmt: skip
