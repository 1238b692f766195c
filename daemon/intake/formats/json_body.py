"""JSON bodies: the object with ``records``, or an array at top level.

``data`` and ``meta`` are kept as the JSON text received: msgspec validates them as Raw and they
are copied out as text, which checks their UTF-8 (Raw does not). Field order, repeated keys and
the spelling of numbers inside ``data`` stay as they were.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

from msgspec import DecodeError, Meta, Raw, Struct, ValidationError
from msgspec.json import Decoder

from daemon.api.errors import ApiError, invalid
from daemon.intake.formats.keys import KeyField
from daemon.intake.formats.limits import (
    ACK_TIMEOUT_MS_MAX,
    ACK_TIMEOUT_MS_MIN,
    NESTED_CHARACTERS_MIN,
    NESTING_MAX,
    BodyLimits,
    check_ts,
    nested_too_deep,
    no_records,
    record_too_large,
    too_many_records,
    utf8_bytes,
)
from daemon.intake.formats.produce import Produce, Row, row
from daemon.intake.formats.structure import more_elements, nested_deeper
from ledger.types import Dedupe

SEQUENCE_MAX = 2**53
PARTITION_MAX = 999
IDEMPOTENCY_KEY_CHARACTERS_MAX = 256

# Up to this many commas a body is decoded at once: 64 bytes for each are 16 MiB. Bodies with more
# have their elements counted first. (Two bytes per comma at least: most are too short to ask.)
_COMMAS_UNCOUNTED_MAX = 256 * 1024
_BYTES_UNCOUNTED_MAX = 2 * _COMMAS_UNCOUNTED_MAX
_ABSENT = Raw()
# What msgspec raises for bytes that are not what they must be.
UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)
_RECORD_PATH = re.compile(r"`\$\.records\[(\d+)\]")
_ARRAY_PATH = re.compile(r"`\$\[(\d+)\]")
_BYTE = re.compile(r"\(byte (\d+)\)")

Partition = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=IDEMPOTENCY_KEY_CHARACTERS_MAX)]
Sequence = Annotated[int, Meta(ge=0, le=SEQUENCE_MAX)]
AckTimeout = Annotated[int, Meta(ge=ACK_TIMEOUT_MS_MIN, le=ACK_TIMEOUT_MS_MAX)]


class _Record(Struct, forbid_unknown_fields=True, gc=False):
    data: Raw = _ABSENT
    data_b64: str | None = None
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: Raw = _ABSENT
    ts: int | None = None


class _Envelope(Struct, forbid_unknown_fields=True, gc=False):
    records: list[_Record]
    partition: Partition | None = None
    idempotency_key: IdempotencyKey | None = None
    expected_seq: Sequence | None = None
    disable_backpressure: bool = False
    ack_timeout_ms: AckTimeout | None = None
    dedupe: Dedupe | None = None


_envelope_decoder = Decoder(_Envelope)
_array_decoder = Decoder(list[Raw])


def is_array(body: bytes) -> bool:
    """Whether the JSON text begins as an array."""
    first = body[:1]
    if first in b" \t\r\n":
        first = body.lstrip(b" \t\r\n")[:1]
    return first == b"["


def parse_object(body: bytes, limits: BodyLimits, arrival_ms: int) -> Produce:
    """``{"records": [...], ...}``. Raises ApiError."""
    _check_count(body, 2, limits)
    try:
        envelope = _envelope_decoder.decode(body)
    except UNREADABLE as error:
        hint = "if these are lines of JSON, send application/x-ndjson"
        raise refusal(body, error, hint, _RECORD_PATH) from error
    records = envelope.records
    if len(records) > limits.records_max:
        raise too_many_records(limits)
    if not records:
        raise no_records()
    rows: list[Row] = []
    keyed = timed = False
    careful = len(body) >= limits.suspect_from
    for index, each in enumerate(records):
        data: str | bytes
        try:
            if each.data is _ABSENT:
                data = decode_base64(each.data_b64, index)
            elif each.data_b64 is not None:
                raise invalid(f"record {index} has both data and data_b64", record=index)
            else:
                data = str(each.data, "utf-8")
            meta = None if each.meta is _ABSENT else _meta(str(each.meta, "utf-8"), index)
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
    return Produce(
        rows,
        arrival_ms,
        envelope.partition,
        envelope.idempotency_key,
        envelope.expected_seq,
        envelope.disable_backpressure,
        keyed,
        timed,
        envelope.ack_timeout_ms,
        envelope.dedupe,
    )


def parse_array(body: bytes, limits: BodyLimits, field: KeyField | None) -> list[Row]:
    """A top-level array, each element a record's data; ``field`` names the one with its key."""
    _check_count(body, 1, limits)
    try:
        elements = _array_decoder.decode(body)
    except UNREADABLE as error:
        raise refusal(body, error, "the body must be one JSON array", _ARRAY_PATH) from error
    if len(elements) > limits.records_max:
        raise too_many_records(limits)
    if not elements:
        raise no_records()
    rows: list[Row] = []
    careful = len(body) >= limits.suspect_from
    for index, element in enumerate(elements):
        try:
            data = str(element, "utf-8")
        except UnicodeDecodeError as error:
            raise invalid(f"record {index} is not UTF-8: {error}", record=index) from error
        key = None if field is None else field.of(data, {"record": index})
        if careful:
            check_record(data, (key,), {"record": index}, limits)
        rows.append((data,) if key is None else (data, None, key))
    return rows


