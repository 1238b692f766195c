"""How far commits are settled: a question that a collection asks the daemon, and the answer.

Vocabulary: a commit is *settled* when nobody asks for it any more: each shard has followed the
commit log past it, and its lease is over. Leases and shards are in the daemon's shared memory,
which a command does not see, so both go through the ledger's notes, as the wish for an entry does.

Called inside a transaction.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ledger.tx import ReadTx, WriteTx

WANTED = "settle_wanted"
SETTLED = "settled"


class Settled(Struct, frozen=True):
    """The answer to question ``asked``: commits up to ``commits_to`` of epochs below
    ``epoch_floor`` are settled, and no lease of such an epoch lives."""

    asked: int
    epoch_floor: int
    commits_to: int


_decoder = msgspec.json.Decoder(Settled)


def ask(tx: WriteTx) -> int:
    """Asks; the answer has come when its ``asked`` is this."""
    number = _wanted(tx) + 1
    _note(tx, WANTED, str(number))
    return number


def unanswered(tx: ReadTx) -> int | None:
    """The last question, None when it is answered or there was none."""
    wanted = _wanted(tx)
    if not wanted:
        return None
    last = answer(tx)
    return wanted if last is None or last.asked < wanted else None


def answer(tx: ReadTx) -> Settled | None:
    """The last answer."""
    text = _read(tx, SETTLED)
    return None if text is None else _decoder.decode(text)


def give(tx: WriteTx, settled: Settled) -> None:
    """Answers."""
    _note(tx, SETTLED, msgspec.json.encode(settled).decode())


def _wanted(tx: ReadTx) -> int:
    text = _read(tx, WANTED)
    return 0 if text is None else int(text)


def _read(tx: ReadTx, name: str) -> str | None:
    row = tx.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _note(tx: WriteTx, name: str, value: str) -> None:
    tx.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )
