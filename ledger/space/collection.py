"""Which objects a collection may delete, and the table that names them first (docs/protocol.md 7).

Vocabulary: an *orphan* is an object that was put and never committed. It is one for good when its
epoch is below the floor, for then its lease cannot commit any more; and it is this ledger's to
delete only when its incarnation is one that this ledger has been.

A *spent* object was committed, and nothing in it is needed any more (``objects.free_ms``). It goes
when its grace is over and

- its epoch is below the floor: an upload of it that arrives late is an orphan then, and no recovery
  takes it for a commit that nobody listed;
- its commit is *settled*: no process asks for it any more, neither by its lease nor by its number.
  The daemon says up to which commit that is (``Settled``);
- it is not the last commit's, by which a ledger is known, nor in quarantine;
- no read lease is as old as its ``free_ms``, nor a compaction that lives: who planned before may
  still read it.

A *dropped* file of the lake goes by the same rule of grace and leases, when the catalog has let go
of it (``compaction/``).

A row of ``deletions`` stays from before its object is deleted until after: a collection that was
killed finds it and goes on. Called inside a transaction; naming inside a write transaction, so
that what is named is judged by the floor and the commits of the moment it is named.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct

from ledger import topics
from ledger.lake import readlease
from ledger.lake import statements as lake
from ledger.lake.types import LakeTable
from ledger.space import marking
from ledger.types import LeaseId, ObjectRow

REASON = "orphan"
COLLECTED = "collected"
LAKE = "lake"
KEYS_AT_ONCE = 500  # of one statement


class Candidate(Struct, frozen=True):
    """An object in the store whose lease did not commit, as far as was seen."""

    key: str
    locator: str
    lease_id: LeaseId


class Spent(Struct, frozen=True):
    """A committed object that nothing needs any more. ``extents`` are its rows in the ledger."""

    commit_number: int
    key: str
    locator: str
    size_bytes: int
    extents: int
    free_ms: int


class Rule(Struct, frozen=True):
    """What a collection may take: ``free_to_ms`` is now less the grace time, commits up to
    ``commits_to`` are settled. ``held_from_ms`` is when the oldest read lease was taken, None
    without one."""

    free_to_ms: int
    epoch_floor: int
    commits_to: int
    held_from_ms: int | None = None


class Dropped(Struct, frozen=True):
    """A Parquet file whose rows are elsewhere since ``dropped_ms``."""

    path: str
    size_bytes: int
    topic_id: int
    dropped_ms: int


def orphans(connection: sqlite3.Connection, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those of the candidates that never were committed and never will be, and are ours."""
    (floor,) = connection.execute("SELECT epoch_floor FROM state WHERE id = 1").fetchone()
    ours = {row[0] for row in connection.execute("SELECT incarnation FROM incarnations")}
    below = [
        candidate
        for candidate in candidates
        if candidate.lease_id.epoch < floor and candidate.lease_id.incarnation in ours
    ]
    there = committed(connection, [candidate.key for candidate in below])
    return [candidate for candidate in below if candidate.key not in there]


def committed(connection: sqlite3.Connection, keys: Sequence[str]) -> set[str]:
    """Those of the keys whose objects are committed."""
    return _those_in(connection, "objects", keys)


def named(connection: sqlite3.Connection, keys: Sequence[str]) -> set[str]:
    """Those of the keys that are named for deletion."""
    return _those_in(connection, "deletions", keys)


