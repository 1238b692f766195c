"""What readers ask: partitions, extents, objects, gaps.

``running_max_ms`` of an extent rises along the offsets of a partition, and first reaches a time at
the first extent that holds a record that late. So the bisection in ``offset_at_time`` is right for
timestamps in any order, unless an earlier extent was that late and cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from ledger import commits
from ledger.tx import ReadTx
from ledger.types import Extent, Gap, ObjectRow, PartitionState

VALUES_AT_ONCE = 500  # of one statement

_voids_decoder = msgspec.msgpack.Decoder(tuple[tuple[int, int], ...])

_STATE_SQL = """SELECT partition, next_seq - 1, earliest_seq, next_seq, count, bytes,
    compacted_seq, lost_seq, lost_reason
    FROM partitions WHERE topic_id = ?"""
# To readers a hole is the same as a gap: offsets without records, and why.
_GAPS_SQL = """SELECT topic_id, partition, gap_from, gap_to, reason FROM gaps
        WHERE topic_id = ?1 AND partition = ?2 AND gap_to >= ?3
    UNION ALL SELECT topic_id, partition, first_offset, last_offset, 'quarantined' FROM quarantine
        WHERE topic_id = ?1 AND partition = ?2 AND last_offset >= ?3
    UNION ALL SELECT topic_id, partition, first_offset, last_offset, 'lost' FROM lost
        WHERE topic_id = ?1 AND partition = ?2 AND last_offset >= ?3
    ORDER BY 3"""
_EXTENT_COLUMNS = """SELECT e.topic_id, e.partition, e.first_offset, e.last_offset, e.record_count,
    o.locator, o.size_bytes, e.byte_start, e.byte_length, e.crc32c, e.codec,
    e.first_timestamp_ms, e.last_timestamp_ms, e.voids, o.key
    FROM extents AS e JOIN objects AS o ON o.commit_number = e.commit_number"""
_EXTENTS_SQL = f"""{_EXTENT_COLUMNS}
    WHERE e.topic_id = ? AND e.partition = ? AND e.last_offset >= ?
    ORDER BY e.last_offset LIMIT ?"""
_OF_COMMIT_SQL = f"{_EXTENT_COLUMNS} WHERE e.commit_number = ?"
_FIRST_EXTENT_SQL = """SELECT first_offset, last_offset, running_max_ms FROM extents
    WHERE topic_id = ? AND partition = ? AND last_offset >= ? ORDER BY last_offset LIMIT 1"""
_L1_TIME_SQL = """SELECT min(r.first_offset) FROM lake_ranges AS r
    JOIN lake_files AS f ON f.file_id = r.file_id
    WHERE r.topic_id = ? AND r.partition = ? AND r.last_offset >= ? AND r.last_timestamp_ms >= ?
    AND f.dropped_ms IS NULL"""
# When the object of an offset was made; in the lake, about when its record was.
_STORED_SQL = """SELECT stored_ms, last_offset FROM (
    SELECT e.first_offset, e.last_offset, o.created_ms AS stored_ms, 0 AS is_lake
        FROM extents AS e JOIN objects AS o ON o.commit_number = e.commit_number
        WHERE e.topic_id = ?1 AND e.partition = ?2 AND e.last_offset = (
            SELECT min(last_offset) FROM extents
            WHERE topic_id = ?1 AND partition = ?2 AND last_offset >= ?3)
    UNION ALL SELECT first_offset, last_offset, first_timestamp_ms, 1 FROM lake_ranges
        WHERE topic_id = ?1 AND partition = ?2 AND last_offset = (
            SELECT min(last_offset) FROM lake_ranges
            WHERE topic_id = ?1 AND partition = ?2 AND last_offset >= ?3)
    ) ORDER BY first_offset > ?3, is_lake LIMIT 1"""
_OBJECT_SQL = "SELECT key, locator, size_bytes, created_ms, commit_number, extents, records"


def partition_states(tx: ReadTx, topic_id: int) -> list[PartitionState]:
    """All partitions of a topic, deleted or not, by number; empty if it never existed."""
    rows = tx.execute(f"{_STATE_SQL} ORDER BY partition", (topic_id,))
    return [PartitionState(*row) for row in rows]


def topic_sums(tx: ReadTx, topic_id: int) -> tuple[int, int, int, int]:
    """Of all partitions of a topic: how many, their heads, readable records and bytes."""
    row = tx.execute(
        "SELECT count(*), total(next_seq - 1), total(count), total(bytes) FROM partitions"
        " WHERE topic_id = ?",
        (topic_id,),
    ).fetchone()
    return int(row[0]), int(row[1]), int(row[2]), int(row[3])


def partition_state(tx: ReadTx, topic_id: int, partition: int) -> PartitionState | None:
    """One partition, deleted or not; None if it never existed."""
    row = tx.execute(f"{_STATE_SQL} AND partition = ?", (topic_id, partition)).fetchone()
    return None if row is None else PartitionState(*row)


def gaps_of(tx: ReadTx, topic_id: int, partition: int, offset: int) -> list[Gap]:
    """A partition's ranges without records that end at or above ``offset``, in order.

    Gaps, and holes: with the reason ``quarantined``, or ``lost`` if an operator gave them up.
    """
    rows = tx.execute(_GAPS_SQL, (topic_id, partition, offset))
    return [Gap(*row) for row in rows]


def partition_view(
    tx: ReadTx, topic_id: int, partition: int
) -> tuple[PartitionState, list[Gap]] | None:
    """A partition, and the gaps and holes among its readable offsets; None if it never existed."""
    state = partition_state(tx, topic_id, partition)
    if state is None:
        return None
    return state, gaps_of(tx, topic_id, partition, state.earliest_seq)


def heads(tx: ReadTx, topic_ids: list[int]) -> tuple[int, dict[tuple[int, int], PartitionState]]:
    """(commit number, partitions by (topic id, partition)) of one committed state.

    Commits with a higher number can be applied on top.
    """
    return commits.latest_number(tx), {
        (topic_id, state.partition): state
        for topic_id in topic_ids
        for state in partition_states(tx, topic_id)
    }


def extents_from(
    tx: ReadTx, topic_id: int, partition: int, offset: int, limit: int
) -> list[Extent]:
    """Extents with offsets at or above ``offset``, in offset order."""
    rows = tx.execute(_EXTENTS_SQL, (topic_id, partition, offset, limit))
    return [extent_of(row[:-1], row[-1]) for row in rows]


def stored(tx: ReadTx, asked: Sequence[tuple[int, int, int]]) -> list[tuple[int, int] | None]:
    """For each topic id, partition and offset: when its record was stored, in epoch milliseconds,
    and the last offset of which that is known with it; None: nothing is there."""
    found = [tx.execute(_STORED_SQL, each).fetchone() for each in asked]
    return [None if row is None else tuple(row) for row in found]


def extents_of_commit(tx: ReadTx, number: int) -> list[Extent]:
    """A commit's extents that have offsets."""
    return [extent_of(row[:-1], row[-1]) for row in tx.execute(_OF_COMMIT_SQL, (number,))]


