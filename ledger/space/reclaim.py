"""Space in the ledger that nothing needs any more: results of old commits, and free pages.

``objects.result`` repeats what the extents say, and is read only until every shard has followed its
commit and the lease is over. Then it is *cleared*: emptied. The daemon knows which commits those
are (``daemon/upkeep/upkeep.py``). A later request for a cleared result is an error, never an
answer.

Free pages are given back to the file system from the file's end, some at a time; a share of them
is kept for new rows. Ledgers of former versions have no map of their pages: their free pages are
reused, but their files do not shrink.
"""

from __future__ import annotations

from ledger.tx import ReadTx, Transactions, WriteTx

RESULTS_AT_ONCE = 1_000  # in one transaction: some hundred pages
PAGES_AT_ONCE = 1_024  # 4 MiB, moved in one transaction of some tens of milliseconds
PAGES_KEPT_MIN = 1_024
PAGES_KEPT_SHARE = 16

_INCREMENTAL = 2  # PRAGMA auto_vacuum


def clear_results(ledger: Transactions, after: int, to: int) -> int:
    """Clears some results of commits after ``after`` up to ``to``, which no process asks for any
    more.

    Returns up to which commit it is done.
    """
    numbers, looked = ledger.read(uncleared, after, to)
    if numbers:
        ledger.write(clear, numbers)
    return looked


def give_pages_back(ledger: Transactions) -> bool:
    """Gives some free pages back to the file system; False if few are free."""
    if not ledger.read(has_spare_pages):
        return False
    ledger.write(_vacuum)
    return True


def uncleared(tx: ReadTx, after: int, to: int) -> tuple[list[int], int]:
    """Commits after ``after`` with a result, and up to which one was looked."""
    rows = tx.execute(
        "SELECT commit_number, length(result) FROM objects WHERE commit_number > ?"
        " AND commit_number <= ? ORDER BY commit_number LIMIT ?",
        (after, to, RESULTS_AT_ONCE),
    ).fetchall()
    looked = rows[-1][0] if len(rows) == RESULTS_AT_ONCE else to
    return [number for number, length in rows if length], looked


def clear(tx: WriteTx, numbers: list[int]) -> None:
    """Clears the results of these commits."""
    tx.executemany(
        "UPDATE objects SET result = x'' WHERE commit_number = ?", [(number,) for number in numbers]
    )


def has_spare_pages(tx: ReadTx) -> bool:
    """Whether more pages are free than are kept."""
    (mode,) = tx.execute("PRAGMA auto_vacuum").fetchone()
    (free,) = tx.execute("PRAGMA freelist_count").fetchone()
    (pages,) = tx.execute("PRAGMA page_count").fetchone()
    return bool(mode == _INCREMENTAL and free > max(PAGES_KEPT_MIN, pages // PAGES_KEPT_SHARE))


def _vacuum(tx: WriteTx) -> None:
    """Moves pages from the file's end; the file is shorter after the next checkpoint."""
    for _ in range(PAGES_AT_ONCE):
        tx.execute("PRAGMA incremental_vacuum")  # one step, and so one page
