"""The one compaction.

Vocabulary: a *run* is one compaction. There is one at a time; whether its process lives a kernel
lock says, not the ledger (decision 0010), so a run that died has no end until the next one ends it.
"""

from __future__ import annotations

from ledger.errors import RunLost, RunUnfinished
from ledger.tx import ReadTx, WriteTx

# Ended runs are kept for people.
RUNS_KEPT = 100


def begin(tx: WriteTx, run: str, owner: str, now_ms: int) -> None:
    """The run under way from now on. Raises RunUnfinished while another has not ended."""
    row = tx.execute("SELECT run, owner FROM runs WHERE ended_ms IS NULL").fetchone()
    if row is not None:
        raise RunUnfinished(*row)
    tx.execute("INSERT INTO runs (run, owner, started_ms) VALUES (?, ?, ?)", (run, owner, now_ms))
    tx.execute(
        "DELETE FROM runs WHERE ended_ms IS NOT NULL AND run NOT IN (SELECT run FROM runs"
        " WHERE ended_ms IS NOT NULL ORDER BY started_ms DESC, run LIMIT ?)",
        (RUNS_KEPT,),
    )


def unfinished(tx: ReadTx) -> str | None:
    """The run that has begun and not ended: it is under way, or it died."""
    row = tx.execute("SELECT run FROM runs WHERE ended_ms IS NULL").fetchone()
    return None if row is None else str(row[0])


def end(tx: WriteTx, run: str, now_ms: int) -> None:
    """The next may begin. Raises RunLost."""
    check(tx, run)
    tx.execute("UPDATE runs SET ended_ms = ? WHERE run = ?", (now_ms, run))


def check(tx: ReadTx, run: str) -> None:
    """Raises RunLost unless this run is the one under way."""
    row = tx.execute("SELECT ended_ms FROM runs WHERE run = ?", (run,)).fetchone()
    if row is None:
        raise RunLost(run, "this ledger does not know it")
    if row[0] is not None:
        raise RunLost(run, f"it ended or was taken over at {row[0]}")
