"""The commit's one transaction: offsets to all extents of an object, verdicts, a number.

Called inside a transaction under the ledger lock. What it keeps:

- a lease is committed once; the same lease id again gives the earlier result;
- a lease that is over never commits. Who collects and who recovers rely on it, so a draft whose
  object is named for deletion, or whose epoch is below the floor, is refused. Neither happens
  unless a rule of docs/protocol.md is broken;
- commit numbers count from 1, offsets of a partition from 1, both without gaps.

The usual commit (no conditions) does a fixed number of statements and per extent one row each
of ``partitions`` and ``extents``; nothing is done per record. Cursors of stored requests move in
the same transaction: one row each, and nothing if no request advances one. A stored dead letter
finishes its origin in it.

A commit can be read back as it was published: ``objects.result`` holds the parts of it that no
other column has, as msgpack of [ranges, runs, heads, verdicts]. Once no process asks for it any
more it is empty (``space/reclaim.py``).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from ledger import cursors, dedupe, topics
from ledger.decide import CommitDecision, PartitionKey, PartitionNow, decide, void_records
from ledger.delivery import progress
from ledger.errors import DraftInvalid, ResultCleared
from ledger.tx import ReadTx, WriteTx
from ledger.types import (
    Commit,
    CommitDraft,
    ExtentDraft,
    ExtentRun,
    LeasedRange,
    LeaseId,
    PartitionHead,
    Verdict,
)

# A lease has 1,000 extents, and at most one request's 1,000 partitions in addition. SQLite takes
# 32,766 variables a statement; a power of two of partitions takes two each.
EXTENTS_MAX = 4_096
# Commits without conditions prune the dedupe table only this often.
PRUNE_EVERY_COMMITS = 64
# Of a deleted topic whose rows have gone (``space/leftovers.py``).
_GONE = PartitionNow(1, 0, 0, topics.TIMESTAMP_MIN_MS, deleted=1)

_encoder = msgspec.msgpack.Encoder()


class _Result(Struct, frozen=True, array_like=True):
    ranges: tuple[LeasedRange, ...]
    runs: tuple[ExtentRun, ...]
    heads: tuple[PartitionHead, ...]
    verdicts: tuple[Verdict, ...]


_result_decoder = msgspec.msgpack.Decoder(_Result)


_LOOK_SQL = """SELECT commit_number, epoch_floor,
    (SELECT commit_number FROM objects
     WHERE incarnation = ? AND shard = ? AND counter = ? AND epoch = ?),
    EXISTS (SELECT 1 FROM deletions WHERE key = ?)
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


_RESULT_SQL = "SELECT commit_number, incarnation, epoch, shard, counter, result FROM objects"
_OF_LEASE = "WHERE incarnation = ? AND shard = ? AND counter = ? AND epoch = ?"


def commit(
    tx: WriteTx,
    draft: CommitDraft,
    now_ms: int,
    limits: dedupe.DedupeLimits,
) -> Commit:
    """Writes the draft, or finds what it became. Raises DraftInvalid."""
    lease = draft.lease_id
    last_number, epoch_floor, there, is_named = tx.execute(
        _LOOK_SQL, (lease.incarnation, lease.shard, lease.counter, lease.epoch, draft.key)
    ).fetchone()
    if there is not None:
        return msgspec.structs.replace(by_number(tx, there), repeated=True)
    if is_named:
        raise DraftInvalid(f"{draft.key} cannot be committed: it is named for deletion")
    if lease.epoch < epoch_floor:
        raise DraftInvalid(
            f"{draft.key} cannot be committed: its epoch is below the epoch floor, {epoch_floor}"
        )
    number = last_number + 1
    partitions = _partitions(tx, draft)
    conditions = draft.conditions
    known = dedupe.answers(tx, conditions, now_ms, limits) if conditions else {}
    advances = [c.advance for c in conditions if c.advance is not None]
    asked = {(each.cursor_id, each.partition) for each in advances}
    positions = cursors.positions_of(tx, asked) if asked else {}
    settling = {(a.cursor_id, a.partition, a.expected) for a in advances if a.settles}
    finished = progress.finished_of(tx, settling, positions) if settling else set()
    producers = dedupe.producers(tx, conditions, now_ms) if conditions else {}
    decision = decide(draft, partitions, known, positions, finished, producers)
    runs, heads = _write_extents(tx, draft, number, partitions, decision)
    made = Commit(number, lease, draft.ranges, tuple(runs), tuple(heads), decision.verdicts)
    tx.execute(
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
            _encode_result(made),
        ),
    )
    tx.execute("UPDATE state SET commit_number = ? WHERE id = 1", (number,))
    if decision.moves:
        cursors.move(tx, decision.moves)
    if decision.settled:
        progress.settle(tx, decision.settled)
    if decision.producers:
        dedupe.keep_producers(tx, decision.producers, now_ms)
    if number % PRUNE_EVERY_COMMITS == 0:
        dedupe.forget_producers(tx, now_ms)
    if conditions or number % PRUNE_EVERY_COMMITS == 0:
        dedupe.keep(tx, decision.stored, now_ms, limits)
    return made


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


