"""Handlers of ``/v0/cursors``: create, set, show, list, delete."""

from __future__ import annotations

from daemon.api.handlers.topics import Created
from daemon.intake.cursor_cache import CursorCache
from daemon.schemas.api import (
    CursorDeleted,
    CursorPage,
    CursorSettings,
    CursorsQuery,
    CursorState,
)
from daemon.schemas.errors import invalid
from daemon.schemas.names import check_cursor_name
from ledger.cursors import Setting
from ledger.types import Cursor, CursorPosition


class CursorRoutes:
    """The cursors of the daemon."""

    def __init__(self, cursors: CursorCache) -> None:
        self._cursors = cursors

    async def put(self, name: str, asked: CursorSettings) -> CursorState | Created:
        """Creates a cursor, or puts it somewhere; positions that are not given stay."""
        if len({each.partition for each in asked.positions}) < len(asked.positions):
            raise invalid("positions names a partition twice", field="positions")
        settings = [Setting(each.partition, each.seq, each.expected) for each in asked.positions]
        cursor, positions, created = await self._cursors.put(check_cursor_name(name), settings)
        state = _state(cursor, positions)
        return Created(state) if created else state

    async def get(self, name: str) -> CursorState:
        """One cursor."""
        check_cursor_name(name.removeprefix("router/"))
        return _state(*await self._cursors.get(name))

    async def list(self, query: CursorsQuery) -> CursorPage:
        """A page of cursors, by name."""
        found = await self._cursors.page(query.after, query.limit + 1)
        states = [_state(*each) for each in found[: query.limit]]
        return CursorPage(states, states[-1].cursor if len(found) > query.limit else None)

    async def delete(self, name: str) -> CursorDeleted:
        """Deletes a cursor. Its name may be used again; the new cursor has another id."""
        return CursorDeleted((await self._cursors.delete(check_cursor_name(name))).name)


def _state(cursor: Cursor, positions: list[CursorPosition]) -> CursorState:
    return CursorState(cursor.name, cursor.cursor_id, cursor.kind, positions, cursor.created_ms)
