"""Lists that the daemon gives a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from commands.client.http import Client, decoded

PAGES_MAX = 100_000  # ends the loop if a daemon always answers with another page

Page = TypeVar("Page")


def pages(
    client: Client,
    path: str,
    type_: type[Page],
    next_of: Callable[[Page], str | None],
    parameter: str = "after",
    *,
    after: str | None = None,
    patience_ms: float = 0,
) -> Iterator[Page]:
    """All pages of a list, from ``after`` on; ``next_of`` gives what ``parameter`` must be for the
    one after."""
    for _ in range(PAGES_MAX):
        query = None if after is None else {parameter: after}
        answer = client.call("GET", path, query=query, patience_ms=patience_ms)
        page = decoded(client, answer, type_)
        yield page
        after = next_of(page)
        if not after:
            break
