"""Bodies and queries of requests, decoded into the Structs of ``daemon/schemas/api.py``.

There is one decoding and one mapping of its errors: whatever a client sends, the answer is an
ApiError that names the field, its limits and the value. ``detail`` has the ``field``, ``record`` or
``parameter``, or the ``byte`` and ``line`` of a syntax error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from daemon.schemas import shapes
from daemon.schemas.errors import ApiError, invalid

T = TypeVar("T")

# Joins the values of a repeated parameter of a query (daemon/http/head.py).
REPEATED = "\n"

# What msgspec raises for input that is not what it must be. (Names of fields are decoded before
# they are looked at, hence the UnicodeDecodeError.)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NESTING_MAX = 512  # deeper JSON breaks many readers
_SHOWN_CHARACTERS_MAX = 40
# A larger body is not decoded a second time to name a value that is wrong.
_LOOKED_UP_BYTES_MAX = 1 << 20
_BYTE = re.compile(r"\(byte (\d+)\)")
_SECRET = re.compile(
    r"\.(push\.(secrets|headers)|hook\.secrets)\b"
)  # places of values that are never shown
_AT = re.compile(r"(.*?) - at (?:key in )?`\$(.*)`$", re.DOTALL)
_RECORD = re.compile(r"(?:\.records)?\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_LONG_NAME = re.compile(rf"`([^`]{{{_SHOWN_CHARACTERS_MAX}}})[^`]+`")
_ENUM = re.compile(r"Invalid enum value (.*)", re.DOTALL)


def read_body(content_type: str, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A JSON body. Raises ApiError 400 and 415."""
    if content_type != "application/json":
        raise ApiError(
            415,
            "unsupported_media_type",
            f"the Content-Type must be application/json, got {content_type[:80]!r}",
        )
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise refusal(body, error, decoder.type) from error


def read_query(query: dict[str, str], type_: type[T], named: str = "parameter") -> T:
    """A query; parameters that are not fields of ``type_`` are ignored, and a list has the values
    of a repeated one. Raises ApiError 400, whose detail names the parameter as ``named``."""
    kinds = _fields(cast(Hashable, type_))
    values: dict[str, Any] = {}
    for name, text in query.items():
        kind = kinds.get(name)
        if kind is inspect.IntType and text.isascii() and text.isdigit() and len(text) <= 20:
            values[name] = int(text)
        elif kind is inspect.BoolType and text in ("true", "false"):
            values[name] = text == "true"
        elif kind is inspect.ListType:
            values[name] = text.split(REPEATED)
        elif kind is not None:
            values[name] = text
    try:
        return msgspec.convert(values, type_)
    except msgspec.ValidationError as error:
        missing = _MISSING.match(str(error))
        if missing is not None:
            raise invalid(
                f"the {named} {missing[1]} must be given", **{named: missing[1]}
            ) from error
        path = "." + error_place(error)[1].removeprefix(".").partition(".")[0]
        name = path[1:]
        wanted = shapes.describe(shapes.type_at(_described(cast(Hashable, type_)), path))
        raise invalid(
            f"{name} must be {_article(wanted.removesuffix(' or null'))}, got"
            f" {query.get(name, '')[:_SHOWN_CHARACTERS_MAX]!r}",
            **{named: name},
        ) from error


def refuse_unknown(query: dict[str, str], type_: type[Any]) -> None:
    """Raises ApiError 400, whose detail names the ``field``, for a parameter that is not a field of
    ``type_``."""
    known = _fields(cast(Hashable, type_))
    for name in query:
        if name not in known:
            shown = name[:_SHOWN_CHARACTERS_MAX]
            raise invalid(
                f"there is no query parameter {shown!r}; this takes {', '.join(known)}", field=shown
            )


def read_headers(headers: dict[str, str], type_: type[T]) -> T:
    """The headers that are fields of ``type_``, whose names may have any case; ``headers`` has
    lower-case names. Raises ApiError 400, whose detail names the header as ``header``."""
    names = _fields(cast(Hashable, type_))
    given = {name: headers[name.lower()] for name in names if name.lower() in headers}
    return read_query(given, type_, "header")


