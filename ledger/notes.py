"""Notes: texts by name in the table ``meta``."""

from __future__ import annotations

from ledger.tx import ReadTx, WriteTx


def get(tx: ReadTx, name: str) -> str | None:
    """The note of this name."""
    row = tx.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def number(tx: ReadTx, name: str) -> int:
    """The note of this name, a number; 0 without one."""
    return int(get(tx, name) or 0)


def raise_to(tx: WriteTx, name: str, least: int) -> None:
    """The number of this note is at least ``least`` from now on."""
    if least > number(tx, name):
        put(tx, name, str(least))


def put(tx: WriteTx, name: str, value: str) -> None:
    """Keeps a note in place of an earlier one of the same name."""
    tx.execute(
        "INSERT INTO meta (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )
