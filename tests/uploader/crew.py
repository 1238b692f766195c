"""The shards of one daemon in one process, over a real segment, lock file and doorbells."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shards import layout as at
from shards.doorbell import Doorbells
from shards.frame import Part
from shards.layout import Layout
from shards.leases import LIVE, Lease, LeaseTable
from shards.locks import LockFile
from shards.ring import RingWriter
from shards.segment import Segment
from uploader.groups.puller import GroupTable, Puller
from uploader.groups.upload_turn import Policy

MS = 1_000_000
TARGET = 8192
WINDOW = 200 * MS


class Crew:
    """Shared memory and what surrounds it; ``puller`` makes the Puller of a shard."""

    def __init__(self, shards: int, directory: Path, lease_slots: int) -> None:
        layout = Layout(
            shards,
            32 * TARGET,
            lease_slots,
            commit_slots=8,
            commit_log_bytes=8192,
            commit_bytes_max=1024,
        )
        self.layout = layout
        self.segment = Segment.create(layout)
        self.words = self.segment.words
        self.words[at.G_INCARNATION] = self.words[at.G_EPOCH] = 1
        self.words[at.G_WINDOW_NS] = WINDOW
        self.locks = LockFile(directory / "lock")
        self.bells = Doorbells.create(shards)
        self.leases = LeaseTable(self.words, layout)
        self.writers = [RingWriter(self.segment, shard) for shard in range(shards)]
        self.groups = GroupTable(self.segment)
        self.groups.start()

    def puller(
        self, shard: int, locks: LockFile | None = None, leases: LeaseTable | None = None
    ) -> Puller:
        policy = Policy(object_bytes_target=TARGET)
        return Puller(
            self.segment, shard, locks or self.locks, self.bells, leases or self.leases, policy
        )

    def publish(self, shard: int, now_ns: int, payload_bytes: int = 100, flags: int = 0) -> int:
        """A request comes to a shard; its position."""
        part = Part(1, 0, 1, bytes(payload_bytes), 1, 1)
        return self.writers[shard].append(now_ns, 1, b"", [part], flags)

    def fill(self, shard: int, now_ns: int, size_bytes: int) -> None:
        """Requests of 1,000 bytes up to a backlog of at least ``size_bytes``."""
        while self.pending_bytes(shard) < size_bytes:
            self.publish(shard, now_ns, 1000 - 88)

    def pending_bytes(self, shard: int) -> int:
        ((_, size_bytes),) = self.groups.pending(range(shard, shard + 1))
        return size_bytes

    def word(self, shard: int, word: int) -> int:
        return int(self.words[self.layout.shard(shard) + word])

    def store(self, shard: int, word: int, value: int) -> None:
        self.words[self.layout.shard(shard) + word] = value

    def commit(self, lease: Lease) -> None:
        for leased in lease.ranges:
            assert self.word(leased.shard, at.S_COMMITTED) == leased.start
            self.store(leased.shard, at.S_COMMITTED, leased.end)
        self.leases.finish(lease)

    def commit_all(self) -> None:
        """Commits every live lease, in pull order."""
        live = list(self.leases.in_state(LIVE))
        while live:
            ready = next(
                lease
                for lease in live
                if all(self.word(s.shard, at.S_COMMITTED) == s.start for s in lease.ranges)
            )
            self.commit(ready)
            live.remove(ready)

    def rung(self) -> list[int]:
        """The shards whose bells have rung since the last look."""
        ready, _, _ = select.select(self.bells.fds, [], [], 0)
        found = [self.bells.fds.index(fd) for fd in ready]
        for shard in found:
            self.bells.clear(shard)
        return found

    def map(self) -> list[int]:
        """Every shard's group."""
        return [self.groups.map.group_of(s).group for s in range(self.layout.shards)]

    def check(self) -> None:
        self.groups.check_invariants()
        committed = [self.word(s, at.S_COMMITTED) for s in range(self.layout.shards)]
        self.leases.check_invariants(committed)
        for shard, ends in enumerate(zip(self.leases.leased_ends(), committed, strict=True)):
            assert self.word(shard, at.S_PULLED) == max(ends)


@contextmanager
def crew(shards: int, directory: Path, lease_slots: int = 4) -> Iterator[Crew]:
    made = Crew(shards, directory, lease_slots)
    try:
        yield made
    finally:
        made.locks.close()
        made.bells.close()
        made.segment.close()
