"""``headgate gc`` that dies by SIGKILL at a point: ``python -m tests.e2e.killed_gc POINT``.

The command itself runs; only the call that a point names kills the process before or after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cli import headgate
from compaction.access.via_daemon import ViaDaemon
from daemon.upkeep.collection import collector, unreferenced
from daemon.upkeep.collection.unreferenced import UnreferencedObjects
from daemon.upkeep.exclusive import Exclusive
from tests.e2e.killed_compact import behind, die

KINDS = (ViaDaemon, Exclusive)


def each_access(name: str, kill: Callable[..., Any] | None = None) -> list[Any]:
    """A call on the owner of the ledger, with a daemon and without one."""
    return [(kind, name, kill or behind(getattr(kind, name))) for kind in KINDS]


def objects(name: str) -> list[Any]:
    """A step of the collection of unreferenced objects."""
    return [(UnreferencedObjects, name, behind(getattr(UnreferencedObjects, name)))]


POINTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "unreferenced objects are marked": objects("_mark"),
    "the commits are settled": each_access("settled_commits"),
    "the first objects are named": objects("name"),
    "before an entry has the names": each_access("await_backup", die),
    "an entry has the names": each_access("await_backup"),
    "the first objects are deleted": objects("delete"),
    "the first rows are gone": objects("forget"),
}


def main() -> None:
    """Arms the point and runs the command, a few objects at a time."""
    point, *arguments = sys.argv[1:]
    for owner, name, replacement in POINTS[point]:
        setattr(owner, name, replacement)
    for module, name, size in (
        (collector, "NAMES_MAX", 3), (collector, "PAGE", 2), (unreferenced, "PAGE", 2),
        (unreferenced, "ROWS_MAX", 2),
    ):  # fmt: skip
        setattr(module, name, size)
    headgate(["gc", *arguments])


if __name__ == "__main__":
    main()
