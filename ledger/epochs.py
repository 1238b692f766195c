"""Starts of a daemon on this ledger, and the epochs in the names of its objects.

Vocabulary: an *incarnation* is one start. The *epoch* is in the key of every new object. An
uncommitted lease whose epoch is below the *epoch floor* can never commit: a recovery takes no
object of such a lease.
"""

from __future__ import annotations

from ledger.tx import ReadTx, WriteTx


def begin_incarnation(tx: WriteTx, now_ms: int, above: int | None = None) -> tuple[int, int]:
    """A new start: (incarnation, epoch), both higher than ever; the floor is that epoch.

    ``above`` is the greatest incarnation that the owner's log knows. The new one is the next,
    whatever failed starts have left here: two starts at the same time both want that number's
    first entry, and one gets it.
    """
    tx.execute(
        "UPDATE state SET incarnation = COALESCE(?, incarnation) + 1, epoch = epoch + 1,"
        " epoch_floor = epoch + 1 WHERE id = 1",
        (above,),
    )
    incarnation, epoch = tx.execute("SELECT incarnation, epoch FROM state WHERE id = 1").fetchone()
    tx.execute(
        "INSERT INTO incarnations (incarnation, epoch, started_ms) VALUES (?, ?, ?)"
        " ON CONFLICT (incarnation) DO UPDATE SET epoch = excluded.epoch,"
        " started_ms = excluded.started_ms",
        (incarnation, epoch, now_ms),
    )
    return incarnation, epoch


def incarnations(tx: ReadTx) -> list[int]:
    """All starts on this ledger: only their orphans are this ledger's to delete."""
    rows = tx.execute("SELECT incarnation FROM incarnations ORDER BY incarnation")
    return [row[0] for row in rows]


def current(tx: ReadTx) -> int:
    """The epoch in the names of new objects."""
    return int(tx.execute("SELECT epoch FROM state WHERE id = 1").fetchone()[0])


def floor(tx: ReadTx) -> int:
    """The lowest epoch that a live lease may have."""
    return int(tx.execute("SELECT epoch_floor FROM state WHERE id = 1").fetchone()[0])


def advance(tx: WriteTx) -> int:
    """The next epoch, from now on in the names of new objects."""
    tx.execute("UPDATE state SET epoch = epoch + 1 WHERE id = 1")
    return current(tx)


def advance_to(tx: WriteTx, epoch: int) -> None:
    """The epoch is at least ``epoch`` from now on."""
    tx.execute("UPDATE state SET epoch = max(epoch, ?) WHERE id = 1", (epoch,))


def raise_floor(tx: WriteTx, epoch_floor: int) -> int:
    """No lease of an epoch below ``epoch_floor`` lives or ever will.

    The floor never falls; the result is the one in force. Raises ValueError above the epoch.
    """
    epoch = current(tx)
    if epoch_floor > epoch:
        raise ValueError(f"epoch floor {epoch_floor} is above the epoch {epoch}")
    tx.execute(
        "UPDATE state SET epoch_floor = ? WHERE id = 1 AND epoch_floor < ?",
        (epoch_floor, epoch_floor),
    )
    return floor(tx)
