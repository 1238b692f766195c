"""The flush: what changes in a shard and rides on no commit, in one transaction a second.

A router whose filter lets nothing through has no frame to move its cursor with. It offers such a
*move* instead, from where it knows the cursor to be. Subscriptions offer their *progress*: floors,
and what is finished above them. Senders of push subscriptions offer their *rates*. One round::

    pause -> ask each source for its moves, progress or rates -> one transaction, in this module's
    thread -> tell each source what was written

A move is conditional: where the cursor is not at ``expected`` (its owner was stopped meanwhile, and
another has moved it), nothing is written, and the source looks at the ledger again. Progress only
adds to what is finished. So a flush that comes late takes nothing back.

The pause is 1 s, or 20 times the last flush: at most a twentieth of a shard's time holds the ledger
lock, and commits on a slow disk are not crowded out. An owner that has more than a round may write
is asked again after those 20 times; ``hurry`` ends the pause, unless the last flush failed. The
thread and its connection are of its own, because the shard's ledger thread answers readers. A shard
that has nothing to write opens no connection.

Moves that are not durable yet can be found again by reading the source once more; progress is in
the shard's journal until then (``delivery/subscriptions/journaled.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from ledger import cursors
from ledger.delivery import progress, push_rates
from ledger.delivery.progress import SubscriptionFlush
from ledger.delivery.push_rates import LearnedRate, SenderId
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.tx import WriteTx
from ledger.types import CursorMove

log = logging.getLogger("headgate.flush")

INTERVAL_NS = 1_000_000_000
SHARE = 20
# Of each source: about 12 ms of the ledger lock, while commits wait. The rest comes a second later.
MOVES_MAX = 4_096
ROUNDS_AT_STOP = 1_000  # of subscriptions: about 130,000 rows, which takes seconds

P = ParamSpec("P")
T = TypeVar("T")


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


class ProgressSource(Protocol):
    """Whoever owns subscriptions. Called in the loop."""

    @property
    def has_more(self) -> bool:
        """Whether the last round was not all."""
        ...

    def collect(self) -> Sequence[SubscriptionFlush]:
        """What to write now; it limits that itself. ``collected`` follows unless it is nothing."""
        ...

    def collected(self, ignored: Set[int] | None) -> None:
        """It was written, except for these subscriptions, which are not there in this generation;
        None: nothing was."""
        ...


class RateSource(Protocol):
    """Whoever has senders of push subscriptions. Called in the loop."""

    def learned(self) -> Mapping[SenderId, LearnedRate]:
        """What to write now. ``kept`` follows, before the next call."""
        ...

    def kept(self, *, written: bool) -> None:
        """Whether it was."""
        ...


class _Outcome(NamedTuple):
    refused: dict[tuple[int, int], int | None]
    ignored: set[int]


def pause_ns(last_flush_ns: int) -> int:
    """How long to wait after a flush that took so long."""
    return max(INTERVAL_NS, SHARE * last_flush_ns)


class Flush:
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
        self._progress: list[ProgressSource] = []
        self._rates: list[RateSource] = []
        self._hurried = asyncio.Event()
        self._failed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._ledger: Ledger | None = None
        self._task: asyncio.Task[None] | None = None
        self._round: asyncio.Task[int] | None = None

    def add(self, source: FlushSource) -> None:
        """Asks this source from now on."""
        self._sources.append(source)

    def add_progress(self, source: ProgressSource) -> None:
        """Asks this source from now on."""
        self._progress.append(source)

    def add_rates(self, source: RateSource) -> None:
        """Asks this source from now on."""
        self._rates.append(source)

    def hurry(self) -> None:
        """Begins the next round now, or immediately after the one that is under way."""
        self._hurried.set()

    async def write(
        self, function: Callable[Concatenate[WriteTx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """One write in this module's thread, in between. Raises LedgerError."""

        def step() -> T:
            return self._opened().write(function, *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    def start(self) -> None:
        """Begins; the loop runs."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Makes the last moves, writes all progress, and ends the thread."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task] + ([] if self._round is None else [self._round]))
            for _ in range(ROUNDS_AT_STOP):
                await self.flush()
                if self._failed or not any(source.has_more for source in self._progress):
                    break
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    async def _run(self) -> None:
        last_ns = 0
        while True:
            await self._pause(last_ns)
            # A round that has begun is finished: its sources wait for the outcome.
            self._round = asyncio.get_running_loop().create_task(self.flush())
            last_ns = await asyncio.shield(self._round)

    async def _pause(self, last_ns: int) -> None:
        length_ns = pause_ns(last_ns)
        if self._failed:
            self._hurried.clear()
            await self._sleep_s(length_ns / 1e9)
            return
        if any(source.has_more for source in self._progress):
            length_ns = SHARE * last_ns
        loop = asyncio.get_running_loop()
        ends = [
            loop.create_task(_awaited(self._sleep_s(length_ns / 1e9))),
            loop.create_task(_awaited(self._hurried.wait())),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            self._hurried.clear()

    async def flush(self) -> int:
        """One round; returns how long its transaction took, in nanoseconds."""
        taken = [(source, source.moves(MOVES_MAX)) for source in self._sources]
        moves = [move for _, some in taken for move in some]
        collected = [(source, source.collect()) for source in self._progress]
        flushes = [flush for _, some in collected for flush in some]
        rates = {sender: rate for each in self._rates for sender, rate in each.learned().items()}
        self._failed = False
        if not moves and not flushes and not rates:
            return 0
        began_ns = self._monotonic_ns()
        outcome: _Outcome | None = None
        try:
            outcome = await self.write(_write, moves, flushes, rates)
        except LedgerError as error:
            self._failed = True
            log.warning(
                "%d moves of cursors, the progress of %d subscriptions and the rates of %d senders"
                " could not be written: %s", len(moves), len(flushes), len(rates), error,
            )  # fmt: skip
        except Exception as error:  # nobody would write these moves any more
            self._failed = True
            log.critical("the flush of cursors cannot continue in this process, which ends",
                         exc_info=error)  # fmt: skip
            self._ended()
        took_ns = self._monotonic_ns() - began_ns
        for source, some in taken:
            for move in some:
                is_made = (
                    outcome is not None and (move.cursor_id, move.partition) not in outcome.refused
                )
                source.flushed(move, moved=is_made)
        for progress_source, written in collected:
            if written:
                progress_source.collected(None if outcome is None else outcome.ignored)
        for rate_source in self._rates:
            rate_source.kept(written=outcome is not None)
        return took_ns

    def _opened(self) -> Ledger:
        if self._ledger is None:
            self._ledger = self._open_ledger()
        return self._ledger

    def _close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


async def _awaited(awaitable: Awaitable[object]) -> None:
    await awaitable


def _write(
    tx: WriteTx,
    moves: Sequence[CursorMove],
    flushes: Sequence[SubscriptionFlush],
    rates: Mapping[SenderId, LearnedRate],
) -> _Outcome:
    refused = cursors.flush(tx, moves) if moves else {}
    if rates:
        push_rates.write(tx, rates)
    return _Outcome(refused, progress.flush(tx, flushes) if flushes else set())
