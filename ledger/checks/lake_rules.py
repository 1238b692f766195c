"""What must hold of the lake's tables in a ledger.

``lake/coverage.py`` says what L1 must hold of a partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from ledger.decide import PartitionKey
from ledger.lake.coverage import OffsetRanges, l1_problem
from ledger.tx import ReadTx


class InvariantBroken(AssertionError):
    """A rule of the ledger does not hold; the message names the rule and the row."""


def require(holds: bool, rule: str, *operands: object) -> None:
    """Raises InvariantBroken if it does not hold."""
    if not holds:
        raise InvariantBroken(f"{rule}: {operands}")


def require_none(tx: ReadTx, rule: str, statement: str) -> None:
    """Raises InvariantBroken with the first row of the statement's result."""
    row = tx.execute(f"{statement} LIMIT 1").fetchone()
    require(row is None, rule, row)


def offset_ranges(tx: ReadTx, *statements: str) -> dict[PartitionKey, OffsetRanges]:
    """Ranges by partition, from rows of (topic id, partition, first, last)."""
    found: dict[PartitionKey, list[tuple[int, int]]] = {}
    for statement in statements:
        for topic_id, partition, first, last in tx.execute(statement):
            found.setdefault((topic_id, partition), []).append((first, last))
    return {key: OffsetRanges(ranges) for key, ranges in found.items()}


def check_lake(tx: ReadTx) -> None:
    """Raises InvariantBroken."""
    require_none(
        tx,
        "a file has the rows of its ranges",
        "SELECT f.file_id, f.path, f.rows FROM lake_files AS f WHERE f.rows <>"
        " (SELECT COALESCE(sum(r.rows), 0) FROM lake_ranges AS r WHERE r.file_id = f.file_id"
        " AND r.topic_id = f.topic_id)",
    )
    require_none(
        tx,
        "each range has its file and its partition",
        "SELECT r.topic_id, r.partition, r.last_offset FROM lake_ranges AS r"
        " LEFT JOIN lake_files AS f ON f.file_id = r.file_id AND f.topic_id = r.topic_id"
        " LEFT JOIN partitions AS p ON p.topic_id = r.topic_id AND p.partition = r.partition"
        " WHERE f.file_id IS NULL OR p.partition IS NULL",
    )
    require_none(
        tx,
        "a topic with files has its table",
        "SELECT topic_id, path FROM lake_files"
        " WHERE topic_id NOT IN (SELECT topic_id FROM lake_tables)",
    )
    require_none(
        tx,
        "a hole that can still be read is compacted, and an extent of its object",
        "SELECT q.topic_id, q.partition, q.first_offset, q.key FROM quarantine AS q"
        " JOIN partitions AS p ON p.topic_id = q.topic_id AND p.partition = q.partition"
        " WHERE p.deleted = 0 AND q.last_offset >= p.earliest_seq"
        " AND (q.last_offset > p.compacted_seq OR NOT EXISTS (SELECT 1 FROM objects AS o"
        " JOIN extents AS e ON e.commit_number = o.commit_number WHERE o.key = q.key"
        " AND e.topic_id = q.topic_id AND e.partition = q.partition"
        " AND e.first_offset <= q.first_offset AND e.last_offset >= q.last_offset))",
    )
    for key, problem in l1_problems(tx):
        require(False, "L1 holds each compacted offset once", key, *problem)


def l1_problems(
    tx: ReadTx,
) -> Iterator[tuple[PartitionKey, tuple[str, str]]]:
    """Partitions of live topics whose live files do not hold what is compacted, and how."""
    without = offset_ranges(
        tx,
        "SELECT topic_id, partition, gap_from, gap_to FROM gaps",
        "SELECT topic_id, partition, first_offset, last_offset FROM quarantine",
        "SELECT topic_id, partition, first_offset, last_offset FROM lost",
    )
    for topic_id, partition, earliest_seq, compacted_seq in tx.execute(
        "SELECT topic_id, partition, earliest_seq, compacted_seq FROM partitions"
        " WHERE deleted = 0 ORDER BY topic_id, partition"
    ).fetchall():
        key = (topic_id, partition)
        ranges = tx.execute(
            "SELECT r.first_offset, r.last_offset, r.rows FROM lake_ranges AS r"
            " JOIN lake_files AS f ON f.file_id = r.file_id"
            " WHERE r.topic_id = ? AND r.partition = ? AND f.dropped_ms IS NULL",
            key,
        ).fetchall()
        problem = l1_problem(
            ranges, without.get(key, OffsetRanges(())), earliest_seq, compacted_seq
        )
        if problem is not None:
            yield key, problem