@lru_cache(None)
def _described(type_: Hashable) -> inspect.Type:
    """It takes a millisecond or more, as long as ten other refusals."""
    return inspect.type_info(type_)


@lru_cache(None)
def _fields(type_: Hashable) -> dict[str, type[inspect.Type]]:
    info = _described(type_)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: shapes.kind(field.type) for field in info.fields}


def refusal(body: bytes, error: Exception, type_: Any, hint: str = "") -> ApiError:
    """What one of the UNREADABLE means to the client; ``body`` is empty if it is not JSON."""
    if isinstance(error, RecursionError):
        return invalid(
            f"the body is nested deeper than {NESTING_MAX} levels", limit_levels=NESTING_MAX
        )
    if isinstance(error, UnicodeDecodeError):
        return _not_utf8(body, error)
    hint = f"; {hint}" if hint else ""
    if isinstance(error, msgspec.ValidationError):
        return _wrong_value(body, error, type_, hint)
    message = str(error)
    if message == "Input data was truncated":
        return invalid("the JSON ends too early, or has half a surrogate pair as an escape")
    at = _BYTE.search(message)
    if at is None:
        return invalid(message)
    byte = int(at[1])
    line = body.count(b"\n", 0, byte) + 1
    return invalid(f"{message}{hint}", byte=byte, line=line)


def error_place(error: msgspec.ValidationError) -> tuple[str, str]:
    """msgspec's sentence, and the path after the ``$``."""
    found = _AT.match(str(error))
    return (found[1], found[2]) if found else (str(error), "")


def _wrong_value(body: bytes, error: msgspec.ValidationError, type_: Any, hint: str) -> ApiError:
    sentence, path = error_place(error)
    detail: dict[str, Any] = {}
    record = _RECORD.match(path)
    if record is not None:
        detail["record"] = int(record[1])
    elif path:
        detail["field"] = path[1:].partition(".")[0].partition("[")[0]
    if sentence.startswith("Object "):  # contains an unknown field, or misses a required one
        where = f"{path[1:]} " if path else "the body "
        said = _LONG_NAME.sub(r"`\1...`", sentence.removeprefix("Object "))
        said = said.replace("contains unknown", "has the unknown")
        return invalid(
            f"{where}{said.replace('missing required', 'misses the required')}{hint}", **detail
        )
    wanted = shapes.type_at(_described(type_), path)
    is_object = shapes.kind(wanted) is inspect.StructType
    said = "a JSON object" if is_object else _article(shapes.describe(wanted))
    got = _got(body, path, sentence)
    return invalid(f"{path[1:] or 'the body'} must be {said}{got}{hint}", **detail)


def _got(body: bytes, path: str, sentence: str) -> str:
    if _SECRET.match(path):
        return ""
    enum = _ENUM.match(sentence)
    if enum is not None:
        return f", got {enum[1][:_SHOWN_CHARACTERS_MAX]}"
    if not body or len(body) > _LOOKED_UP_BYTES_MAX:
        return ""
    try:
        value = shapes.value_at(msgspec.json.decode(body), path)
    except (LookupError, *UNREADABLE):
        return ""
    if isinstance(value, list | dict):
        return f", got {'an array' if isinstance(value, list) else 'an object'}"
    return f", got {msgspec.json.encode(value).decode()[:_SHOWN_CHARACTERS_MAX]}"


def _article(wanted: str) -> str:
    if wanted.startswith(("integer", "array", "object", "any")):
        return f"an {wanted}"
    return f"a {wanted}" if wanted.startswith(("string", "number")) else wanted


def _not_utf8(body: bytes, error: UnicodeDecodeError) -> ApiError:
    """msgspec reports positions inside a string; this finds the place in the body."""
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as whole:
        line = body.count(b"\n", 0, whole.start) + 1
        return invalid(f"the body is not UTF-8: {whole}", byte=whole.start, line=line)
    return invalid(f"the body is not UTF-8: {error}")
