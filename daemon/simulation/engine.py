"""Shards under a virtual clock: the shipped pullers on a real segment, with modeled time.

The words, leases, turns, pulls, splits and merges are those of the daemon (``uploader/groups``,
``shards/leases.py``). Modeled are the loops of the shards, doorbells, PUTs and commits. A subclass
of ``VirtualShards`` says where requests come from and how long a PUT takes.

Lifecycle of a lease here::

    look -> pulled -> (PUT takes its time) -> stored -> predecessors committed -> the ledger,
    one commit after the other -> ``committed`` words, slot done, bell

A loop looks at its group when it has published (unless its last look said that it need not), when
its bell has rung and when its timer is due, as daemon/process/shard.py does. Time moves from event
to event, so a quiet hour costs nothing.

A commit rings all bells, except of shards that would find nothing new: those that are alone in
their group and have no upper buddy to merge with (``listeners``). Only their own requests and
commits make them due, and what they know of these is exact.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shards import layout as at
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.leases import Lease, LeaseTable
from shards.locks import LockFile
from shards.segment import Segment
from uploader.groups.members import MemberRequests, RequestSource
from uploader.groups.puller import Pulled, Puller
from uploader.groups.upload_turn import NEVER, Policy

MS = 1_000_000
S = 1_000 * MS
BELL_NS = 60_000  # a doorbell's way into another loop
_LOOK_PAUSE_NS = 1_000  # a loop that looks again immediately takes a turn first


class _VirtualBells(Doorbells):
    """Bells that ring in virtual time."""

    def __init__(self, ring: Callable[[int], None]) -> None:
        super().__init__([])
        self._ring = ring

    def ring(self, shard: int) -> None:
        self._ring(shard)


class VirtualLocks(LockFile):
    """A lock file of one process without a file: lockf never refuses a process its own locks."""

    def __init__(self) -> None:
        return

    def try_lock(self, byte: int) -> bool:
        return True

    def unlock(self, byte: int) -> None:
        return

    def close(self) -> None:
        return


class _Stored(NamedTuple):
    """A lease whose object is stored, and the shards whose earlier ranges are not committed."""

    lease: Lease
    waits_for: set[int]


class VirtualShards(ABC):
    """The shards of one daemon."""

    def __init__(
        self,
        layout: Layout,
        policy: Policy,
        window_ns: int,
        *,
        commit_ns: int = 0,
        locks: LockFile | None = None,
        sources: Callable[[Segment], Sequence[RequestSource]] | None = None,
    ) -> None:
        self.now_ns = 100 * S
        self.layout = layout
        self.policy = policy
        self.segment = Segment.create(layout)
        self.words = self.segment.words
        self.words[at.G_WINDOW_NS] = window_ns
        self.words[at.G_TARGET_BYTES] = policy.object_bytes_target
        self.words[at.G_INCARNATION] = self.words[at.G_EPOCH] = 1
        self.leases = LeaseTable(self.words, layout)
        self._locks = VirtualLocks() if locks is None else locks
        # One for all: each process of a daemon has its own and reads the same.
        requests = None if sources is None else MemberRequests(sources(self.segment))
        bells = _VirtualBells(self._rung)
        self.pullers = [
            Puller(self.segment, shard, self._locks, bells, self.leases, policy, requests)
            for shard in range(layout.shards)
        ]
        self.table = self.pullers[0].table
        self.table.start()
        self.listeners: Sequence[int] = range(layout.shards)  # of each commit
        self.in_flight = 0  # PUTs
        self._commit_ns = commit_ns
        self.commit_took_ns = 0  # the last one, with its wait for the ledger
        self._ledger_free_ns = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._look_at = [NEVER] * layout.shards
        self._quiet_until = [0] * layout.shards
        self._bases = [layout.shard(shard) for shard in range(layout.shards)]
        self._waiting: dict[tuple[int, int], _Stored] = {}  # by a range that must be committed

    def close(self) -> None:
        """Frees the segment."""
        self._locks.close()
        self.segment.close()

    # What a derived class says

    @abstractmethod
    def _started(self, pulled: Pulled) -> int:
        """A lease was pulled; returns how long its PUT takes, in nanoseconds."""

    @abstractmethod
    def _looked(self, shard: int) -> None:
        """A shard has looked at its group; the map may have changed."""

    @abstractmethod
    def _committed(self, lease: Lease) -> None:
        """A lease is committed, and its slot is done."""

    # Time

    def at(self, when_ns: int, what: Callable[..., None], *arguments: Any) -> None:
        """Schedules a call."""
        self._number += 1
        heapq.heappush(self._events, (when_ns, self._number, what, arguments))

    def run(self, duration_ns: int) -> None:
        """Lets time pass."""
        until, events, pop = self.now_ns + duration_ns, self._events, heapq.heappop
        while events and events[0][0] <= until:
            self.now_ns, _, what, arguments = pop(events)
            what(*arguments)
        self.now_ns = until

    # Loops

    def published(self, shard: int) -> None:
        """A shard has just raised its ``head``."""
        if self.words[self._bases[shard] + at.S_HEAD] > self._quiet_until[shard]:
            self._look_soon(shard, self.now_ns)

    def _rung(self, shard: int) -> None:
        self._look_soon(shard, self.now_ns + BELL_NS)

    def _look_soon(self, shard: int, when_ns: int) -> None:
        if when_ns < self._look_at[shard]:
            self._look_at[shard] = when_ns
            self.at(when_ns, self._look, shard, when_ns)

    def _look(self, shard: int, when_ns: int) -> None:
        if self._look_at[shard] != when_ns:
            return  # another look came before
        self._look_at[shard] = NEVER
        look = self.pullers[shard].look(self.now_ns)
        for pulled in look.pulled:
            self.in_flight += 1
            self.at(self.now_ns + self._started(pulled), self._put_done, pulled.lease)
        head = self.words[self._bases[shard] + at.S_HEAD]
        self._quiet_until[shard] = head + look.quiet_bytes
        if look.again_at_ns < NEVER:
            self._look_soon(shard, max(look.again_at_ns, self.now_ns + _LOOK_PAUSE_NS))
        elif self._is_stuck(shard, head):
            self._quiet_until[shard] = NEVER
        self._looked(shard)

    def _is_stuck(self, shard: int, head: int) -> bool:
        """Whether a shard that uploads alone has something pending and no free slot: only a commit
        of its own changes that, and rings its bell."""
        return (
            head > self.words[self._bases[shard] + at.S_PULLED]
            and self.table.map.group_of(shard).size == 1
        )

    # PUT and commit

    def _put_done(self, lease: Lease) -> None:
        self.in_flight -= 1
        words, bases = self.words, self._bases
        waits_for = {
            leased.shard
            for leased in lease.ranges
            if words[bases[leased.shard] + at.S_COMMITTED] != leased.start
        }
        if not waits_for:
            self._commit_soon(lease)
            return
        self._rung(lease.shard)  # as the uploader does
        stored = _Stored(lease, waits_for)
        for leased in lease.ranges:
            if leased.shard in waits_for:
                self._waiting[leased.shard, leased.start] = stored

    def _commit_soon(self, lease: Lease) -> None:
        self._ledger_free_ns = max(self.now_ns, self._ledger_free_ns) + self._commit_ns
        self.commit_took_ns = self._ledger_free_ns - self.now_ns
        self.at(self._ledger_free_ns, self._commit, lease)

    def _commit(self, lease: Lease) -> None:
        words, bases = self.words, self._bases
        for leased in lease.ranges:
            words[bases[leased.shard] + at.S_COMMITTED] = leased.end
        self.leases.finish(lease)
        self._rung(lease.shard)
        for shard in self.listeners:
            self._rung(shard)
        self._committed(lease)
        for leased in lease.ranges:
            stored = self._waiting.pop((leased.shard, leased.end), None)
            if stored is not None:
                stored.waits_for.remove(leased.shard)
                if not stored.waits_for:
                    self._commit_soon(stored.lease)
