"""A node under a virtual clock: real segment, rings, leases and pullers; modeled loops and PUTs.

A loop looks at its group when it publishes (unless the last look said that it need not), when its
bell has rung, and when its timer is due, as daemon/shard.py does. A PUT takes modeled time;
its commit waits for its predecessors, moves the ``committed`` words and rings all bells, as
uploader/pipeline/upload.py does.

Conservation is checked after every step: a pull takes the oldest pending requests of a source,
each once and whole, in order.
"""

from __future__ import annotations

import heapq
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from shards import layout as at
from shards.doorbell import Doorbells
from shards.frame import Part
from shards.layout import Layout
from shards.leases import Lease, LeaseTable
from shards.locks import LockFile
from shards.ring import RingFull, RingWriter
from shards.segment import Segment
from uploader.groups.puller import Pulled, Puller
from uploader.groups.turn import NEVER, Policy

MS = 1_000_000
S = 1_000 * MS
BELL_NS = 60_000  # a doorbell's way into another loop


class Load(NamedTuple):
    """Requests of ``request_bytes`` at ``bytes_per_s`` in all, shared by ``weights`` of shards."""

    bytes_per_s: float
    request_bytes: int
    weights: Sequence[float]


class Put(NamedTuple):
    """A PUT that was begun."""

    at_ns: int
    shard: int
    size_bytes: int


class MapAt(NamedTuple):
    """The group of every shard, from ``at_ns`` on."""

    at_ns: int
    groups: tuple[int, ...]


class _Bells(Doorbells):
    """Bells that ring in virtual time."""

    def __init__(self, ring: Callable[[int], None]) -> None:
        super().__init__([])
        self._ring = ring

    def ring(self, shard: int) -> None:
        self._ring(shard)


