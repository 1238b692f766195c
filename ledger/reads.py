"""Statements of readers: partitions, extents, objects.

``running_max_ms`` rises with the offsets of a partition, and reaches a time first at the first
extent that holds a record that late: that is what makes the bisection in ``offset_at_time``
right for timestamps in any order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ledger.types import Extent, Gap, ObjectRow, PartitionState

_voids_decoder = msgspec.msgpack.Decoder(tuple[tuple[int, int], ...])

_STATE_SQL = """SELECT partition, next_seq - 1, earliest_seq, next_seq, count, bytes,
    compacted_seq, lost_seq, lost_reason
    FROM partitions WHERE topic_id = ? ORDER BY partition"""
_EXTENTS_SQL = """SELECT e.topic_id, e.partition, e.first_offset, e.last_offset, e.record_count,
    o.locator, o.size_bytes, e.byte_start, e.byte_length, e.crc32c, e.codec,
    e.first_timestamp_ms, e.last_timestamp_ms, e.voids
    FROM extents AS e JOIN objects AS o ON o.commit_number = e.commit_number
    WHERE e.topic_id = ? AND e.partition = ? AND e.last_offset >= ?
    ORDER BY e.last_offset LIMIT ?"""
_OBJECT_SQL = "SELECT key, locator, size_bytes, created_ms, commit_number, extents, records"


def partition_states(connection: sqlite3.Connection, topic_id: int) -> list[PartitionState]:
    """All partitions of a topic, deleted or not, by number; empty for an id that never was."""
    return [PartitionState(*row) for row in connection.execute(_STATE_SQL, (topic_id,))]


def heads(
    connection: sqlite3.Connection, topic_ids: Sequence[int]
) -> dict[tuple[int, int], PartitionState]:
    """The partitions of several topics by (topic id, partition)."""
    return {
        (topic_id, state.partition): state
        for topic_id in topic_ids
        for state in partition_states(connection, topic_id)
    }


def extents_from(
    connection: sqlite3.Connection, topic_id: int, partition: int, offset: int, limit: int
) -> list[Extent]:
    """Extents with a live record at or behind ``offset``, in offset order."""
    rows = connection.execute(_EXTENTS_SQL, (topic_id, partition, offset, limit))
    return [extent_of(row) for row in rows]


def extent_of(row: Sequence[Any]) -> Extent:
    """An extent from its columns in the order of the type, voids still as they are stored."""
    *columns, blob = row
    columns.append(() if blob is None else _voids_decoder.decode(blob))
    return Extent(*columns)


def gaps(connection: sqlite3.Connection) -> list[Gap]:
    """All ranges of offsets that no record has, in order."""
    sql = "SELECT topic_id, partition, gap_from, gap_to, reason FROM gaps ORDER BY 1, 2, 3"
    return [Gap(*row) for row in connection.execute(sql)]


def offset_at_time(
    connection: sqlite3.Connection, topic_id: int, partition: int, timestamp_ms: int
) -> int:
    """First offset of the first extent whose last timestamp is not below ``timestamp_ms``.

    The partition's next offset when there is none, 1 for a partition that never was.
    """
    row = connection.execute(
        "SELECT next_seq, max_timestamp_ms FROM partitions WHERE topic_id = ? AND partition = ?",
        (topic_id, partition),
    ).fetchone()
    if row is None:
        return 1
    next_seq, max_timestamp_ms = row
    if max_timestamp_ms < timestamp_ms:
        return int(next_seq)
    # The answer's extent ends at or behind `low`, and `answer` begins the best one so far.
    low, high, answer = 1, next_seq, next_seq
    while low < high:
        middle = (low + high) // 2
        found = connection.execute(
            "SELECT first_offset, last_offset, running_max_ms FROM extents"
            " WHERE topic_id = ? AND partition = ? AND last_offset >= ?"
            " ORDER BY last_offset LIMIT 1",
            (topic_id, partition, middle),
        ).fetchone()
        if found is None:
            high = middle
        elif found[2] >= timestamp_ms:
            answer = found[0]
            high = min(middle, found[0])
        else:
            low = found[1] + 1
    return int(answer)


def objects(
    connection: sqlite3.Connection, after_commit_number: int, limit: int
) -> list[ObjectRow]:
    """Objects behind a commit, in commit order."""
    rows = connection.execute(
        f"{_OBJECT_SQL} FROM objects WHERE commit_number > ? ORDER BY commit_number LIMIT ?",
        (after_commit_number, limit),
    )
    return [ObjectRow(*row) for row in rows]


def object_by_key(connection: sqlite3.Connection, key: str) -> ObjectRow | None:
    """The object of this key, or None."""
    row = connection.execute(f"{_OBJECT_SQL} FROM objects WHERE key = ?", (key,)).fetchone()
    return None if row is None else ObjectRow(*row)
