"""Kafka's record batches (version 2), and what a record of Kafka is as one of Headgate.

The mapping loses nothing in either direction (docs/decisions/0037-kafka.md):

- A value is ``data``, as bytes. A key that is UTF-8 is ``key``.
- What has no place in a record is JSON in ``meta``, below ``"kafka"``: ``headers``, a list of
  ``[name, value]``; ``"key": "base64"`` for a key that is not UTF-8, whose base64 is ``key``; and
  ``"value": null`` for a null value, whose ``data`` is the JSON text ``null``.
- ``tag``, ``node`` and another ``meta`` of a record are headers ``headgate.tag`` and so on.

A batch of plain records is stored as it came, as codec 2 (docs/l0-format.md); the mapping is made
when it is read. Nothing is stored or sent here.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ledger.types import SEQUENCE_MAX, ProducerBatch
from shards.checksum import crc32c
from uploader.l0.records import TIMESTAMP_MS_MAX, Record

HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES = HEAD.size
CRC_FROM = 21  # the checksum covers everything from the attributes on
LENGTH_FROM = 12  # what the length of a batch counts begins here
MAGIC = 2
COMPRESSION, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_MAGIC_AT = 16
RECORD_HEADERS_MAX = 256
BATCH_HEADERS_MAX = 100_000
# What is decoded without a pause; a header counts as some bytes.
_SLICE_RECORDS, _SLICE_BYTES, _HEADER_BYTES = 256, 64 << 10, 64

Header = tuple[str, bytes | None]
_new = tuple.__new__  # costs half of what a NamedTuple's own constructor does


class KafkaRecord(NamedTuple):
    """A record as Kafka's clients know it; ``ts`` is None if the producer gave none."""

    ts: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class BatchError(ValueError):
    """A batch that is not stored. ``code`` is Kafka's error code for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
INVALID_TIMESTAMP = 32
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
INVALID_TXN_STATE = 48
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87


class BatchLimits(NamedTuple):
    """What one batch may hold."""

    records: int
    record_bytes: int
    batch_bytes: int  # decompressed


class KafkaHead(NamedTuple):
    """What the head of a batch says of its records."""

    records: int
    codec: int
    base_ts: int
    producer: ProducerBatch | None = None
    is_usual: bool = False
    """It says nothing that has no place in what is stored as it came (kafka_stored.py)."""


def read_head(batch: bytes, limits: BatchLimits) -> KafkaHead:
    """The head of one batch, after every check that Kafka makes of it. Raises BatchError."""
    if len(batch) < HEAD_BYTES:
        raise BatchError(
            CORRUPT_MESSAGE, f"a batch has at least {HEAD_BYTES} bytes, this one has {len(batch)}"
        )
    if batch[_MAGIC_AT] != MAGIC:
        raise BatchError(
            UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"batches have the format {MAGIC}, this one has {batch[_MAGIC_AT]}: use a client that"
            " is newer than 2017",
        )
    (
        base, length, _, _, checksum, attributes, last_delta, base_ts, _, producer_id, epoch,
        sequence, count,
    ) = HEAD.unpack_from(batch)  # fmt: skip
    if length != len(batch) - LENGTH_FROM:
        raise BatchError(
            INVALID_RECORD,
            f"a partition takes one batch a request; the batch has {length + LENGTH_FROM} bytes,"
            f" and {len(batch)} were sent",
        )
    found = crc32c(memoryview(batch)[CRC_FROM:])
    if found != checksum:
        raise BatchError(
            CORRUPT_MESSAGE, f"the batch has checksum {found:08x}, its head says {checksum:08x}"
        )
    if attributes & (_TRANSACTIONAL | _CONTROL):
        raise BatchError(INVALID_TXN_STATE, "there are no transactions here")
    if count <= 0 or last_delta != count - 1:
        raise BatchError(
            INVALID_RECORD, f"the batch says {count} records, and that the last is {last_delta}"
        )
    if count > limits.records:
        raise BatchError(
            MESSAGE_TOO_LARGE,
            f"the batch has {count} records, the limit is {limits.records}; lower batch.size",
        )
    producer = None
    if producer_id >= 0:
        if epoch < 0 or sequence < 0:
            raise BatchError(
                INVALID_RECORD,
                f"the batch of producer {producer_id} has the epoch {epoch} and the sequence number"
                f" {sequence}; both begin at 0",
            )
        last = (sequence + last_delta) % (SEQUENCE_MAX + 1)
        producer = ProducerBatch(producer_id, epoch, sequence, last)
    is_usual = base == 0 and not attributes & ~COMPRESSION
    return KafkaHead(count, attributes & COMPRESSION, base_ts, producer, is_usual)


def records_of(
    payload: bytes, head: KafkaHead, record_bytes_max: int, at: int = 0, first: int = 0
) -> Iterator[list[KafkaRecord]]:
    """The records of a decompressed batch, in slices that take about a millisecond each. They begin
    at byte ``at``, with the record of the number ``first``. Raises BatchError."""
    try:
        yield from _records(payload, head.records, head.base_ts, record_bytes_max, at, first)
    except (IndexError, UnicodeDecodeError) as error:
        raise BatchError(INVALID_RECORD, f"a record cannot be read: {error}") from error


def _records(
    payload: bytes, count: int, base_ts: int, record_bytes_max: int, at: int, first: int
) -> Iterator[list[KafkaRecord]]:
    # Most numbers have one byte; a call for each would take half of the time.
    found: list[KafkaRecord] = []
    all_headers = 0
    last, end_at = _SLICE_RECORDS - 1, at + _SLICE_BYTES  # of the slice
    read = len(payload)
    for index in range(count):
        size, at = varint(payload, at)
        end = at + size
        if size < 0 or end > read:
            raise BatchError(INVALID_RECORD, f"record {index} ends after the batch")
        if size > record_bytes_max:
            raise BatchError(
                MESSAGE_TOO_LARGE,
                f"record {index} has {size} bytes, the limit for a record is {record_bytes_max}",
            )
        ts_delta = payload[at + 1]
        if ts_delta < 0x80:
            ts_delta = (ts_delta >> 1) ^ -(ts_delta & 1)
            at += 2
        else:
            ts_delta, at = varint(payload, at + 1)
        delta, at = varint(payload, at)
        if delta != first + index:
            raise BatchError(
                INVALID_RECORD, f"record {first + index} says that it is record {delta}"
            )
        if payload[at] == 1:
            key = None
            at += 1
        else:
            key, at = _bytes(payload, at, end)
        value, at = _bytes(payload, at, end)
        headers: tuple[Header, ...] = ()
        if payload[at]:
            headers, at = _headers(payload, at, end, index)
            all_headers += len(headers)
            end_at -= _HEADER_BYTES * len(headers)
            if all_headers > BATCH_HEADERS_MAX:
                raise BatchError(
                    MESSAGE_TOO_LARGE,
                    f"the batch has more than {BATCH_HEADERS_MAX} headers; lower batch.size",
                )
        else:
            at += 1
        if at != end:
            raise BatchError(INVALID_RECORD, f"record {index} has {end - at} bytes too many")
        ts = base_ts + ts_delta
        if not 0 <= ts <= TIMESTAMP_MS_MAX and ts != -1:
            raise BatchError(
                INVALID_TIMESTAMP,
                f"record {index} has the time {ts}; times are in milliseconds, from 0 to"
                f" {TIMESTAMP_MS_MAX}",
            )
        found.append(_new(KafkaRecord, (None if ts == -1 else ts, key, value, headers)))
        if index == last or at >= end_at:
            last, end_at = index + _SLICE_RECORDS, at + _SLICE_BYTES
            if index < count - 1:
                yield found
                found = []
    if at != read:
        raise BatchError(INVALID_RECORD, f"{read - at} bytes follow the last record")
    yield found


def _headers(payload: bytes, at: int, end: int, index: int) -> tuple[tuple[Header, ...], int]:
    count, at = varint(payload, at)
    if not 0 <= count <= end - at:
        raise BatchError(INVALID_RECORD, f"record {index} has {count} headers")
    if count > RECORD_HEADERS_MAX:
        raise BatchError(
            MESSAGE_TOO_LARGE,
            f"record {index} has {count} headers, the limit is {RECORD_HEADERS_MAX}",
        )
    headers: list[Header] = []
    for _ in range(count):
        name, at = _bytes(payload, at, end)
        if name is None:
            raise BatchError(INVALID_RECORD, f"record {index} has a header without a name")
        value, at = _bytes(payload, at, end)
        headers.append((name.decode(), value))
    return tuple(headers), at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and where it ends. Raises IndexError."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number, byte = byte & 0x7F, data[at]
    at += 1
    if byte < 0x80:  # the usual length of a value
        number |= byte << 7
        return (number >> 1) ^ -(number & 1), at
    number |= (byte & 0x7F) << 7
    for shift in range(14, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise IndexError("a number has more than 10 bytes")


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size = data[at]
    if size < 0x80:
        size = (size >> 1) ^ -(size & 1)
        at += 1
    else:
        size, at = varint(data, at)
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise IndexError(f"{size} bytes are said where {end - at} are left")
    return data[at:stop], stop


# Between Kafka's records and ours

_meta_decoder = msgspec.json.Decoder()
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)
_meta_encoder = msgspec.json.Encoder()


class BatchRows:
    """The rows of one batch, which are added slice by slice: within the limits also with what is
    in ``meta``."""

    def __init__(self, limits: BatchLimits, *, as_json: bool) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._limits = limits
        self._left_bytes = limits.batch_bytes
        self._as_json = as_json

    def add(self, found: Sequence[KafkaRecord]) -> None:
        """Adds records as ``to_row`` makes them. Raises BatchError."""
        limits, as_json, add = self._limits, self._as_json, self.rows.append
        for record in found:
            row = to_row(record, as_json=as_json)
            add(row)
            if len(row) < 6:
                continue  # it is no larger than what was read
            size = len(record.value or b"") + len(row[2] or "") + len(row[5].encode())
            if size > limits.record_bytes:
                raise BatchError(
                    MESSAGE_TOO_LARGE,
                    f"record {len(self.rows) - 1} takes {size} bytes with its headers as JSON, the"
                    f" limit for a record is {limits.record_bytes}",
                )
            self._left_bytes -= size
            if self._left_bytes < 0:
                raise BatchError(
                    MESSAGE_TOO_LARGE,
                    f"the batch takes more than {limits.batch_bytes} bytes with its headers as"
                    " JSON; lower batch.size",
                )


def to_row(record: KafkaRecord, *, as_json: bool = False) -> tuple[Any, ...]:
    """A record as ``uploader.l0.records.encode`` takes it. ``as_json``: the value must be JSON
    text, and is it here too. Raises BatchError."""
    ts, key, value, headers = record
    said: dict[str, Any] = {}
    text: str | None = None
    if key is not None:
        try:
            text = key.decode()
        except UnicodeDecodeError:
            text = base64.b64encode(key).decode()
            said["key"] = "base64"
    if value is None:
        said["value"] = None
    if headers:
        said["headers"] = [(name, _header_to_json(each)) for name, each in headers]
    data: bytes | str = "null" if value is None else _json_text(value) if as_json else value
    if said:
        meta = _meta_encoder.encode({"kafka": said}).decode()
        return (data, ts, text, None, None, meta)
    if text is not None:
        return (data, ts, text)
    return (data,) if ts is None else (data, ts)


def _json_text(value: bytes) -> str:
    try:
        _raw_decoder.decode(value)
        return value.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatchError(
            INVALID_RECORD,
            f"a value is not JSON, as kafka_value = json of the topic says it is: {error}",
        ) from error


def _header_to_json(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def to_kafka(ts_ms: int, record: Record) -> KafkaRecord:
    """A stored record, with its time, as Kafka's clients get it."""
    data = record.data
    value: bytes | None = data if isinstance(data, bytes) else data.encode()
    key = None if record.key is None else record.key.encode()
    if record.meta is None and record.tag is None and record.node is None:
        return _new(KafkaRecord, (ts_ms, key, value, ()))
    headers: list[Header] = []
    if record.tag is not None:
        headers.append(("headgate.tag", record.tag.encode()))
    if record.node is not None:
        headers.append(("headgate.node", record.node.encode()))
    if record.meta is not None:
        said = _said(record)
        if said is None:
            headers.append(("headgate.meta", record.meta.encode()))
        else:
            if "value" in said:
                value = None
            if "key" in said and key is not None:
                key = base64.b64decode(key)  # which is valid
            headers += [(name, _header_of_json(each)) for name, each in said.get("headers", ())]
    return KafkaRecord(ts_ms, key, value, tuple(headers))


