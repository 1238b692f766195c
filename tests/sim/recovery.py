"""The machine's ledger is lost in the middle of everything: what a recovery makes of the store.

Real: the entries' changes; ``take_unlisted`` with its order of rings and its second decision of
keys and expectations; the ledger that takes them in. Nothing is stopped for it: the simulated
machine goes on as if nothing had happened.

Each request that was committed, whether an entry told it or not, is stored once if it was stored,
and void if it was void. Requests with an idempotency key are left out, because their first try may
have been another shard's. Of appends with the same expectation at most one is stored. A client's
cursor is where the stored requests moved it. A router's is where entries say, and its copies since
are void.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

from daemon.upkeep.recover import RecoveryReport, take_unlisted
from ledger import reads, topics
from ledger.checks import invariants
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from shards.frame import batch_payload, batches
from tests.sim.collection import requests_of
from tests.sim.oracle import Oracle
from tests.sim.schedule import require
from tests.sim.store import Store
from uploader.l0.reader import read_extent, read_footer
from uploader.stores.base import ObjectHead


class Listed(Store):
    """The objects of a store as of now, for reading."""

    def __init__(self, store: Store) -> None:
        self.kept = dict(store.kept)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """All of them."""
        for key in sorted(self.kept):
            yield ObjectHead(key, key, len(self.kept[key][1]), 0)


class Backup:
    """What entries of the owner's log say of a ledger."""

    def __init__(self, ledger: Ledger, store: Store, oracle: Oracle, directory: Path) -> None:
        self._ledger = ledger
        self._store = store
        self._oracle = oracle
        self._path = directory / "told.db"
        self._recovered = directory / "recovered.db"
        self._mark = Mark()
        self.taken = 0
        with closing(Ledger(self._path, nullcontext())):
            self.tell()

    def tell(self) -> None:
        """An entry."""
        self._mark, changes = self._ledger.read(backup.changes_since, self._mark)
        with closing(Ledger(self._path, nullcontext())) as told:
            told.write(backup.apply, changes)

    def image(self) -> None:
        """An image, after which the entries before it are not needed."""
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._ledger.read(backup.copy_to, self._path, lambda: None)
        self._mark = self._ledger.read(backup.mark)

    def recover(self) -> None:
        """Raises Violation."""
        for suffix in ("", "-wal", "-shm"):
            self._recovered.with_name(self._recovered.name + suffix).unlink(missing_ok=True)
        with (
            closing(sqlite3.connect(self._path)) as told,
            closing(sqlite3.connect(self._recovered)) as copy,
        ):
            told.backup(copy)
        store = Listed(self._store)
        with closing(Ledger(self._recovered, nullcontext())) as ledger:
            ledger.write(backup.forget_named)
            report = RecoveryReport()
            take_unlisted(ledger, store, 1, self._mark, report, lambda _: None)
            require(report.sound, "every object is whole and there", report.corrupt, report.missing)
            ledger.read(invariants.check)
            stored = self._stored(ledger, store)
            with closing(Ledger(self._path, nullcontext())) as entries, entries.reading() as tx:
                self._oracle.check_recovered(ledger, {number for number, _ in stored}, tx)
        self.taken += report.objects_taken
        twice = [number for number, count in stored.items() if count > 1]
        require(not twice, "a recovery stores nothing twice", twice)
        gone = {each for body in self._store.deleted.values() for each in requests_of(body)}
        again = gone & set(stored)
        require(not again, "what was collected does not come again", again)

    def _stored(self, ledger: Ledger, store: Store) -> Counter[tuple[int, tuple[int, int]]]:
        """How often each request's part of a partition is readable."""
        found: Counter[tuple[int, tuple[int, int]]] = Counter()
        for topic in ledger.read(topics.page):
            for partition in range(topic.config.partitions):
                in_order: list[int] = []
                state = ledger.read(reads.partition_states, topic.topic_id)[partition]
                for extent in ledger.read(
                    reads.extents_from, topic.topic_id, partition, state.earliest_seq, 1 << 30
                ):
                    body = store.kept[extent.locator][1]
                    place = (topic.topic_id, partition)
                    footer = read_footer(body)
                    there = next(e for e in footer.extents if (e.topic_id, e.partition) == place)
                    data = read_extent(body, there)
                    index = 0
                    for head in batches(data):
                        void = any(start <= index < start + n for start, n in extent.voids)
                        number = int.from_bytes(batch_payload(data, head)[:8], "big")
                        found[number, place] += not void
                        if not void:
                            in_order.append(number)
                        index += head.record_count
                self._oracle.check_order(in_order)
        return +found
