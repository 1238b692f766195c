"""Codec 2: a record batch of Kafka, stored as it came (docs/l0-format.md).

Only a *plain* batch is: one of which every reader makes within the same limits what it would make
of its records as codec 1. Its base offset and its attributes are 0, so it is not compressed; each
record has a time; headers are few, and small also as JSON. Whatever is not plain is for the decoder
to judge (``kafka.py``), which says what is wrong with it.

A reader gets the records by the mapping of ``kafka.py``. A *piece* of a batch is one itself, but
for its checksum: its base offset is the number of its first record. A client of Kafka gets the
bytes, with their offset.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from typing import TypeVar

from shards.checksum import crc32c
from uploader.l0.kafka import (
    BATCH_HEADERS_MAX,
    COMPRESSION,
    CRC_FROM,
    HEAD,
    HEAD_BYTES,
    LENGTH_FROM,
    MAGIC,
    BatchError,
    BatchLimits,
    KafkaHead,
    records_of,
    to_row,
    varint,
)
from uploader.l0.records import TIMESTAMP_MS_MAX, RecordsError

PRODUCER_FROM, PRODUCER_TO = 43, 57  # its id, its epoch, and the first sequence number
HEADERS_MAX = 8  # of a record: a piece has as many as a reader's turn can make JSON of
_SLICE_RECORDS = 2_048  # that are looked at without a pause, in about a millisecond
# As JSON a byte of a header takes 6 at most, and a header some more; a key that is not UTF-8 takes
# four thirds; a record's meta takes some itself.
_BYTE_AS_JSON, _HEADER_AS_JSON, _META_BYTES = 6, 24, 64

_NINE_BYTES = struct.Struct("9B")
T = TypeVar("T")
Times = tuple[int, int]


def plain_times(batch: bytes, head: KafkaHead, limits: BatchLimits) -> Iterator[Times | None]:
    """The first and the last time of a batch that is not compressed, whose head was read; after
    None for each slice that was looked at. It ends without them if the batch is not plain."""
    record_max = 3 * (limits.record_bytes - _META_BYTES) // 4
    at, stop = HEAD_BYTES, len(batch)
    base_ts = head.base_ts
    earliest, latest = TIMESTAMP_MS_MAX, -TIMESTAMP_MS_MAX
    grown = _META_BYTES * head.records + 4 * stop // 3
    headers_left = BATCH_HEADERS_MAX
    pause = _SLICE_RECORDS
    unpack, short = _NINE_BYTES.unpack_from, stop - _NINE_BYTES.size
    try:
        for index in range(head.records):
            if index == pause:
                pause += _SLICE_RECORDS
                yield None
            if at < short and index < 8_192:
                # The usual record, in half of the time: two bytes each for its length and that of
                # its value, one each for its time and the length of its key, and no headers.
                a, b, _, ts, c, d, key, low, high = unpack(batch, at)
                if index < 64:
                    is_usual, key, low, high, end = c == index << 1, d, key, low, at + 6
                else:
                    is_usual = c == (index << 1 & 0x7F | 0x80) and d == index >> 6
                    end = at + 7
                if is_usual and b < 0x80 <= a and ts < 0x80 and (key == 1 or not key & 0x81):
                    if key != 1:  # which is null
                        end += key >> 1
                        low, high = batch[end], batch[end + 1]
                    size = (a & 0x7F | b << 7) >> 1
                    end += 2 + ((low & 0x7F | high << 7) >> 1)
                    if (
                        high < 0x80 <= low and not (a | low) & 1 and end == at + 1 + size
                        and not batch[end] and size <= record_max
                    ):  # fmt: skip
                        ts = (ts >> 1) ^ -(ts & 1)
                        if ts > latest:
                            latest = ts
                        if ts < earliest:
                            earliest = ts
                        at = end + 1
                        continue
            # A number of one or two bytes is read here; a call takes half of the time of a record.
            low = batch[at]
            if low < 0x80:
                size = low >> 1 if not low & 1 else -1
                at += 1
            elif (high := batch[at + 1]) < 0x80 and not low & 1:
                size = (low & 0x7F | high << 7) >> 1
                at += 2
            else:
                size, at = varint(batch, at)
            end = at + size
            if size > record_max or size < 0:
                return
            low = batch[at + 1]
            if low < 0x80:
                delta = (low >> 1) ^ -(low & 1)
                at += 2
            else:
                delta, at = varint(batch, at + 1)
            if delta > latest:
                latest = delta
            if delta < earliest:
                earliest = delta
            if index < 64:
                if batch[at] != index << 1:
                    return
                at += 1
            elif index < 8_192:
                if batch[at] != (index << 1 & 0x7F | 0x80) or batch[at + 1] != index >> 6:
                    return
                at += 2
            else:
                number, at = varint(batch, at)
                if number != index:
                    return
            low = batch[at]
            if low == 1:  # null
                at += 1
            elif low < 0x80 and not low & 1:
                at += 1 + (low >> 1)
            else:
                at = _after(batch, at)
            low = batch[at]
            if low < 0x80 and not low & 1:
                at += 1 + (low >> 1)
            elif (high := batch[at + 1]) < 0x80 <= low and not low & 1:
                at += 2 + ((low & 0x7F | high << 7) >> 1)
            else:
                at = _after(batch, at)
            if batch[at]:
                count, at = varint(batch, at)
                as_json = _BYTE_AS_JSON * size + _HEADER_AS_JSON * count
                headers_left -= count
                if not 0 < count <= HEADERS_MAX or as_json > record_max or headers_left < 0:
                    return
                grown += as_json
                for _ in range(count):
                    name, begin = varint(batch, at)
                    at = begin + name
                    if name < 0 or at > end:
                        return
                    batch[begin:at].decode()
                    at = _after(batch, at)
            else:
                at += 1
            if at != end:  # it only grows, so nothing of the record is after its end
                return
    except (IndexError, UnicodeDecodeError):
        return
    first_ms, last_ms = base_ts + earliest, base_ts + latest
    if at == stop and first_ms >= 0 and last_ms <= TIMESTAMP_MS_MAX and grown <= limits.batch_bytes:
        yield first_ms, last_ms


def _after(data: bytes, at: int) -> int:
    """Where bytes end that begin with their length; -1 stands for null. Raises IndexError."""
    size, at = varint(data, at)
    if size < -1:
        raise IndexError(f"a length of {size}")
    return at + max(0, size)


def uncompressed(batch: bytes, payload: bytes) -> bytes:
    """A compressed batch with what it holds."""
    head = bytearray(batch[:HEAD_BYTES])
    head[8:LENGTH_FROM] = (HEAD_BYTES - LENGTH_FROM + len(payload)).to_bytes(4, "big")
    head[CRC_FROM + 1] &= ~COMPRESSION & 0xFF
    return _sealed(head, payload)


def without_producer(batch: bytes) -> bytes:
    """A batch that does not say whose it is: who reads it could go on in the name of its
    producer."""
    head = bytearray(batch[:HEAD_BYTES])
    head[PRODUCER_FROM:PRODUCER_TO] = b"\xff" * (PRODUCER_TO - PRODUCER_FROM)
    return _sealed(head, memoryview(batch)[HEAD_BYTES:])


def _sealed(head: bytearray, payload: bytes | memoryview) -> bytes:
    checksum = crc32c(payload, crc32c(bytes(head[CRC_FROM:])))
    head[CRC_FROM - 4 : CRC_FROM] = checksum.to_bytes(4, "big")
    return b"".join((head, payload))


def at_offset(batch: bytes, offset: int) -> bytes:
    """A stored batch as clients of Kafka get it: with the offset of its first record, and with the
    epoch of a leader who is not known. Its checksum covers neither."""
    return b"".join((offset.to_bytes(8, "big"), batch[8:12], b"\xff\xff\xff\xff", batch[16:]))


def decode(payload: bytes | memoryview, count: int, make: Callable[..., T]) -> list[T]:
    """The ``count`` records of a stored batch or of a piece of one, each ``make(data, ts, key, tag,
    node, meta)`` up to the last field that is present. Raises RecordsError."""
    payload = bytes(payload)
    first, head = _head_of(payload, count)
    found: list[T] = []
    try:
        for some in records_of(payload, head, len(payload), HEAD_BYTES, first):
            found += [
                make(each[2], each[0])
                if each[1] is None and each[2] is not None and not each[3]
                else make(*to_row(each))
                for each in some
            ]
    except BatchError as error:
        raise RecordsError(f"the payload is not a batch of Kafka: {error}") from error
    return found


def _head_of(payload: bytes, count: int) -> tuple[int, KafkaHead]:
    """The number of the first record, and the head. Raises RecordsError."""
    if len(payload) < HEAD_BYTES:
        raise RecordsError(f"a batch of Kafka has {HEAD_BYTES} bytes, the payload {len(payload)}")
    first, length, _, magic, _, attributes, last, base_ts, *_, said = HEAD.unpack_from(payload)
    stated = (magic, attributes, length + LENGTH_FROM, said, last)
    if stated != (MAGIC, 0, len(payload), count, count - 1) or first < 0:
        raise RecordsError(
            f"a plain batch of Kafka of {count} records in {len(payload)} bytes is expected; its"
            f" head says (magic, attributes, bytes, records, last) = {stated}, base {first}"
        )
    return first, KafkaHead(count, 0, base_ts)


def problem(payload: bytes) -> str:
    """What is wrong with a whole stored batch whose records are right; clients of Kafka would find
    it. Nothing if nothing is."""
    base, _, _, _, checksum, *_ = HEAD.unpack_from(payload)
    found = crc32c(payload[CRC_FROM:])
    if found != checksum:
        return f"Kafka's checksum {checksum:08x}, which is {found:08x}"
    return f"base offset {base}" if base else ""


def cuts(payload: bytes, count: int, every: int) -> array[int]:
    """Where each ``every``-th record of a stored batch begins, and where the last one ends. Raises
    RecordsError."""
    found = array("I")
    at = HEAD_BYTES
    try:
        for index in range(count):
            if index % every == 0:
                found.append(at)
            size, at = varint(payload, at)
            if size < 0:
                raise IndexError(f"a length of {size}")
            at += size
    except IndexError as error:
        raise RecordsError(f"the payload is not a batch of Kafka: {error}") from error
    found.append(at)
    if at != len(payload):
        raise RecordsError(f"the payload has {len(payload)} bytes, its records end at {at}")
    return found


def piece(head: bytes, first: int, count: int, rows: bytes) -> bytes:
    """The piece with the ``rows`` of ``count`` records of a batch with this head."""
    fields = list(HEAD.unpack(head))
    fields[0], fields[1] = first, HEAD_BYTES - LENGTH_FROM + len(rows)
    fields[6], fields[12] = count - 1, count
    return HEAD.pack(*fields) + rows