def check_record(
    data: str | bytes,
    others: tuple[str | None, ...],
    where: dict[str, int],
    limits: BodyLimits,
) -> None:
    """Refuses a record that is too large or nested too deep. Bytes are not nested."""
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


def _check_count(body: bytes, level: int, limits: BodyLimits) -> None:
    if (
        len(body) > _BYTES_UNCOUNTED_MAX
        and body.count(b",") > _COMMAS_UNCOUNTED_MAX
        and more_elements(body, level, limits.records_max)
    ):
        raise too_many_records(limits)


def decode_base64(text: str | None, index: int) -> bytes:
    """The bytes of ``data_b64``; None means that ``data`` is missing too. Raises ApiError."""
    if text is None:
        raise invalid(f"record {index} has neither data nor data_b64", record=index)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"data_b64 of record {index} is no base64: {error}", record=index) from error


def _meta(text: str, index: int) -> str | None:
    if text.startswith("{"):
        return text
    if text == "null":
        return None
    raise invalid(f"meta of record {index} must be a JSON object", record=index, field="meta")


def refusal(
    body: bytes, error: Exception, hint: str, record_path: re.Pattern[str] | None = None
) -> ApiError:
    """What one of the UNREADABLE means to the client; names the record, or line and byte."""
    if isinstance(error, RecursionError):
        return nested_too_deep({})
    message = str(error)
    if isinstance(error, UnicodeDecodeError):
        return _not_utf8(body, error)
    if isinstance(error, ValidationError):
        record = None if record_path is None else record_path.search(message)
        if record is not None:
            return invalid(f"the body is not as it must be: {message}", record=int(record[1]))
        return invalid(f"the body is not as it must be: {message}; {hint}")
    if message == "Input data was truncated":
        return invalid("the JSON ends too early, or holds half a surrogate pair as an escape")
    at = _BYTE.search(message)
    if at is None:
        return invalid(message)
    byte = int(at[1])
    line = body.count(b"\n", 0, byte) + 1
    return invalid(f"{message}; {hint}", byte=byte, line=line)


def _not_utf8(body: bytes, error: UnicodeDecodeError) -> ApiError:
    """msgspec reports positions inside a string; look for the place in the body."""
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as whole:
        line = body.count(b"\n", 0, whole.start) + 1
        return invalid(f"the body is not UTF-8: {whole}", byte=whole.start, line=line)
    return invalid(f"the body is not UTF-8: {error}")
