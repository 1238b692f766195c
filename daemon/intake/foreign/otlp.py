"""OTLP's logs over HTTP: each log record becomes a record, with its resource and its scope.

The body is an ExportLogsServiceRequest in protobuf (``otlp_protobuf.py``) or in OTLP's JSON. A
record's data has the names of OTLP's JSON; attributes are an object, and values plain JSON. Its
``ts`` is the time of the log record, or else when that was observed.

Log records that are too large are left out and counted in the answer, since senders drop all of a
request that is refused. Senders repeat what is answered 503; not all of them repeat 429, so that is
answered 503 too. Other refusals mean that the request will never be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct

from daemon.http.request import Answer
from daemon.http.response import JSON
from daemon.intake.foreign import otlp_protobuf
from daemon.intake.foreign.otlp_protobuf import Group, Record, check_part, json_name
from daemon.intake.formats import BodyLimits, check_count, given_twice, has_twice, too_many_records
from daemon.schemas.decoding import UNREADABLE
from daemon.schemas.errors import ApiError, invalid, too_large
from daemon.schemas.foreign import LogsError

PROTOBUF = "application/x-protobuf"
CONTENT_TYPES = (PROTOBUF, JSON)
_encode = msgspec.json.Encoder().encode


class LogsTranslation:
    """One request."""

    kept_bytes = 200

    def __init__(self, content_type: str, *values: Any) -> None:
        (self._topic,) = values
        self._content_type = content_type
        self.records: dict[str, list[bytes]] = {}
        self._too_large = 0
        self._record_bytes_max = 0

    def steps(self, body: bytes, limits: BodyLimits) -> Iterator[None]:
        """Translates a body, and stops after each log record. Raises ApiError."""
        if self._content_type not in CONTENT_TYPES:
            raise ApiError(
                415,
                "unsupported_media_type",
                f"Content-Type {self._content_type[:80]!r} is not supported; send one of"
                f" {', '.join(CONTENT_TYPES)}",
            )
        found = (
            otlp_protobuf.groups(body, limits.record_bytes_max)
            if self._content_type == PROTOBUF
            else _groups(body, limits)
        )
        self._record_bytes_max = limits.record_bytes_max
        try:
            for _ in self._take(found, limits):
                yield
        except (ValueError, *UNREADABLE) as error:
            what = "nested too deep" if isinstance(error, RecursionError) else str(error)
            raise invalid(
                f"the body must be an ExportLogsServiceRequest, and is not: {what}; nothing of it"
                " was stored"
            ) from error

    def _take(self, found: Iterator[Group], limits: BodyLimits) -> Iterator[None]:
        records: list[bytes] = []
        count = size = 0
        for groups, (shared, group) in enumerate(found):
            context = _encode(shared)
            for size_bytes, read in group:
                yield
                count += 1
                if count > limits.records_max:
                    raise too_many_records(limits)
                # What is read of it takes much more than its bytes.
                if size_bytes + len(context) > limits.record_bytes_max:
                    self._too_large += 1
                    continue
                log_record = read()
                data = _joined(_encode(log_record), context)
                if len(data) > limits.record_bytes_max:
                    self._too_large += 1
                    continue
                ts = log_record.get("timeUnixNano") or log_record.get("observedTimeUnixNano")
                begin = b"{" if not ts else b'{"ts":%d,' % (int(ts) // 1_000_000)
                records.append(b'%b"data":%b}' % (begin, data))
                size += len(records[-1]) + 1
                if size > limits.body_bytes_max:
                    raise too_large(
                        f"the log records take more than {limits.body_bytes_max} bytes as JSON,"
                        " each with its resource and scope; send smaller batches",
                        limit_bytes=limits.body_bytes_max,
                    )
            yield
            if groups >= limits.records_max:
                raise too_many_records(limits)
        if records:
            self.records[self._topic] = records

    def answer(self, refused: dict[str, ApiError], took_ms: int) -> Answer:
        """An ExportLogsServiceResponse, or why nothing was stored."""
        is_json = self._content_type == JSON
        for error in refused.values():
            shown = self.refusal(error, self._content_type)
            headers = (
                () if shown.retry_after_s is None else (("Retry-After", str(shown.retry_after_s)),)
            )
            return (shown.status, shown.body(), shown.content_type, headers, shown.close)
        if not self._too_large:
            return (200, b"{}" if is_json else b"", self._content_type, (), False)
        said = f"a log record may have {self._record_bytes_max} bytes with its resource and scope"
        if is_json:
            # 64 bits are a text in the JSON of protobuf.
            rejected = {"rejectedLogRecords": str(self._too_large), "errorMessage": said}
            return (200, _encode({"partialSuccess": rejected}), JSON, (), False)
        message = b"\x08" + _varint(self._too_large) + _text(2, said)
        return (200, _sized(1, message), PROTOBUF, (), False)

    @staticmethod
    def refusal(error: ApiError, content_type: str) -> ApiError:
        """With a Status, as OTLP asks for it."""
        return LogsRefusal(error, is_json=content_type != PROTOBUF)


class LogsRefusal(ApiError):
    """A refusal of a whole request."""

    def __init__(self, error: ApiError, *, is_json: bool) -> None:
        super().__init__(
            503 if error.status == 429 else error.status,
            error.code,
            error.message,
            error.detail,
            retry_after_s=error.retry_after_s,
            close=error.close,
            names=error.names,
        )
        self.content_type = JSON if is_json else PROTOBUF

    def body(self) -> bytes:
        """A google.rpc.Status."""
        if self.content_type == JSON:
            return _encode(LogsError(self.message))
        return _text(2, self.message)


def _joined(record: bytes, context: bytes) -> bytes:
    """Two JSON objects as one."""
    if record == b"{}":
        return context
    return record if context == b"{}" else b"%b,%b" % (record[:-1], context[1:])


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _sized(number: int, message: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(message)) + message


def _text(number: int, text: str) -> bytes:
    return _sized(number, text.encode())


# JSON. Lists are counted before they are decoded, and log records are decoded one by one: what is
# decoded takes up to thirty times as much as its text. A field that is null is not there.


class _KeyValue(Struct, gc=False):
    key: str | None = ""
    value: _AnyValue | None = None


class _Values(Struct, gc=False):
    values: list[_AnyValue] | None = []


class _KeyValues(Struct, gc=False):
    values: list[_KeyValue] | None = []


class _AnyValue(Struct, gc=False, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bytes_value: str | None = None
    array_value: _Values | None = None
    kvlist_value: _KeyValues | None = None


class _Described(Struct, gc=False, rename="camel"):
    """A resource or a scope."""

    name: str | None = ""
    version: str | None = ""
    attributes: list[_KeyValue] | None = []
    dropped_attributes_count: int | None = 0


class _LogRecord(Struct, gc=False, rename="camel"):
    time_unix_nano: int | str | None = 0
    observed_time_unix_nano: int | str | None = 0
    severity_number: int | None = 0
    severity_text: str | None = ""
    body: _AnyValue | None = None
    attributes: list[_KeyValue] | None = []
    dropped_attributes_count: int | None = 0
    flags: int | None = 0
    trace_id: str | None = ""
    span_id: str | None = ""
    event_name: str | None = ""


class _ScopeLogs(Struct, gc=False, rename="camel"):
    scope: Raw = Raw(b"{}")
    log_records: Raw = Raw(b"[]")
    schema_url: str | None = ""


class _ResourceLogs(Struct, gc=False, rename="camel"):
    resource: Raw = Raw(b"{}")
    scope_logs: Raw = Raw(b"[]")
    schema_url: str | None = ""


class _LogsRequest(Struct, gc=False, rename="camel"):
    resource_logs: Raw = Raw(b"[]")


_request = msgspec.json.Decoder(_LogsRequest)
_resource_logs = msgspec.json.Decoder(_ResourceLogs)
_scope_logs = msgspec.json.Decoder(_ScopeLogs)
_described = msgspec.json.Decoder(_Described | None)
_log_record = msgspec.json.Decoder(_LogRecord)
_list = msgspec.json.Decoder(list[Raw] | None)


def _groups(body: bytes, limits: BodyLimits) -> Iterator[Group]:
    of_request = _request.decode(body)
    _check_once("resourceLogs", body)
    for each in _elements(of_request.resource_logs, limits):
        of_resource = _resource_logs.decode(each)
        _check_once("scopeLogs", bytes(each))
        shared = _described_as("resource", of_resource.resource, limits)
        if of_resource.schema_url:
            shared["resourceSchemaUrl"] = of_resource.schema_url
        for scoped in _elements(of_resource.scope_logs, limits):
            of_scope = _scope_logs.decode(scoped)
            _check_once("logRecords", bytes(scoped))
            context = shared | _described_as("scope", of_scope.scope, limits)
            if of_scope.schema_url:
                context["scopeSchemaUrl"] = of_scope.schema_url
            yield context, _records(of_scope.log_records, limits)


def _check_once(name: str, text: bytes) -> None:
    if has_twice(text, b'"%b"' % name.encode()):
        raise given_twice(name, {})


def _elements(raw: Raw, limits: BodyLimits) -> list[Raw]:
    text = bytes(raw)
    check_count(text, 1, limits)
    return _list.decode(text) or []


def _records(raw: Raw, limits: BodyLimits) -> Iterator[tuple[int, Callable[[], Record]]]:
    for each in _elements(raw, limits):
        text = bytes(each)
        yield len(text), partial(_read, text)


def _read(text: bytes) -> Record:
    return _fields(_log_record.decode(text))


def _described_as(name: str, raw: Raw, limits: BodyLimits) -> Record:
    """A resource or a scope under its name, unless it is empty."""
    text = bytes(raw)
    check_part(len(text), limits.record_bytes_max)
    found = _fields(_described.decode(text))
    return {name: Raw(_encode(found))} if found else {}


def _fields(decoded: _Described | _LogRecord | None) -> Record:
    """What is there, and is not empty."""
    found: Record = {}
    if decoded is None:
        return found
    for name in decoded.__struct_fields__:
        value = getattr(decoded, name)
        if not value:
            continue
        if name == "attributes":
            value = _attributes(value)
        elif name == "body":
            value = _value(value)
        elif name.endswith("_nano"):
            if not 0 <= int(value) < 1 << 64:
                raise ValueError(f"{_NAMES[name]} must be from 0 to 2^64 - 1, got {value}")
            if not int(value):
                continue
            value = str(int(value))
        found[_NAMES[name]] = value
    return found


_NAMES = {
    name: encoded
    for struct in (_Described, _LogRecord)
    for name, encoded in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
}


def _attributes(pairs: list[_KeyValue] | None) -> Record:
    return {pair.key or "": _value(pair.value) for pair in pairs or ()}


def _value(value: _AnyValue | None) -> Any:
    """As JSON has it; None if there is none."""
    if value is None:
        return None
    if value.int_value is not None:
        return int(value.int_value)
    if value.array_value is not None:
        return [_value(each) for each in value.array_value.values or ()]
    if value.kvlist_value is not None:
        return _attributes(value.kvlist_value.values)
    if value.double_value is not None:
        real = value.double_value
        return real if isinstance(real, float) else json_name(float(real))
    for found in (value.string_value, value.bool_value, value.bytes_value):
        if found is not None:
            return found
    return None
