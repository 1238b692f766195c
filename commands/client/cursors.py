"""Requests about cursors."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from commands.client.http import Client, Refused, decoded
from commands.client.pages import pages
from daemon.schemas.api import CursorPage, CursorSetting, CursorSource, CursorState


def cursor_path(name: str) -> str:
    """``/v0/cursors/{cursor}``, quoted."""
    return f"/v0/cursors/{quote(name, safe=':')}"


def all_cursors(
    client: Client, after: str | None = None, patience_ms: float = 0
) -> Iterator[CursorState]:
    """All cursors, or those with names after this one, in the order of their names."""
    for page in pages(
        client, "/v0/cursors", CursorPage, lambda page: page.next_after,
        after=after, patience_ms=patience_ms,
    ):  # fmt: skip
        yield from page.cursors


def cursor_of(client: Client, name: str, patience_ms: float = 0) -> CursorState:
    """One cursor. Raises Refused with the code ``cursor_unknown`` if it does not exist."""
    body = client.call("GET", cursor_path(name), patience_ms=patience_ms)
    return decoded(client, body, CursorState)


def put_cursor(
    client: Client,
    name: str,
    positions: list[CursorSetting],
    patience_ms: float = 0,
    source: CursorSource | None = None,
) -> CursorState:
    """Creates a cursor if there is none, sets positions, and tells its source. Raises Refused."""
    settings: dict[str, list[CursorSetting] | CursorSource] = {"positions": positions}
    if source is not None:
        settings["source"] = source
    body = msgspec.json.encode(settings)
    answer = client.call("PUT", cursor_path(name), body, patience_ms=patience_ms)
    return decoded(client, answer, CursorState)


def delete_cursor(client: Client, name: str, patience_ms: float = 0) -> None:
    """Deletes a cursor, if there is one."""
    try:
        client.call("DELETE", cursor_path(name), patience_ms=patience_ms)
    except Refused as error:
        if error.code != "cursor_unknown":
            raise
