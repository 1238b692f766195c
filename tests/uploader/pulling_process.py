"""A shard's process that publishes, pulls and commits in a loop; or dies in the middle of a pull.

    python -m tests.uploader.pulling_process TASK SHARD SEGMENT_FD LAYOUT BELL_FDS LOCK_PATH

``loop`` says each lease that it commits, a line of JSON each, before it moves any word; it ends
when the segment drains and nothing is left anywhere. ``die`` dies when its lease is filled and
nothing else is stored.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import msgspec

from shards import layout as at
from shards.clock import monotonic_ns
from shards.doorbell import Doorbells
from shards.frame import Part
from shards.layout import Layout
from shards.leases import Lease, LeaseTable
from shards.locks import LockFile
from shards.ring import RingFull, RingWriter
from shards.segment import Segment
from tests.uploader.crew import TARGET
from uploader.groups.pull import LeaseRequests
from uploader.groups.puller import Pulled, Puller
from uploader.groups.upload_turn import Policy


def is_next(segment: Segment, lease: Lease) -> bool:
    words = segment.words
    return all(
        words[segment.layout.shard(s.shard) + at.S_COMMITTED] == s.start for s in lease.ranges
    )


def commit(segment: Segment, leases: LeaseTable, lease: Lease) -> None:
    """Says a lease, then moves the words."""
    line = msgspec.json.encode((lease.lease_id, lease.ranges)) + b"\n"
    os.write(sys.stdout.fileno(), line)
    for leased in lease.ranges:
        index = segment.layout.shard(leased.shard) + at.S_COMMITTED
        # An adopter may follow a holder that had moved some of them.
        if segment.words[index] == leased.start:
            segment.words[index] = leased.end
    leases.finish(lease)


def drained(segment: Segment) -> bool:
    words, layout = segment.words, segment.layout
    bases = [layout.shard(shard) for shard in range(layout.shards)]
    return bool(words[at.G_DRAINING]) and all(
        words[base + at.S_HEAD] == words[base + at.S_COMMITTED] for base in bases
    )


def loop(shard: int, segment: Segment, leases: LeaseTable, puller: Puller) -> None:
    writer = RingWriter(segment, shard)
    rng = random.Random(shard)
    held: list[Lease] = []
    while not drained(segment):
        if not segment.words[at.G_DRAINING]:
            payload = bytes(rng.randrange(1, 3000))
            try:
                writer.append(monotonic_ns(), 1, b"", [Part(1, 0, 1, payload, 1, 1)])
            except RingFull:
                os.sched_yield()
        held += [pulled.lease for pulled in puller.look(monotonic_ns()).pulled]
        # Not immediately, so that several are in flight.
        if rng.random() < 0.3:
            for lease in [each for each in held if is_next(segment, each)]:
                commit(segment, leases, lease)
                held.remove(lease)


class DyingPuller(Puller):
    """Dies when the lease is filled, before ``pulled``, turn and mark are stored."""

    def _take(self, slot: int, wanted: LeaseRequests) -> Pulled:
        super()._take(slot, wanted)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL does not return")


def main(task: str, shard: str, fd: str, layout: str, bells: str, lock_path: str) -> None:
    segment = Segment.attach(int(fd), msgspec.json.decode(layout, type=Layout))
    leases = LeaseTable(segment.words, segment.layout)
    kind = DyingPuller if task == "die" else Puller
    puller = kind(
        segment,
        int(shard),
        LockFile(Path(lock_path)),
        Doorbells([int(each) for each in bells.split(",")]),
        leases,
        Policy(object_bytes_target=TARGET),
    )
    if task == "die":
        puller.look(monotonic_ns())
        raise AssertionError("there was nothing to pull")
    loop(int(shard), segment, leases, puller)


if __name__ == "__main__":
    main(*sys.argv[1:])