def name(connection: sqlite3.Connection, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Names the orphans among the candidates for deletion; returns them."""
    found = orphans(connection, candidates)
    _name(connection, [(candidate.key, candidate.locator, REASON) for candidate in found])
    return found


def forget(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    """Their objects are gone from the store: the names go too."""
    _forget(connection, keys, REASON)


def names_after(connection: sqlite3.Connection, key: str, limit: int) -> list[str]:
    """Orphans that are named, by key, a page at a time."""
    return _names(connection, REASON, key, limit)


_COLUMNS = "commit_number, key, locator, size_bytes, extents"
_MAY_GO = """commit_number < (SELECT commit_number FROM state WHERE id = 1)
    AND key NOT IN (SELECT key FROM quarantine)"""
_SPENT = f"""SELECT {_COLUMNS}, free_ms FROM objects
    WHERE free_ms IS NOT NULL AND free_ms <= ? AND epoch < ? AND commit_number <= ?
    AND {_MAY_GO}"""


def rule(
    connection: sqlite3.Connection,
    now_ms: int,
    grace_ms: int,
    epoch_floor: int,
    commits_to: int,
    *,
    run_lives: bool,
) -> Rule:
    """The rule as of now, with the read leases that hold, and the compaction if it lives."""
    since = [one.created_ms for one in readlease.live(connection, now_ms)]
    if run_lives:
        rows = connection.execute("SELECT started_ms FROM runs WHERE ended_ms IS NULL")
        since += [row[0] for row in rows]
    held = min(since, default=None)
    return Rule(now_ms - grace_ms, epoch_floor, commits_to, held)


def spent_after(
    connection: sqlite3.Connection, rule: Rule, after: tuple[int, int], limit: int
) -> list[Spent]:
    """Spent objects behind (free_ms, commit number), in that order; leases are not looked at."""
    rows = connection.execute(
        f"{_SPENT} AND (free_ms, commit_number) > (?, ?) ORDER BY free_ms, commit_number LIMIT ?",
        (rule.free_to_ms, rule.epoch_floor, rule.commits_to, *after, limit),
    )
    return [Spent(*row) for row in rows]


def spent_count(connection: sqlite3.Connection) -> int:
    """All spent objects that go sooner or later."""
    (count,) = connection.execute(
        f"SELECT count(*) FROM objects WHERE free_ms IS NOT NULL AND {_MAY_GO}"
    ).fetchone()
    return int(count)


def unmarked_after(
    connection: sqlite3.Connection, after_number: int, limit: int
) -> tuple[list[Spent], int | None]:
    """Objects among the next ``limit`` commits that nothing needs and that are not marked as free
    yet; and the last of those commits, None at the end."""
    rows = connection.execute(
        f"SELECT {_COLUMNS}, 0 FROM objects WHERE commit_number > ? AND {_MAY_GO}"
        " ORDER BY commit_number LIMIT ?",
        (after_number, limit),
    ).fetchall()
    objects = {row[0]: Spent(*row) for row in rows}
    free = marking.free_among(connection, objects)
    last = rows[-1][0] if len(rows) == limit else None
    return [objects[number] for number in free], last


def is_held(rule: Rule, free_ms: int) -> bool:
    """Whether a read lease is as old as the end of the need."""
    return rule.held_from_ms is not None and free_ms >= rule.held_from_ms


def spent_among(
    connection: sqlite3.Connection, rule: Rule, objects: Sequence[Spent]
) -> list[Spent]:
    """Those of the objects that the rule gives now."""
    values = (rule.free_to_ms, rule.epoch_floor, rule.commits_to)
    found = []
    for one in objects:
        row = connection.execute(
            f"{_SPENT} AND commit_number = ?", (*values, one.commit_number)
        ).fetchone()
        if row is not None and not is_held(rule, row[5]):
            found.append(Spent(*row))
    return found


def name_spent(connection: sqlite3.Connection, rule: Rule, objects: Sequence[Spent]) -> list[Spent]:
    """Names those of the objects that the rule gives now for deletion; returns them."""
    found = spent_among(connection, rule, objects)
    _name(connection, [(one.key, one.locator, COLLECTED) for one in found])
    return found


def named_without_rows(
    connection: sqlite3.Connection, after_key: str, limit: int
) -> list[tuple[str, str]]:
    """(key, locator) of names whose objects have no row: a recovery took it as gone."""
    return connection.execute(
        "SELECT key, locator FROM deletions AS d WHERE reason = ? AND key > ?"
        " AND NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.key = d.key) ORDER BY key LIMIT ?",
        (COLLECTED, after_key, limit),
    ).fetchall()


def forget_spent(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    """Their objects are gone from the store: their rows and names go too, all at once."""
    lake.remove_objects(connection, keys)
    _forget(connection, keys, COLLECTED)


def dropped(
    connection: sqlite3.Connection, rule: Rule, after_path: str, limit: int
) -> list[Dropped]:
    """Dropped files whose grace is over and that no lease holds, by path."""
    rows = connection.execute(
        "SELECT path, size_bytes, topic_id, dropped_ms FROM lake_files"
        " WHERE dropped_ms IS NOT NULL AND dropped_ms <= ? AND dropped_ms < ? AND path > ?"
        " ORDER BY path LIMIT ?",
        (rule.free_to_ms, _below(rule.held_from_ms), after_path, limit),
    )
    return [Dropped(*row) for row in rows]


def name_known_files(connection: sqlite3.Connection, paths: Sequence[str]) -> None:
    """Names those of the files for deletion that the ledger knows."""
    known = _those_in(connection, "lake_files", paths, "path")
    _name(connection, [(path, path, LAKE) for path in paths if path in known])


def move_table(connection: sqlite3.Connection, table: LakeTable, metadata_location: str) -> bool:
    """Notes where a table's metadata is after an expiry; not when a switch was quicker."""
    moved = connection.execute(
        "UPDATE lake_tables SET metadata_location = ? WHERE topic_id = ? AND metadata_location = ?",
        (metadata_location, table.topic_id, table.metadata_location),
    )
    if moved.rowcount != 1:
        return False
    topics.touch(connection, table.topic_id)
    connection.execute(
        "UPDATE lake_tables SET changed = (SELECT catalog_version FROM state WHERE id = 1)"
        " WHERE topic_id = ?",
        (table.topic_id,),
    )
    return True


def forget_files(connection: sqlite3.Connection, paths: Sequence[str]) -> None:
    """The files are gone from the store: their rows and names go too."""
    lake.remove_files(connection, paths)
    _forget(connection, paths, LAKE)


def named_files(connection: sqlite3.Connection, after_path: str, limit: int) -> list[str]:
    """Files of the lake that are named, by path, a page at a time."""
    return _names(connection, LAKE, after_path, limit)


def quarantined(connection: sqlite3.Connection) -> int:
    """How many objects are in quarantine."""
    (count,) = connection.execute("SELECT count(DISTINCT key) FROM quarantine").fetchone()
    return int(count)


def _below(held_from_ms: int | None) -> int:
    return (1 << 63) - 1 if held_from_ms is None else held_from_ms


def _name(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, str]]) -> None:
    connection.executemany(
        "INSERT INTO deletions (key, locator, reason) VALUES (?, ?, ?)"
        " ON CONFLICT (key) DO NOTHING",
        rows,
    )


