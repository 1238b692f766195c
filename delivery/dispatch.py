"""The dispatcher of one shard: does the work that commits leave behind, in slices.

    a commit is followed -> ``dirty`` marks its topics in the ready set -> slices of SLICE_NS take
    turns from the ready set and have them served -> the loop does other things between two slices

A busy loop has long turns: then ``serve_now`` runs a slice in the middle of one.

A server must not fail: its entry would never be served again, and nobody would know. If one does,
``failed`` is told, which ends the process.

The ready set (``ready.py``) says which turn is next, a *server* per kind of work does it. This
module knows neither topics nor clients. It belongs to the loop; the loop and the clock are
arguments, so that tests and the simulation can turn both by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from delivery.ready import EntryKey, Kind, PriorityInputs, ReadySet, Turn
from shards.latency import SAMPLED
from shards.smoothed import Smoothed

# Answers to producers, new requests and the heartbeat wait for a slice at most.
SLICE_NS = 1_000_000
# The scheduling latency is smoothed over five heartbeats: one long turn of the loop is not a load.
LATENCY_TAU_S = 0.5
# Four times what is promised. An average that had seen seconds would take seconds to forget them.
LATENCY_NS_MAX = 20_000_000


class Served(NamedTuple):
    """What a turn cost, and whether the entry has more to do."""

    cost_bytes: int
    more: bool


class Timer(Protocol):
    """What can be cancelled; asyncio's handles are."""

    def cancel(self) -> None:
        """Prevents the call."""


class Turns(Protocol):
    """The part of an event loop that the dispatcher uses."""

    def call_soon(self, callback: Callable[[], None], /) -> object:
        """Calls after what is already due."""

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> Timer:
        """Calls after a time."""


Server = Callable[[Turn], Served]


class Dispatcher:
    """Takes turns from ``ready`` while there are any. ``inputs`` says what the priority of a
    topic id follows from; ``waited`` is told how long an entry waited for its turn, of one turn in
    SAMPLED."""

    def __init__(
        self,
        ready: ReadySet,
        inputs: Callable[[int], PriorityInputs],
        now_ns: Callable[[], int],
        waited: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._waited = waited
        self.ready = ready
        self.servers: dict[Kind, Server] = {}
        self._inputs = inputs
        self._now_ns = now_ns
        self._loop: Turns
        self._failed: Callable[[Exception], None]
        self._scheduled = False
        self._serving = False
        self._timer: Timer | None = None
        self._due_ns = 0  # when it is due
        self._waited_ns = self._waits = 0  # since the latency was last read
        self._latency_ns = Smoothed(LATENCY_TAU_S)

    def start(
        self,
        loop: Turns,
        servers: Mapping[Kind, Server],
        failed: Callable[[Exception], None],
    ) -> None:
        """Begins; to be called once, before ``dirty``."""
        self._loop = loop
        self.servers.update(servers)
        self._failed = failed

    def dirty(self, keys: Iterable[EntryKey], published_ns: int) -> None:
        """Marks entries that a commit, published at a time, made ready."""
        ready, inputs = self.ready, self._inputs
        now_ns = self._now_ns()
        for key in keys:
            ready.mark(key, inputs(key[0]), published_ns, now_ns)
        self._wake()

    def set_pressure(self, coalesce_ns: int, deferring: bool) -> None:
        """Tells the ready set, and looks at what may go now."""
        self.ready.set_pressure(coalesce_ns, deferring, self._now_ns())
        self._wake()

    def latency_ns(self) -> float:
        """How long entries wait for their turns, without deliberate delays: an average that
        follows the turns since the last call, and falls to 0 while there are none."""
        waited_ns = self._waited_ns / self._waits if self._waits else 0.0
        self._waited_ns = self._waits = 0
        return self._latency_ns.add(min(waited_ns, LATENCY_NS_MAX), self._now_ns())

    def _wake(self) -> None:
        if self._scheduled:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._scheduled = True
        self._loop.call_soon(self._due)

    def _due(self) -> None:
        self._scheduled = False
        self._timer = None
        self._slice()

    def serve_now(self) -> None:
        """Runs a slice if one is due, without waiting for the loop to get to it: for a caller in a
        long turn of the loop. The loop's own slice comes anyway. Does nothing for a server that
        calls it in its turn."""
        if self._serving:
            return
        if self._scheduled:
            self._slice()
        elif self._timer is not None and self._now_ns() >= self._due_ns:
            self._timer.cancel()
            self._timer = None
            self._slice()

    def _slice(self) -> None:
        self._serving = True
        try:
            now_ns = self._serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self._failed(error)
            return
        self._serving = False
        due_ns = self.ready.next_due_ns()
        if due_ns is None or self._scheduled:
            return
        if due_ns <= now_ns:
            self._wake()
        else:
            self._due_ns = due_ns
            self._timer = self._loop.call_later((due_ns - now_ns) / 1e9, self._due)

    def _serve(self) -> int:
        """Has turns served until nothing is due or the slice is over; returns what time it is."""
        ready, servers = self.ready, self.servers
        now_ns = self._now_ns()
        end_ns = now_ns + SLICE_NS
        while (turn := ready.take(now_ns)) is not None:
            if turn.waited_ns is not None:
                if not self._waits % SAMPLED:
                    self._waited(turn.waited_ns)
                self._waited_ns += turn.waited_ns
                self._waits += 1
            served = servers[turn.key[1]](turn)
            now_ns = self._now_ns()
            ready.finish(turn, served.cost_bytes, served.more, now_ns)
            if now_ns >= end_ns:
                break
        return now_ns
