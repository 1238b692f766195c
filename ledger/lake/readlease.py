"""Leases of bulk readers, and the one compaction: who must be waited for, and until when.

Vocabulary: a *read lease* keeps what its holder planned with (objects, files) from being deleted
until it ends or expires; one that has expired cannot be renewed, for its hold was lost. A *run*
is one compaction. There is one at a time; whether its process lives a kernel lock says, not the
ledger (decision 0010), so a run that died has no end until the next one ends it.

Called inside a transaction of whoever holds the ledger; times are epoch milliseconds. What leases
keep from deletion the collection decides.
"""

from __future__ import annotations

import sqlite3

from ledger.errors import ReadLeasesFull, RunLost, RunUnfinished
from ledger.lake.types import ReadLease

# A row is some hundred bytes, and entries of the owner's log carry all of them.
READ_LEASES_MAX = 1_000
# Ended runs are kept for people.
RUNS_KEPT = 100


def begin_run(connection: sqlite3.Connection, run: str, owner: str, now_ms: int) -> None:
    """The run under way from now on. Raises RunUnfinished while another has not ended."""
    row = connection.execute("SELECT run, owner FROM runs WHERE ended_ms IS NULL").fetchone()
    if row is not None:
        raise RunUnfinished(*row)
    connection.execute(
        "INSERT INTO runs (run, owner, started_ms) VALUES (?, ?, ?)", (run, owner, now_ms)
    )
    connection.execute(
        "DELETE FROM runs WHERE ended_ms IS NOT NULL AND run NOT IN (SELECT run FROM runs"
        " WHERE ended_ms IS NOT NULL ORDER BY started_ms DESC, run LIMIT ?)",
        (RUNS_KEPT,),
    )


def unfinished_run(connection: sqlite3.Connection) -> str | None:
    """The run that has begun and not ended: it is under way, or it died."""
    row = connection.execute("SELECT run FROM runs WHERE ended_ms IS NULL").fetchone()
    return None if row is None else str(row[0])


def end_run(connection: sqlite3.Connection, run: str, now_ms: int) -> None:
    """The next may begin. Raises RunLost."""
    check_run(connection, run)
    connection.execute("UPDATE runs SET ended_ms = ? WHERE run = ?", (now_ms, run))


def check_run(connection: sqlite3.Connection, run: str) -> None:
    """Raises RunLost unless this run is the one under way."""
    row = connection.execute("SELECT ended_ms FROM runs WHERE run = ?", (run,)).fetchone()
    if row is None:
        raise RunLost(run, "this ledger does not know it")
    if row[0] is not None:
        raise RunLost(run, f"it ended or was taken over at {row[0]}")


def take(
    connection: sqlite3.Connection, lease: str, what: str, now_ms: int, expires_ms: int
) -> None:
    """Holds what is there now until ``expires_ms``. Raises ReadLeasesFull."""
    connection.execute("DELETE FROM read_leases WHERE expires_ms <= ?", (now_ms,))
    (held,) = connection.execute("SELECT count(*) FROM read_leases").fetchone()
    if held >= READ_LEASES_MAX:
        raise ReadLeasesFull(READ_LEASES_MAX)
    connection.execute(
        "INSERT INTO read_leases (lease, created_ms, expires_ms, what) VALUES (?, ?, ?, ?)",
        (lease, now_ms, expires_ms, what),
    )


def renew(connection: sqlite3.Connection, lease: str, now_ms: int, expires_ms: int) -> bool:
    """Holds it for longer; False when it is not there any more or has expired."""
    found = connection.execute(
        "UPDATE read_leases SET expires_ms = ? WHERE lease = ? AND expires_ms > ?",
        (expires_ms, lease, now_ms),
    )
    return found.rowcount == 1


def end(connection: sqlite3.Connection, lease: str) -> bool:
    """Whether it was there."""
    found = connection.execute("DELETE FROM read_leases WHERE lease = ?", (lease,))
    return found.rowcount == 1


def live(connection: sqlite3.Connection, now_ms: int) -> list[ReadLease]:
    """Leases that hold now, oldest first."""
    rows = connection.execute(
        "SELECT lease, created_ms, expires_ms, what FROM read_leases WHERE expires_ms > ?"
        " ORDER BY created_ms, lease",
        (now_ms,),
    )
    return [ReadLease(*row) for row in rows]