def _said(record: Record) -> dict[str, Any] | None:
    """What ``meta`` says below "kafka", if it says just that and it is true: producers by HTTP may
    write anything there."""
    meta = record.meta
    if meta is None or not meta.startswith('{"kafka":{'):
        return None
    try:
        document = _meta_decoder.decode(meta)
        said: dict[str, Any] = document["kafka"]
        if len(document) > 1 or not said.keys() <= {"headers", "key", "value"}:
            return None
        if "value" in said and (said["value"] is not None or record.data != "null"):
            return None
        if "key" in said:
            if said["key"] != "base64" or record.key is None:
                return None
            base64.b64decode(record.key, validate=True)
        for name, each in said.get("headers", ()):
            if not isinstance(name, str):
                return None
            _header_of_json(each)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        AttributeError,
        TypeError,
        KeyError,
        ValueError,
    ):
        return None
    return said


def _header_of_json(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    (only,) = value.items()
    if only[0] != "base64":
        raise ValueError(f"a header is text, null or base64, got {only[0]!r}")
    return base64.b64decode(only[1], validate=True)


def encode_batch(base_offset: int, items: Sequence[tuple[int, KafkaRecord]]) -> bytes:
    """A batch of records with their offsets, which ascend and need not be dense."""
    first = items[0][1].ts or 0
    rows: list[bytes] = []
    last_ts = first
    for offset, (ts, key, value, headers) in items:
        if ts is None:
            ts = first
        elif ts > last_ts:
            last_ts = ts
        parts = [b"\0", _number(ts - first), _number(offset - base_offset)]
        for each in (key, value):
            if each is None:
                parts.append(_NULL)
            else:
                parts += (_number(len(each)), each)
        parts.append(_number(len(headers)))
        for name, header in headers:
            encoded = name.encode()
            parts += (_number(len(encoded)), encoded)
            parts += (_NULL,) if header is None else (_number(len(header)), header)
        body = b"".join(parts)
        rows += (_number(len(body)), body)
    last_delta = items[-1][0] - base_offset
    return seal(
        base_offset, 0, last_delta, (first, last_ts), (-1, -1, -1), len(items), b"".join(rows)
    )


def seal(
    base_offset: int,
    attributes: int,
    last_delta: int,
    times: tuple[int, int],
    producer: tuple[int, int, int],
    count: int,
    payload: bytes,
) -> bytes:
    """The batch with this head and payload, and its checksum."""
    length = HEAD_BYTES - LENGTH_FROM + len(payload)
    head = HEAD.pack(
        base_offset, length, -1, MAGIC, 0, attributes, last_delta, *times, *producer, count
    )
    batch = bytearray(head + payload)
    batch[17:21] = crc32c(bytes(batch[CRC_FROM:])).to_bytes(4, "big")
    return bytes(batch)


def _encoded(number: int) -> bytes:
    """A zigzag varint."""
    number = (number << 1) ^ (number >> 63)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


_NUMBERS = [_encoded(number) for number in range(1 << 10)]
_NULL = _encoded(-1)


def _number(number: int) -> bytes:
    return _NUMBERS[number] if 0 <= number < 1 << 10 else _encoded(number)
