"""Unreferenced objects: committed, and nothing in them is needed any more (docs/protocol.md 7).

``ledger/space/unreferenced.py`` says which may go. They are judged when they are named, in that
transaction, and again after the entry, by the read leases of then. The entry that has the names
also has the switch by which readers read the lake, since that was in the ledger before.

An upload of such an object may arrive after its deletion: a hedge's loser, or a dead holder's. A
recovery must not take it for a commit that no entry lists. So the name stays after the object and
its rows have gone, until the object's epoch is below the epoch floor: then a recovery knows it for
an orphan by its key. Names of a recovered ledger are handled the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from compaction.access.ledger_access import LedgerAccess
from daemon.upkeep.collection.collector import PAGE
from daemon.upkeep.collection.report import CollectionReport
from ledger import epochs
from ledger.lake import quarantine
from ledger.space import deletions, marking, unreferenced
from ledger.space.deletions import DeletionPolicy
from ledger.space.unreferenced import Unreferenced
from uploader.l0 import epoch_prefix
from uploader.stores.base import ObjectStore

ROWS_MAX = 1_000  # extents of the objects forgotten in one transaction; one object may have more
ALL = (1 << 62) - 1
_FIRST = (-(1 << 62), 0)


class UnreferencedObjects:
    """The unreferenced objects of a ledger."""

    def __init__(
        self, ledger: LedgerAccess, store: ObjectStore, report: CollectionReport, grace_ms: int,
        now_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._store = store
        self._report = report
        self._grace_ms = grace_ms
        self._now_ms = now_ms
        self._commits_to = ALL

    def find(self) -> Iterator[list[Unreferenced]]:
        """What may go; a look assumes that everything is settled."""
        if self._report.dry_run:
            yield from self._look()
            return
        self._mark()
        policy = self._policy()
        if not self._ledger.read(unreferenced.page, policy, _FIRST, 1):
            return
        self._commits_to = self._ledger.settled_commits()
        yield from self._not_held(self._policy())

    def _mark(self) -> None:
        while marking.mark_unreferenced(self._ledger, self._now_ms()):
            pass
        after: int | None = 0
        while after is not None:
            after = marking.mark_void(self._ledger, self._now_ms(), after)

    def _policy(self) -> DeletionPolicy:
        return self._ledger.read(
            deletions.policy, self._now_ms(), self._grace_ms, self._commits_to
        )  # fmt: skip

    def _not_held(self, policy: DeletionPolicy) -> Iterator[list[Unreferenced]]:
        after = _FIRST
        while page := self._ledger.read(unreferenced.page, policy, after, PAGE):
            yield [one for one in page if not self._is_held(policy, one)]
            after = (page[-1].since_ms, page[-1].commit_number)

    def _is_held(self, policy: DeletionPolicy, one: Unreferenced) -> bool:
        held = policy.is_held(one.since_ms)
        self._report.kept_by_lease += held
        return held

    def _look(self) -> Iterator[list[Unreferenced]]:
        report = self._report
        policy = self._policy()
        marked = 0
        for page in self._not_held(policy):
            marked += len(page)
            yield page
        report.waiting = self._ledger.read(unreferenced.count) - marked - report.kept_by_lease
        # What is free and not marked yet has its whole grace time before it.
        is_late = self._grace_ms or policy.is_held(self._now_ms())
        after: int | None = 0
        while after is not None:
            page, after = self._ledger.read(unreferenced.unmarked, after, PAGE)
            if is_late:
                report.waiting += len(page)
            else:
                yield page
        report.quarantined = self._ledger.read(quarantine.object_count)

    def name(self, found: list[Unreferenced]) -> list[Unreferenced]:
        """Names them, by the policy of now."""
        policy = self._policy()
        return self._ledger.write(
            unreferenced.name, policy, [one for one in found if not self._is_held(policy, one)]
        )

    def judge(self, named: list[Unreferenced]) -> list[Unreferenced]:
        """By the policy of now; the names of the others stay, and a later collection decides."""
        policy = self._policy()
        return self._ledger.read(
            unreferenced.among, policy, [one for one in named if not self._is_held(policy, one)]
        )

    def delete(self, going: list[Unreferenced]) -> None:
        """From the store."""
        self._store.delete([one.locator for one in going])

    def forget(self, gone: list[Unreferenced]) -> None:
        """Rows of objects and extents go; names whose epoch is over go with them."""
        before_key = self._over()
        for some in _by_rows(gone):
            self._ledger.write(unreferenced.forget, [one.key for one in some], before_key)

    def _over(self) -> str:
        """Keys of epochs that are over are lower."""
        return epoch_prefix(self._ledger.read(epochs.floor))

    def tell(self, gone: list[Unreferenced]) -> None:
        """Keys and counts."""
        self._report.collected += len(gone)
        self._report.collected_bytes += sum(one.size_bytes for one in gone)
        self._report.tell(one.key for one in gone)

    def finish(self) -> None:
        """Names without rows whose epoch is over: what arrived since goes, and the names."""
        before_key, after = self._over(), ""
        while page := self._ledger.read(unreferenced.without_rows, before_key, after, PAGE):
            self._store.delete([locator for _, locator in page])
            self._ledger.write(unreferenced.forget, [key for key, _ in page], before_key)
            after = page[-1][0]
        report = self._report
        report.waiting = self._ledger.read(unreferenced.count) - report.kept_by_lease
        report.quarantined = self._ledger.read(quarantine.object_count)


def _by_rows(objects: list[Unreferenced]) -> Iterator[list[Unreferenced]]:
    some: list[Unreferenced] = []
    rows = 0
    for one in objects:
        if some and rows + one.extents > ROWS_MAX:
            yield some
            some, rows = [], 0
        some.append(one)
        rows += one.extents
    if some:
        yield some
