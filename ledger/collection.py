"""Which objects a collection may delete, and the table that names them first (PROTOCOL 7).

Vocabulary: an *orphan* is an object that was put and never committed. It is one for good when its
epoch is below the floor, for then its lease cannot commit any more; and it is this ledger's to
delete only when its incarnation is one that this ledger has been.

A row of ``deletions`` stays from before its object is deleted until after: a collection that was
killed finds it and goes on. Called inside a transaction; naming inside a write transaction, so
that what is named is judged by the floor and the commits of the moment it is named.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct

from ledger.types import LeaseId, ObjectRow

REASON = "orphan"
KEYS_AT_ONCE = 500  # of one statement


class Candidate(Struct, frozen=True):
    """An object in the store whose lease did not commit, as far as was seen."""

    key: str
    locator: str
    lease_id: LeaseId


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
    connection.executemany(
        "INSERT INTO deletions (key, locator, reason) VALUES (?, ?, ?)"
        " ON CONFLICT (key) DO NOTHING",
        [(candidate.key, candidate.locator, REASON) for candidate in found],
    )
    return found


def forget(connection: sqlite3.Connection, keys: Sequence[str]) -> None:
    """Their objects are gone from the store: the names go too."""
    connection.executemany(
        "DELETE FROM deletions WHERE key = ? AND reason = ?", [(key, REASON) for key in keys]
    )


def names_after(connection: sqlite3.Connection, key: str, limit: int) -> list[str]:
    """Orphans that are named, by key, a page at a time."""
    sql = "SELECT key FROM deletions WHERE key > ? AND reason = ? ORDER BY key LIMIT ?"
    return [row[0] for row in connection.execute(sql, (key, REASON, limit))]


def objects_after(connection: sqlite3.Connection, key: str, limit: int) -> list[ObjectRow]:
    """Committed objects by key, a page at a time: the order in which a store lists them."""
    rows = connection.execute(
        "SELECT key, locator, size_bytes, created_ms, commit_number, extents, records"
        " FROM objects WHERE key > ? ORDER BY key LIMIT ?",
        (key, limit),
    )
    return [ObjectRow(*row) for row in rows]


def _those_in(connection: sqlite3.Connection, table: str, keys: Sequence[str]) -> set[str]:
    found: set[str] = set()
    left: Iterator[str] = iter(keys)
    while some := list(islice(left, KEYS_AT_ONCE)):
        places = ", ".join("?" * len(some))
        rows = connection.execute(f"SELECT key FROM {table} WHERE key IN ({places})", some)
        found.update(row[0] for row in rows)
    return found
