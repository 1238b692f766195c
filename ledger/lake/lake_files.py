"""Parquet files of the lake and their ranges, and how a collection deletes dropped ones.

A *dropped* file is deleted when its grace time is over, neither a read lease nor a living
compaction is as old, and the catalog no longer has it (``compaction/``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ledger import reads
from ledger.lake.types import FileRange, LakeFile, LakeRange
from ledger.space import deletions
from ledger.space.deletions import LAKE
from ledger.tx import ReadTx, WriteTx

_COLUMNS = "file_id, topic_id, path, size_bytes, rows, run, dropped_ms"
_RANGES_SQL = """SELECT f.file_id, f.path, f.size_bytes, r.partition, r.first_offset,
    r.last_offset, r.rows, r.bytes, r.first_timestamp_ms, r.last_timestamp_ms
    FROM lake_ranges AS r JOIN lake_files AS f ON f.file_id = r.file_id
    WHERE r.topic_id = ? AND r.partition = ? AND r.last_offset >= ? AND f.dropped_ms IS NULL
    ORDER BY r.first_offset, r.last_offset, f.file_id LIMIT ?"""


def remove(tx: WriteTx, paths: Sequence[str]) -> None:
    """Removes the rows of Parquet files that were removed, and of their ranges."""
    for path in paths:
        row = tx.execute("SELECT file_id FROM lake_files WHERE path = ?", (path,)).fetchone()
        if row is not None:
            for table in ("lake_ranges", "lake_files"):
                tx.execute(f"DELETE FROM {table} WHERE file_id = ?", row)


def of_topic(tx: ReadTx, topic_id: int, with_dropped: bool = False) -> list[LakeFile]:
    """The files of a topic's table, by number."""
    live = "" if with_dropped else " AND dropped_ms IS NULL"
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM lake_files WHERE topic_id = ?{live} ORDER BY file_id",
        (topic_id,),
    )
    return [LakeFile(*row) for row in rows]


def ranges(tx: ReadTx, topic_id: int) -> dict[int, tuple[LakeRange, ...]]:
    """The ranges of each live file of a topic by its ``file_id``, ordered by partition."""
    found: dict[int, list[LakeRange]] = {}
    for file_id, *columns in tx.execute(
        "SELECT r.file_id, r.partition, r.first_offset, r.last_offset, r.rows, r.bytes,"
        " r.first_timestamp_ms, r.last_timestamp_ms"
        " FROM lake_ranges AS r JOIN lake_files AS f ON f.file_id = r.file_id"
        " WHERE r.topic_id = ? AND f.dropped_ms IS NULL"
        " ORDER BY r.partition, r.first_offset",
        (topic_id,),
    ):
        found.setdefault(file_id, []).append(LakeRange(*columns))
    return {file_id: tuple(ranges) for file_id, ranges in found.items()}


def ranges_from(
    tx: ReadTx, topic_id: int, partition: int, from_offset: int, limit: int
) -> list[FileRange]:
    """A partition's ranges in live files that end at or after ``from_offset``, by first offset."""
    rows = tx.execute(_RANGES_SQL, (topic_id, partition, from_offset, limit))
    return [
        FileRange(file_id, path, size_bytes, LakeRange(*columns))
        for file_id, path, size_bytes, *columns in rows
    ]


def known(tx: ReadTx, paths: list[str]) -> list[LakeFile]:
    """Those of the files that the ledger knows, dropped ones too."""
    sql = f"SELECT {_COLUMNS} FROM lake_files WHERE path = ?"
    rows = [tx.execute(sql, (path,)).fetchone() for path in paths]
    return [LakeFile(*row) for row in rows if row is not None]


def name(tx: WriteTx, paths: list[str]) -> None:
    """Names those of the files for deletion that the ledger knows."""
    known = reads.those_in(tx, "lake_files", "path", paths)
    deletions.name(tx, [(path, path, LAKE) for path in paths if path in known])


def named(tx: ReadTx, after_path: str = "", limit: int = 1_000) -> list[str]:
    """Files that are named for deletion, by path, a page at a time."""
    return deletions.page(tx, LAKE, after_path, limit)


def forget(tx: WriteTx, paths: list[str]) -> None:
    """Removes the rows and names of files that are gone from the store."""
    remove(tx, paths)
    deletions.forget(tx, paths, LAKE)
