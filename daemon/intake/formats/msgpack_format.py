"""msgpack bodies: the JSON object's shape, with bin for bytes.

``data`` is any msgpack value and is kept as JSON text; bin is kept as bytes. Inside other values,
bin becomes base64 text and a timestamp its RFC 3339 text, and map keys that are numbers become
strings. NaN, infinities and extension types are refused, since JSON cannot express them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Raw

from daemon.intake.formats.json_format import check_record, decode_base64
from daemon.intake.formats.limits import (
    BodyLimits,
    check_ts,
    named_twice,
    nested_too_deep,
    no_body,
    no_records,
    record_too_large,
    too_many_records,
    utf8_bytes,
)
from daemon.intake.formats.payloads import Produce, Row, produce_of, row
from daemon.schemas.api import ProduceBody, ProduceRecord
from daemon.schemas.decoding import UNREADABLE, refusal
from daemon.schemas.errors import invalid, too_large

_NIL = 0xC0
_BIN8, _BIN32 = 0xC4, 0xC6


class _Envelope(ProduceBody, forbid_unknown_fields=True, kw_only=True, gc=False):
    # Raw, so that the count in the array's head is seen before anything is built.
    records: Raw


_envelope_decoder = msgspec.msgpack.Decoder(_Envelope)
_records_decoder = msgspec.msgpack.Decoder(list[ProduceRecord])
_value_decoder = msgspec.msgpack.Decoder()
_members_decoder = msgspec.msgpack.Decoder(dict[str, Raw])
_RECORDS = b"\xa7records"
_json_encoder = msgspec.json.Encoder()


def parse_msgpack(body: bytes, limits: BodyLimits, arrival_ms: int) -> Produce:
    """The msgpack map ``{"records": [...], ...}``. Raises ApiError."""
    try:
        envelope = _envelope_decoder.decode(body)
        count = _array_length(bytes(memoryview(envelope.records)[:5]))
        if count is not None and count > limits.records_max:
            raise too_many_records(limits)
        records = _records_decoder.decode(envelope.records)
    except UNREADABLE as error:
        if not body:
            raise no_body() from None
        _refuse(error)
    if body.count(_RECORDS) > 1 and _map_length(body) > len(_members_decoder.decode(body)):
        raise named_twice()
    if not records:
        raise no_records()
    rows: list[Row] = []
    keyed = timed = False
    total = 0
    for index, each in enumerate(records):
        where = {"record": index}
        data = _data(each, index, limits)
        meta = None
        if each.meta is not UNSET and memoryview(each.meta)[0] != _NIL:
            meta = _json_text(each.meta, index, limits)
            if not meta.startswith("{"):
                raise invalid(f"meta of record {index} must be a map", field="meta", **where)
        check_record(data, (each.key, each.tag, each.node, meta), where, limits)
        total += len(data) if isinstance(data, bytes) else utf8_bytes(data)
        if total > limits.body_bytes_max:
            raise too_large(
                f"the records have more than {limits.body_bytes_max} bytes as JSON; send smaller"
                " batches",
                limit_bytes=limits.body_bytes_max,
            )
        keyed = keyed or each.key is not None
        if each.ts is not None:
            check_ts(each.ts, where)
            timed = True
        rows.append(row(data, each.ts, each.key, each.tag, each.node, meta))
    return produce_of(
        envelope, rows, arrival_ms, keyed=keyed, timed=timed, advance=envelope.advance
    )


def _refuse(error: Exception) -> NoReturn:
    if str(error) == "Input data was truncated":
        raise invalid("the msgpack ends too early") from error
    hint = "the body must be one msgpack map with records"
    raise refusal(b"", error, list[ProduceRecord], hint) from error


def _array_length(head: bytes) -> int | None:
    """The count in the head of a msgpack array; None for another type."""
    if head[0] & 0xF0 == 0x90:
        return head[0] & 0x0F
    if head[0] == 0xDC:
        return int.from_bytes(head[1:3], "big")
    if head[0] == 0xDD:
        return int.from_bytes(head[1:5], "big")
    return None


def _map_length(body: bytes) -> int:
    """The count in the head of a msgpack map."""
    if body[0] & 0xF0 == 0x80:
        return body[0] & 0x0F
    return int.from_bytes(body[1:3] if body[0] == 0xDE else body[1:5], "big")


def _data(each: ProduceRecord, index: int, limits: BodyLimits) -> str | bytes:
    if each.data is UNSET:
        return decode_base64(each.data_b64, index)
    if each.data_b64 is not None:
        raise invalid(f"record {index} has both data and data_b64", record=index)
    if _BIN8 <= memoryview(each.data)[0] <= _BIN32:
        return msgspec.msgpack.decode(each.data, type=bytes)
    return _json_text(each.data, index, limits)


def _json_text(raw: Raw, index: int, limits: BodyLimits) -> str:
    size = memoryview(raw).nbytes
    if size > limits.record_bytes_max:
        raise record_too_large({"record": index}, size, limits)
    try:
        value = _value_decoder.decode(raw)
        text = _json_encoder.encode(value).decode()
    except RecursionError:
        raise nested_too_deep({"record": index}) from None
    except (*UNREADABLE, TypeError, ValueError) as error:
        raise invalid(f"record {index} cannot be kept as JSON: {error}", record=index) from error
    if "null" in text and _has_no_number(value):
        raise invalid(
            f"record {index} has NaN or an infinity, which JSON cannot express", record=index
        )
    return text


def _has_no_number(value: Any) -> bool:
    """Whether a float in ``value`` is NaN or infinite; msgspec writes those as null."""
    pending: list[Iterable[Any]] = [(value,)]
    while pending:
        for each in pending.pop():
            if isinstance(each, float):
                if not math.isfinite(each):
                    return True
            elif isinstance(each, dict):
                pending.append(each.values())
                pending.append(each.keys())
            elif isinstance(each, list):
                pending.append(each)
    return False
