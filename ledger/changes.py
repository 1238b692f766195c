"""The change number: counts changes of delivery (cursors, routers), apart from topics and commits.

Rows of delivery carry the number of their last change, so an entry of the owner's log holds only
the rows that changed. Unlike ``catalog_version`` it empties no shard's cache of topics.
"""

from __future__ import annotations

from ledger.tx import ReadTx, WriteTx


def latest(tx: ReadTx) -> int:
    """The number of the last change, 0 before the first."""
    return int(tx.execute("SELECT change_number FROM state WHERE id = 1").fetchone()[0])


def following(tx: WriteTx) -> int:
    """The number of the change that this transaction makes; each call gives another."""
    tx.execute("UPDATE state SET change_number = change_number + 1 WHERE id = 1")
    return latest(tx)
