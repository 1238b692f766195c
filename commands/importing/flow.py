"""Governed streaming: what one source's import does next. Pure: the shell reads, sends and waits.

Lifecycle of a block: offered -> leased, sub-block by sub-block, as the byte budget allows -> its
dead letters are stored -> its rows are stored with the step of the cursor that passes them -> its
lease ends.

- Everything up to the position of the cursor is dealt with: stored, filtered, or a dead letter.
  So the cursor never passes a dead letter that is not stored.
- Steps do not depend on the number of records. What becomes no rows rides on the next step; a
  stretch without any is passed by a *settlement*, an explicit setting of the cursor, while nothing
  is in flight.
- An error ends the reading. What was read before it is stored, and the cursor stays before it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from commands.importing.budget_leases import Leases
from commands.importing.chain import Chain, ImportStep, SubBlockRows
from commands.importing.reading.blocks import SourceBlock, SubBlock

# A setting is a transaction, after which all shards read their cursors again: hence not often.
# What it spares is reading as much of the source again after a kill.
SETTLE_BYTES = 64 << 20


class Limits(NamedTuple):
    """The limits of one request."""

    bytes: int
    records: int


class _Open(NamedTuple):
    """A sub-block with a lease: all of its rows, if it has any, are up to ``last_row``."""

    next: int
    size: int


class Flow:
    """The import of one source. ``dead`` is the chain of its dead letters."""

    def __init__(self, at: int, dead_at: int, leases: Leases, limits: Limits) -> None:
        self.main = Chain(at)
        self.dead = Chain(dead_at)
        self.dealt = at  # the position up to which everything is dealt with
        self._leases = leases
        self._limits = limits
        self._block: SourceBlock | None = None
        self._open: deque[_Open] = deque()
        self._has_ended = False

    def wants_block(self) -> bool:
        """Whether the next block may be read."""
        return self._block is None and not self._has_ended

    def offer(self, block: SourceBlock) -> None:
        """A block that begins where the one before ended."""
        if not self.wants_block():
            raise ValueError("a block was offered before the one before was leased")
        self._block = block

    def end(self) -> None:
        """Nothing more is read, because the source ends or cannot be read."""
        self._has_ended = True

    def lease(self) -> None:
        """Takes what the budget allows now of the block that was offered."""
        while self._block is not None:
            bytes_max = min(self._limits.bytes, self._leases.budget.bytes)
            sub_block = self._block.first(bytes_max, self._limits.records)
            if not self._leases.take(sub_block.size):
                return
            self._block.take(sub_block)
            if self._block.is_empty:
                self._block = None
            self._open.append(_Open(sub_block.next, sub_block.size))
            self.dead.add(_load(sub_block, dead=True))
            self.main.add(_load(sub_block, dead=False))
        self.release()

    def next_dead(self, now: float) -> ImportStep | None:
        """The request of dead letters to send now."""
        return self.dead.next_step(now)

    def next_step(self, now: float) -> ImportStep | None:
        """The request of rows to send now; it passes no dead letter that is pending."""
        return self.main.next_step(now, self.dead.pending_from)

    def release(self) -> None:
        """Gives back the leases of what is dealt with; to be called after each answer."""
        pending = [
            first for first in (self.main.pending_from, self.dead.pending_from) if first is not None
        ]
        below = min(pending, default=None)
        while self._open and (below is None or self._open[0].next < below):
            done = self._open.popleft()
            self._leases.give_back(done.size)
            self.dealt = max(self.dealt, done.next)

    def settlement(self, *, at_least: int = SETTLE_BYTES) -> int | None:
        """Where to put the cursor, if it is this far from where it could be; else None."""
        if self.main.in_flight or self.main.pending_from is not None:
            return None
        return self.dealt if self.dealt - self.main.position >= at_least else None

    @property
    def is_idle(self) -> bool:
        """Whether everything that was read is dealt with. A settlement may remain."""
        return self._block is None and not self._open

    @property
    def is_done(self) -> bool:
        """Whether everything is dealt with, and the cursor says so."""
        return self._has_ended and self.is_idle and self.main.position >= self.dealt

    def abandon(self) -> None:
        """Gives up what is not stored, and all leases."""
        self._block = None
        self._has_ended = True
        while self._open:
            self._leases.give_back(self._open.popleft().size)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.main.check_invariants()
        self.dead.check_invariants()
        pending = self.dead.pending_from
        assert pending is None or self.main.position < pending or self.main.rows_known
        at = self.dealt
        for each in self._open:
            assert at <= each.next
            at = each.next


def _load(sub_block: SubBlock, *, dead: bool) -> SubBlockRows:
    positions: list[int] = []
    rows: list[bytes] = []
    ends_lease = not dead or not any(record.rows for record in sub_block.records)
    for record in sub_block.records:
        some = record.dead if dead else record.rows
        for row in some:
            positions.append(record.next)
            rows.append(row)
    return SubBlockRows(sub_block.next, positions, rows, sub_block.size if ends_lease else 0)
