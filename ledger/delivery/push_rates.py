"""What senders of push subscriptions have learned about the speed of their receivers.

Lifecycle of a row: written by a flush after the sender's mode, rate or ceiling has changed ->
replaced by later ones -> deleted with its subscription. It is for a start of the daemon: while one
runs, the shared words have it (``shards/boards/pushboard.py``). The owner's log does not carry it;
a recovered ledger begins to learn again, which takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ledger.tx import ReadTx, WriteTx

_WRITE_SQL = """INSERT INTO push_rates (subscription_id, sender, mode, rate, ceiling)
    SELECT subscription_id, ?, ?, ?, ? FROM subscriptions
    WHERE subscription_id = ? AND deleted_ms IS NULL
    ON CONFLICT (subscription_id, sender)
    DO UPDATE SET mode = excluded.mode, rate = excluded.rate, ceiling = excluded.ceiling"""


class PushRate(Struct, frozen=True):
    """What sender number ``sender`` has learned: the mode of its limiter, attempts a second, and
    how many the receiver takes (None: nothing failed yet)."""

    subscription_id: int
    sender: int
    mode: int
    rate: float
    ceiling: float | None


def write(tx: WriteTx, rates: Iterable[PushRate]) -> None:
    """Writes these down, but for subscriptions that do not live."""
    tx.executemany(
        _WRITE_SQL,
        [(each.sender, each.mode, each.rate, each.ceiling, each.subscription_id) for each in rates],
    )


def of(tx: ReadTx, subscription_id: int) -> dict[int, PushRate]:
    """What the senders of a subscription had learned, by their numbers."""
    rows = tx.execute(
        "SELECT sender, mode, rate, ceiling FROM push_rates WHERE subscription_id = ?",
        (subscription_id,),
    )
    return {sender: PushRate(subscription_id, sender, *learned) for sender, *learned in rows}


def forget(tx: WriteTx, subscription_id: int) -> None:
    """Deletes the rows of a subscription that is deleted."""
    tx.execute("DELETE FROM push_rates WHERE subscription_id = ?", (subscription_id,))
