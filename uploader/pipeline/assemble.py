"""From a lease's requests to the extents of its object: pure, given the rings.

The batches of an extent are in pull order: by range as in the lease, and within a range in ring
order. The same lease always gives the same extents, in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ledger.types import Condition, ConditionPart
from shards.frame import CODEC_MIXED, FrameError, codec_of, decode_conditions
from shards.leases import Lease
from shards.ring import RecordBatchAt, RequestAt, RingReader
from uploader.l0 import ExtentParts, RingRun


class _Run:
    """The part of an extent that comes from one shard."""

    __slots__ = ("count", "first", "index", "last", "shard")

    def __init__(self, shard: int, first: int, index: int) -> None:
        self.shard = shard
        self.first = first  # ring position of the first request
        self.index = index
        self.count = 0
        self.last: tuple[int, RecordBatchAt]  # request and batch


class _Extent:
    """An extent while its batches are gathered."""

    __slots__ = ("batches", "codec", "count", "first_ms", "last_ms", "runs")

    def __init__(self, codec: int) -> None:
        self.codec = codec
        self.batches: list[memoryview] = []
        self.count = 0
        self.first_ms = 1 << 63
        self.last_ms = 0
        self.runs: list[_Run] = []


def requests_of(lease: Lease, readers: Sequence[RingReader]) -> Iterable[tuple[int, RequestAt]]:
    """The requests of a lease in pull order, read from the rings again, for an adopter.

    Raises FrameError if a ring no longer holds all of an uncommitted range: committing an object
    of the rest would make the loss permanent.
    """
    for leased in lease.ranges:
        end = leased.start
        for request in readers[leased.shard].requests(leased.start, leased.end):
            end = request.end
            yield leased.shard, request
        if end != leased.end:
            raise FrameError(
                f"the ring of shard {leased.shard} has no frame at {end}, although {leased} of"
                f" lease {lease.lease_id} is not committed"
            )


def assemble(
    requests: Iterable[tuple[int, RequestAt]],
    readers: Sequence[RingReader],
    topic_name: Callable[[int], str],
) -> tuple[list[ExtentParts], list[Condition]]:
    """The extents (unsorted) and conditions of a lease's requests.

    Batches are views of the rings, valid while the lease is not committed.
    """
    extents: dict[tuple[int, int], _Extent] = {}
    conditions: list[Condition] = []
    for shard, request in requests:
        data = readers[shard].data
        parts: list[ConditionPart] = []
        position = request.position
        for batch in request.batches:
            topic_id, partition, count, offset, length, first_ms, last_ms = batch
            key = (topic_id, partition)
            codec = codec_of(data, offset)
            extent = extents.get(key)
            if extent is None:
                extent = extents[key] = _Extent(codec)
            elif extent.codec != codec:
                extent.codec = CODEC_MIXED
            if request.conditions:
                parts.append(ConditionPart(partition, extent.count, count))
            runs = extent.runs
            if not runs or runs[-1].shard != shard:
                runs.append(_Run(shard, position, extent.count))
            run = runs[-1]
            run.count += count
            run.last = position, batch
            extent.batches.append(data[offset : offset + length])
            extent.count += count
            if first_ms < extent.first_ms:
                extent.first_ms = first_ms
            if last_ms > extent.last_ms:
                extent.last_ms = last_ms
        if request.conditions:
            asked = decode_conditions(request.conditions)
            conditions.append(
                Condition(
                    shard,
                    request.position,
                    request.batches[0].topic_id,
                    tuple(parts),
                    asked.idempotency_key,
                    asked.expected_seq,
                    asked.advance,
                    asked.producer,
                    fingerprint=asked.fingerprint,
                )
            )
    built = [
        ExtentParts(
            topic_name=topic_name(topic_id),
            topic_id=topic_id,
            partition=partition,
            codec=extent.codec,
            batches=extent.batches,
            record_count=extent.count,
            first_timestamp_ms=extent.first_ms,
            last_timestamp_ms=extent.last_ms,
            runs=tuple(RingRun(r.shard, r.first, r.index, r.count) for r in extent.runs),
            ring_spans=tuple(
                readers[r.shard].part_position(*r.last) - r.first for r in extent.runs
            ),
        )
        for (topic_id, partition), extent in extents.items()
    ]
    return built, conditions
