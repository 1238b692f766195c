"""Since when objects are unreferenced (``objects.free_ms``).

Vocabulary: the *bound* of a partition is the offset up to which L0 is not needed: compacted, or
evicted, or everything of a deleted topic. An object is *unreferenced* when each of its extents ends
at or below its partition's bound and none of its offsets is in quarantine.

Bounds only rise, so an unreferenced object stays so. So the search goes a little at a time, without
the lock, and the marking is a short write later. A switch marks what its own bounds release
(``mark_moved``): whichever of the two looks second at an object's extents sees both bounds. Only a
quarantine may come in between, so the write checks it again. ``partitions.freed_seq`` is up to
where extents have been looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ledger.tx import ReadTx, Transactions, WriteTx

# Of partition p: the offset up to which L0 is not needed.
BOUND = (
    "CASE WHEN p.deleted = 1 THEN p.next_seq - 1"
    " WHEN p.compacted_seq >= p.earliest_seq THEN p.compacted_seq ELSE p.earliest_seq - 1 END"
)
# Extents of one search: some milliseconds of reading.
EXTENTS_MAX = 2_000
PARTITIONS_MAX = 256

_UNREFERENCED_SQL = f"""SELECT 1 FROM objects AS o WHERE o.commit_number = ? AND o.free_ms IS NULL
    AND o.key NOT IN (SELECT key FROM quarantine)
    AND NOT EXISTS (SELECT 1 FROM extents AS e JOIN partitions AS p
        ON p.topic_id = e.topic_id AND p.partition = e.partition
        WHERE e.commit_number = o.commit_number AND e.last_offset > {BOUND})"""
# Only objects with extents between the last marking and a partition's bound can have become
# unreferenced.
IS_UNREFERENCED = f"""key NOT IN (SELECT key FROM quarantine)
    AND NOT EXISTS (SELECT 1 FROM extents AS e JOIN partitions AS p
        ON p.topic_id = e.topic_id AND p.partition = e.partition
        WHERE e.commit_number = objects.commit_number AND e.last_offset > {BOUND})"""
_MARK_SQL = f"""UPDATE objects SET free_ms = ? WHERE free_ms IS NULL
    AND commit_number IN (
        SELECT e.commit_number FROM partitions AS p CROSS JOIN extents AS e
            WHERE p.freed_seq < {BOUND} AND e.topic_id = p.topic_id AND e.partition = p.partition
            AND e.last_offset > p.freed_seq AND e.last_offset <= {BOUND})
    AND {IS_UNREFERENCED}"""
_MARKED_SQL = f"UPDATE partitions AS p SET freed_seq = {BOUND} WHERE p.freed_seq < {BOUND}"


class Marks(Struct, frozen=True):
    """Unreferenced commits, and by partition up to where extents were looked at.

    ``more``: there may be others.
    """

    commits: list[int]
    partitions: list[tuple[int, int, int]]
    more: bool


def mark_unreferenced(ledger: Transactions, now_ms: int) -> bool:
    """Notes since when objects are unreferenced, some at a time; whether there may be more."""
    marks = ledger.read(markable)
    if marks.partitions:
        ledger.write(mark, marks, now_ms)
    return marks.more


def mark_void(ledger: Transactions, now_ms: int, after_number: int = 0) -> int | None:
    """The same for some of the commits with a void extent, after one of them.

    Returns the last commit that was looked at, None at the end.
    """
    marks, last = ledger.read(markable_void, after_number)
    if marks.commits:
        ledger.write(mark, marks, now_ms)
    return last


def mark_moved(tx: WriteTx, now_ms: int) -> int:
    """Notes since when objects are unreferenced, for all bounds that moved; returns how many.

    Called after bounds were moved in the same transaction: by a switch.
    """
    marked = tx.execute(_MARK_SQL, (now_ms,)).rowcount
    tx.execute(_MARKED_SQL)
    return marked


def markable(tx: ReadTx) -> Marks:
    """Some of the objects that became unreferenced since the last marking."""
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
    return Marks(unreferenced_among(tx, sorted(commits)), partitions, more)


def markable_void(tx: ReadTx, after_number: int) -> tuple[Marks, int | None]:
    """Unreferenced objects among the next commits with a void extent, and the last of those
    commits.

    Some hold nothing else, so no bound releases them. None at the end.
    """
    rows = tx.execute(
        "SELECT DISTINCT commit_number FROM void_extents WHERE commit_number > ?"
        " ORDER BY commit_number LIMIT ?",
        (after_number, EXTENTS_MAX),
    ).fetchall()
    commits = [row[0] for row in rows]
    more = len(commits) == EXTENTS_MAX
    return Marks(unreferenced_among(tx, commits), [], more), commits[-1] if commits else None


def mark(tx: WriteTx, marks: Marks, now_ms: int) -> None:
    """Notes since when the objects are unreferenced, and up to where extents were looked at."""
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


def unreferenced_among(tx: ReadTx, commits: Iterable[int]) -> list[int]:
    """The commits whose objects nothing needs, and that are not marked yet."""
    return [
        number
        for number in commits
        if tx.execute(_UNREFERENCED_SQL, (number,)).fetchone() is not None
    ]
