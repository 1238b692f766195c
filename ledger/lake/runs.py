"""The one compaction.

Vocabulary: a *run* is one compaction. There is one at a time. It *lives* while it has not ended and
the read lease that bears its name has not expired: the lease says that its driver lives, and keeps
what it reads from being deleted. A run whose lease expired is lost, and the next one ends it.
"""

from __future__ import annotations

from ledger.errors import RunLost, RunUnfinished
from ledger.lake import readleases
from ledger.tx import ReadTx, WriteTx

# Ended runs are kept for people.
RUNS_KEPT = 100
LEASE_MS = 60_000


def begin(
    tx: WriteTx,
    run: str,
    owner: str,
    now_ms: int,
    lease_ms: int = LEASE_MS,
    dead: str | None = None,
) -> None:
    """The run under way from now on. Raises RunUnfinished while another lives.

    ``dead`` is a run whose driver the caller knows to be gone. Beginning again changes nothing.
    Raises RunLost for a run that has ended.
    """
    _check_not_ended(tx, run)
    row = tx.execute("SELECT run, owner FROM runs WHERE ended_ms IS NULL").fetchone()
    if row is not None and row[0] == run:
        return
    if row is not None:
        if row[0] != dead and _expires_ms(tx, row[0]) > now_ms:
            raise RunUnfinished(*row)
        _end(tx, row[0], now_ms)
    readleases.take(tx, run, f"compaction by {owner}", now_ms, now_ms + lease_ms)
    tx.execute("INSERT INTO runs (run, owner, started_ms) VALUES (?, ?, ?)", (run, owner, now_ms))
    tx.execute(
        "DELETE FROM runs WHERE ended_ms IS NOT NULL AND run NOT IN (SELECT run FROM runs"
        " WHERE ended_ms IS NOT NULL ORDER BY started_ms DESC, run LIMIT ?)",
        (RUNS_KEPT,),
    )


def renew(tx: WriteTx, run: str, now_ms: int, lease_ms: int = LEASE_MS) -> None:
    """The run lives for ``lease_ms`` more. Raises RunLost."""
    check(tx, run, now_ms)
    readleases.renew(tx, run, now_ms, now_ms + lease_ms)


def unfinished(tx: ReadTx) -> tuple[str, str] | None:
    """The run that has begun and not ended, and its owner: it is under way, or it died."""
    row = tx.execute("SELECT run, owner FROM runs WHERE ended_ms IS NULL").fetchone()
    return None if row is None else (str(row[0]), str(row[1]))


def latest(tx: ReadTx, limit: int, now_ms: int) -> list[tuple[str, str, int, int | None, bool]]:
    """The runs that began last, the newest first: id, owner, beginning, end, whether it lives."""
    rows = tx.execute(
        "SELECT run, owner, started_ms, ended_ms FROM runs ORDER BY started_ms DESC, run LIMIT ?",
        (limit,),
    ).fetchall()
    return [(*row, row[3] is None and _expires_ms(tx, row[0]) > now_ms) for row in rows]


def living(tx: ReadTx, now_ms: int) -> str | None:
    """The run that lives."""
    found = unfinished(tx)
    return found[0] if found is not None and _expires_ms(tx, found[0]) > now_ms else None


def end(tx: WriteTx, run: str, now_ms: int) -> None:
    """The next may begin. Raises RunLost."""
    check(tx, run, now_ms)
    _end(tx, run, now_ms)


def check(tx: ReadTx, run: str, now_ms: int) -> None:
    """Raises RunLost unless this run lives."""
    if not _check_not_ended(tx, run):
        raise RunLost(run, "this ledger does not know it")
    if _expires_ms(tx, run) <= now_ms:
        raise RunLost(run, "its driver was not heard of in time")


def _check_not_ended(tx: ReadTx, run: str) -> bool:
    """Whether the ledger knows a run."""
    row = tx.execute("SELECT ended_ms FROM runs WHERE run = ?", (run,)).fetchone()
    if row is not None and row[0] is not None:
        raise RunLost(run, f"it ended or was taken over at {row[0]}")
    return row is not None


def _end(tx: WriteTx, run: str, now_ms: int) -> None:
    tx.execute("UPDATE runs SET ended_ms = ? WHERE run = ?", (now_ms, run))
    readleases.end(tx, run)


def _expires_ms(tx: ReadTx, run: str) -> int:
    row = tx.execute("SELECT expires_ms FROM read_leases WHERE lease = ?", (run,)).fetchone()
    return 0 if row is None else int(row[0])
