"""Tables of the lake: what is not compacted yet, and the switch of readers to what was compacted.

Vocabulary: ``types.py``. A *plan* is what a compaction reads: in commit order, objects with those
of their extents that no reader reads from L1 yet.

A switch is one transaction with everything that readers look at. ``compacted_seq`` never falls, and
stays below ``next_seq``; a file is taken once, by its path. Nothing is read or deleted in a store
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing

from ledger import table_names, topics
from ledger.errors import SwitchRefused
from ledger.lake import quarantine, runs
from ledger.lake.catalog import is_below
from ledger.lake.types import (
    Hole,
    LakeState,
    LakeTable,
    NewFile,
    PlannedObject,
    TableSwitch,
)
from ledger.reads import extent_of
from ledger.space import marking, retention
from ledger.tx import ReadTx, WriteTx
from ledger.types import Extent

# SQLite keeps the order of a CROSS JOIN: objects one by one, so that a page ends early.
_PLAN_SQL = """SELECT o.commit_number, o.key, e.topic_id, e.partition, e.first_offset,
    e.last_offset, e.record_count, o.locator, o.size_bytes, e.byte_start, e.byte_length,
    e.crc32c, e.codec, e.first_timestamp_ms, e.last_timestamp_ms, e.voids
    FROM objects AS o CROSS JOIN extents AS e CROSS JOIN partitions AS p
    WHERE o.commit_number > ? AND o.commit_number <= ? AND o.free_ms IS NULL
    AND e.commit_number = o.commit_number
    AND p.topic_id = e.topic_id AND p.partition = e.partition AND p.deleted = 0
    AND e.last_offset > p.compacted_seq AND e.last_offset >= p.earliest_seq
    AND NOT EXISTS (SELECT 1 FROM quarantine AS q WHERE q.topic_id = e.topic_id
        AND q.partition = e.partition AND q.first_offset <= e.last_offset
        AND q.last_offset >= e.first_offset)
    AND NOT EXISTS (SELECT 1 FROM lost AS q WHERE q.topic_id = e.topic_id
        AND q.partition = e.partition AND q.first_offset <= e.last_offset
        AND q.last_offset >= e.first_offset)
    ORDER BY o.commit_number, e.topic_id, e.partition"""


def plan_objects(
    tx: ReadTx,
    after_commit: int,
    to_commit: int,
    limit: int = 1_000,
    topic_ids: frozenset[int] | None = None,
) -> list[PlannedObject]:
    """Objects of commits after one up to another, with those of their extents that L1 does not hold
    yet.

    In commit order; objects without such extents are left out. The next page starts after the last
    object's commit, and an empty page is the end.
    """
    planned: list[PlannedObject] = []
    extents: list[Extent] = []
    head: tuple[int, str, str, int] | None = None

    def close() -> None:
        if head is not None:
            planned.append(PlannedObject(*head, tuple(extents)))

    # Closed early: an unfinished statement keeps its view of the ledger.
    with closing(tx.execute(_PLAN_SQL, (after_commit, to_commit))) as rows:
        for number, key, *columns in rows:
            extent = extent_of(columns, key)
            if topic_ids is not None and extent.topic_id not in topic_ids:
                continue
            if head is None or head[0] != number:
                close()
                head = None
                if len(planned) >= limit:
                    break
                head = (number, key, extent.locator, extent.object_size_bytes)
                extents = []
            extents.append(extent)
    close()
    return planned


def compacted_seqs(tx: ReadTx, topic_id: int) -> dict[int, int]:
    """By partition: the offset up to and including which readers use L1."""
    return dict(
        tx.execute(
            "SELECT partition, compacted_seq FROM partitions WHERE topic_id = ? ORDER BY partition",
            (topic_id,),
        )
    )


def states(tx: ReadTx, topic_ids: list[int]) -> list[LakeState]:
    """How far some topics are in the lake, in their order."""
    return [LakeState(find(tx, topic_id), compacted_seqs(tx, topic_id)) for topic_id in topic_ids]


def check_below(lake: str, table: str, locations: Iterable[str]) -> None:
    """Checks that files are in the lake: readers read them, and collections remove them. Raises
    SwitchRefused."""
    for location in locations:
        if not is_below(location, lake):
            raise SwitchRefused(
                table,
                f"its file {location[:300]!r} is not below {lake}/",
                "no compaction wrote it; look at the table, and at who reaches the admin API",
            )


def files_of(switch: TableSwitch) -> list[str]:
    """All files that a switch names."""
    return [switch.metadata_location, *(file.path for file in switch.added), *switch.dropped]


def switch(tx: WriteTx, run: str, switches: list[TableSwitch], now_ms: int) -> None:
    """Readers use L1 for what a run committed to its tables. Raises RunLost and SwitchRefused.

    Known files are skipped, so repeating a switch does no harm.
    """
    runs.check(tx, run, now_ms)
    for switch in switches:
        _switch(tx, run, switch, now_ms)
    marking.mark_moved(tx, now_ms)


def _switch(tx: WriteTx, run: str, switch: TableSwitch, now_ms: int) -> None:
    topic_id = switch.topic_id
    _check(tx, switch)
    topics.touch(tx, topic_id)
    (version,) = tx.execute("SELECT catalog_version FROM state WHERE id = 1").fetchone()
    tx.executemany(
        "UPDATE partitions SET compacted_seq = ?"
        " WHERE topic_id = ? AND partition = ? AND compacted_seq < ?",
        [(seq, topic_id, partition, seq) for partition, seq in switch.watermarks.items()],
    )
    for file in switch.added:
        _add_file(tx, run, topic_id, file, version)
    tx.executemany(
        "UPDATE lake_files SET dropped_ms = ?, changed = ? WHERE path = ? AND topic_id = ?"
        " AND dropped_ms IS NULL",
        [(now_ms, version, path, topic_id) for path in switch.dropped],
    )
    tx.executemany(
        "INSERT INTO quarantine (topic_id, partition, first_offset, last_offset, key, reason,"
        " found_ms) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (topic_id, partition, first_offset) DO NOTHING",
        [
            (hole.topic_id, hole.partition, hole.first_offset, hole.last_offset, hole.key,
             hole.reason, now_ms)
            for hole in switch.holes
        ],
    )  # fmt: skip
    quarantine.keep_objects(tx, {hole.key for hole in switch.holes})
    quarantine.release(tx, switch.restored, now_ms)
    tx.execute(
        "INSERT INTO lake_tables (topic_id, name, metadata_location, switched_ms, changed)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (topic_id) DO UPDATE SET name = excluded.name,"
        " metadata_location = excluded.metadata_location, switched_ms = excluded.switched_ms,"
        " changed = excluded.changed",
        (topic_id, switch.table, switch.metadata_location, now_ms, version),
    )
    retention.recount_bytes(tx, topic_id)


def _check(tx: ReadTx, switch: TableSwitch) -> None:
    compacted: dict[int, int] = {}
    nexts: dict[int, int] = {}
    for partition, compacted_seq, next_seq in tx.execute(
        "SELECT partition, compacted_seq, next_seq FROM partitions WHERE topic_id = ?",
        (switch.topic_id,),
    ):
        compacted[partition] = max(compacted_seq, switch.watermarks.get(partition, 0))
        nexts[partition] = next_seq
    for partition, seq in switch.watermarks.items():
        next_seq = nexts.get(partition, 0)
        if not next_seq:
            raise SwitchRefused(
                switch.table, f"topic {switch.topic_id} never had a partition {partition}"
            )
        if seq >= next_seq:
            raise SwitchRefused(
                switch.table,
                f"its watermark of partition {partition} is {seq}, but the next offset of topic"
                f" {switch.topic_id} there is {next_seq}",
            )
    for path, one in [(file.path, one) for file in switch.added for one in file.ranges]:
        if one.last_offset > compacted.get(one.partition, 0):
            raise SwitchRefused(
                switch.table,
                f"its file {path} holds offset {one.last_offset} of partition {one.partition},"
                f" its watermark there is {compacted.get(one.partition, 0)}",
            )
    for hole in (*switch.holes, *switch.restored):
        if hole.topic_id != switch.topic_id:
            raise SwitchRefused(
                switch.table, f"it names a hole of topic {hole.topic_id}, not {switch.topic_id}"
            )


def _add_file(tx: WriteTx, run: str, topic_id: int, file: NewFile, version: int) -> None:
    made = tx.execute(
        "INSERT INTO lake_files (topic_id, path, size_bytes, rows, run, changed)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (path) DO NOTHING",
        (topic_id, file.path, file.size_bytes, file.rows, run, version),
    )
    if made.rowcount != 1:
        return
    (file_id,) = tx.execute(
        "SELECT file_id FROM lake_files WHERE path = ?", (file.path,)
    ).fetchone()
    tx.executemany(
        "INSERT INTO lake_ranges (topic_id, partition, last_offset, file_id, first_offset, rows,"
        " bytes, first_timestamp_ms, last_timestamp_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (topic_id, one.partition, one.last_offset, file_id, one.first_offset, one.rows,
             one.bytes, one.first_timestamp_ms, one.last_timestamp_ms)
            for one in file.ranges
        ],
    )  # fmt: skip


def remove_objects(tx: WriteTx, keys: Sequence[str]) -> None:
    """Removes the rows of collected objects and of their extents."""
    for key in keys:
        row = tx.execute("SELECT commit_number FROM objects WHERE key = ?", (key,)).fetchone()
        if row is not None:
            for table in ("extents", "void_extents", "objects"):
                tx.execute(f"DELETE FROM {table} WHERE commit_number = ?", row)


_TABLE_SQL = "SELECT topic_id, name, metadata_location, switched_ms FROM lake_tables"


def find(tx: ReadTx, topic_id: int) -> LakeTable | None:
    """A topic's table as of the last switch."""
    row = tx.execute(f"{_TABLE_SQL} WHERE topic_id = ?", (topic_id,)).fetchone()
    return None if row is None else LakeTable(*row)


