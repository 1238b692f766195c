"""What grows with the number of shards: a pull, a look that finds nothing due, a supervisor tick.

It does not need as many cores: one process sets up the shared memory of all shards and does what
one shard, or the supervisor, would do. Each figure is the CPU of this process, as the median over
turns that alternate between the numbers of shards, so that a busy minute of the machine affects
all.

A pull takes four targets of a backlog that is the same in total, in requests of 1 KiB, over all
members of one group. A tick sees every lease slot live, with a source in every shard.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.hot import collecting_as_in_a_shard
from bench.results import ScaleResult
from daemon.config import Override, load
from daemon.process.inherit import Ground
from daemon.process.listeners import Listeners, admin_listener, open_listeners
from daemon.process.supervisor import Supervisor
from daemon.upkeep.directory import open_config_store, take_directory
from daemon.upkeep.owner import this_owner
from daemon.upkeep.recover import sleep_s
from ledger.ledger import Ledger
from ledger.types import LeasedRange, LeaseId
from shards import layout as at
from shards import locks
from shards.clock import monotonic_ns, process_cpu_ns
from shards.doorbell import Doorbells
from shards.frame import Part
from shards.layout import Layout
from shards.leases import LeaseTable
from shards.locks import LockFile, SharedLock
from shards.ring import RingWriter
from shards.segment import Segment
from uploader.groups.puller import GroupTable, Puller
from uploader.groups.upload_turn import Policy
from uploader.ownership.ownerlog import OwnerLog
from uploader.stores.counted import CountedPartedStore

SHARDS = (2, 8, 64, 128)
TARGET = 4 << 20
BACKLOG = 64 << 20
REQUEST_BYTES = 1024
PULLS = 15
LOOKS = 200
TICKS = 60
WINDOW_NS = 200_000_000


def measure(work: Path) -> list[ScaleResult]:
    """The figures for each number of shards."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(collecting_as_in_a_shard())
        groups = [
            stack.enter_context(_group(shards, work / f"group-{shards}")) for shards in SHARDS
        ]
        pulls: list[list[float]] = [[] for _ in SHARDS]
        for _ in range(PULLS):
            for group, measured in zip(groups, pulls, strict=True):
                measured.append(group.pull_ms())
        looks: list[list[float]] = [[] for _ in SHARDS]
        for _ in range(LOOKS):
            for group, measured in zip(groups, looks, strict=True):
                measured.append(group.look_ms())
    ticks = [_ticks_ms(shards, work / f"tick-{shards}") for shards in SHARDS]
    return [
        ScaleResult(shards, statistics.median(pull), statistics.median(look), tick)
        for shards, pull, look, tick in zip(SHARDS, pulls, looks, ticks, strict=True)
    ]


class _Group:
    """One group of all shards, with a backlog."""

    def __init__(self, segment: Segment, lock_file: LockFile, bells: Doorbells) -> None:
        self._segment = segment
        self._shards = range(segment.layout.shards)
        self._leases = LeaseTable(segment.words, segment.layout)
        self._table = GroupTable(segment)
        self._table.start()
        self._writers = itertools.cycle([RingWriter(segment, shard) for shard in self._shards])
        policy = Policy(object_bytes_target=TARGET)
        self._puller = Puller(segment, 0, lock_file, bells, self._leases, policy)
        segment.words[at.G_INCARNATION] = segment.words[at.G_EPOCH] = 1
        segment.words[at.G_WINDOW_NS] = WINDOW_NS

    def pull_ms(self) -> float:
        """The CPU of one pull into four free slots."""
        self._fill(BACKLOG)
        now_ns = self._our_turn()
        before_ns = process_cpu_ns()
        pulled = self._puller.look(now_ns).pulled
        spent_ns = process_cpu_ns() - before_ns
        taken = sum(s.end - s.start for each in pulled for s in each.lease.ranges)
        if taken < 4 * TARGET:
            raise AssertionError(f"a pull took {taken} bytes of {BACKLOG}")
        for each in pulled:
            self._commit(each.lease.ranges)
            self._leases.finish(each.lease)
        return spent_ns / 1e6

    def look_ms(self) -> float:
        """The CPU of one look, with a request in every member and nothing due."""
        for shard in self._shards:
            head = int(self._segment.words[self._segment.layout.shard(shard) + at.S_HEAD])
            self._commit([LeasedRange(shard, 0, head)])
        self._fill(len(self._shards))
        now_ns = self._our_turn()
        self._puller.look(now_ns)  # reads the oldest request of each member; later looks know it
        before_ns = process_cpu_ns()
        look = self._puller.look(now_ns)
        spent_ns = process_cpu_ns() - before_ns
        if look.pulled:
            raise AssertionError("something was due")
        return spent_ns / 1e6

    def _our_turn(self) -> int:
        now_ns = monotonic_ns()
        self._table.store(0, at.P_UPLOAD_TURN, 0)
        for word in (
            at.P_LAST_CHANGE_NS,
            at.P_LAST_PULL_NS,
        ):  # no split, no idle pull
            self._table.store(0, word, now_ns)
        return now_ns

    def _fill(self, size_bytes: int) -> None:
        """Fills all members equally, up to a backlog of this size."""
        part = Part(1, 0, 1, bytes(REQUEST_BYTES), 1, 1)
        group = self._table.map.group_of(0)
        missing = size_bytes - self._table.backlog_bytes(group)
        while missing > 0:
            writer = next(self._writers)
            before = writer.head
            writer.append(monotonic_ns(), 1, b"", [part])
            missing -= writer.head - before

    def _commit(self, ranges: tuple[LeasedRange, ...] | list[LeasedRange]) -> None:
        words, layout = self._segment.words, self._segment.layout
        for leased in ranges:
            base = layout.shard(leased.shard)
            for word in (at.S_COMMITTED, at.S_PULLED):
                words[base + word] = max(int(words[base + word]), leased.end)


