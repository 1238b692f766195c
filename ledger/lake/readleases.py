"""Leases of bulk readers: what must not be deleted, and until when.

Vocabulary: a *read lease* protects what its holder planned with (objects, files) from deletion
until it ends or expires. An expired lease cannot be renewed, because its protection was lost. Times
are epoch milliseconds.
"""

from __future__ import annotations

from ledger.errors import ReadLeasesFull
from ledger.lake.types import ReadLease
from ledger.tx import ReadTx, WriteTx

# A row is some hundred bytes, and entries of the owner's log carry all of them.
READ_LEASES_MAX = 1_000


def take(tx: WriteTx, lease: str, what: str, now_ms: int, expires_ms: int) -> None:
    """Protects what exists now until ``expires_ms``. Raises ReadLeasesFull."""
    tx.execute("DELETE FROM read_leases WHERE expires_ms <= ?", (now_ms,))
    (held,) = tx.execute("SELECT count(*) FROM read_leases").fetchone()
    if held >= READ_LEASES_MAX:
        raise ReadLeasesFull(READ_LEASES_MAX)
    tx.execute(
        "INSERT INTO read_leases (lease, created_ms, expires_ms, what) VALUES (?, ?, ?, ?)",
        (lease, now_ms, expires_ms, what),
    )


def renew(tx: WriteTx, lease: str, now_ms: int, expires_ms: int) -> bool:
    """Extends a lease; False if it has ended or expired: plan again."""
    found = tx.execute(
        "UPDATE read_leases SET expires_ms = ? WHERE lease = ? AND expires_ms > ?",
        (expires_ms, lease, now_ms),
    )
    return found.rowcount == 1


def end(tx: WriteTx, lease: str) -> bool:
    """Ends a lease; whether it existed."""
    found = tx.execute("DELETE FROM read_leases WHERE lease = ?", (lease,))
    return found.rowcount == 1


def live(tx: ReadTx, now_ms: int) -> list[ReadLease]:
    """Leases that are valid now, oldest first."""
    rows = tx.execute(
        "SELECT lease, created_ms, expires_ms, what FROM read_leases WHERE expires_ms > ?"
        " ORDER BY created_ms, lease",
        (now_ms,),
    )
    return [ReadLease(*row) for row in rows]
