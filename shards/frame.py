"""The bytes of a write request in a ring, and of its batches in an L0 object.

The only place that knows this layout. All integers are little-endian.

A request in a ring is contiguous, starts and ends on a multiple of 8 bytes, and is::

    header        length u32 | header crc32c u32 | request id u64 | arrival ns u64
                  | parts u16 | flags u16 | conditions length u32          (32 bytes)
    conditions    msgpack, only when the request has a key, expected_seq, advance or producer
    parts         each: topic id u64 | partition u32 | batch length u32
                  | first timestamp ms u64 | last timestamp ms u64
                  | previous u64 | start u32 | reserved u32                (48 bytes)
                  and a batch

    batch         payload length u32 | record count u32 | arrival ms u64
                  | payload crc32c u32 | codec u16 | reserved u16          (24 bytes)
                  and the payload

The header's CRC32C covers bytes 8 to 32 and starts from position + length, so that neither a torn
header nor one from an earlier lap of the ring passes. Batches are copied unchanged into an extent
of an L0 object, so an extent is a sequence of batches. Codec 1 is a msgpack array of records, 2 a
batch of Kafka (``uploader/l0/payloads.py``); other numbers are reserved.

The parts of a partition in one ring are a *chain*: ``previous`` is the ring position of its part
before this one, 0 if the writer does not know it (position 0 is a header), and ``start`` is how
many bytes after the header of its request the part begins. So a reader of one partition need not
pass over all others.

A pad frame fills the rest of a ring before it wraps: a header with the flag PAD and no parts. A
request with the flag WAITS always waits for a commit window, also where its group is idle
(``uploader/groups/upload_turn.py``): a router's copy, which must not cause a PUT of its own.

A *void* run is one or more requests that will never be stored, because their deadline passed before
they were pulled. One store replaces the first word of its first header by the length up to the end
of the run and the complement of the checksum for this length. Readers skip it.

This module neither reads nor writes shared memory itself, and decides nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from ledger.types import Advance, ProducerBatch
from shards.checksum import crc32c

HEADER = struct.Struct("<IIQQHHI")
HEADER_BODY = struct.Struct("<QQHHI")
PART = struct.Struct("<QIIQQQII")
BATCH = struct.Struct("<IIQIHH")
# The heads of a request with one part and no conditions, and a part's head with the first words of
# its batch: the same bytes as above, in one step.
SINGLE = struct.Struct("<IIQQHHIQIIQQQIIIIQIHH")
PART_COUNT = struct.Struct("<QIIQQ16xII")
SINGLE_COUNT = struct.Struct("<IIQQHHI" + "QIIQQ16x" + "II")
# What a reader of a chain needs of a part and its batch.
CHAIN_LINK = struct.Struct("<QII16xQI4xII")
_CODEC = struct.Struct("<20xH")

HEADER_BYTES = HEADER.size
PART_BYTES = PART.size
BATCH_BYTES = BATCH.size

CODEC_MIXED = 0  # of an extent: its batches have several
CODEC_RECORDS = 1
CODEC_KAFKA = 2
VOID = 0xFFFFFFFF  # a void run's checksum is the complement of the right one
VOID_BYTES_MAX = 1 << 31  # of one run: a length is 32 bits
FLAG_PAD = 1
FLAG_CONDITIONS = 2
FLAG_WAITS = 4

Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """Bytes that are not a frame: torn, read too early, or corrupt."""


class Part(NamedTuple):
    """The records of a request for one partition, as the accepting shard passes them."""

    topic_id: int
    partition: int
    record_count: int
    payload: bytes
    first_timestamp_ms: int
    last_timestamp_ms: int
    codec: int = CODEC_RECORDS


class Conditions(msgspec.Struct, frozen=True, array_like=True):
    """What the commit must check for a request."""

    idempotency_key: str | None = None
    expected_seq: int | None = None
    advance: Advance | None = None
    producer: ProducerBatch | None = None
    fingerprint: int | None = None


class RecordBatchHead(NamedTuple):
    """The head of a batch; ``start`` is where the batch begins in the buffer it was read from."""

    start: int
    payload_length: int
    record_count: int
    arrival_ms: int
    payload_crc32c: int
    codec: int

    @property
    def payload_start(self) -> int:
        return self.start + BATCH_BYTES

    @property
    def end(self) -> int:
        return self.start + BATCH_BYTES + self.payload_length


_conditions_decoder = msgspec.msgpack.Decoder(Conditions)
_encoder = msgspec.msgpack.Encoder()


def encode_conditions(
    idempotency_key: str | None,
    expected_seq: int | None,
    advance: Advance | None = None,
    fingerprint: int | None = None,
) -> bytes:
    """The bytes of a request's conditions; empty if there are none."""
    if idempotency_key is None and expected_seq is None and advance is None:
        return b""
    if fingerprint is not None:
        return _encoder.encode((idempotency_key, expected_seq, advance, None, fingerprint))
    if advance is None:
        return _encoder.encode((idempotency_key, expected_seq))  # Conditions, cut off
    return _encoder.encode((idempotency_key, expected_seq, advance))


def encode_producer(batch: ProducerBatch) -> bytes:
    """The conditions of a request that has nothing but a producer's batch."""
    return _encoder.encode((None, None, None, batch))


def decode_conditions(data: Buffer) -> Conditions:
    """The inverse of encode_conditions for non-empty bytes. Raises FrameError."""
    try:
        return _conditions_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"the conditions of a request cannot be decoded: {error}") from error


def encode_batch(record_count: int, arrival_ms: int, payload: bytes, codec: int) -> bytes:
    """A batch: its head and its payload."""
    head = BATCH.pack(len(payload), record_count, arrival_ms, crc32c(payload), codec, 0)
    return head + payload


def codec_of(data: Buffer, offset: int) -> int:
    """The codec of the batch at ``offset``."""
    return int(_CODEC.unpack_from(data, offset)[0])


def request_length(conditions: bytes, parts: Sequence[Part]) -> int:
    """Bytes that a request takes in a ring, a multiple of 8."""
    length = HEADER_BYTES + len(conditions)
    for part in parts:
        length += PART_BYTES + BATCH_BYTES + len(part.payload)
    return (length + 7) & ~7


def batches(extent: Buffer, start: int = 0, end: int | None = None) -> Iterator[RecordBatchHead]:
    """The heads of the batches of an extent in bytes [start, end), in order.

    Raises FrameError if the bytes end inside a batch. Checksums of payloads are not verified.
    """
    stop = len(extent) if end is None else end
    position = start
    while position < stop:
        if position + BATCH_BYTES > stop:
            raise FrameError(f"the extent ends inside a batch head at byte {position} of {stop}")
        length, count, arrival_ms, checksum, codec, _ = BATCH.unpack_from(extent, position)
        head = RecordBatchHead(position, length, count, arrival_ms, checksum, codec)
        if head.end > stop:
            raise FrameError(f"the batch at byte {position} ends at {head.end}, after {stop}")
        yield head
        position = head.end


def batch_payload(extent: Buffer, head: RecordBatchHead) -> bytes:
    """A copy of the batch's payload, after a check of its checksum. Raises FrameError."""
    payload = bytes(extent[head.payload_start : head.end])
    verify_payload(head, payload)
    return payload


def verify_payload(head: RecordBatchHead, payload: bytes) -> None:
    """Raises FrameError unless the payload has the checksum that its head says."""
    found = crc32c(payload)
    if found != head.payload_crc32c:
        raise FrameError(
            f"the batch at byte {head.start} has checksum {found:08x},"
            f" but its head says {head.payload_crc32c:08x}"
        )
