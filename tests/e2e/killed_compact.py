"""A compaction that dies by SIGKILL: ``python -m tests.e2e.killed_compact POINT ...``.

The command itself runs; only the call that a point names kills the process before or after it.
The run's lease, the JVM and what the run wrote are left as the kernel leaves them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import compaction.run.driver
from cli import headgate
from compaction.access.via_daemon import ViaDaemon
from ledger.lake import catalog, lake_tables, runs


def die(*_: Any, **__: Any) -> Any:
    """Ends the process as a loss of power would."""
    os.kill(os.getpid(), signal.SIGKILL)


def behind(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and then the end."""

    def called(*arguments: Any, **named: Any) -> Any:
        function(*arguments, **named)
        die()

    return called


def at_the_owner(of: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """An operation of the daemon, and the end before it is asked for or after its answer."""
    operate = ViaDaemon._operate

    def called(access: ViaDaemon, kind: str, function: Callable[..., Any], *rest: Any) -> Any:
        if function is of and before:
            die()
        result = operate(access, kind, function, *rest)
        if function is of:
            die()
        return result

    return called


Point = tuple[Any, str, Callable[..., Any]]
# Each leaves something else: a row, tables, files, metadata, a pointer, all pointers, a switch.
# A table is committed once its pointer is swapped, and after the switch nothing more is written.
POINTS: dict[str, Point] = {
    "the run has begun": (ViaDaemon, "_operate", at_the_owner(runs.begin, before=False)),
    "before anything is read": (compaction.run.driver, "run_job", die),
    "files are written": (
        compaction.run.driver, "run_job", behind(compaction.run.driver.run_job)
    ),
    "a table's metadata is written": (
        ViaDaemon, "_operate", at_the_owner(catalog.swap, before=True)
    ),
    "a pointer is swapped": (ViaDaemon, "_operate", at_the_owner(catalog.swap, before=False)),
    "all tables are committed": (
        ViaDaemon, "_operate", at_the_owner(lake_tables.switch, before=True)
    ),
    "readers are switched": (
        ViaDaemon, "_operate", at_the_owner(lake_tables.switch, before=False)
    ),
}  # fmt: skip


def arm(point: str) -> None:
    """The next call of the point kills this process."""
    owner, name, replacement = POINTS[point]
    setattr(owner, name, replacement)


def main() -> None:
    """Arms the point and runs the command."""
    point, *arguments = sys.argv[1:]
    arm(point)
    headgate(["compact", *arguments])


if __name__ == "__main__":
    main()
