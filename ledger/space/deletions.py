"""Names of what is about to be deleted, and what a collection may delete (docs/protocol.md 7).

A row of ``deletions`` exists from before its object is deleted until after, so a collection that
was killed finds it and continues. Naming happens in a write transaction: what is named is judged by
the commits of that moment, and from then on no commit can have it (``ledger/commits.py``).
"""

from __future__ import annotations

from msgspec import Struct

from ledger import reads
from ledger.lake import readleases
from ledger.tx import ReadTx, WriteTx

# Reasons, and so the kinds of what is named.
ORPHAN = "orphan"
COLLECTED = "collected"
LAKE = "lake"


class DeletionPolicy(Struct, frozen=True):
    """What a collection may delete.

    Objects that are unreferenced since ``unreferenced_to_ms``, which is now minus the grace time,
    and whose commits, up to ``commits_to``, are settled. ``held_from_ms`` is when the oldest read
    lease was taken, None without one.
    """

    unreferenced_to_ms: int
    commits_to: int
    held_from_ms: int | None = None

    def is_held(self, since_ms: int) -> bool:
        """Whether a read lease is as old as the end of the need."""
        return self.held_from_ms is not None and since_ms >= self.held_from_ms

    def releases(self, since_ms: int) -> bool:
        """Whether the grace time is over, and no read lease is as old as the end of the need."""
        return since_ms <= self.unreferenced_to_ms and not self.is_held(since_ms)


def policy(
    tx: ReadTx,
    now_ms: int,
    grace_ms: int,
    commits_to: int = 0,
) -> DeletionPolicy:
    """The policy by the read leases of now; the compaction that is under way has one."""
    held = min((one.created_ms for one in readleases.live(tx, now_ms)), default=None)
    return DeletionPolicy(now_ms - grace_ms, commits_to, held)


def name(tx: WriteTx, rows: list[tuple[str, str, str]]) -> None:
    """Names (key, locator, reason) for deletion."""
    tx.executemany(
        "INSERT INTO deletions (key, locator, reason) VALUES (?, ?, ?)"
        " ON CONFLICT (key) DO NOTHING",
        rows,
    )


def forget(tx: WriteTx, keys: list[str], reason: str) -> None:
    """Removes names: what these keys name is gone from the store."""
    tx.executemany(
        "DELETE FROM deletions WHERE key = ? AND reason = ?", [(key, reason) for key in keys]
    )


def page(tx: ReadTx, reason: str, after_key: str = "", limit: int = 1_000) -> list[str]:
    """Keys that are named for one reason, in order, a page at a time."""
    sql = "SELECT key FROM deletions WHERE key > ? AND reason = ? ORDER BY key LIMIT ?"
    return [row[0] for row in tx.execute(sql, (after_key, reason, limit))]


def named(tx: ReadTx, keys: list[str]) -> set[str]:
    """The keys that are named for deletion."""
    return reads.those_in(tx, "deletions", "key", keys)


def keys(tx: ReadTx) -> set[str]:
    """All keys that are named for deletion."""
    return {row[0] for row in tx.execute("SELECT key FROM deletions")}
