"""Builds an L0 object from what a pull took. Pure: the bytes are a function of the arguments.

So the first holder of a lease and any adopter build the same object, and a second PUT of it is
harmless (protocol 3). The cost is one join of all slices and two passes of CRC32C (one per extent,
one over the object): about a millisecond for 4 MiB of 1 KiB slices.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ledger.types import Condition, ExtentDraft, LeaseId
from shards.checksum import crc32c
from uploader.l0.layout import (
    HEAD,
    HEAD_BYTES,
    MAGIC,
    TAIL,
    VERSION,
    FooterExtent,
    RingRun,
)

_encoder = msgspec.msgpack.Encoder()
CONDITION_FIELDS_MIN = 6  # those after them are cut off where nothing follows


class ExtentParts(Struct, frozen=True):
    """The batches of one partition, in the order in which their records get offsets.

    ``batches`` are slices of the rings, each with one or more whole batches including their heads.
    The timestamps are the smallest and the largest of the records. ``runs`` are in the order of
    the records and together cover all ``record_count`` of them. ``ring_spans`` is for the ledger
    (``ExtentRun``): of each run, or empty.
    """

    topic_name: str
    topic_id: int
    partition: int
    codec: int
    batches: Sequence[bytes | memoryview]
    record_count: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    runs: tuple[RingRun, ...]
    ring_spans: tuple[int, ...] = ()


class BuiltObject(Struct, frozen=True):
    """An object to PUT: its bytes, their CRC32C, and its extents as the ledger commits them."""

    body: bytes
    crc32c: int
    drafts: tuple[ExtentDraft, ...]


def build(
    lease_id: LeaseId,
    created_ms: int,
    extents: Sequence[ExtentParts],
    conditions: Sequence[Condition] = (),
    commits_seen: int = 0,
) -> BuiltObject:
    """The object of a lease. Extents may be in any order; conditions are in pull order.

    The slices must not change during the call. Raises ValueError for two extents of one partition,
    for an extent without bytes, and for runs that do not cover its records.
    """
    pieces: list[bytes | memoryview] = [HEAD.pack(MAGIC, VERSION, 0)]
    footer_extents: list[FooterExtent] = []
    drafts: list[ExtentDraft] = []
    byte_start = HEAD_BYTES
    previous: tuple[int, int] | None = None
    for parts in sorted(extents, key=lambda e: (e.topic_id, e.partition)):
        identity = (parts.topic_id, parts.partition)
        if identity == previous:
            raise ValueError(f"two extents of topic {identity[0]}, partition {identity[1]}")
        previous = identity
        byte_length = 0
        checksum = 0
        for batch in parts.batches:
            byte_length += len(batch)
            checksum = crc32c(batch, checksum)
        _check(parts, byte_length)
        pieces.extend(parts.batches)
        footer_extents.append(
            FooterExtent(
                topic_name=parts.topic_name,
                topic_id=parts.topic_id,
                partition=parts.partition,
                byte_start=byte_start,
                byte_length=byte_length,
                record_count=parts.record_count,
                first_timestamp_ms=parts.first_timestamp_ms,
                last_timestamp_ms=parts.last_timestamp_ms,
                codec=parts.codec,
                crc32c=checksum,
                runs=parts.runs,
            )
        )
        drafts.append(footer_extents[-1].draft(parts.ring_spans))
        byte_start += byte_length
    # The arrays of Footer and FooterCondition, cut off where nothing follows.
    footer = _encoder.encode(
        (
            VERSION,
            lease_id,
            created_ms,
            footer_extents,
            [_footer_condition(condition) for condition in conditions],
            commits_seen,
        )
    )
    pieces.append(footer)
    pieces.append(TAIL.pack(crc32c(footer), len(footer), MAGIC))
    body = b"".join(pieces)
    return BuiltObject(body=body, crc32c=crc32c(body), drafts=tuple(drafts))


def _check(parts: ExtentParts, byte_length: int) -> None:
    name = f"the extent of topic {parts.topic_id}, partition {parts.partition}"
    if byte_length == 0:
        raise ValueError(f"{name} has no bytes")
    index = 0
    for run in parts.runs:
        if run.record_index != index or run.record_count <= 0:
            raise ValueError(f"{name}: a run must begin at record {index}, got {run}")
        index += run.record_count
    if index != parts.record_count:
        raise ValueError(f"{name} has {parts.record_count} records, but its runs cover {index}")


def _footer_condition(condition: Condition) -> tuple[object, ...]:
    found: tuple[object, ...] = (
        condition.shard,
        condition.position,
        condition.topic_id,
        condition.parts,
        condition.idempotency_key,
        condition.expected_seq,
        condition.advance,
        condition.producer,
        condition.fingerprint,
    )
    while len(found) > CONDITION_FIELDS_MIN and found[-1] is None:
        found = found[:-1]
    return found