def _forget(connection: sqlite3.Connection, keys: Sequence[str], reason: str) -> None:
    connection.executemany(
        "DELETE FROM deletions WHERE key = ? AND reason = ?", [(key, reason) for key in keys]
    )


def _names(connection: sqlite3.Connection, reason: str, after: str, limit: int) -> list[str]:
    sql = "SELECT key FROM deletions WHERE key > ? AND reason = ? ORDER BY key LIMIT ?"
    return [row[0] for row in connection.execute(sql, (after, reason, limit))]


def objects_after(connection: sqlite3.Connection, key: str, limit: int) -> list[ObjectRow]:
    """Committed objects by key, a page at a time: the order in which a store lists them."""
    rows = connection.execute(
        "SELECT key, locator, size_bytes, created_ms, commit_number, extents, records"
        " FROM objects WHERE key > ? ORDER BY key LIMIT ?",
        (key, limit),
    )
    return [ObjectRow(*row) for row in rows]


def _those_in(
    connection: sqlite3.Connection, table: str, keys: Sequence[str], column: str = "key"
) -> set[str]:
    found: set[str] = set()
    left: Iterator[str] = iter(keys)
    while some := list(islice(left, KEYS_AT_ONCE)):
        places = ", ".join("?" * len(some))
        rows = connection.execute(
            f"SELECT {column} FROM {table} WHERE {column} IN ({places})", some
        )
        found.update(row[0] for row in rows)
    return found
