"""Names of orphans: objects that were put and never committed (docs/protocol.md 7).

Which objects those are, the ledger alone does not know: it knows of commits, not of leases
(``daemon/upkeep/collection/orphans.py``).
"""

from __future__ import annotations

from ledger import reads
from ledger.space import deletions
from ledger.space.deletions import ORPHAN
from ledger.tx import ReadTx, WriteTx


def name(tx: WriteTx, objects: list[tuple[str, str]]) -> set[str]:
    """Names those of the (key, locator) that are not committed; returns their keys."""
    committed = reads.committed_keys(tx, [key for key, _ in objects])
    found = [(key, locator, ORPHAN) for key, locator in objects if key not in committed]
    deletions.name(tx, found)
    return {key for key, _, _ in found}


def named(tx: ReadTx, after_key: str = "", limit: int = 1_000) -> list[str]:
    """Orphans that are named for deletion, by key, a page at a time."""
    return deletions.page(tx, ORPHAN, after_key, limit)


def forget(tx: WriteTx, keys: list[str]) -> None:
    """These objects are gone from the store."""
    deletions.forget(tx, keys, ORPHAN)
