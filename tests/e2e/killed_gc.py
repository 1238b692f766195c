"""``headgate gc`` that dies by SIGKILL at a point: ``python -m tests.e2e.killed_gc POINT``.

The command itself runs; only the call that a point names kills the process before or after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import daemon.upkeep.collect_spent
from cli import headgate
from daemon.upkeep.collect_spent import SpentCollection
from daemon.upkeep.cover import Alone, Beside
from ledger.ledger import Ledger
from ledger.space import unreferenced
from tests.e2e.killed_compact import behind, behind_write, die
from uploader.stores.retrying import RetryingStore

POINTS: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
    "free objects are marked": [(SpentCollection, "_mark", behind(SpentCollection._mark))],
    "the commits are settled": [
        (Beside, "settle", behind(Beside.settle)), (Alone, "settle", behind(Alone.settle)),
    ],
    "the first objects are named": [(Ledger, "write", behind_write(unreferenced.name))],
    "before an entry has the names": [(SpentCollection, "_told", die)],
    "an entry has the names": [(SpentCollection, "_told", behind(SpentCollection._told))],
    "the first objects are deleted": [
        (RetryingStore, "delete", behind(RetryingStore.delete))
    ],
    "the first rows are gone": [(Ledger, "write", behind_write(unreferenced.forget))],
}  # fmt: skip


def main() -> None:
    """Arms the point and runs the command, a few objects at a time."""
    point, *arguments = sys.argv[1:]
    for owner, name, replacement in POINTS[point]:
        setattr(owner, name, replacement)
    for name, size in (("NAMES_AT_ONCE", 3), ("PAGE_OBJECTS", 2), ("ROWS_AT_ONCE", 2)):
        setattr(daemon.upkeep.collect_spent, name, size)
    headgate(["gc", *arguments])


if __name__ == "__main__":
    main()
