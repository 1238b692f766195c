"""What each router is doing, in shared memory, so that any shard can report it.

A row is that of a router's slot (``ledger/routers.py``). The router's owner writes it whole, with
the router's id; a row with another id is of a former router in this slot. Counts are since the
daemon started. Ids only grow, so they are the generation of a slot: the owner of a former router,
perhaps another process, which has not learned yet that this was deleted, does not write over a
later one. Should both write at the same time, the row is right when it changes next.

This module neither logs nor decides.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from shards import layout as at
from shards.barrier import fence
from shards.segment import Segment

_READS_MAX = 100  # of a row that is being written; then its text is taken as it is


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


class RouterBoard:
    """The rows of all routers."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        self._data = segment.data
        self._layout = segment.layout

    def write(self, slot: int, router_id: int, row: RouterRow) -> None:
        """Writes a row, unless it is a later router's; ``reason`` is cut to what it holds."""
        at_row, words = self._layout.router(slot), self._words
        if words[at_row + at.R_ROUTER] > router_id:
            return
        encoded = row.reason.encode()[: at.R_TEXT_BYTES]
        words[at_row + at.R_VERSION] |= 1
        if fence is not None:
            fence()
        words[at_row + at.R_ROUTER] = router_id
        words[at_row + at.R_STATE] = row.state
        words[at_row + at.R_COPIED] = row.copied
        words[at_row + at.R_FILTERED] = row.filtered
        words[at_row + at.R_SKIPPED] = row.skipped
        words[at_row + at.R_LENGTH] = len(encoded)
        start = (at_row + at.R_TEXT) * at.WORD_BYTES
        self._data[start : start + len(encoded)] = encoded
        if fence is not None:
            fence()
        words[at_row + at.R_VERSION] += 1

    def read(self, slot: int, router_id: int) -> RouterRow | None:
        """A router's row; None if its owner has not written it yet."""
        at_row, words = self._layout.router(slot), self._words
        start = (at_row + at.R_TEXT) * at.WORD_BYTES
        for _ in range(_READS_MAX):
            version = words[at_row + at.R_VERSION]
            if fence is not None:
                fence()
            found_id = words[at_row + at.R_ROUTER]
            row = RouterRow(
                RouterPhase(words[at_row + at.R_STATE] & 3),
                words[at_row + at.R_COPIED],
                words[at_row + at.R_FILTERED],
                words[at_row + at.R_SKIPPED],
                bytes(self._data[start : start + min(words[at_row + at.R_LENGTH], at.R_TEXT_BYTES)])
                .decode(errors="replace"),
            )  # fmt: skip
            if fence is not None:
                fence()
            if not version & 1 and words[at_row + at.R_VERSION] == version:
                break
        return row if found_id == router_id else None
