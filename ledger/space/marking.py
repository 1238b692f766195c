"""Since when objects are free, found a little at a time and without the lock.

Once nothing in an object is needed, nothing in it is ever needed again: bounds of partitions
(``lake.py``) only rise. So free objects are looked for in a view of the ledger, and marking them is
a short write later, beside ``lake.mark_free`` of a switch: whichever looks second at the extents of
an object sees both bounds. Only a quarantine may come between; the write asks for it once more.
``partitions.freed_seq`` is up to where extents were looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ledger.lake.lake_tables import BOUND
from ledger.tx import ReadTx, Transactions, WriteTx

# Extents of one look: some milliseconds of reading.
EXTENTS_MAX = 2_000
PARTITIONS_MAX = 256

_FREE_SQL = f"""SELECT 1 FROM objects AS o WHERE o.commit_number = ? AND o.free_ms IS NULL
    AND o.key NOT IN (SELECT key FROM quarantine)
    AND NOT EXISTS (SELECT 1 FROM extents AS e JOIN partitions AS p
        ON p.topic_id = e.topic_id AND p.partition = e.partition
        WHERE e.commit_number = o.commit_number AND e.last_offset > {BOUND})"""


class Marks(Struct, frozen=True):
    """Commits whose objects are free, and by partition up to where extents were looked at;
    ``more`` may be left."""

    commits: list[int]
    partitions: list[tuple[int, int, int]]
    more: bool


def mark_free(ledger: Transactions, now_ms: int) -> bool:
    """Notes since when objects are free, some at a time; whether there may be more."""
    marks = ledger.read(markable)
    if marks.partitions:
        ledger.write(mark, marks, now_ms)
    return marks.more


def mark_void(ledger: Transactions, now_ms: int, after_number: int = 0) -> int | None:
    """Marks objects without a live record among some commits; the last of them, None at the end."""
    marks, last = ledger.read(markable_void, after_number)
    if marks.commits:
        ledger.write(mark, marks, now_ms)
    return last


def markable(tx: ReadTx) -> Marks:
    """Some of the objects that became free since the last marking."""
    partitions: list[tuple[int, int, int]] = []
    commits: set[int] = set()
    left = EXTENTS_MAX
    moved = tx.execute(
        f"SELECT p.topic_id, p.partition, p.freed_seq, {BOUND} FROM partitions AS p"
        f" WHERE p.freed_seq < {BOUND} LIMIT ?",
        (PARTITIONS_MAX,),
    ).fetchall()
    for topic_id, partition, freed_seq, bound in moved:
        if not left:
            break
        rows = tx.execute(
            "SELECT last_offset, commit_number FROM extents WHERE topic_id = ? AND partition = ?"
            " AND last_offset > ? AND last_offset <= ? ORDER BY last_offset LIMIT ?",
            (topic_id, partition, freed_seq, bound, left),
        ).fetchall()
        commits.update(number for _, number in rows)
        partitions.append((topic_id, partition, rows[-1][0] if len(rows) == left else bound))
        left -= len(rows)
    more = not left or len(moved) == PARTITIONS_MAX
    return Marks(free_among(tx, sorted(commits)), partitions, more)


def markable_void(tx: ReadTx, after_number: int) -> tuple[Marks, int | None]:
    """Free objects among the next commits with a void extent, and the last of those commits.

    Some hold nothing else, and no bound frees them. None at the end.
    """
    rows = tx.execute(
        "SELECT DISTINCT commit_number FROM void_extents WHERE commit_number > ?"
        " ORDER BY commit_number LIMIT ?",
        (after_number, EXTENTS_MAX),
    ).fetchall()
    commits = [row[0] for row in rows]
    more = len(commits) == EXTENTS_MAX
    return Marks(free_among(tx, commits), [], more), commits[-1] if commits else None


def mark(tx: WriteTx, marks: Marks, now_ms: int) -> None:
    """Notes since when the objects are free, and up to where extents were looked at."""
    tx.executemany(
        "UPDATE objects SET free_ms = ? WHERE commit_number = ? AND free_ms IS NULL"
        " AND key NOT IN (SELECT key FROM quarantine)",
        [(now_ms, number) for number in marks.commits],
    )
    tx.executemany(
        "UPDATE partitions SET freed_seq = ? WHERE topic_id = ? AND partition = ?"
        " AND freed_seq < ?",
        [(seq, topic_id, partition, seq) for topic_id, partition, seq in marks.partitions],
    )


def free_among(tx: ReadTx, commits: Iterable[int]) -> list[int]:
    """Those of the commits whose objects nothing needs, and that are not marked as free."""
    return [number for number in commits if tx.execute(_FREE_SQL, (number,)).fetchone() is not None]
