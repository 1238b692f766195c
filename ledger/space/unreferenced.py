"""Unreferenced objects: committed, and nothing in them is needed any more (``objects.free_ms``).

A collection deletes one when its grace time is over (docs/protocol.md 7) and

- its commit is *settled*: no process asks for it any more, by its lease or by its number. The
daemon says up to which commit that is; - it is neither the object of the last commit, by which a
ledger is recognized, nor in quarantine; - no read lease, and no living compaction, is as old as its
``free_ms``: a reader that planned before may still read it.

Its rows are removed when it is deleted. Its name stays until its epoch is below the epoch floor:
until then a recovery would take a late upload of it for a commit that no entry lists.
"""

from __future__ import annotations

from msgspec import Struct

from ledger.lake import lake_tables
from ledger.space import deletions, marking
from ledger.space.deletions import COLLECTED, DeletionPolicy
from ledger.tx import ReadTx, WriteTx

_COLUMNS = "commit_number, key, locator, size_bytes, extents"
_MAY_GO = """commit_number < (SELECT commit_number FROM state WHERE id = 1)
    AND key NOT IN (SELECT key FROM quarantine)"""
_SQL = f"""SELECT {_COLUMNS}, free_ms FROM objects
    WHERE free_ms IS NOT NULL AND free_ms <= ? AND commit_number <= ?
    AND {_MAY_GO}"""


class Unreferenced(Struct, frozen=True):
    """A committed object that nothing needs any more. ``extents`` are its rows in the ledger."""

    commit_number: int
    key: str
    locator: str
    size_bytes: int
    extents: int
    since_ms: int


def page(
    tx: ReadTx, policy: DeletionPolicy, after: tuple[int, int], limit: int = 1_000
) -> list[Unreferenced]:
    """Objects after (since_ms, commit number), in that order; leases are not considered."""
    rows = tx.execute(
        f"{_SQL} AND (free_ms, commit_number) > (?, ?) ORDER BY free_ms, commit_number LIMIT ?",
        (policy.unreferenced_to_ms, policy.commits_to, *after, limit),
    )
    return [Unreferenced(*row) for row in rows]


def count(tx: ReadTx) -> int:
    """How many objects wait for deletion."""
    sql = f"SELECT count(*) FROM objects WHERE free_ms IS NOT NULL AND {_MAY_GO}"
    return int(tx.execute(sql).fetchone()[0])


def unmarked(tx: ReadTx, after_number: int, limit: int) -> tuple[list[Unreferenced], int | None]:
    """Objects among the next ``limit`` commits that nothing needs and that are not marked yet.

    And the last of those commits, None at the end.
    """
    rows = tx.execute(
        f"SELECT {_COLUMNS}, 0 FROM objects WHERE commit_number > ? AND {_MAY_GO}"
        " ORDER BY commit_number LIMIT ?",
        (after_number, limit),
    ).fetchall()
    objects = {row[0]: Unreferenced(*row) for row in rows}
    found = marking.unreferenced_among(tx, objects)
    last = rows[-1][0] if len(rows) == limit else None
    return [objects[number] for number in found], last


def among(tx: ReadTx, policy: DeletionPolicy, objects: list[Unreferenced]) -> list[Unreferenced]:
    """The objects that may be deleted now."""
    values = (policy.unreferenced_to_ms, policy.commits_to)
    found = []
    for one in objects:
        row = tx.execute(f"{_SQL} AND commit_number = ?", (*values, one.commit_number)).fetchone()
        if row is not None and not policy.is_held(row[5]):
            found.append(Unreferenced(*row))
    return found


def name(tx: WriteTx, policy: DeletionPolicy, objects: list[Unreferenced]) -> list[Unreferenced]:
    """Names those of the objects that may be deleted now; returns them."""
    found = among(tx, policy, objects)
    deletions.name(tx, [(one.key, one.locator, COLLECTED) for one in found])
    return found


def without_rows(tx: ReadTx, before_key: str, after_key: str, limit: int) -> list[tuple[str, str]]:
    """(key, locator) of names without an object's row, between two keys, a page at a time."""
    return tx.execute(
        "SELECT key, locator FROM deletions AS d WHERE reason = ? AND key > ? AND key < ?"
        " AND NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.key = d.key) ORDER BY key LIMIT ?",
        (COLLECTED, after_key, before_key, limit),
    ).fetchall()


def are_names_kept(tx: ReadTx, from_key: str) -> bool:
    """Whether there are names of keys from ``from_key`` on: they wait for the epoch floor."""
    sql = "SELECT EXISTS (SELECT 1 FROM deletions WHERE reason = ? AND key >= ?)"
    return bool(tx.execute(sql, (COLLECTED, from_key)).fetchone()[0])


def forget(tx: WriteTx, keys: list[str], before_key: str) -> None:
    """Removes the rows of objects that are gone from the store, and names of keys below
    ``before_key``.

    In one transaction. Keys below it are of epochs below the floor.
    """
    lake_tables.remove_objects(tx, keys)
    deletions.forget(tx, [key for key in keys if key < before_key], COLLECTED)
