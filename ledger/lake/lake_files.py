"""Parquet files of the lake and their ranges, and how a collection deletes dropped ones.

A *dropped* file is deleted when its grace time is over, neither a read lease nor a living
compaction is as old, and the catalog no longer has it (``compaction/``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

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
# SQLite keeps the order of a CROSS JOIN: files one by one, so that a page ends early.
_PAGE_SQL = """SELECT r.file_id, r.partition, r.first_offset, r.last_offset, r.rows, r.bytes,
    r.first_timestamp_ms, r.last_timestamp_ms
    FROM lake_files AS f CROSS JOIN lake_ranges AS r
    WHERE f.topic_id = ? AND f.file_id > ? AND f.dropped_ms IS NULL AND r.file_id = f.file_id
    ORDER BY f.file_id, r.partition, r.first_offset"""


def remove(tx: WriteTx, paths: Sequence[str]) -> None:
    """Removes the rows of Parquet files that were removed, and of their ranges."""
    for path in paths:
        row = tx.execute("SELECT file_id FROM lake_files WHERE path = ?", (path,)).fetchone()
        if row is not None:
            for table in ("lake_ranges", "lake_files"):
                tx.execute(f"DELETE FROM {table} WHERE file_id = ?", row)


def of_topic(
    tx: ReadTx, topic_id: int, with_dropped: bool = False, after_file_id: int = 0,
    limit: int = 1_000,
) -> list[LakeFile]:  # fmt: skip
    """The files of a topic's table, by number, a page at a time."""
    live = "" if with_dropped else " AND dropped_ms IS NULL"
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM lake_files WHERE topic_id = ? AND file_id > ?{live}"
        " ORDER BY file_id LIMIT ?",
        (topic_id, after_file_id, limit),
    )
    return [LakeFile(*row) for row in rows]


def of_topics(tx: ReadTx, topic_ids: list[int], limit: int = 1_000) -> list[list[LakeFile]]:
    """The live files of the first of several topics, each as ``of_topic``: of at least one topic,
    and of no more once there are ``limit`` files. A topic with ``limit`` files may have more."""
    found: list[list[LakeFile]] = []
    count = 0
    for topic_id in topic_ids:
        found.append(of_topic(tx, topic_id, limit=limit))
        count += len(found[-1])
        if count >= limit:
            break
    return found


def ranges(
    tx: ReadTx, topic_id: int, after_file_id: int = 0, limit: int = 1_000
) -> dict[int, tuple[LakeRange, ...]]:
    """The ranges of live files of a topic by their ``file_id``, in its order, those of a file by
    partition. A page has files until they have ``limit`` ranges, and the next one begins after its
    last file; an empty page is the end."""
    found: dict[int, list[LakeRange]] = {}
    # Closed early: an unfinished statement keeps its view of the ledger.
    with closing(tx.execute(_PAGE_SQL, (topic_id, after_file_id))) as rows:
        for count, (file_id, *columns) in enumerate(rows):
            if count >= limit and file_id not in found:
                break
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
    """The files that the ledger knows, also dropped ones."""
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
