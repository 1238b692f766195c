"""Write requests for the ledger's tests: laid out as the uploader does, answered as a shard does.

``draft_of`` puts requests into one lease in pull order (all of a shard's stand together);
``answers`` walks the commit's runs and verdicts the way the shard that owns the requests must.
Neither looks at how the ledger decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ledger.types import (
    Advance,
    Commit,
    CommitDraft,
    Condition,
    ConditionPart,
    ExtentDraft,
    ExtentRunDraft,
    LeasedRange,
    LeaseId,
    ProducerBatch,
)

REQUEST_BYTES = 64


class Request(Struct, frozen=True):
    """Records for partitions of a topic: ``parts`` are (partition, record count)."""

    topic_id: int
    parts: tuple[tuple[int, int], ...] = ((0, 1),)
    key: str | None = None
    expected_seq: int | None = None
    shard: int = 0
    timestamp_ms: int = 1_000
    advance: Advance | None = None
    producer: ProducerBatch | None = None
    fingerprint: int | None = None


class Answer(Struct, frozen=True):
    """``kind`` is "stored" or a verdict's; ``parts`` are (partition, first, last)."""

    kind: str
    parts: tuple[tuple[int, int, int], ...] = ()
    head_seq: int = 0
    cursor_seq: int = 0


def lease(counter: int, epoch: int = 1, incarnation: int = 1, shard: int = 0) -> LeaseId:
    return LeaseId(incarnation, epoch, shard, counter)


def key_of(lease_id: LeaseId) -> str:
    return f"l0/{lease_id.epoch:018}/{lease_id.incarnation}-{lease_id.shard}-{lease_id.counter}"


def draft_of(lease_id: LeaseId, requests: Sequence[Request]) -> CommitDraft:
    """The draft of a lease that pulled these requests; shards must stand together."""
    per_extent: dict[tuple[int, int], list[tuple[Request, int]]] = {}
    conditions: list[Condition] = []
    ends: dict[int, int] = {}
    for position, request in positioned(requests):
        ends[request.shard] = position + REQUEST_BYTES
        parts = []
        for partition, count in request.parts:
            there = per_extent.setdefault((request.topic_id, partition), [])
            parts.append(ConditionPart(partition, sum(n for _, n in there), count))
            there.append((request, count))
        asked = (request.key, request.expected_seq, request.advance, request.producer)
        if asked != (None, None, None, None):
            conditions.append(
                Condition(
                    request.shard,
                    position,
                    request.topic_id,
                    tuple(parts),
                    *asked,
                    fingerprint=request.fingerprint,
                )
            )
    extents: list[ExtentDraft] = []
    byte_start = 8
    for (topic_id, partition), there in sorted(per_extent.items()):
        records = sum(count for _, count in there)
        times = [request.timestamp_ms for request, _ in there]
        extents.append(
            ExtentDraft(
                topic_id,
                partition,
                byte_start,
                10 * records,
                records,
                min(times),
                max(times),
                1,
                0xC0FFEE,
                _runs(there),
            )
        )
        byte_start += 10 * records
    key = key_of(lease_id)
    sources = tuple(LeasedRange(shard, 0, end) for shard, end in ends.items())
    return CommitDraft(
        lease_id, key, f"at:{key}", byte_start, 5_000, sources, tuple(extents), tuple(conditions)
    )


def answers(commit: Commit, requests: Sequence[Request]) -> list[Answer]:
    """Each request's answer, from the commit alone."""
    runs = {(run.shard, run.topic_id, run.partition): run for run in commit.runs}
    verdicts = {(verdict.shard, verdict.position): verdict for verdict in commit.verdicts}
    next_offsets = {key: run.first_offset for key, run in runs.items()}
    found: list[Answer] = []
    for position, request in positioned(requests):
        verdict = verdicts.get((request.shard, position))
        if verdict is not None:
            parts = tuple((part.partition, part.first_seq, part.last_seq) for part in verdict.parts)
            found.append(Answer(verdict.kind, parts, verdict.head_seq, verdict.cursor_seq))
            continue
        given = []
        for partition, count in request.parts:
            key = (request.shard, request.topic_id, partition)
            if not next_offsets[key]:
                break
            given.append((partition, next_offsets[key], next_offsets[key] + count - 1))
            next_offsets[key] += count
        found.append(Answer("stored", tuple(given)) if given else Answer("topic_deleted"))
    return found


def positioned(requests: Sequence[Request]) -> list[tuple[int, Request]]:
    """Requests with their positions in their shards' rings."""
    ends: dict[int, int] = {}
    found = []
    for request in requests:
        position = ends.get(request.shard, 0)
        ends[request.shard] = position + REQUEST_BYTES
        found.append((position, request))
    return found


def _runs(there: Sequence[tuple[Request, int]]) -> tuple[ExtentRunDraft, ...]:
    runs: list[ExtentRunDraft] = []
    index = 0
    for request, count in there:
        if runs and runs[-1].shard == request.shard:
            last = runs.pop()
            runs.append(ExtentRunDraft(last.shard, last.record_index, last.record_count + count))
        else:
            runs.append(ExtentRunDraft(request.shard, index, count))
        index += count
    return tuple(runs)
