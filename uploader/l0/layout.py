"""The bytes of an L0 object, and its key.

    head      magic "HEADGATE" | version u32 | reserved u32                       (16 bytes)
    extents   contiguous, sorted by (topic id, partition); each a run of batches (shards/frame.py)
    footer    a msgpack array, see Footer
    tail      footer crc32c u32 | footer length u32 | magic "HEADGATE"            (16 bytes)

Integers outside the footer are little-endian. These never change in any version: both magics, the
tail, and that the footer is a msgpack array whose first element is the version. So a reader that
knows only the tail can name the version that it found.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from msgspec import Struct

from ledger.types import (
    Advance,
    Condition,
    ConditionPart,
    ExtentDraft,
    ExtentRunDraft,
    LeaseId,
    ProducerBatch,
)

MAGIC = b"HEADGATE"
VERSION = 1
HEAD = struct.Struct("<8sII")
TAIL = struct.Struct("<II8s")
HEAD_BYTES = HEAD.size
TAIL_BYTES = TAIL.size

EPOCH_MAX = 10**18 - 1
_KEY = re.compile(r"l0/([0-9]{18})/([0-9]+)-([0-9]+)-([0-9]+)")
_KEY_FORM = "l0/{epoch, 18 digits}/{incarnation}-{shard}-{counter}"


class L0Error(ValueError):
    """Bytes that are not an L0 object, or are damaged: which, where, and what was expected.

    ``byte`` counts from the first byte of the object, or of the extent if it was read alone.
    """

    def __init__(self, key: str, byte: int, expected: str, found: str) -> None:
        super().__init__(f"{key or 'L0 object'}, byte {byte}: expected {expected}, found {found}")
        self.key = key
        self.byte = byte
        self.expected = expected
        self.found = found


class RingRun(Struct, frozen=True, array_like=True):
    """Records [record_index, record_index + record_count) of an extent came from ``shard``,
    whose pull began at ``ring_start`` of its ring."""

    shard: int
    ring_start: int
    record_index: int
    record_count: int


class FooterExtent(Struct, frozen=True, array_like=True):
    """The bytes of one partition. The timestamps (epoch milliseconds) are the smallest and the
    largest of its records, each record's own or that of its arrival."""

    topic_name: str
    topic_id: int
    partition: int
    byte_start: int
    byte_length: int
    record_count: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    codec: int
    crc32c: int
    runs: tuple[RingRun, ...]

    @property
    def byte_end(self) -> int:
        return self.byte_start + self.byte_length

    def draft(self, ring_spans: Sequence[int] = ()) -> ExtentDraft:
        """The extent as the ledger commits it; ``ring_spans`` is of each run, while the rings
        still have them."""
        return ExtentDraft(
            topic_id=self.topic_id,
            partition=self.partition,
            byte_start=self.byte_start,
            byte_length=self.byte_length,
            record_count=self.record_count,
            first_timestamp_ms=self.first_timestamp_ms,
            last_timestamp_ms=self.last_timestamp_ms,
            codec=self.codec,
            crc32c=self.crc32c,
            runs=tuple(
                ExtentRunDraft(
                    r.shard, r.record_index, r.record_count, r.ring_start if span else 0, span
                )
                for r, span in zip(self.runs, ring_spans or [0] * len(self.runs), strict=True)
            ),
        )


class FooterCondition(Struct, frozen=True, array_like=True):
    """A request whose records the commit accepts or makes void; see ``ledger.types``."""

    shard: int
    position: int
    topic_id: int
    parts: tuple[ConditionPart, ...]
    idempotency_key: str | None = None
    expected_seq: int | None = None
    advance: Advance | None = None
    producer: ProducerBatch | None = None
    fingerprint: int | None = None

    def condition(self) -> Condition:
        """The condition as the ledger decides it."""
        return Condition(
            shard=self.shard,
            position=self.position,
            topic_id=self.topic_id,
            parts=self.parts,
            idempotency_key=self.idempotency_key,
            expected_seq=self.expected_seq,
            advance=self.advance,
            producer=self.producer,
            fingerprint=self.fingerprint,
        )


class Footer(Struct, frozen=True, array_like=True):
    """What an object tells about itself: enough to commit it again from the store alone.

    ``commits_seen``: the object's own commit has a higher number than this, and no commit that its
    producers could know of has. It is 0 in older objects.
    """

    version: int
    lease_id: LeaseId
    created_ms: int
    extents: tuple[FooterExtent, ...]
    conditions: tuple[FooterCondition, ...] = ()
    commits_seen: int = 0


def object_key(lease_id: LeaseId) -> str:
    """The key of a lease's object. LIST returns objects in the order of their epochs."""
    if not 0 <= lease_id.epoch <= EPOCH_MAX:
        raise ValueError(f"epoch {lease_id.epoch} of {lease_id} must be 0 to {EPOCH_MAX}")
    name = f"{lease_id.incarnation}-{lease_id.shard}-{lease_id.counter}"
    return epoch_prefix(lease_id.epoch) + name


def epoch_prefix(epoch: int) -> str:
    """Keys of lower epochs sort before it."""
    return f"l0/{epoch:018d}/"


def parse_key(key: str) -> LeaseId:
    """The inverse of object_key. Raises L0Error for any key that object_key does not return."""
    match = _KEY.fullmatch(key)
    if match is not None:
        epoch, incarnation, shard, counter = (int(group) for group in match.groups())
        lease_id = LeaseId(incarnation, epoch, shard, counter)
        if object_key(lease_id) == key:
            return lease_id
    raise L0Error(key, 0, f"a key {_KEY_FORM}", repr(key))