def extent_of(row: Sequence[Any], key: str = "") -> Extent:
    """An extent from its columns in the order of the type, with voids as they are stored."""
    *columns, blob = row
    columns += [() if blob is None else _voids_decoder.decode(blob), key]
    return Extent(*columns)


def gaps(tx: ReadTx, topic_id: int, partition: int) -> list[Gap]:
    """A partition's gaps, in order. Only a recovery adds some, and no daemon runs meanwhile."""
    sql = "SELECT topic_id, partition, gap_from, gap_to, reason FROM gaps"
    where = " WHERE topic_id = ? AND partition = ? ORDER BY 3"
    return [Gap(*row) for row in tx.execute(sql + where, (topic_id, partition))]


def gap_count(tx: ReadTx) -> int:
    """How many gaps all partitions have."""
    (count,) = tx.execute("SELECT count(*) FROM gaps").fetchone()
    return int(count)


def offset_at_time(tx: ReadTx, topic_id: int, partition: int, timestamp_ms: int) -> int:
    """Where to begin to read for records from ``timestamp_ms`` on: all of them are at or after it.

    In L0 the first offset of the first extent that holds one; in L1 that of the first range of a
    file, whose rows the reader skips until it meets one. Never below what can be read. The
    partition's next offset if there is no such record, 1 for a partition that never existed.
    """
    row = tx.execute(
        "SELECT next_seq, max_timestamp_ms, earliest_seq, compacted_seq FROM partitions"
        " WHERE topic_id = ? AND partition = ?",
        (topic_id, partition),
    ).fetchone()
    if row is None:
        return 1
    next_seq, max_timestamp_ms, earliest_seq, compacted_seq = row
    if max_timestamp_ms < timestamp_ms:
        return int(next_seq)
    if compacted_seq >= earliest_seq:
        (found,) = tx.execute(
            _L1_TIME_SQL, (topic_id, partition, earliest_seq, timestamp_ms)
        ).fetchone()
        if found is not None:
            return max(int(found), int(earliest_seq))
    begin = max(int(earliest_seq), int(compacted_seq) + 1)
    return max(begin, _in_extents(tx, topic_id, partition, begin, next_seq, timestamp_ms))


