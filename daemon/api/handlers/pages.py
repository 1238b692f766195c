"""A page of a list, for a sender who may see only a part of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from daemon.access.rights import Rights

T = TypeVar("T")
K = TypeVar("K", str, int)

READ_ROWS = 1_000  # of a read of the ledger, which takes some ms


async def visible_page(
    read: Callable[[K, int], Awaitable[list[T]]],
    key: Callable[[T], K],
    concerns: Callable[[T], tuple[str, ...]],
    rights: Rights,
    after: K,
    limit: int,
) -> tuple[list[T], K | None]:
    """The names after a key that ``rights`` cover, and the key to go on after, if there are more.
    That key is of something that is shown: it must not tell of anything else."""
    rows = limit + 1 if rights.is_for_all_topics else max(limit + 1, READ_ROWS)
    found: list[T] = []
    while True:
        page = await read(after, rows)
        found += [each for each in page if all(map(rights.covers, concerns(each)))]
        if len(found) > limit:
            return found[:limit], key(found[limit - 1])
        if len(page) < rows:
            return found, None
        after = key(page[-1])
