"""Requests about cursors."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from commands.client.http import Client, decoded
from daemon.api.schemas import CursorPage, CursorSetting, CursorSettings, CursorState

PAGES_MAX = 100_000  # ends the loop if a daemon always answers with another page


def cursor_path(name: str) -> str:
    """``/v0/cursors/{cursor}``, quoted."""
    return f"/v0/cursors/{quote(name, safe=':')}"


def all_cursors(client: Client) -> Iterator[CursorState]:
    """All cursors, in the order of their names."""
    after: str | None = None
    for _ in range(PAGES_MAX):
        query = None if after is None else {"after": after}
        page = decoded(client, client.call("GET", "/v0/cursors", query=query), CursorPage)
        yield from page.cursors
        after = page.next_after
        if not after:
            break


def cursor_of(client: Client, name: str) -> CursorState:
    """One cursor. Raises Refused with the code ``cursor_unknown`` if it does not exist."""
    return decoded(client, client.call("GET", cursor_path(name)), CursorState)


def put_cursor(client: Client, name: str, positions: list[CursorSetting]) -> CursorState:
    """Creates a cursor if there is none, and sets positions. Raises Refused."""
    body = msgspec.json.encode(CursorSettings(positions))
    return decoded(client, client.call("PUT", cursor_path(name), body), CursorState)
