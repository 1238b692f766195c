"""The commit's one transaction: offsets to all extents of an object, verdicts, a number.

Called inside a transaction under the ledger lock. What it keeps:

- a lease is committed once; the same lease id again gives the earlier result, whatever the
  epoch floor has become since (its range must not be leased a second time);
- a lease that is not there and whose epoch is below the floor is refused;
- commit numbers count from 1, offsets of a partition from 1, both without gaps.

The usual commit (no conditions) does a fixed number of statements and per extent one row each
of ``partitions`` and ``extents``; nothing is done per record.
"""

from __future__ import annotations

import sqlite3
from functools import cache

import msgspec

from ledger import dedupe, results
from ledger.decide import Decision, PartitionKey, PartitionNow, decide, void_records
from ledger.errors import DraftInvalid, LeaseBelowFloor
from ledger.types import Commit, CommitDraft, ExtentDraft, Head, Run

# A lease has 1,000 extents, and at most one request's 1,000 partitions more. SQLite takes 32,766
# variables a statement; a power of two of partitions takes two each.
EXTENTS_MAX = 4_096
# Commits without conditions look after the dedupe table only this often.
PRUNE_EVERY_COMMITS = 64

_encoder = msgspec.msgpack.Encoder()


_LOOK_SQL = """SELECT commit_number, epoch_floor,
    (SELECT commit_number FROM objects
     WHERE incarnation = ? AND shard = ? AND counter = ? AND epoch = ?)
    FROM state WHERE id = 1"""
_PARTITION_SQL = """UPDATE partitions
    SET next_seq = ?, count = ?, bytes = ?, max_timestamp_ms = ?
    WHERE topic_id = ? AND partition = ?"""
_EXTENT_SQL = """INSERT INTO extents (topic_id, partition, last_offset, first_offset,
    commit_number, byte_start, byte_length, record_count, first_timestamp_ms, last_timestamp_ms,
    running_max_ms, codec, crc32c, voids) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_VOID_EXTENT_SQL = """INSERT INTO void_extents (commit_number, topic_id, partition, byte_start,
    byte_length, record_count) VALUES (?, ?, ?, ?, ?, ?)"""
_OBJECT_SQL = """INSERT INTO objects (commit_number, key, locator, size_bytes, created_ms,
    incarnation, epoch, shard, counter, extents, records, result)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def commit_draft(
    connection: sqlite3.Connection,
    draft: CommitDraft,
    now_ms: int,
    limits: dedupe.DedupeLimits,
) -> Commit:
    """Writes the draft, or finds what it became. Raises LeaseBelowFloor and DraftInvalid."""
    lease = draft.lease_id
    last_number, epoch_floor, there = connection.execute(
        _LOOK_SQL, (lease.incarnation, lease.shard, lease.counter, lease.epoch)
    ).fetchone()
    if there is not None:
        earlier = results.commit_by_number(connection, there)
        assert earlier is not None
        return msgspec.structs.replace(earlier, repeated=True)
    if lease.epoch < epoch_floor:
        raise LeaseBelowFloor(lease, epoch_floor)
    number = last_number + 1
    partitions = _partitions(connection, draft)
    conditions = draft.conditions
    known = dedupe.answers(connection, conditions, now_ms, limits) if conditions else {}
    decision = decide(draft, partitions, known)
    runs, heads = _write_extents(connection, draft, number, partitions, decision)
    commit = Commit(number, lease, draft.sources, tuple(runs), tuple(heads), decision.verdicts)
    connection.execute(
        _OBJECT_SQL,
        (
            number,
            draft.key,
            draft.locator,
            draft.size_bytes,
            draft.created_ms,
            lease.incarnation,
            lease.epoch,
            lease.shard,
            lease.counter,
            len(draft.extents),
            sum([extent.record_count for extent in draft.extents]),
            results.encode(commit),
        ),
    )
    connection.execute("UPDATE state SET commit_number = ? WHERE id = 1", (number,))
    if conditions or number % PRUNE_EVERY_COMMITS == 0:
        dedupe.keep(connection, decision.stored, now_ms, limits)
    return commit


@cache
def _partitions_sql(size: int) -> str:
    # A join with the list finds each row by its key; `IN (VALUES ...)` scans the table.
    places = ", ".join(["(?, ?)"] * size)
    return (
        f"WITH wanted (topic_id, partition) AS (VALUES {places})"
        " SELECT p.topic_id, p.partition, next_seq, count, bytes, max_timestamp_ms, deleted"
        " FROM wanted JOIN partitions AS p"
        " ON p.topic_id = wanted.topic_id AND p.partition = wanted.partition"
    )


