"""What senders of push subscriptions have learned about the speed of their receivers.

Lifecycle of a row: written by a flush after the sender's mode, rate or ceiling has changed ->
replaced by later ones -> deleted with its subscription. It is for a start of the daemon: while one
runs, the shared words have it (``shards/boards/pushboard.py``). The owner's log does not carry it;
a recovered ledger begins to learn again, which takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ledger.tx import ReadTx, WriteTx

_WRITE_SQL = """INSERT INTO push_rates (subscription_id, sender, mode, rate, ceiling)
    SELECT subscription_id, ?, ?, ?, ? FROM subscriptions
    WHERE subscription_id = ? AND deleted_ms IS NULL
    ON CONFLICT (subscription_id, sender)
    DO UPDATE SET mode = excluded.mode, rate = excluded.rate, ceiling = excluded.ceiling"""


class LearnedRate(NamedTuple):
    """What a sender has learned: the mode of its limiter, attempts a second, and how many the
    receiver takes (None: nothing failed yet)."""

    mode: int
    rate: float
    ceiling: float | None


SenderId = tuple[int, int]
"""The id of a subscription, and the number of one of its senders."""


def write(tx: WriteTx, rates: Mapping[SenderId, LearnedRate]) -> None:
    """Writes these down, except for subscriptions that were deleted."""
    tx.executemany(
        _WRITE_SQL,
        [(sender, *rate, subscription_id) for (subscription_id, sender), rate in rates.items()],
    )


def of(tx: ReadTx, subscription_id: int) -> dict[int, LearnedRate]:
    """What the senders of a subscription had learned, by their numbers."""
    rows = tx.execute(
        "SELECT sender, mode, rate, ceiling FROM push_rates WHERE subscription_id = ?",
        (subscription_id,),
    )
    return {sender: LearnedRate(*learned) for sender, *learned in rows}


def forget(tx: WriteTx, subscription_id: int) -> None:
    """Deletes the rows of a subscription that is deleted."""
    tx.execute("DELETE FROM push_rates WHERE subscription_id = ?", (subscription_id,))
