"""The quarantine: offsets whose object could not be read, and the two ways out of it.

Vocabulary: a *hole* is a range of such offsets. It is *restored* when its object was read after all
and its rows are in the table (a switch, ``lake_tables.py``). It is *accepted* when an operator
gives the records up: it stays a hole, in the table ``lost``, and its object is no longer kept. A
hole that no reader could get anyway (its topic is deleted, its offsets are evicted) is *dropped*.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger import topics
from ledger.lake.types import Hole, Quarantined
from ledger.space import retention
from ledger.space.marking import IS_UNREFERENCED
from ledger.tx import ReadTx, WriteTx

_ROWS_SQL = """SELECT q.topic_id, q.partition, q.first_offset, q.last_offset, q.key, q.reason,
    CASE WHEN t.deleted_ms IS NULL THEN t.name ELSE '' END, COALESCE(o.locator, ''),
    COALESCE(o.size_bytes, 0), q.found_ms, p.deleted = 0 AND q.last_offset >= p.earliest_seq
    FROM quarantine AS q JOIN topics AS t ON t.topic_id = q.topic_id
    JOIN partitions AS p ON p.topic_id = q.topic_id AND p.partition = q.partition
    LEFT JOIN objects AS o ON o.key = q.key
    WHERE (q.topic_id, q.partition, q.first_offset) > (?, ?, ?)
    ORDER BY q.topic_id, q.partition, q.first_offset LIMIT ?"""


def rows(
    tx: ReadTx, after: tuple[int, int, int] = (0, 0, 0), limit: int = 1_000
) -> list[Quarantined]:
    """The holes whose objects are kept, in order, a page at a time: those after this topic,
    partition and first offset."""
    return [
        Quarantined(Hole(*hole), topic, locator, size_bytes, found_ms, bool(readable))
        for *hole, topic, locator, size_bytes, found_ms, readable in tx.execute(
            _ROWS_SQL, (*after, limit)
        )
    ]


def accept(tx: WriteTx, holes: list[Hole], now_ms: int) -> None:
    """Gives up the records of holes; they stay holes, but their objects are no longer kept."""
    tx.executemany(
        "INSERT INTO lost SELECT topic_id, partition, first_offset, last_offset, key, reason,"
        " found_ms, ? FROM quarantine WHERE topic_id = ? AND partition = ? AND first_offset = ?"
        " ON CONFLICT (topic_id, partition, first_offset) DO NOTHING",
        [(now_ms, hole.topic_id, hole.partition, hole.first_offset) for hole in holes],
    )
    drop(tx, holes, now_ms)


def drop(tx: WriteTx, holes: list[Hole], now_ms: int) -> None:
    """Forgets holes that no reader could get anyway."""
    release(tx, holes, now_ms)
    for topic_id in sorted({hole.topic_id for hole in holes}):
        topics.touch(tx, topic_id)
        retention.recount_bytes(tx, topic_id)


def object_count(tx: ReadTx) -> int:
    """How many objects are in quarantine."""
    return int(tx.execute("SELECT count(DISTINCT key) FROM quarantine").fetchone()[0])


def keep_objects(tx: WriteTx, keys: set[str]) -> None:
    """Objects in quarantine are needed; evicted before it was known, they may be marked."""
    tx.executemany(
        "UPDATE objects SET free_ms = NULL WHERE key = ? AND free_ms IS NOT NULL",
        [(key,) for key in sorted(keys)],
    )


def release(tx: WriteTx, holes: Sequence[Hole], now_ms: int) -> None:
    """Removes holes from the quarantine; marks their objects if nothing else needs them."""
    tx.executemany(
        "DELETE FROM quarantine WHERE topic_id = ? AND partition = ? AND first_offset = ?",
        [(hole.topic_id, hole.partition, hole.first_offset) for hole in holes],
    )
    tx.executemany(
        f"UPDATE objects SET free_ms = ? WHERE key = ? AND free_ms IS NULL AND {IS_UNREFERENCED}",
        [(now_ms, key) for key in sorted({hole.key for hole in holes})],
    )