def _in_extents(
    tx: ReadTx, topic_id: int, partition: int, begin: int, next_seq: int,
    timestamp_ms: int,
) -> int:  # fmt: skip
    first = tx.execute(_FIRST_EXTENT_SQL, (topic_id, partition, begin)).fetchone()
    if first is not None and first[2] >= timestamp_ms:
        # It may be an extent before ``begin`` that was that late: then the running maximum says
        # nothing about the extents after it.
        row = tx.execute(
            "SELECT first_offset FROM extents WHERE topic_id = ? AND partition = ?"
            " AND last_offset >= ? AND last_timestamp_ms >= ? ORDER BY last_offset LIMIT 1",
            (topic_id, partition, begin, timestamp_ms),
        ).fetchone()
        return int(next_seq if row is None else row[0])
    # The extent that is looked for ends at or above `low`; `answer` begins the best one so far.
    low, high, answer = begin, next_seq, next_seq
    while low < high:
        middle = (low + high) // 2
        found = tx.execute(_FIRST_EXTENT_SQL, (topic_id, partition, middle)).fetchone()
        if found is None:
            high = middle
        elif found[2] >= timestamp_ms:
            answer = found[0]
            high = min(middle, found[0])
        else:
            low = found[1] + 1
    return int(answer)


def objects(tx: ReadTx, after_commit_number: int = 0, limit: int = 1_000) -> list[ObjectRow]:
    """Objects after a commit, in commit order."""
    rows = tx.execute(
        f"{_OBJECT_SQL} FROM objects WHERE commit_number > ? ORDER BY commit_number LIMIT ?",
        (after_commit_number, limit),
    )
    return [ObjectRow(*row) for row in rows]


def object_by_key(tx: ReadTx, key: str) -> ObjectRow | None:
    """The object with this key."""
    row = tx.execute(f"{_OBJECT_SQL} FROM objects WHERE key = ?", (key,)).fetchone()
    return None if row is None else ObjectRow(*row)


def objects_by_key(tx: ReadTx, after_key: str = "", limit: int = 1_000) -> list[ObjectRow]:
    """Committed objects by key, a page at a time: the order in which a store lists them."""
    rows = tx.execute(
        f"{_OBJECT_SQL} FROM objects WHERE key > ? ORDER BY key LIMIT ?", (after_key, limit)
    )
    return [ObjectRow(*row) for row in rows]


def committed_keys(tx: ReadTx, keys: list[str]) -> set[str]:
    """The keys whose objects are committed."""
    return those_in(tx, "objects", "key", keys)


def those_in(tx: ReadTx, table: str, column: str, values: Sequence[str]) -> set[str]:
    """The values that a column of a table has."""
    found: set[str] = set()
    left = iter(values)
    while some := list(islice(left, VALUES_AT_ONCE)):
        places = ", ".join("?" * len(some))
        rows = tx.execute(f"SELECT {column} FROM {table} WHERE {column} IN ({places})", some)
        found.update(row[0] for row in rows)
    return found
