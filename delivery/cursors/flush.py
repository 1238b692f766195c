"""The flush: moves of our cursors that ride on no commit, in one transaction a second.

A router whose filter lets nothing through has no frame to move its cursor with. It offers such a
*move* instead, from where it knows the cursor to be. One round::

    pause -> ask each source for its moves -> one transaction, in this module's thread
          -> tell each source which of its moves were made

A move is conditional: where the cursor is not at ``expected`` (its owner was stopped meanwhile, and
another has moved it), nothing is written, and the source looks at the ledger again. So a flush that
comes late takes nothing back.

The pause is 1 s, or 20 times the last flush: at most a twentieth of a shard's time holds the ledger
lock, and commits on a slow disk are not crowded out. The thread and its connection are of its own,
because the shard's ledger thread answers readers. A shard without moves opens no connection.

Not durable is only what a source can find again by reading its source once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ledger import cursors
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.types import CursorMove

log = logging.getLogger("headgate.flush")

INTERVAL_NS = 1_000_000_000
SHARE = 20
# Of each source: about 12 ms of the ledger lock, while commits wait. The rest comes a second later.
MOVES_MAX = 4_096


class FlushSource(Protocol):
    """Whoever owns cursors. Called in the loop."""

    def moves(self, limit: int) -> Sequence[CursorMove]:
        """Up to ``limit`` moves to make now, at most one for each cursor and partition.

        ``flushed`` follows for each of them, before the next call.
        """
        ...

    def flushed(self, move: CursorMove, *, moved: bool) -> None:
        """The outcome. If it was not moved, the ledger says where the cursor is."""
        ...


def pause_ns(last_flush_ns: int) -> int:
    """How long to wait after a flush that took so long."""
    return max(INTERVAL_NS, SHARE * last_flush_ns)


class CursorFlush:
    """The flush of one shard."""

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        monotonic_ns: Callable[[], int],
        ended: Callable[[], object],
        sleep_s: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._open_ledger = open_ledger
        self._monotonic_ns = monotonic_ns
        self._ended = ended
        self._sleep_s = sleep_s
        self._sources: list[FlushSource] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._ledger: Ledger | None = None
        self._task: asyncio.Task[None] | None = None
        self._round: asyncio.Task[int] | None = None

    def add(self, source: FlushSource) -> None:
        """Asks this source from now on."""
        self._sources.append(source)

    def start(self) -> None:
        """Begins; the loop runs."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Makes the last moves, and ends the thread."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task] + ([] if self._round is None else [self._round]))
            await self.flush()
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    async def _run(self) -> None:
        last_ns = 0
        while True:
            await self._sleep_s(pause_ns(last_ns) / 1e9)
            # A round that has begun is finished: its sources wait for the outcome.
            self._round = asyncio.get_running_loop().create_task(self.flush())
            last_ns = await asyncio.shield(self._round)

    async def flush(self) -> int:
        """One round; returns how long its transaction took, in nanoseconds."""
        taken = [(source, source.moves(MOVES_MAX)) for source in self._sources]
        moves = [move for _, some in taken for move in some]
        if not moves:
            return 0
        began_ns = self._monotonic_ns()
        made: set[CursorMove] = set()
        try:
            loop = asyncio.get_running_loop()
            refused = await loop.run_in_executor(self._thread, self._write, moves)
            made = {move for move in moves if (move.cursor_id, move.partition) not in refused}
        except LedgerError as error:
            log.warning("%d moves of cursors could not be written: %s", len(moves), error)
        except Exception as error:  # nobody would write these moves any more
            log.critical("the flush of cursors cannot continue in this process, which ends",
                         exc_info=error)  # fmt: skip
            self._ended()
        took_ns = self._monotonic_ns() - began_ns
        for source, some in taken:
            for move in some:
                source.flushed(move, moved=move in made)
        return took_ns

    def _write(self, moves: list[CursorMove]) -> dict[tuple[int, int], int | None]:
        if self._ledger is None:
            self._ledger = self._open_ledger()
        return self._ledger.write(cursors.flush, moves)

    def _close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
