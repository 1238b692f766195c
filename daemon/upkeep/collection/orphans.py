"""Orphan objects: put, never committed, and never will be (docs/protocol.md 7).

Three looks in this order tell one: a LIST shows the object; after that no live lease has its id;
after that the ledger has no commit of it. A lease is live before its object is put and until its
commit is in the ledger, and no id is used twice. So whatever stands in the LIST and in neither of
the others has no lease any more.

An orphan goes when its grace time is over, counted from when the store took it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator
from itertools import groupby

from msgspec import Struct

from compaction.access.ledger_access import LedgerAccess
from daemon.upkeep.collection.collector import PAGE, pages
from daemon.upkeep.collection.report import CollectionReport
from ledger import epochs, reads
from ledger.space import deletions, orphans
from ledger.types import LeaseId
from uploader.l0 import L0Error, parse_key
from uploader.ownership.unlisted import is_orphan
from uploader.stores.base import ObjectHead, ObjectStore


class OrphanObject(Struct, frozen=True):
    """An orphan. The embedded store may hold equal copies of it, each with a locator."""

    key: str
    locators: list[str]
    size_bytes: int


class OrphanObjects:
    """The orphans in a store."""

    def __init__(
        self, ledger: LedgerAccess, store: ObjectStore, report: CollectionReport, grace_ms: int,
        now_ms: Callable[[], int], live_leases: Callable[[], Container[LeaseId]],
    ) -> None:  # fmt: skip
        """``now_ms`` is a clock that is never ahead of the one by which the store dates objects."""
        self._ledger = ledger
        self._store = store
        self._report = report
        self._grace_ms = grace_ms
        self._now_ms = now_ms
        self._live_leases = live_leases
        self._gone: set[str] = set()

    def find(self) -> Iterator[list[OrphanObject]]:
        """Orphans past their grace time."""
        # Another collection may add names meanwhile, which are its own to forget.
        self._gone = self._named()
        frames = self._store.list("l0/")
        objects = ([*copies] for _, copies in groupby(frames, lambda head: head.key))
        for page in pages(objects, PAGE):
            yield list(self._among(page))

    def _named(self) -> set[str]:
        names: set[str] = set()
        after = ""
        while page := self._ledger.read(orphans.named, after, PAGE):
            names.update(page)
            after = page[-1]
        return names

    def _among(self, page: list[list[ObjectHead]]) -> Iterator[OrphanObject]:
        """The orphans among objects that a LIST showed."""
        live = self._live_leases()
        committed = self._ledger.read(reads.committed_keys, [copies[0].key for copies in page])
        ours = frozenset(self._ledger.read(epochs.incarnations))
        report = self._report
        report.objects += len(page)
        for copies in page:
            key = copies[0].key
            self._gone.discard(key)
            if key in committed:
                continue
            lease_id = lease_of(key, ours)
            if lease_id is None:
                report.foreign += 1
            elif lease_id not in live:
                size_bytes = sum(copy.size_bytes for copy in copies)
                report.orphans += 1
                report.orphan_bytes += size_bytes
                modified_ms = max(copy.modified_ms for copy in copies)
                if max(0, self._now_ms() - modified_ms) < self._grace_ms:
                    report.young += 1
                else:
                    yield OrphanObject(key, [copy.locator for copy in copies], size_bytes)

    def name(self, found: list[OrphanObject]) -> list[OrphanObject]:
        """Names them; a commit of one is refused from then on."""
        rows = [(one.key, one.locators[0]) for one in found]
        named = self._ledger.write(orphans.name, rows)
        return [one for one in found if one.key in named]

    def judge(self, named: list[OrphanObject]) -> list[OrphanObject]:
        """The objects that are still named, and still orphans."""
        live = self._live_leases()
        keys = [one.key for one in named]
        committed = self._ledger.read(reads.committed_keys, keys)
        names = self._ledger.read(deletions.named, keys)
        return [
            one
            for one in named
            if one.key in names and one.key not in committed and parse_key(one.key) not in live
        ]

    def delete(self, going: list[OrphanObject]) -> None:
        """All copies."""
        self._store.delete([locator for one in going for locator in one.locators])

    def forget(self, gone: list[OrphanObject]) -> None:
        """A copy that arrives later is an orphan again."""
        self._ledger.write(orphans.forget, [one.key for one in gone])

    def tell(self, gone: list[OrphanObject]) -> None:
        """Keys, and when they were deleted also counts."""
        self._report.tell(one.key for one in gone)
        if not self._report.dry_run:
            self._report.deleted += len(gone)
            self._report.deleted_bytes += sum(one.size_bytes for one in gone)

    def finish(self) -> None:
        """Names that a killed collection left, of objects that the LIST did not show."""
        for some in pages(sorted(self._gone), PAGE):
            self._ledger.write(orphans.forget, some)


def lease_of(key: str, incarnations: Collection[int]) -> LeaseId | None:
    """The lease of an object; None when it is not an object of this ledger."""
    try:
        lease_id = parse_key(key)
    except L0Error:
        return None
    return lease_id if lease_id.incarnation in incarnations else None


class TakenAtStart(Struct, frozen=True):
    """Leases whose objects a start after a boot of the machine takes, though none of them lives.

    For a look: a collection itself begins with such a start. See ``is_orphan`` of
    ``uploader/ownership/unlisted.py``.
    """

    incarnation: int
    epoch_floor: int

    def __contains__(self, lease_id: object) -> bool:
        return isinstance(lease_id, LeaseId) and not is_orphan(
            lease_id, self.epoch_floor, self.incarnation
        )
