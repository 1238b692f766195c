"""Commits as they were published, rebuilt from their rows.

``objects.result`` holds the parts of a commit that no other column has, as msgpack of
[sources, runs, heads, verdicts]. Once nobody asks for it any more it is empty (``reclaim.py``).
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
from msgspec import Struct

from ledger.errors import ResultCleared
from ledger.types import Commit, Head, LeaseId, Run, SourceRange, Verdict


class _Result(Struct, frozen=True, array_like=True):
    sources: tuple[SourceRange, ...]
    runs: tuple[Run, ...]
    heads: tuple[Head, ...]
    verdicts: tuple[Verdict, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Result)

_SQL = "SELECT commit_number, incarnation, epoch, shard, counter, result FROM objects"


def encode(commit: Commit) -> bytes:
    """What ``objects.result`` keeps of a commit."""
    return _encoder.encode(_Result(commit.sources, commit.runs, commit.heads, commit.verdicts))


def latest_commit_number(connection: sqlite3.Connection) -> int:
    """The number of the last commit, 0 before the first."""
    number: int = connection.execute("SELECT commit_number FROM state WHERE id = 1").fetchone()[0]
    return number


def lease_by_number(connection: sqlite3.Connection, number: int) -> LeaseId | None:
    """The lease of a commit, which is known also when its result is cleared."""
    sql = "SELECT incarnation, epoch, shard, counter FROM objects WHERE commit_number = ?"
    row = connection.execute(sql, (number,)).fetchone()
    return None if row is None else LeaseId(*row)


def number_by_lease(connection: sqlite3.Connection, lease: LeaseId) -> int | None:
    """The commit of a lease, None while there is none."""
    sql = (
        "SELECT commit_number FROM objects"
        " WHERE incarnation = ? AND shard = ? AND counter = ? AND epoch = ?"
    )
    key = (lease.incarnation, lease.shard, lease.counter, lease.epoch)
    row = connection.execute(sql, key).fetchone()
    return None if row is None else int(row[0])


def commit_by_number(connection: sqlite3.Connection, number: int) -> Commit | None:
    """The commit as it was published. Raises ResultCleared."""
    sql = f"{_SQL} WHERE commit_number = ?"
    return _commit(connection.execute(sql, (number,)).fetchone())


def commit_by_lease(connection: sqlite3.Connection, lease: LeaseId) -> Commit | None:
    """The commit of a lease, or None while there is none. Raises ResultCleared."""
    sql = f"{_SQL} WHERE incarnation = ? AND shard = ? AND counter = ? AND epoch = ?"
    key = (lease.incarnation, lease.shard, lease.counter, lease.epoch)
    return _commit(connection.execute(sql, key).fetchone())


def _commit(row: Any) -> Commit | None:
    if row is None:
        return None
    number, incarnation, epoch, shard, counter, blob = row
    if not blob:
        raise ResultCleared(number)
    result = _decoder.decode(blob)
    lease = LeaseId(incarnation, epoch, shard, counter)
    return Commit(number, lease, result.sources, result.runs, result.heads, result.verdicts)