def _partitions(tx: ReadTx, draft: CommitDraft) -> dict[PartitionKey, PartitionNow]:
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
    rows = tx.execute(_partitions_sql(size), values)
    found = {(row[0], row[1]): PartitionNow(*row[2:]) for row in rows}
    for extent in extents if len(found) < len(extents) else ():
        key = (extent.topic_id, extent.partition)
        topic = None if key in found else topics.by_id(tx, extent.topic_id)
        if topic is not None and topic.deleted_ms is not None:
            found[key] = _GONE
    return found


def _write_extents(
    tx: WriteTx,
    draft: CommitDraft,
    number: int,
    partitions: dict[PartitionKey, PartitionNow],
    decision: CommitDecision,
) -> tuple[list[ExtentRun], list[PartitionHead]]:
    runs: list[ExtentRun] = []
    heads: list[PartitionHead] = []
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
            runs.append(
                ExtentRun(
                    run.shard, topic_id, partition, first, run.record_count, run.ring_first,
                    run.ring_span,
                )
            )  # fmt: skip
            index += run.record_count
        if index != count:
            raise _runs_invalid(draft, extent)
        live = 0 if deleted else count - void_records(ranges, count)
        head = next_seq - 1 + live
        if not deleted:
            heads.append(PartitionHead(topic_id, partition, head))
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
    tx.executemany(_PARTITION_SQL, partition_rows)
    tx.executemany(_EXTENT_SQL, extent_rows)
    if void_rows:
        tx.executemany(_VOID_EXTENT_SQL, void_rows)
    return runs, heads


def _extent_invalid(
    draft: CommitDraft, extent: ExtentDraft, now: PartitionNow | None, previous: PartitionKey
) -> DraftInvalid:
    name = f"extent ({extent.topic_id}, {extent.partition}) of {draft.key}"
    if now is None:
        return DraftInvalid(f"{name} is of a partition that never was")
    if extent.record_count < 1:
        return DraftInvalid(f"{name} has {extent.record_count} records; it needs at least one")
    return DraftInvalid(f"{name} comes after {previous}; extents are sorted, one per partition")


def _runs_invalid(draft: CommitDraft, extent: ExtentDraft) -> DraftInvalid:
    return DraftInvalid(
        f"the runs of extent ({extent.topic_id}, {extent.partition}) of {draft.key} do not cover"
        f" its {extent.record_count} records in order: {extent.runs}"
    )


def latest_number(tx: ReadTx) -> int:
    """The number of the last commit, 0 before the first."""
    number: int = tx.execute("SELECT commit_number FROM state WHERE id = 1").fetchone()[0]
    return number


def lease_of(tx: ReadTx, number: int) -> LeaseId | None:
    """The lease of a commit, known even if its result is cleared.

    None for a number that is not given yet, or whose object was removed.
    """
    sql = "SELECT incarnation, epoch, shard, counter FROM objects WHERE commit_number = ?"
    row = tx.execute(sql, (number,)).fetchone()
    return None if row is None else LeaseId(*row)


def number_of(tx: ReadTx, lease: LeaseId) -> int | None:
    """The number of a lease's commit, None while there is none."""
    sql = f"SELECT commit_number FROM objects {_OF_LEASE}"
    row = tx.execute(sql, _of_lease(lease)).fetchone()
    return None if row is None else int(row[0])


def by_number(tx: ReadTx, number: int) -> Commit:
    """The commit as it was published. Raises ResultCleared.

    Raises KeyError for a number that is not given yet.
    """
    row = tx.execute(f"{_RESULT_SQL} WHERE commit_number = ?", (number,)).fetchone()
    if row is None:
        raise KeyError(f"there is no commit {number} in the ledger")
    return _published(row)


def by_lease(tx: ReadTx, lease: LeaseId) -> Commit | None:
    """The commit of a lease, or None while there is none. Raises ResultCleared."""
    row = tx.execute(f"{_RESULT_SQL} {_OF_LEASE}", _of_lease(lease)).fetchone()
    return None if row is None else _published(row)


def before_leases(tx: ReadTx, number: int, leases: list[LeaseId]) -> int:
    """The last commit up to ``number`` that is before the commits of all these leases."""
    numbers = [number_of(tx, lease) for lease in leases]
    return min([number, *(n - 1 for n in numbers if n is not None)])


def _of_lease(lease: LeaseId) -> tuple[int, int, int, int]:
    return lease.incarnation, lease.shard, lease.counter, lease.epoch


def _encode_result(made: Commit) -> bytes:
    return _encoder.encode(_Result(made.ranges, made.runs, made.heads, made.verdicts))


def _published(row: Any) -> Commit:
    number, incarnation, epoch, shard, counter, blob = row
    if not blob:
        raise ResultCleared(number)
    result = _result_decoder.decode(blob)
    lease = LeaseId(incarnation, epoch, shard, counter)
    return Commit(number, lease, result.ranges, result.runs, result.heads, result.verdicts)
