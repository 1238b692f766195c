"""Clients' cursors as one shard knows them: a cache over the ledger, by name and partition.

It holds what a frame carries of a cursor: its id and its last setting (``ledger/types.py``), never
where the cursor is: only the commit knows that. Every creation, setting and deletion changes a
shared word before it is answered; a shard that finds it changed forgets everything. So a client
that has learned of a setting sends requests that carry it.

Calls that read or change the ledger block, so they run in the shard's ledger thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from daemon.schemas.api import AdvanceRequest
from daemon.schemas.errors import ApiError, cursor_moved, cursor_unknown
from delivery.ledger_thread import LedgerThread
from ledger import changes, cursors
from ledger.cursors import CursorPlace, Setting, SourceTold
from ledger.errors import CursorMissing, CursorMoved, CursorsFull
from ledger.ledger import Ledger
from ledger.types import Advance, Cursor, CursorPosition
from shards import layout as at
from shards.clock import wall_ms
from shards.segment import Segment

PLACES_MAX = 10_000  # about 300 bytes each; the cache is cleared when it is full
T = TypeVar("T")


class CursorNotCached(Exception):
    """The cursor of ``asked`` must be loaded before a request that advances it is published."""

    def __init__(self, asked: AdvanceRequest) -> None:
        super().__init__(asked)
        self.asked = asked


class CursorCache:
    """The cursors of one shard."""

    def __init__(
        self, segment: Segment, ledger: LedgerThread, ledger_lock: AbstractContextManager[None]
    ) -> None:
        self._words = segment.words
        self._ledger = ledger
        self._ledger_lock = ledger_lock
        self._places: dict[tuple[str, int], CursorPlace] = {}
        self._version = 0

    def advance(self, asked: AdvanceRequest) -> Advance:
        """What the frame of a request carries. Raises CursorNotCached."""
        version = self._now()
        if version != self._version:
            self._places.clear()
            self._version = version
        place = self._places.get((asked.cursor, asked.partition))
        if place is None:
            raise CursorNotCached(asked)
        return Advance(
            place.cursor_id, asked.partition, asked.expected, asked.next,
            False, asked.cursor, place.set_change, place.set_seq,
        )  # fmt: skip

    async def load(self, asked: AdvanceRequest) -> None:
        """Reads the cursor into the cache, unless cursors change meanwhile. Raises ApiError."""
        version = self._now()
        place = await self._ledger.read(cursors.place, asked.cursor, asked.partition)
        if place is None:
            raise cursor_unknown(asked.cursor)
        if version == self._version == self._now():
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            self._places[asked.cursor, asked.partition] = place

    async def put(
        self, name: str, settings: Sequence[Setting], told: SourceTold | None = None
    ) -> tuple[Cursor, list[CursorPosition], bool]:
        """Creates a client's cursor if there is none, puts it where ``settings`` say and notes what
        was ``told`` of it: all or nothing. The last value says whether it was created. Raises
        ApiError 409 and 412."""

        def change(ledger: Ledger) -> tuple[Cursor, list[CursorPosition], bool]:
            with ledger.writing() as tx:
                cursor, created = cursors.create(tx, name, "client", wall_ms())
                positions = cursors.set_positions(tx, name, "client", settings)
                if told is not None:
                    cursor = cursors.tell(tx, name, "client", told, wall_ms())
                return cursor, positions, created

        try:
            return await self._change(change)
        except CursorsFull as error:
            detail = {"limit_cursors": error.maximum}
            raise ApiError(409, "cursors_full", str(error), detail) from error
        except CursorMoved as error:
            raise cursor_moved(name, error.partition, error.expected, error.position) from error

    async def delete(self, name: str) -> Cursor:
        """Deletes a client's cursor. Raises ApiError 404."""
        try:
            return await self._change(
                lambda ledger: ledger.write(cursors.delete, name, "client", wall_ms())
            )
        except CursorMissing as error:
            raise cursor_unknown(name) from error

    async def get(self, name: str) -> tuple[Cursor, list[CursorPosition]]:
        """A cursor and where it is. Raises ApiError 404."""

        def question(ledger: Ledger) -> tuple[Cursor, list[CursorPosition]] | None:
            with ledger.reading() as tx:
                cursor = cursors.find(tx, name)
                if cursor is None:
                    return None
                return cursor, cursors.positions(tx, cursor.cursor_id)

        found = await self._ledger.run(lambda: question(self._ledger.ledger))
        if found is None:
            raise cursor_unknown(name)
        return found

    async def page(self, after: str, limit: int) -> list[tuple[Cursor, list[CursorPosition]]]:
        """Cursors after a name, in the order of names."""

        def question(ledger: Ledger) -> list[tuple[Cursor, list[CursorPosition]]]:
            with ledger.reading() as tx:
                found = cursors.page(tx, after, limit)
                return [(each, cursors.positions(tx, each.cursor_id)) for each in found]

        return await self._ledger.run(lambda: question(self._ledger.ledger))

    def _now(self) -> int:
        # Both only grow. A shard may die between a change and the change of the word.
        return int(self._words[at.G_CURSORS] + self._words[at.G_DEATHS])

    async def _change(self, change: Callable[[Ledger], T]) -> T:
        ledger = self._ledger.ledger

        def changed() -> T:
            result = change(ledger)
            with self._ledger_lock:
                number = ledger.read(changes.latest)
                self._words[at.G_CURSORS] = max(self._words[at.G_CURSORS], number)
            return result

        return await self._ledger.run(changed)
