"""JSON bodies: the object with ``records``, or an array at top level.

``data`` and ``meta`` are kept as the JSON text that was received: msgspec validates them as Raw,
except that they are UTF-8, which is checked here. The order of fields, repeated keys and the
spelling of numbers inside ``data`` stay as they were.
"""

from __future__ import annotations

import base64
import binascii

from msgspec import UNSET, Raw
from msgspec.json import Decoder

from daemon.intake.formats.keys import KeyField
from daemon.intake.formats.limits import (
    NESTED_CHARACTERS_MIN,
    BodyLimits,
    check_ts,
    given_twice,
    named_twice,
    nested_too_deep,
    no_body,
    no_records,
    record_too_large,
    too_many_records,
    utf8_bytes,
)
from daemon.intake.formats.nesting import more_elements, nested_deeper
from daemon.intake.formats.payloads import Produce, Row, produce_of, row
from daemon.schemas.api import ProduceRequest
from daemon.schemas.decoding import NESTING_MAX, UNREADABLE, refusal
from daemon.schemas.errors import invalid
from uploader.l0.records import Texts, texts_of

# A body with up to this many commas is decoded without counting: 64 bytes for each are 16 MiB. Of
# a body with more, the elements are counted first. (A comma has at least two bytes, so most bodies
# are too short to be counted.)
_COMMAS_UNCOUNTED_MAX = 256 * 1024
_BYTES_UNCOUNTED_MAX = 2 * _COMMAS_UNCOUNTED_MAX
_envelope_decoder = Decoder(ProduceRequest)
_array_decoder = Decoder(list[Raw])
_value_decoder = Decoder(Raw)
_members_decoder = Decoder(dict[str, Raw])
_RECORDS, _DATA, _DATA_B64 = b'"records"', b'"data"', b'"data_b64"'
UTF8 = ("", "utf-8", "utf8", "us-ascii")
_BLANKS = " \t\r\n"


def is_array(body: bytes) -> bool:
    """Whether the JSON text begins as an array."""
    first = body[:1]
    if first in b" \t\r\n":
        first = body.lstrip(b" \t\r\n")[:1]
    return first == b"["


def is_json(content_type: str) -> bool:
    """Whether a body of this type is JSON in UTF-8, as it says."""
    kind = content_type.lower().partition(";")[0].strip()
    if kind not in ("application/json", "text/json") and not kind.endswith("+json"):
        return False
    return charset_of(content_type) in UTF8


def charset_of(content_type: str) -> str:
    """The charset that a Content-Type names, in lower case; empty if it names none."""
    _, _, rest = content_type.lower().partition("charset=")
    return rest.partition(";")[0].strip(' "')


def json_text(body: bytes) -> str | None:
    """The text of a JSON value, without the blanks around it; None if it is not one, or is nested
    too deep to be kept as one."""
    try:
        _value_decoder.decode(body)
        text = str(body, "utf-8").strip(_BLANKS)
    except UNREADABLE:
        return None
    return None if nested_deeper(body, NESTING_MAX) else text


def parse_object(body: bytes, limits: BodyLimits, arrival_ms: int) -> Produce:
    """``{"records": [...], ...}``. Raises ApiError."""
    check_count(body, 2, limits)
    try:
        envelope = _envelope_decoder.decode(body)
    except UNREADABLE as error:
        if not body:
            raise no_body() from None
        hint = (
            "if these are lines of JSON, send application/x-ndjson; if this is a record itself,"
            " send it to /v0/hooks/TOPIC, or in an array"
        )
        raise refusal(body, error, ProduceRequest, hint) from error
    if has_twice(body, _RECORDS):
        raise named_twice()
    records = envelope.records
    if len(records) > limits.records_max:
        raise too_many_records(limits)
    if not records:
        raise no_records()
    if body.count(_DATA) + body.count(_DATA_B64) > len(records):
        _check_once(_members_decoder.decode(body)["records"])
    rows: list[Row] = []
    keyed = timed = False
    careful = len(body) >= limits.suspect_from
    for index, each in enumerate(records):
        data: str | bytes
        try:
            if each.data is UNSET:
                data = decode_base64(each.data_b64, index)
            elif each.data_b64 is not None:
                raise invalid(f"record {index} has both data and data_b64", record=index)
            else:
                data = str(each.data, "utf-8")
            meta = None if each.meta is UNSET else _meta(str(each.meta, "utf-8"), index)
        except UnicodeDecodeError as error:
            raise invalid(f"record {index} is not UTF-8: {error}", record=index) from error
        key = each.key
        ts = each.ts
        if key is not None:
            keyed = True
        if ts is not None:
            check_ts(ts, {"record": index})
            timed = True
        if careful:
            check_record(data, (key, each.tag, each.node, meta), {"record": index}, limits)
        rows.append(row(data, ts, key, each.tag, each.node, meta))
    return produce_of(
        envelope, rows, arrival_ms, keyed=keyed, timed=timed, advance=envelope.advance
    )