def every(tx: ReadTx, after_topic_id: int = 0, limit: int = 1_000) -> list[LakeTable]:
    """All tables by topic id, also those of deleted topics, a page at a time."""
    rows = tx.execute(
        f"{_TABLE_SQL} WHERE topic_id > ? ORDER BY topic_id LIMIT ?", (after_topic_id, limit)
    )
    return [LakeTable(*row) for row in rows]


def named(tx: ReadTx, with_deleted: bool) -> dict[str, str]:
    """The metadata locations of tables by the identifier that each has in a catalog; those of
    deleted topics too, if asked."""
    found: dict[str, tuple[int, str]] = {}
    for topic_id, name, location in tx.execute(
        "SELECT l.topic_id, l.name, l.metadata_location FROM lake_tables AS l"
        " LEFT JOIN topics AS t ON t.topic_id = l.topic_id AND t.deleted_ms IS NULL"
        " WHERE ? OR t.topic_id IS NOT NULL ORDER BY l.topic_id",
        (with_deleted,),
    ):
        if name in found:
            former_id, former = found[name]
            found[table_names.former_name(name, former_id)] = (former_id, former)
        found[name] = (topic_id, location)
    return {name: location for name, (_, location) in found.items()}


_HOLES_SQL = "SELECT topic_id, partition, first_offset, last_offset, key, reason FROM"