class Node:
    """One daemon's shards."""

    def __init__(
        self,
        shards: int,
        seed: int,
        lock_path: Path,
        *,
        window_ns: int = 200 * MS,
        target_bytes: int = 64 << 10,
        put_ns: int = 80 * MS,
        put_bytes_per_s: float = 8e6,
    ) -> None:
        self.rng = random.Random(seed)
        self.now_ns = 100 * S
        self.window_ns = window_ns
        self.target_bytes = target_bytes
        self.put_ns = put_ns
        self.put_bytes_per_s = put_bytes_per_s
        self.layout = Layout(
            shards, 16 * target_bytes, commit_slots=4, commit_log_bytes=128, commit_bytes_max=64
        )  # the log is not used
        self.segment = Segment.create(self.layout)
        self.segment.words[at.G_WINDOW_NS] = window_ns
        self.segment.words[at.G_INCARNATION] = self.segment.words[at.G_EPOCH] = 1
        self.leases = LeaseTable(self.segment.words, self.layout)
        self.locks = LockFile(lock_path)
        self.writers = [RingWriter(self.segment, s) for s in range(shards)]
        bells = _Bells(self._rung)
        self.policy = Policy(object_bytes_target=target_bytes)
        self.pullers = [
            Puller(self.segment, s, self.locks, bells, self.leases, self.policy)
            for s in range(shards)
        ]
        self.table = self.pullers[0].table
        self.table.start()
        self.puts: list[Put] = []
        self.maps = [MapAt(self.now_ns, self._map())]
        self.accepted_bytes = 0
        self.refused = 0
        self.log: list[tuple[object, ...]] = []
        self.slowest_pull_ns = 0
        self.dead: set[int] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._look_at = [NEVER] * shards
        self._quiet_until = [0] * shards
        self._expected: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]
        self._stored: list[Lease] = []  # in the store, waiting for predecessors
        self._load: Load | None = None
        self._load_round = 0

    def close(self) -> None:
        self.locks.close()
        self.segment.close()
        os.close(self.segment.fd)

    # Time

    def at(self, when_ns: int, what: Callable[[], None]) -> None:
        """Schedules a call."""
        self._number += 1
        heapq.heappush(self._events, (when_ns, self._number, what))

    def run(self, duration_ns: int) -> None:
        """Lets time pass."""
        until = self.now_ns + duration_ns
        while self._events and self._events[0][0] <= until:
            self.now_ns, _, what = heapq.heappop(self._events)
            what()
        self.now_ns = until

    # Load

    def load(self, load: Load | None) -> None:
        """Changes the load from now on."""
        self._load = load
        self._load_round += 1
        if load is not None:
            for shard, weight in enumerate(load.weights):
                if weight:
                    self._next_publication(shard, self._load_round)

    def _next_publication(self, shard: int, load_round: int) -> None:
        load = self._load
        assert load is not None
        share = load.bytes_per_s * load.weights[shard] / sum(load.weights)
        gap_s = self.rng.expovariate(share / load.request_bytes)
        self.at(self.now_ns + max(1, int(gap_s * S)), lambda: self._publication(shard, load_round))

    def _publication(self, shard: int, load_round: int) -> None:
        if load_round == self._load_round and self._load is not None:
            self.publish(shard, self._load.request_bytes)
            self._next_publication(shard, load_round)

    def publish(self, shard: int, payload_bytes: int) -> None:
        """A request arrives at a shard."""
        if shard in self.dead:
            return
        writer = self.writers[shard]
        part = Part(1, 0, 1, bytes(payload_bytes), 1, 1)
        try:
            position = writer.append(self.now_ns, 1, b"", [part])
        except RingFull:
            self.refused += 1
            return
        self.accepted_bytes += writer.head - position
        self._expected[shard].append((position, writer.head))
        if writer.head > self._quiet_until[shard]:
            self._look_soon(shard, self.now_ns)

    # Loops

    def _rung(self, shard: int) -> None:
        self._look_soon(shard, self.now_ns + BELL_NS)

    def _look_soon(self, shard: int, when_ns: int) -> None:
        if shard not in self.dead and when_ns < self._look_at[shard]:
            self._look_at[shard] = when_ns
            self.at(when_ns, lambda: self._look(shard, when_ns))

    def _look(self, shard: int, when_ns: int) -> None:
        if shard in self.dead or self._look_at[shard] != when_ns:
            return  # another look came before
        self._look_at[shard] = NEVER
        look = self.pullers[shard].look(self.now_ns)
        for pulled in look.pulled:
            self._start(pulled)
        self._quiet_until[shard] = self.writers[shard].head + look.quiet_bytes
        if look.again_at_ns < NEVER:
            self._look_soon(shard, max(look.again_at_ns, self.now_ns + 1_000))
        groups = self._map()
        if groups != self.maps[-1].groups:
            self.maps.append(MapAt(self.now_ns, groups))
            self.log.append((self.now_ns, "map", groups))
        self.check()

    # PUT and commit

    def _start(self, pulled: Pulled) -> None:
        lease = pulled.lease
        size_bytes = 0
        ranges = {source.shard: source for source in lease.sources}
        assert len(ranges) == len(lease.sources)
        for shard, request in pulled.requests:
            expected = self._expected[shard].popleft()
            assert expected == (request.position, request.end)
            source = ranges[shard]
            assert source.start <= request.position and request.end <= source.end
            size_bytes += request.end - request.position
            self.slowest_pull_ns = max(self.slowest_pull_ns, self.now_ns - request.arrival_ns)
        self.puts.append(Put(self.now_ns, lease.holder, size_bytes))
        self.log.append((self.now_ns, "put", lease.lease_id, lease.sources))
        jitter = 0.8 + 0.4 * self.rng.random()
        took_ns = int(jitter * self.put_ns + size_bytes / self.put_bytes_per_s * S)
        self.at(self.now_ns + took_ns, lambda: self._put_done(lease))

    def _put_done(self, lease: Lease) -> None:
        self._stored.append(lease)
        words = self.segment.words
        while ready := next((item for item in self._stored if self._is_next(item)), None):
            self._stored.remove(ready)
            for source in ready.sources:
                words[self.layout.shard(source.shard) + at.S_COMMITTED] = source.end
            self.leases.finish(ready)
            self.log.append((self.now_ns, "commit", ready.lease_id))
            for shard in range(self.layout.shards):
                self._rung(shard)
        self.check()

    def _is_next(self, lease: Lease) -> bool:
        words = self.segment.words
        return all(
            words[self.layout.shard(s.shard) + at.S_COMMITTED] == s.start for s in lease.sources
        )

    # What is seen from outside

    def _map(self) -> tuple[int, ...]:
        buddies = self.table.map
        return tuple(buddies.group_of(shard).group for shard in range(self.layout.shards))

    def check(self) -> None:
        """Conservation and the order of the words."""
        self.table.map.check_invariants()
        for shard in range(self.layout.shards):
            base = self.layout.shard(shard)
            words = self.segment.words
            committed, pulled = words[base + at.S_COMMITTED], words[base + at.S_PULLED]
            head, reserved = words[base + at.S_HEAD], words[base + at.S_RESERVED]
            assert committed <= pulled <= head <= reserved <= committed + self.layout.ring_bytes
            pending = self._expected[shard]
            assert bool(pending) == (pulled < head)

    def puts_since(self, since_ns: int) -> list[Put]:
        return [put for put in self.puts if put.at_ns >= since_ns]


def changes(maps: Iterable[MapAt], since_ns: int) -> list[MapAt]:
    """The maps after a point in time."""
    return [item for item in maps if item.at_ns > since_ns]