def has_twice(text: bytes, name: bytes) -> bool:
    """Whether a JSON object, which has been decoded, has two members of this name (in quotes), of
    which a decoder keeps the last. A name that is spelled with escapes is not seen."""
    count = text.count(name)
    if count > 1:
        for value in _members_decoder.decode(text).values():
            count -= bytes(value).count(name)
    return count > 1


def _check_once(records: Raw) -> None:
    """Raises ApiError 400 for a record that has its data twice."""
    for index, each in enumerate(_array_decoder.decode(records)):
        text = bytes(each)
        for name in (_DATA, _DATA_B64):
            if has_twice(text, name):
                raise given_twice(name.decode().strip('"'), {"record": index})


def array_texts(body: bytes, limits: BodyLimits) -> Texts:
    """The elements of a top-level array, which are UTF-8; each is a record's data. Raises
    ApiError."""
    elements = array_elements(body, limits)
    found = texts_of(elements)
    careful = len(body) >= limits.suspect_from <= found.bytes_max
    if careful or not body.isascii():
        for index, element in enumerate(elements):
            data = _text(element, index)
            if careful:
                check_record(data, (), {"record": index}, limits)
    return found


def array_rows(body: bytes, limits: BodyLimits, field: KeyField) -> list[Row]:
    """The rows of a top-level array; ``field`` takes the key of each element. Raises ApiError."""
    rows: list[Row] = []
    careful = len(body) >= limits.suspect_from
    for index, element in enumerate(array_elements(body, limits)):
        data = _text(element, index)
        key = field.of(data, {"record": index})
        if careful:
            check_record(data, (key,), {"record": index}, limits)
        rows.append((data,) if key is None else (data, None, key))
    return rows


def array_elements(body: bytes, limits: BodyLimits) -> list[Raw]:
    """The elements of a top-level array, not yet known to be UTF-8. Raises ApiError."""
    check_count(body, 1, limits)
    try:
        elements = _array_decoder.decode(body)
    except UNREADABLE as error:
        raise refusal(body, error, list[Raw], "the body must be one JSON array") from error
    if len(elements) > limits.records_max:
        raise too_many_records(limits)
    if not elements:
        raise no_records()
    return elements


def _text(element: Raw, index: int) -> str:
    try:
        return str(element, "utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"record {index} is not UTF-8: {error}", record=index) from error


def check_record(
    data: str | bytes,
    others: tuple[str | None, ...],
    where: dict[str, int],
    limits: BodyLimits,
) -> None:
    """Raises ApiError for a record that is too large or nested too deep (bytes never are)."""
    if isinstance(data, bytes):
        size = len(data)
    else:
        size = utf8_bytes(data)
        if size >= NESTED_CHARACTERS_MIN:
            _check_nesting(data, where)
    for other in others:
        if other is not None:
            length = utf8_bytes(other)
            size += length
            if length >= NESTED_CHARACTERS_MIN and other.startswith("{"):
                _check_nesting(other, where)
    if size > limits.record_bytes_max:
        raise record_too_large(where, size, limits)


def _check_nesting(text: str, where: dict[str, int]) -> None:
    if nested_deeper(text.encode(), NESTING_MAX):
        raise nested_too_deep(where)


def check_count(body: bytes, level: int, limits: BodyLimits) -> None:
    """Raises ApiError 413 for too many elements at a level of JSON, before it is decoded."""
    if (
        len(body) > _BYTES_UNCOUNTED_MAX
        and body.count(b",") > _COMMAS_UNCOUNTED_MAX
        and more_elements(body, level, limits.records_max)
    ):
        raise too_many_records(limits)


def decode_base64(text: str | None, index: int) -> bytes:
    """The bytes of ``data_b64``. Raises ApiError; for None, since ``data`` is missing too."""
    if text is None:
        raise invalid(f"record {index} has neither data nor data_b64", record=index)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"data_b64 of record {index} is not base64: {error}", record=index) from error


def _meta(text: str, index: int) -> str | None:
    if text.startswith("{"):
        return text
    if text == "null":
        return None
    raise invalid(f"meta of record {index} must be a JSON object", record=index, field="meta")
