"""One collection: each kind after the other, or a look at what would go."""

from __future__ import annotations

import random
from collections.abc import Callable, Container

from compaction.access.ledger_access import LedgerAccess
from compaction.access.settings import LakeSettings
from daemon.upkeep.collection.collector import Collectable, Collector, T, look
from daemon.upkeep.collection.lake_files import LakeFiles, opened_lake
from daemon.upkeep.collection.orphans import OrphanObjects
from daemon.upkeep.collection.report import CollectionReport
from daemon.upkeep.collection.unreferenced import UnreferencedObjects
from daemon.upkeep.recover import sleep_s
from daemon.upkeep.upkeep import clocks
from ledger import ages, epochs
from ledger.types import LeaseId
from uploader.stores.base import ObjectStore
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore


def collect(
    settings: LakeSettings, ledger: LedgerAccess, counted: ObjectStore, report: CollectionReport,
    live_leases: Callable[[], Container[LeaseId]],
) -> None:  # fmt: skip
    """Deletes what nothing needs, or reports it where ``report.dry_run``.

    Raises LedgerError, StoreError, and what ``await_backup`` raises.
    """
    now = clocks()
    ahead_ms = max(0, ledger.read(ages.now_ms, now) - now.wall_ms)
    store = RetryingStore(counted, COMMAND, random.Random(counted.url), sleep_s)

    def age_ms() -> int:
        return ledger.read(ages.now_ms, clocks())

    def store_age_ms() -> int:
        """Never ahead of the clock by which a store dates what it takes."""
        return age_ms() - ahead_ms

    def run(kind: Collectable[T]) -> None:
        if report.dry_run:
            look(kind)
        else:
            Collector(ledger.await_backup).collect(kind)

    report.epoch_floor = ledger.read(epochs.floor)
    what = (ledger, store, report, settings.gc_grace_ms)
    # Unreferenced objects first: further copies of them are orphans then.
    run(UnreferencedObjects(*what, age_ms))
    run(OrphanObjects(*what, store_age_ms, live_leases))
    with opened_lake(settings, ledger, report) as opened:
        if opened is not None:
            run(LakeFiles(settings, ledger, *opened, report, age_ms, ahead_ms))