def _partitions(
    connection: sqlite3.Connection, draft: CommitDraft
) -> dict[PartitionKey, PartitionNow]:
    extents = draft.extents
    if not 1 <= len(extents) <= EXTENTS_MAX:
        raise DraftInvalid(
            f"{draft.key} has {len(extents)} extents; the limits are 1, {EXTENTS_MAX}"
        )
    # Sizes are powers of two, so that a handful of statements stays prepared; no topic has id 0.
    size = 1 << (len(extents) - 1).bit_length()
    values = [0] * (2 * size)
    values[: 2 * len(extents) : 2] = [extent.topic_id for extent in extents]
    values[1 : 2 * len(extents) : 2] = [extent.partition for extent in extents]
    rows = connection.execute(_partitions_sql(size), values)
    return {(row[0], row[1]): PartitionNow(*row[2:]) for row in rows}


def _write_extents(
    connection: sqlite3.Connection,
    draft: CommitDraft,
    number: int,
    partitions: dict[PartitionKey, PartitionNow],
    decision: Decision,
) -> tuple[list[Run], list[Head]]:
    runs: list[Run] = []
    heads: list[Head] = []
    extent_rows: list[tuple[object, ...]] = []
    void_rows: list[tuple[object, ...]] = []
    partition_rows: list[tuple[int, ...]] = []
    previous = (0, 0)
    for extent in draft.extents:
        topic_id, partition, count = extent.topic_id, extent.partition, extent.record_count
        key = (topic_id, partition)
        now = partitions.get(key)
        if now is None or key <= previous or count < 1:
            raise _extent_invalid(draft, extent, now, previous)
        previous = key
        ranges = decision.voids.get(key, [])
        next_seq, live_count, live_bytes, max_timestamp_ms, deleted = now
        index = 0
        for run in extent.runs:
            if run.record_index != index:
                raise _runs_invalid(draft, extent)
            first = 0 if deleted else next_seq + index
            if ranges:
                first -= void_records(ranges, index)
            runs.append(Run(run.shard, topic_id, partition, first, run.record_count))
            index += run.record_count
        if index != count:
            raise _runs_invalid(draft, extent)
        live = 0 if deleted else count - void_records(ranges, count)
        head = next_seq - 1 + live
        if not deleted:
            heads.append(Head(topic_id, partition, head))
        start, length = extent.byte_start, extent.byte_length
        if not live:
            void_rows.append((number, topic_id, partition, start, length, count))
            continue
        last_ms = extent.last_timestamp_ms
        max_timestamp_ms = max(max_timestamp_ms, last_ms)
        extent_rows.append(
            (
                topic_id,
                partition,
                head,
                next_seq,
                number,
                start,
                length,
                count,
                extent.first_timestamp_ms,
                last_ms,
                max_timestamp_ms,
                extent.codec,
                extent.crc32c,
                _encoder.encode(ranges) if ranges else None,
            )
        )
        partition_rows.append(
            (head + 1, live_count + live, live_bytes + length, max_timestamp_ms, *key)
        )
    connection.executemany(_PARTITION_SQL, partition_rows)
    connection.executemany(_EXTENT_SQL, extent_rows)
    if void_rows:
        connection.executemany(_VOID_EXTENT_SQL, void_rows)
    return runs, heads


def _extent_invalid(
    draft: CommitDraft, extent: ExtentDraft, now: PartitionNow | None, previous: PartitionKey
) -> DraftInvalid:
    name = f"extent ({extent.topic_id}, {extent.partition}) of {draft.key}"
    if now is None:
        return DraftInvalid(f"{name} is of a partition that never was")
    if extent.record_count < 1:
        return DraftInvalid(f"{name} has {extent.record_count} records; it needs at least one")
    return DraftInvalid(f"{name} stands behind {previous}; extents are sorted, one per partition")


def _runs_invalid(draft: CommitDraft, extent: ExtentDraft) -> DraftInvalid:
    return DraftInvalid(
        f"the runs of extent ({extent.topic_id}, {extent.partition}) of {draft.key} do not cover"
        f" its {extent.record_count} records in order: {extent.runs}"
    )