def holes(
    tx: ReadTx, topic_id: int, after: tuple[int, int] = (-1, 0), limit: int = 1_000
) -> list[Hole]:
    """A topic's offsets that are in quarantine or given up, in order, a page at a time: those
    after this partition and first offset."""
    where = "WHERE topic_id = ?1 AND (partition, first_offset) > (?2, ?3)"
    rows = tx.execute(
        f"{_HOLES_SQL} quarantine {where} UNION ALL {_HOLES_SQL} lost {where}"
        " ORDER BY 2, 3 LIMIT ?4",
        (topic_id, *after, limit),
    )
    return [Hole(*row) for row in rows]


def holes_among(
    tx: ReadTx, topic_id: int, partition: int, first_offset: int, last_offset: int
) -> list[Hole]:
    """As ``holes``, those of a partition that have an offset of a range."""
    where = "WHERE topic_id = ?1 AND partition = ?2 AND first_offset <= ?4 AND last_offset >= ?3"
    rows = tx.execute(
        f"{_HOLES_SQL} quarantine {where} UNION ALL {_HOLES_SQL} lost {where} ORDER BY 3",
        (topic_id, partition, first_offset, last_offset),
    )
    return [Hole(*row) for row in rows]


def move(tx: WriteTx, table: LakeTable, metadata_location: str) -> bool:
    """Notes where a table's metadata is after an expiry; False if a switch came first."""
    moved = tx.execute(
        "UPDATE lake_tables SET metadata_location = ? WHERE topic_id = ? AND metadata_location = ?",
        (metadata_location, table.topic_id, table.metadata_location),
    )
    if moved.rowcount != 1:
        return False
    topics.touch(tx, table.topic_id)
    tx.execute(
        "UPDATE lake_tables SET changed = (SELECT catalog_version FROM state WHERE id = 1)"
        " WHERE topic_id = ?",
        (table.topic_id,),
    )
    return True
