"""The records of a batch, whatever its codec: 1 is msgpack (``records.py``), 2 a batch of Kafka as
it came (``kafka_stored.py``)."""

from __future__ import annotations

from array import array

from shards.frame import CODEC_KAFKA, CODEC_RECORDS
from uploader.l0 import kafka_stored, records
from uploader.l0.kafka import HEAD_BYTES
from uploader.l0.records import Record, RecordsError


def decode(codec: int, payload: bytes | memoryview, count: int) -> list[Record]:
    """The records of a payload, or of a piece of one. Raises RecordsError."""
    if codec == CODEC_RECORDS:
        return records.decode(payload)
    if codec == CODEC_KAFKA:
        return kafka_stored.decode(payload, count, Record)
    raise RecordsError(f"codec {codec} is not known")


def cuts(codec: int, payload: bytes, count: int, every: int) -> array[int]:
    """Where each ``every``-th record of a payload begins, and where the last one ends. Raises
    RecordsError."""
    if codec == CODEC_KAFKA:
        return kafka_stored.cuts(payload, count, every)
    return records.cuts(payload, every)


def lead(codec: int, payload: bytes) -> bytes:
    """What all pieces of a payload need of it."""
    return payload[:HEAD_BYTES] if codec == CODEC_KAFKA else b""


def piece(codec: int, lead: bytes, first: int, count: int, rows: bytes) -> bytes:
    """The payload whose records are ``rows``, as they are between two cuts: ``count`` of them, from
    number ``first`` of the whole payload on."""
    if codec == CODEC_KAFKA:
        return kafka_stored.piece(lead, first, count, rows)
    return records.payload_of(count, rows)
