"""A collection while a simulated daemon runs: the shipped collector and its kinds of objects.

Modeled: the calls on the owner of the ledger (leases are read word by word, as a shard reads
them), evictions, and what was collected. A collection may be stopped, or killed and begun again,
between any two of its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Concatenate, cast

from daemon.intake.commit_feed import followed_and_live
from daemon.upkeep.collection.collector import Collector
from daemon.upkeep.collection.orphans import OrphanObjects
from daemon.upkeep.collection.report import CollectionReport
from daemon.upkeep.collection.unreferenced import UnreferencedObjects
from ledger import commits, reads
from ledger.lake.catalog import CatalogTx
from ledger.space import retention
from ledger.tx import P, ReadTx, T, WriteTx
from ledger.types import LeaseId
from shards.frame import batch_payload, batches
from shards.leases import LIVE, ORPHAN, LeaseTable
from tests.sim.load import PARTITIONS, TOPICS
from tests.sim.schedule import MS, Process, Words, log_uniform
from uploader.l0.reader import read_extent, read_footer

if TYPE_CHECKING:
    from ledger.ledger import Ledger
    from tests.sim.machine import Machine

Place = tuple[int, int]  # topic and partition


class Access:
    """The owner of the ledger, as a collection asks it."""

    run: str | None = None
    daemon_pid: int | None = 1

    def __init__(self, machine: Machine, process: Process, ledger: Ledger) -> None:
        self._machine = machine
        self._ledger = ledger
        self._words = cast(memoryview, Words(machine.segment.words, process))
        self._leases = LeaseTable(self._words, machine.layout)

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._machine.schedule.point()
        return self._ledger.read(function, *args, **kwargs)

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._ledger.write(function, *args, **kwargs)

    def catalog(
        self, function: Callable[Concatenate[CatalogTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        raise AssertionError("there is no lake")

    def await_backup(self) -> None:
        machine = self._machine
        machine.schedule.sleep(int(log_uniform(machine.rng, 5, 5_000)) * MS)
        machine.backup.tell()
        machine.schedule.sleep(int(log_uniform(machine.rng, 5, 500)) * MS)

    def live_leases(self) -> list[LeaseId]:
        return [lease.lease_id for lease in self._leases.in_state(LIVE, ORPHAN)]

    def settled_commits(self) -> int:
        seen = followed_and_live(self._words, self._machine.layout, self._leases)
        return self.read(commits.before_leases, *seen)


class Collections:
    """One collection after the other."""

    def __init__(self, machine: Machine, ledger: Ledger) -> None:
        self._machine = machine
        self._ledger = ledger
        self.start()

    def start(self) -> None:
        """A new life of the process."""
        machine = self._machine
        self.process = Process(machine.schedule, "collection")
        machine.schedule.start(self.process, "collect", self._run)

    def kill(self) -> None:
        """SIGKILL; it is begun again."""
        self._machine.log("the collection is killed")
        self._machine.schedule.kill(self.process)
        self.start()

    def _run(self) -> None:
        machine = self._machine
        schedule, rng, store = machine.schedule, machine.rng, machine.store
        access = Access(machine, self.process, self._ledger)

        def now_ms() -> int:
            return schedule.now_ns // MS

        while True:
            schedule.sleep(int(log_uniform(rng, 50, 5_000)) * MS)
            if rng.randrange(3):
                self._evict((rng.randrange(1, TOPICS + 1), rng.randrange(PARTITIONS)))
            report = CollectionReport(dry_run=False)
            collector = Collector(access.await_backup)
            collector.collect(UnreferencedObjects(access, store, report, 0, now_ms))
            orphans = OrphanObjects(access, store, report, 0, now_ms, access.live_leases)
            collector.collect(orphans)
            machine.log(f"collected {report.collected}, {report.deleted} orphans")

    def _evict(self, place: Place) -> None:
        """Some of the oldest extents of a partition."""
        machine = self._machine
        topic_id, partition = place
        state = machine.seen_ledger.read(reads.partition_states, topic_id)[partition]
        extents = machine.seen_ledger.read(
            reads.extents_from, topic_id, partition, state.earliest_seq, 1 << 30
        )
        if not extents:
            return
        last = machine.rng.randrange(len(extents))
        for extent in extents[: last + 1]:
            body = machine.store.kept[extent.locator][1]
            machine.oracle.evicted |= {n for n, where in requests_of(body) if where == place}
        before = extents[last].last_offset + 1
        machine.log(f"evict {place} before {before}")
        retention.trim(self._ledger, f"t{topic_id}", partition, before)


def requests_of(body: bytes) -> Iterator[tuple[int, Place]]:
    """The numbers of the requests in an object, and where each part of one is."""
    for extent in read_footer(body).extents:
        data = read_extent(body, extent)
        for head in batches(data):
            number = int.from_bytes(batch_payload(data, head)[:8], "big")
            yield number, (extent.topic_id, extent.partition)
