"""A daemon's shards under a virtual clock, with real rings: ``daemon/simulation/engine.py`` models
loops, PUTs and commits, and this adds rings, checks and shards that die.

Conservation is checked after every step: a pull takes the oldest pending requests of a source,
each once and whole, in order.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from daemon.simulation.engine import MS, S, VirtualShards
from shards import layout as at
from shards.frame import Part
from shards.layout import Layout
from shards.leases import Lease
from shards.locks import LockFile
from shards.ring import RingFull, RingWriter
from uploader.groups.puller import Pulled
from uploader.groups.upload_turn import Policy


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


class Node(VirtualShards):
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
        layout = Layout(
            shards, 16 * target_bytes, commit_slots=4, commit_log_bytes=128, commit_bytes_max=64
        )  # the log is not used
        policy = Policy(object_bytes_target=target_bytes)
        super().__init__(layout, policy, window_ns, locks=LockFile(lock_path))
        self.rng = random.Random(seed)
        self.put_ns = put_ns
        self.put_bytes_per_s = put_bytes_per_s
        self.writers = [RingWriter(self.segment, s) for s in range(shards)]
        self.puts: list[Put] = []
        self.maps = [MapAt(self.now_ns, self._map())]
        self.accepted_bytes = 0
        self.refused = 0
        self.log: list[tuple[object, ...]] = []
        self.slowest_pull_ns = 0
        self.dead: set[int] = set()
        self._expected: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]
        self._load: Load | None = None
        self._load_round = 0

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
        self.at(self.now_ns + max(1, int(gap_s * S)), self._publication, shard, load_round)

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
        self.published(shard)

    # Loops, PUT and commit

    def _look(self, shard: int, when_ns: int) -> None:
        if shard not in self.dead:
            super()._look(shard, when_ns)

    def _looked(self, shard: int) -> None:
        groups = self._map()
        if groups != self.maps[-1].groups:
            self.maps.append(MapAt(self.now_ns, groups))
            self.log.append((self.now_ns, "map", groups))
        self.check()

    def _started(self, pulled: Pulled) -> int:
        lease = pulled.lease
        size_bytes = 0
        ranges = {leased.shard: leased for leased in lease.ranges}
        assert len(ranges) == len(lease.ranges)
        for shard, request in pulled.requests:
            expected = self._expected[shard].popleft()
            assert expected == (request.position, request.end)
            leased = ranges[shard]
            assert leased.start <= request.position and request.end <= leased.end
            size_bytes += request.end - request.position
            self.slowest_pull_ns = max(self.slowest_pull_ns, self.now_ns - request.arrival_ns)
        self.puts.append(Put(self.now_ns, lease.holder, size_bytes))
        self.log.append((self.now_ns, "put", lease.lease_id, lease.ranges))
        jitter = 0.8 + 0.4 * self.rng.random()
        return int(jitter * self.put_ns + size_bytes / self.put_bytes_per_s * S)

    def _committed(self, lease: Lease) -> None:
        self.log.append((self.now_ns, "commit", lease.lease_id))
        self.check()

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