@contextlib.contextmanager
def _group(shards: int, folder: Path) -> Iterator[_Group]:
    folder.mkdir()
    # Room for the backlog, which a pull leaves uneven.
    segment = Segment.create(Layout(shards, (2 * BACKLOG // shards + 7) & ~7))
    lock_file = LockFile(folder / "lock")
    bells = Doorbells.create(shards)
    group = _Group(segment, lock_file, bells)
    try:
        yield group
    finally:
        del group
        bells.close()
        lock_file.close()


def _ticks_ms(shards: int, folder: Path) -> float:
    """The CPU of a supervisor tick, with each lease slot live and all shards as its sources."""
    folder.mkdir()
    settings = {"data_dir": folder, "shards": shards, "ring_bytes": "4MiB",
                "object_bytes_target": "1MiB", "body_bytes_max": "1MiB"}  # fmt: skip
    overrides = [Override(key, str(value)) for key, value in settings.items()]
    config = load(None, {}, overrides)
    with contextlib.ExitStack() as stack:
        lock_file = stack.enter_context(contextlib.closing(take_directory(config)))
        lock = SharedLock(lock_file, locks.LEDGER)
        opened = stack.enter_context(contextlib.closing(open_config_store(config)))
        store = CountedPartedStore(opened)
        ledgers = [
            stack.enter_context(contextlib.closing(Ledger(Path(config.ledger_path), lock)))
            for _ in range(3)
        ]
        owner_log = OwnerLog(store, this_owner(config.data_dir), sleep_s)
        taken = owner_log.take(take_over=False)
        admin = stack.enter_context(admin_listener(config.data_dir))
        listeners = Listeners(open_listeners("127.0.0.1", 0, shards), [], admin)
        told, kept, copied = ledgers
        ground = stack.enter_context(contextlib.closing(Ground(config, listeners)))
        supervisor = Supervisor(config, lock_file, owner_log, store, told, kept, copied, ground)
        stack.enter_context(contextlib.closing(supervisor))
        supervisor.prepare(taken)
        words, layout = supervisor.segment.words, supervisor.layout
        leases = LeaseTable(words, layout)
        ranges = [LeasedRange(shard, 0, 8) for shard in range(shards)]
        for child in supervisor.children:
            child.process = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL)
            words[layout.shard(child.shard) + at.S_READY] = 1
            for slot in range(layout.lease_slots):
                leases.fill(child.shard, slot, LeaseId(1, 1, child.shard, slot), 1, ranges)
        supervisor._owner.start()  # a tick checks that it runs
        measured = []
        for _ in range(TICKS):
            for child in supervisor.children:
                words[layout.shard(child.shard) + at.S_HEARTBEAT] += 1
            before_ns = process_cpu_ns()
            supervisor._tick()
            measured.append((process_cpu_ns() - before_ns) / 1e6)
        supervisor._owner.release()
        return statistics.median(measured)
