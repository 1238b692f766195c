"""Committed objects that nothing needs any more: named, told, deleted, forgotten (protocol 7).

    mark what is free -> settle -> in rounds: name -> an entry has the names -> DELETE
    -> rows of object and extents go together with the name

What may go says ``ledger/space/collection.py``. It is judged when it is named, in that transaction,
and again behind the entry, by the read leases of then. The entry that has the names also has the
switch by which readers read L1, since that was in the ledger before.

Killed between any two steps and run again: a name without its rows is of a recovery and its object
goes; a name with rows is named again, which changes nothing, and the run goes on from there.
Deleting an object that is gone is no error. Transactions are short: so many names, or so many rows,
at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from daemon.upkeep.collect import PAGE_OBJECTS, Report, pages
from daemon.upkeep.cover import Cover, Sleep
from ledger.lake import quarantine
from ledger.ledger import Ledger
from ledger.space import deletions, marking, unreferenced
from ledger.space.deletions import DeletionPolicy
from ledger.space.settle import Settled
from ledger.space.unreferenced import Unreferenced
from uploader.stores.base import ObjectStore
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore

ROUND_OBJECTS = 10_000  # named by one entry: about 1 MB
NAMES_AT_ONCE = 500  # in one transaction: some milliseconds
ROWS_AT_ONCE = 1_000  # extents of the objects forgotten in one; a single object may have more
EVER = (1 << 62, 1 << 62)


class SpentCollection:
    """The spent objects of one run."""

    def __init__(
        self, ledger: Ledger, store: ObjectStore, report: Report, grace_ms: int,
        now_ms: Callable[[], int], sleep_s: Sleep, compacting: Callable[[], bool],
    ) -> None:  # fmt: skip
        """``compacting``: whether a compaction is at work, which reads without a lease."""
        self._ledger = ledger
        self._store = RetryingStore(store, COMMAND, random.Random(store.url), sleep_s)
        self._report = report
        self._grace_ms = grace_ms
        self._now_ms = now_ms
        self._compacting = compacting

    def look(self) -> None:
        """Fills the report with what a collection would do, were all settled; writes nothing."""
        report = self._report
        rule = self._rule(Settled(0, *EVER))
        marked = 0
        for spent in self._spent(rule):
            marked += 1
            if rule.is_held(spent.free_ms):
                report.kept_by_lease += 1
            else:
                self._tell([spent])
        waiting = self._ledger.read(unreferenced.count) - marked
        # What is free and not marked yet has its whole grace before it.
        for spent in self._unmarked():
            if self._grace_ms or rule.is_held(self._now_ms()):
                waiting += 1
            else:
                self._tell([spent])
        report.waiting = waiting
        report.quarantined = self._ledger.read(quarantine.object_count)

    def collect(self, cover: Cover) -> int | None:
        """Deletes what is spent. The floor that was needed for it; None when nothing was.

        Raises NotCovered, StoreError, LedgerError.
        """
        self._mark()
        self._finish_recovered()
        floor = None
        if next(self._spent(self._rule(Settled(0, *EVER))), None) is not None:
            settled = cover.settle()
            floor = settled.epoch_floor
            for batch in pages(self._spent(self._rule(settled)), ROUND_OBJECTS):
                self._collect(batch, settled, cover)
        report = self._report
        report.waiting = self._ledger.read(unreferenced.count) - report.kept_by_lease
        report.quarantined = self._ledger.read(quarantine.object_count)
        return floor

    def _mark(self) -> None:
        while marking.mark_free(self._ledger, self._now_ms()):
            pass
        after: int | None = 0
        while after is not None:
            after = marking.mark_void(self._ledger, self._now_ms(), after)

    def _finish_recovered(self) -> None:
        """Names whose rows a recovery took away: entries had told of them."""
        after = ""
        while page := self._ledger.read(unreferenced.named_without_rows, after, PAGE_OBJECTS):
            self._store.delete([locator for _, locator in page])
            self._ledger.write(unreferenced.forget, [key for key, _ in page])
            after = page[-1][0]

    def _rule(self, settled: Settled) -> DeletionPolicy:
        return self._ledger.read(deletions.policy,
            self._now_ms(), self._grace_ms, settled.epoch_floor, settled.commits_to,
            run_lives=self._compacting(),
        )  # fmt: skip

    def _spent(self, rule: DeletionPolicy) -> Iterator[Unreferenced]:
        after = (-(1 << 62), 0)
        while page := self._ledger.read(unreferenced.page, rule, after, PAGE_OBJECTS):
            yield from page
            after = (page[-1].free_ms, page[-1].commit_number)

    def _unmarked(self) -> Iterator[Unreferenced]:
        after: int | None = 0
        while after is not None:
            page, after = self._ledger.read(unreferenced.unmarked, after, PAGE_OBJECTS)
            yield from page

    def _collect(self, batch: Sequence[Unreferenced], settled: Settled, cover: Cover) -> None:
        named: list[Unreferenced] = []
        for some in pages(iter(batch), NAMES_AT_ONCE):
            rule = self._rule(settled)
            named += self._ledger.write(unreferenced.name, rule, some)
            self._report.kept_by_lease += sum(rule.is_held(one.free_ms) for one in some)
        if not named:
            return
        self._told(cover)
        for some in pages(iter(named), PAGE_OBJECTS):
            going = self._ledger.read(unreferenced.among, self._rule(settled), some)
            self._report.kept_by_lease += len(some) - len(going)
            self._store.delete([one.locator for one in going])
            for few in _by_rows(going):
                self._ledger.write(unreferenced.forget, [one.key for one in few])
            self._tell(going)

    def _told(self, cover: Cover) -> None:
        cover.cover()

    def _tell(self, gone: Sequence[Unreferenced]) -> None:
        self._report.collected += len(gone)
        self._report.collected_bytes += sum(one.size_bytes for one in gone)
        self._report.tell(one.key for one in gone)


def _by_rows(objects: Sequence[Unreferenced]) -> Iterator[list[Unreferenced]]:
    few: list[Unreferenced] = []
    rows = 0
    for one in objects:
        if few and rows + one.extents > ROWS_AT_ONCE:
            yield few
            few, rows = [], 0
        few.append(one)
        rows += one.extents
    if few:
        yield few
