"""What the owner's log carries of a ledger: changes since a mark, and whole images.

Vocabulary: a *mark* says up to where the log has the ledger: commit number, catalog version, change
number, dedupe id, and the lease of that last commit. A *history* is one line of such states; each
recovery begins another one with a name of its own, since it gives offsets again. *Changes* are rows
as they are now, so applying them twice is harmless. An *image* is the database itself, copied by
SQLite's backup API as of one moment.

Changes carry:

- topics that changed, with their partitions;
- tables and files of the lake that changed, with the ranges of the files;
- objects and extents of new commits, with the partitions that they moved;
- cursors, positions, routers and subscriptions that changed, and what is finished of these;
- new dedupe entries, producers that changed, and new names for deletion;
- the small tables as a whole.

Applying changes also removes the rows of what is named for deletion (docs/protocol.md 7): collected
objects and removed Parquet files. The log does not carry runs, which end with their ledger, nor
since when objects are unreferenced: that is found again, and their grace time starts again.

This module does no I/O except on the connection of a transaction and the file of a copy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from ledger import commits, notes
from ledger.delivery import progress
from ledger.lake import lake_files, lake_tables, quarantine
from ledger.private_files import make_file
from ledger.space.deletions import COLLECTED, LAKE
from ledger.tx import ReadTx, WriteTx
from ledger.types import LeaseId

Row = list[Any]

EVENT_HISTORY = "event_history"  # a note
COPY_PAGES = 4_096  # 16 MiB between two calls of ``between``

# Table: (columns, how many of them are the key). Columns are added only at the end: a row of an
# older entry is shorter, and the columns that it lacks keep their defaults.
TABLES: dict[str, tuple[tuple[str, ...], int]] = {
    "incarnations": (("incarnation", "epoch", "started_ms"), 1),
    "meta": (("name", "value"), 1),
    "topics": (
        ("topic_id", "name", "config", "created_ms", "deleted_ms", "changed", "table_name"),
        1,
    ),
    "partitions": (
        ("topic_id", "partition", "next_seq", "earliest_seq", "count", "bytes",
         "max_timestamp_ms", "deleted", "compacted_seq", "lost_seq", "lost_reason"),
        2,
    ),
    "objects": (
        ("commit_number", "key", "locator", "size_bytes", "created_ms", "incarnation", "epoch",
         "shard", "counter", "extents", "records", "result"),
        1,
    ),
    "extents": (
        ("topic_id", "partition", "last_offset", "first_offset", "commit_number", "byte_start",
         "byte_length", "record_count", "first_timestamp_ms", "last_timestamp_ms",
         "running_max_ms", "codec", "crc32c", "voids"),
        3,
    ),
    "void_extents": (
        ("commit_number", "topic_id", "partition", "byte_start", "byte_length", "record_count"),
        3,
    ),
    "gaps": (("topic_id", "partition", "gap_from", "gap_to", "reason"), 3),
    "lake_tables": (("topic_id", "name", "metadata_location", "switched_ms", "changed"), 1),
    "lake_files": (
        ("file_id", "topic_id", "path", "size_bytes", "rows", "run", "dropped_ms", "changed"),
        1,
    ),
    "lake_ranges": (
        ("topic_id", "partition", "last_offset", "file_id", "first_offset", "rows", "bytes",
         "first_timestamp_ms", "last_timestamp_ms"),
        4,
    ),
    "quarantine": (
        ("topic_id", "partition", "first_offset", "last_offset", "key", "reason", "found_ms"),
        3,
    ),
    "lost": (
        ("topic_id", "partition", "first_offset", "last_offset", "key", "reason", "found_ms",
         "accepted_ms"),
        3,
    ),
    "cursors": (
        ("cursor_id", "name", "kind", "created_ms", "deleted_ms", "changed", "source",
         "source_topic_id", "source_bytes", "told_ms", "used_ms"),
        1,
    ),
    "cursor_positions": (
        ("cursor_id", "partition", "seq", "set_change", "set_seq", "changed", "metadata"),
        2,
    ),
    "routers": (
        ("router_id", "name", "config", "created_ms", "deleted_ms", "source_id", "dest_id",
         "cursor_id", "slot", "paused", "changed", "token"),
        1,
    ),
    "subscriptions": (
        ("subscription_id", "name", "config", "created_ms", "deleted_ms", "topic_id",
         "dead_letter_id", "cursor_id", "slot", "changed"),
        1,
    ),
    "subscription_epochs": (("subscription_id", "epoch", "changed"), 1),
    "finished_rows": (("cursor_id", "partition", "row_number", "bits", "changed"), 3),
    "partition_growth": (("topic_id", "first_partition", "heads"), 2),
    "read_leases": (("lease", "created_ms", "expires_ms", "what"), 1),
    "deletions": (("id", "key", "locator", "reason"), 1),
    "dedupe": (("id", "topic_id", "key", "created_ms", "answer"), 1),
    "producers": (
        ("topic_id", "partition", "producer_id", "epoch", "recent", "used_ms", "changed"),
        3,
    ),
}  # fmt: skip

_STATE = ("incarnation", "epoch", "epoch_floor", "commit_number", "catalog_version",
          "last_topic_id", "change_number", "last_cursor_id")  # fmt: skip


# Tables with names that only living rows hold, and the time of deletion in the fifth column.
_NAMED = ("topics", "cursors", "routers", "subscriptions")

_MOVED_PARTITIONS = (
    "topic_id IN (SELECT topic_id FROM topics WHERE changed > ?)"
    " OR (topic_id, partition) IN"
    " (SELECT topic_id, partition FROM extents WHERE commit_number > ?)"
)


class Mark(Struct, frozen=True):
    """Up to where the log has a ledger; ``lease`` is that of commit ``commit_number``."""

    commit_number: int = 0
    catalog_version: int = 0
    dedupe_id: int = 0
    deletion_id: int = 0
    epoch_floor: int = 0
    wanted: int = 0  # of entries that former versions wrote
    lease: LeaseId | None = None
    history: str = ""
    change_number: int = 0
    last_topic_id: int = 0


class Changes(Struct, frozen=True):
    """Rows since a mark. ``state`` holds the one row of that table."""

    state: dict[str, int]
    rows: dict[str, list[Row]]


def mark(tx: ReadTx) -> Mark:
    """Where the ledger is now."""
    number, version, floor, change_number, last_topic_id = tx.execute(
        "SELECT commit_number, catalog_version, epoch_floor, change_number, last_topic_id"
        " FROM state WHERE id = 1"
    ).fetchone()
    lease = commits.lease_of(tx, number) if number else None
    return Mark(
        commit_number=number,
        catalog_version=version,
        dedupe_id=_last_id(tx, "dedupe"),
        deletion_id=_last_id(tx, "deletions"),
        epoch_floor=floor,
        lease=lease,
        history=history(tx),
        change_number=change_number,
        last_topic_id=last_topic_id,
    )


def history(tx: ReadTx) -> str:
    """The name of this history; empty before the first recovery."""
    return notes.get(tx, "history") or ""


def event_history(tx: ReadTx) -> str:
    """The history in the ids of events. A standby that has followed the log to its end gives no
    offset again, so it goes on with that of its owner."""
    kept = notes.get(tx, EVENT_HISTORY)
    return history(tx) if kept is None else kept


def _last_id(tx: ReadTx, table: str) -> int:
    # Not max(id): the last rows may have been removed.
    row = tx.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return 0 if row is None else int(row[0])


def keep_ids_above(tx: WriteTx, mark: Mark) -> None:
    """After entries were applied: ids up to those of ``mark`` are not given again."""
    for table, last in (("dedupe", mark.dedupe_id), ("deletions", mark.deletion_id)):
        if _last_id(tx, table) < last:
            tx.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            tx.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)",
                               (table, last))  # fmt: skip


def changes_since(tx: ReadTx, last: Mark) -> tuple[Mark, Changes]:
    """Where the ledger is now, and what is new since ``last``, as of one moment."""
    return mark(tx), _changes_since(tx, last)


def _changes_since(tx: ReadTx, mark: Mark) -> Changes:
    state = tx.execute(f"SELECT {', '.join(_STATE)} FROM state WHERE id = 1").fetchone()
    after_commit = ("commit_number > ?", (mark.commit_number,))
    after_version = ("changed > ?", (mark.catalog_version,))
    after_change = ("changed > ?", (mark.change_number,))
    wheres: dict[str, tuple[str, tuple[int, ...]]] = {
        "topics": after_version,
        "partitions": (
            _MOVED_PARTITIONS,
            (mark.catalog_version, mark.commit_number),
        ),
        "objects": after_commit,
        "extents": after_commit,
        "void_extents": after_commit,
        "lake_tables": after_version,
        "lake_files": after_version,
        "lake_ranges": (
            "file_id IN (SELECT file_id FROM lake_files WHERE changed > ?)",
            (mark.catalog_version,),
        ),
        "cursors": after_change,
        "cursor_positions": after_change,
        "routers": after_change,
        "subscriptions": after_change,
        "subscription_epochs": after_change,
        "finished_rows": after_change,
        "partition_growth": (
            "topic_id IN (SELECT topic_id FROM topics WHERE changed > ?)",
            (mark.catalog_version,),
        ),
        "deletions": ("id > ?", (mark.deletion_id,)),
        "dedupe": ("id > ?", (mark.dedupe_id,)),
        "producers": after_change,
    }
    rows: dict[str, list[Row]] = {}
    for table, (columns, _) in TABLES.items():
        where, values = wheres.get(table, ("1 = 1", ()))
        found = tx.execute(
            f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", values
        ).fetchall()
        if found:
            rows[table] = [list(row) for row in found]
    return Changes(dict(zip(_STATE, state, strict=True)), rows)


def apply(tx: WriteTx, changes: Changes) -> None:
    """Writes changes into a ledger."""
    # A new row may have the name of a deleted one: the deletion is applied first.
    for table in _NAMED:
        for row in sorted(changes.rows.get(table, []), key=lambda row: row[4] is None):
            _upsert(tx, table, [row])
    # Carried as a whole: rows that are missing have been removed.
    tx.execute("DELETE FROM read_leases")
    tx.execute("DELETE FROM quarantine")
    for table, rows in changes.rows.items():
        if table in TABLES and table not in _NAMED:
            _upsert(tx, table, rows)
    progress.remove_passed(
        tx,
        ended=[row[0] for row in changes.rows.get("cursors", []) if row[4] is not None],
        floors=[tuple(row[:3]) for row in changes.rows.get("cursor_positions", [])],
    )
    quarantine.keep_objects(tx, {row[4] for row in changes.rows.get("quarantine", [])})
    _forget(tx, [(row[1], row[3]) for row in changes.rows.get("deletions", [])])
    state = changes.state
    tx.execute(
        f"UPDATE state SET {', '.join(f'{name} = max({name}, ?)' for name in _STATE)} WHERE id = 1",
        [state.get(name, 0) for name in _STATE],  # an older entry lacks the last ones
    )
    if changes.rows.get("partitions"):
        tx.execute(
            "UPDATE state SET partitions = (SELECT count(*) FROM partitions WHERE deleted = 0)"
        )


def forget_named(tx: WriteTx) -> None:
    """Removes the rows of what an image or entries name for deletion."""
    _forget(tx, tx.execute("SELECT key, reason FROM deletions").fetchall())


def _forget(tx: WriteTx, named: list[tuple[str, str]]) -> None:
    lake_tables.remove_objects(tx, [key for key, reason in named if reason == COLLECTED])
    lake_files.remove(tx, [key for key, reason in named if reason == LAKE])


def _upsert(tx: WriteTx, table: str, rows: list[Row]) -> None:
    columns, keys = TABLES[table]
    if rows:
        columns = columns[: len(rows[0])]
    if table == "dedupe":
        # A key may have been answered again after its window.
        tx.executemany(
            "DELETE FROM dedupe WHERE topic_id = ? AND key = ?", [row[1:3] for row in rows]
        )
    if table == "deletions":
        # An object that was put again after its deletion is named again.
        tx.executemany("DELETE FROM deletions WHERE key = ?", [row[1:2] for row in rows])
    updates = ", ".join(f"{column} = excluded.{column}" for column in columns[keys:])
    action = f"DO UPDATE SET {updates}" if updates else "DO NOTHING"
    if table in _NAMED:
        # On top of a newer image, a row that has changed since may hold another's name.
        action += f" WHERE excluded.changed >= {table}.changed"
    tx.executemany(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        f" ON CONFLICT ({', '.join(columns[:keys])}) {action}",
        rows,
    )


def copy_to(tx: ReadTx, path: Path, between: Callable[[], None]) -> int:
    """Copies the whole ledger as of one moment to a new file; returns its last commit's number.

    Commits continue meanwhile, but the WAL cannot start over before the copy ends. ``between`` is
    called after each 16 MiB and may raise to stop. The copy is not durable.
    """
    number = commits.latest_number(tx)
    make_file(path)
    target = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -4096"):
            target.execute(f"PRAGMA {pragma}")
        tx.connection.backup(target, pages=COPY_PAGES, progress=lambda *_: between())
    finally:
        target.close()
    return number
