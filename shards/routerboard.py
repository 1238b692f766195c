"""What each router is doing, in shared memory, so that any shard can report it.

A row is that of a router's slot (``ledger/routers.py``, ``rowboard.py``). Its owner writes it at a
heartbeat if it has changed.

This module neither logs nor decides.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from shards import layout as at
from shards.rowboard import RowBoard, WrittenRow
from shards.segment import Segment


class RouterPhase(IntEnum):
    """What a router does. A number is a word's value, not a contract."""

    RUNNING = 0
    PAUSED = 1  # by request
    HELD = 2  # its destination takes nothing now
    STOPPED = 3  # it cannot go on


class RouterRow(Struct, frozen=True):
    """A router's row: counts of the source's records, and why it does not run, if it does not."""

    state: RouterPhase = RouterPhase.RUNNING
    copied: int = 0
    filtered: int = 0
    skipped: int = 0
    reason: str = ""
    router: str = ""
    source: str = ""
    dest: str = ""
    lag: int = 0  # offsets of the source that are not dealt with, as of the last look
    stands_since_ns: int = 0  # since when it stands still; 0: it does not
    stands: str = ""  # at which record, and why (delivery/standstill.py)


class RouterBoardRow(NamedTuple):
    """A row and whose it is."""

    slot: int
    router_id: int
    row: RouterRow


_STATE, _SINCE = 0, 1  # places of numbers


class RouterBoard:
    """The rows of all routers."""

    def __init__(self, segment: Segment) -> None:
        self._rows = RowBoard(segment, segment.layout.router(0), at.ROUTER_SLOTS, 6, 5)

    def write(self, slot: int, router_id: int, row: RouterRow) -> None:
        """Writes a row, unless it is a later router's; texts are cut to what it holds."""
        numbers = [
            row.state, row.stands_since_ns, row.lag, row.copied, row.filtered, row.skipped,
        ]  # fmt: skip
        texts = [row.router, row.source, row.dest, row.reason, row.stands]
        self._rows.write(slot, router_id, numbers, texts)

    def is_of(self, slot: int, router_id: int) -> bool:
        """Whether the row is this router's."""
        return self._rows.is_of(slot, router_id)

    def free(self, slot: int, router_id: int) -> None:
        """Frees the row of a deleted router, unless it is another one's already."""
        self._rows.free(slot, router_id)

    def read(self, slot: int, router_id: int) -> RouterRow | None:
        """A router's row; None if its owner has not written it yet."""
        found = self._rows.read(slot)
        return _row(found) if found.id == router_id else None

    def rows(self) -> list[RouterBoardRow]:
        """All rows, by slot."""
        return self._those(self._rows.slots())

    def standing(self) -> list[RouterBoardRow]:
        """Those that stand still. Costs two columns if none does."""
        return self._those(self._rows.slots(_SINCE))

    def phases(self) -> list[tuple[int, int]]:
        """The id and the state of each slot's row."""
        return self._rows.numbers(_STATE)

    def _those(self, slots: list[int]) -> list[RouterBoardRow]:
        found = [(slot, self._rows.read(slot)) for slot in slots]
        return [RouterBoardRow(slot, row.id, _row(row)) for slot, row in found if row.id]


def _row(found: WrittenRow) -> RouterRow:
    state, since_ns, lag, copied, filtered, skipped = found.numbers
    router, source, dest, reason, stands = found.texts
    return RouterRow(
        RouterPhase(state & 3), copied, filtered, skipped, reason, router, source, dest, lag,
        since_ns, stands,
    )  # fmt: skip
