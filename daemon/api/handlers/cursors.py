"""Handlers of ``/v0/cursors``: create, set, show, list, delete."""

from __future__ import annotations

from daemon.access.rights import Rights
from daemon.api.handlers.pages import visible_page
from daemon.api.handlers.topics import Created
from daemon.intake.cursor_cache import CursorCache
from daemon.schemas.api import (
    CursorDeleted,
    CursorPage,
    CursorSettings,
    CursorSourceState,
    CursorsQuery,
    CursorState,
)
from daemon.schemas.errors import invalid
from daemon.schemas.names import check_cursor_name
from ledger.cursors import RECORDS_SCHEME, SOURCE_KNOWN_MS, Setting, SourceTold
from ledger.types import Cursor, CursorPosition
from shards.clock import wall_ms


class CursorRoutes:
    """The cursors of the daemon."""

    def __init__(self, cursors: CursorCache) -> None:
        self._cursors = cursors

    async def put(self, name: str, rights: Rights, asked: CursorSettings) -> CursorState | Created:
        """Creates a cursor, or puts it somewhere; positions that are not given stay."""
        rights.check_topics(name)
        if len({each.partition for each in asked.positions}) < len(asked.positions):
            raise invalid("positions names a partition twice", field="positions")
        settings = [Setting(each.partition, each.seq, each.expected) for each in asked.positions]
        source = asked.source
        told = None
        if source is not None:
            told = SourceTold(source.name, source.topic_id, source.size_bytes)
        cursor, positions, created = await self._cursors.put(
            check_cursor_name(name), settings, told
        )
        state = _state(cursor, positions)
        return Created(state) if created else state

    async def get(self, name: str, rights: Rights) -> CursorState:
        """One cursor."""
        rights.check_topics(name)
        check_cursor_name(name.removeprefix("router/"))
        return _state(*await self._cursors.get(name))

    async def list(self, query: CursorsQuery, rights: Rights) -> CursorPage:
        """A page of cursors, by name."""
        found, more = await visible_page(
            self._cursors.page, lambda each: each[0].name, lambda each: (each[0].name,), rights,
            query.after, query.limit,
        )  # fmt: skip
        return CursorPage([_state(*each) for each in found], more)

    async def delete(self, name: str, rights: Rights) -> CursorDeleted:
        """Deletes a cursor. Its name may be used again; the new cursor has another id."""
        rights.check_topics(name)
        return CursorDeleted((await self._cursors.delete(check_cursor_name(name))).name)


def _state(cursor: Cursor, positions: list[CursorPosition]) -> CursorState:
    return CursorState(
        cursor.name, cursor.cursor_id, cursor.kind, positions, cursor.created_ms,
        _source(cursor, positions),
    )  # fmt: skip


def _source(cursor: Cursor, positions: list[CursorPosition]) -> CursorSourceState | None:
    if cursor.source is None or cursor.source_topic_id is None or cursor.told_ms is None:
        return None
    at = next((each.seq for each in positions if each.partition == 0), 0)
    size, lag = cursor.source_bytes, None
    of_records = cursor.source.startswith(RECORDS_SCHEME)
    if size is not None and (at >= size or cursor.told_ms >= wall_ms() - SOURCE_KNOWN_MS):
        lag = max(0, size - at)
    return CursorSourceState(
        cursor.source, cursor.source_topic_id, size,
        None if of_records else lag, cursor.told_ms, lag if of_records else None,
    )  # fmt: skip
