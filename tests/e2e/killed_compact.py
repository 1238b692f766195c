"""``headgate compact`` that dies by SIGKILL: ``python -m tests.e2e.killed_compact POINT ...``.

The command itself runs; only the call that a point names kills the process before or behind it.
The lock, the JVM and what the run wrote are left as the kernel leaves them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import compaction.run.driver
import compaction.tables.commit
from cli import headgate
from daemon.upkeep.compact import Run
from ledger.lake import lake_tables
from ledger.ledger import Ledger


def die(*_: Any, **__: Any) -> Any:
    """Ends the process as a loss of power would."""
    os.kill(os.getpid(), signal.SIGKILL)


def behind(function: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """The same, and then the end, at the call of this number."""
    left = [times]

    def called(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        left[0] -= 1
        if not left[0]:
            die()
        return result

    return called


def behind_write(of: Callable[..., Any]) -> Callable[..., Any]:
    """``Ledger.write``, and then the end, when it was ``of`` that wrote: after the transaction."""
    write = Ledger.write

    def called(ledger: Ledger, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        result = write(ledger, function, *arguments, **named)
        if function is of:
            die()
        return result

    return called


POINTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "before anything is read": (compaction.run.driver, "run_job", die),
    "files are written": (
        compaction.run.driver, "run_job", behind(compaction.run.driver.run_job)
    ),
    "one of two tables is committed": (
        compaction.tables.commit, "commit_table", behind(compaction.tables.commit.commit_table)
    ),
    "all tables are committed": (lake_tables, "switch", die),
    "readers are switched": (Ledger, "write", behind_write(lake_tables.switch)),
    "before the run's end": (Run, "end", die),
}  # fmt: skip


def main() -> None:
    """Arms the point and runs the command."""
    point, *arguments = sys.argv[1:]
    owner, name, replacement = POINTS[point]
    setattr(owner, name, replacement)
    headgate(["compact", *arguments])


if __name__ == "__main__":
    main()
