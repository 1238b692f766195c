"""Files of the lake: of former snapshots, of rewritten data, of compactions that died.

Snapshots expire in the catalog first; then the files that no snapshot names may go. A file that
the ledger reads never goes. One that it dropped goes when its grace time is over and no read lease
is as old as the drop; until then it may lie in no snapshot any more, and a later run finds it as
one that nothing names. So does a run after one that was killed. Files that the ledger does not know
need no name: no recovered ledger reads them either.

Without the extra ``spark`` there is no pyiceberg, and the lake is left alone. What goes wrong here
is a problem in the report: objects are collected whatever the catalog says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from importlib import util
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from compaction.access.ledger_access import LedgerAccess
from compaction.access.redaction import redacted
from compaction.access.settings import LakeSettings
from compaction.tables.errors import LakeError, LakeUnusable, TableRefused
from daemon.upkeep.collection.collector import PAGE
from daemon.upkeep.collection.report import CollectionReport
from ledger import topics
from ledger.lake import lake_files, lake_tables, pages, runs
from ledger.lake.types import LakeTable
from ledger.space import deletions
from ledger.space.deletions import DeletionPolicy
from uploader.stores.base import StoreError
from uploader.stores.counted import Requests

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from compaction.tables.lake import Lake
    from compaction.tables.lake_listing import LakeListing

EVER_MS = 1 << 62


class CollectableFile(Struct, frozen=True):
    """A Parquet file or a manifest; ``data_bytes`` is 0 for the latter, and where unknown."""

    location: str
    data_bytes: int = 0


class LakeFiles:
    """The files of a lake's tables."""

    def __init__(
        self, settings: LakeSettings, ledger: LedgerAccess, lake: Lake, listing: LakeListing,
        report: CollectionReport, now_ms: Callable[[], int], ahead_ms: int = 0,
    ) -> None:  # fmt: skip
        """``now_ms`` is the clock of ages, ``ahead_ms`` how far it is ahead of the wall clock, by
        which files and snapshots are dated."""
        self._settings = settings
        self._ledger = ledger
        self._lake = lake
        self._listing = listing
        self._report = report
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms

    def find(self) -> Iterator[list[CollectableFile]]:
        """By table; snapshots expire in the catalog meanwhile, unless it is a look."""
        from compaction.tables.orphans import our_tables

        # A killed run's first: removed already or not.
        named: set[str] = set()
        after = ""
        while page := self._ledger.read(lake_files.named, after, PAGE):
            named.update(page)
            yield self._among(map(CollectableFile, page))
            after = page[-1]
        tables = [*pages.tables(self._ledger)]
        newest = {table.name: table for table in tables}  # by topic id: the last has the name
        of_each = pages.files_of_each(self._ledger, [table.topic_id for table in tables])
        live = {file.path for files in of_each for file in files}
        began_ms = self._now_ms()
        policy = self._policy()  # what a later lease holds was current after ``began_ms``
        run = self._ledger.read(runs.living, began_ms)
        there = set()
        for name, ours in our_tables(self._lake):
            there.add(name)
            files: dict[str, CollectableFile] = {}
            try:
                if isinstance(ours, TableRefused):
                    raise ours
                for one in self._expired(name, ours, newest.get(name), live, policy, began_ms):
                    files[one.location] = one
                for one in self._orphans(ours, began_ms, {run} if run else set(), live):
                    files[one.location] = one
            except LakeUnusable:
                raise
            except LakeError as error:
                self._report.problems.append(str(error))
            yield self._among(one for one in files.values() if one.location not in named)
        self._tell_missing([table for table in tables if table.name not in there])

    def _tell_missing(self, tables: list[LakeTable]) -> None:
        for table in tables:
            topic = self._ledger.read(topics.by_id, table.topic_id)
            if topic is not None and topic.deleted_ms is None:
                self._report.problems.append(
                    f"the table {table.name} is not in the catalog any more, and the ledger reads"
                    " its files; run `headgate compact`, which registers it again"
                )

    def _expired(
        self, name: str, ours: Table, table: LakeTable | None, live: set[str],
        policy: DeletionPolicy, began_ms: int,
    ) -> Iterator[CollectableFile]:  # fmt: skip
        from compaction.tables.expire import expire

        keep_ms = max(self._settings.snapshot_keep_ms, self._settings.gc_grace_ms)
        held_ms = policy.held_from_ms
        until_ms = min(began_ms - keep_ms, EVER_MS if held_ms is None else held_ms)
        expired = expire(
            self._lake, name, older_than_ms=until_ms - self._ahead_ms, read_files=live,
            dry_run=self._report.dry_run, known=ours,
        )  # fmt: skip
        if expired is None or not expired.snapshots:
            return
        self._report.lake_snapshots += expired.snapshots
        if table is not None and not self._report.dry_run:
            self._ledger.write(lake_tables.move, table, expired.metadata_location)
        yield from map(CollectableFile, (*expired.data, *expired.metadata))

    def _orphans(
        self, ours: Table, began_ms: int, active_runs: set[str], live: set[str]
    ) -> Iterator[CollectableFile]:
        from compaction.tables.orphans import find_orphans

        for orphan in find_orphans(
            self._lake, self._listing, ours,
            older_than_ms=began_ms - self._ahead_ms - self._settings.gc_grace_ms,
            active_runs=active_runs, read_files=live,
        ):  # fmt: skip
            is_data = orphan.location.endswith(".parquet")
            yield CollectableFile(orphan.location, orphan.size_bytes if is_data else 0)

    def _policy(self) -> DeletionPolicy:
        return self._ledger.read(deletions.policy, self._now_ms(), self._settings.gc_grace_ms)

    def _among(self, files: Iterable[CollectableFile]) -> list[CollectableFile]:
        """The files that the ledger does not know, or has dropped long enough ago."""
        found = {file.location: file for file in files}
        if not found:
            return []
        policy = self._policy()
        for known in self._ledger.read(lake_files.known, list(found)):
            if known.dropped_ms is not None and policy.releases(known.dropped_ms):
                found[known.path] = CollectableFile(known.path, known.size_bytes)
            else:
                del found[known.path]
                self._report.kept_by_lease += policy.held_from_ms is not None
        return list(found.values())

    def name(self, found: list[CollectableFile]) -> list[CollectableFile]:
        """Names those that the ledger knows."""
        self._ledger.write(lake_files.name, [one.location for one in found])
        return found

    def judge(self, named: list[CollectableFile]) -> list[CollectableFile]:
        """By the policy of now."""
        return self._among(named)

    def delete(self, going: list[CollectableFile]) -> None:
        """From the lake."""
        self._listing.remove(one.location for one in going)

    def forget(self, gone: list[CollectableFile]) -> None:
        """Their rows go, and their names."""
        self._ledger.write(lake_files.forget, [one.location for one in gone])

    def tell(self, gone: list[CollectableFile]) -> None:
        """Counts."""
        self._report.lake_files += len(gone)
        self._report.lake_bytes += sum(one.data_bytes for one in gone)

    def finish(self) -> None:
        """Nothing is left: what is named is found again."""


@contextlib.contextmanager
def opened_lake(
    settings: LakeSettings, ledger: LedgerAccess, report: CollectionReport
) -> Iterator[tuple[Lake, LakeListing] | None]:
    """The lake, if there is anything to look at; what hinders is told in the report."""
    if not ledger.read(lake_tables.every, 0, 1) and not ledger.read(lake_files.named, "", 1):
        yield None
        return
    if util.find_spec("pyiceberg") is None:
        report.lake_skipped = "the extra `spark`, which brings pyiceberg, is missing"
        yield None
        return
    missing = _missing_catalog(settings)
    if missing is not None:
        report.problems.append(
            f"there is no catalog at {missing}, so the lake is left alone; run `headgate compact`,"
            " which makes it again"
        )
        yield None
        return
    from compaction.tables.lake import open_lake
    from compaction.tables.lake_listing import LakeListing

    try:
        with (
            contextlib.closing(LakeListing(settings.place)) as listing,
            open_lake(settings, ledger) as lake,
        ):
            try:
                yield lake, listing
            finally:
                _add(report.requests, listing.requests)
    except (LakeError, StoreError, OSError) as error:
        report.problems.append(str(error))


def _missing_catalog(settings: LakeSettings) -> str | None:
    """The file of an SQLite catalog of the operator's that is not there; opening it would make an
    empty one. The owner of the ledger keeps the default one."""
    if settings.catalog_name is not None or settings.catalog_uri is None:
        return None
    parts = urlsplit(settings.catalog_uri)
    if parts.scheme != "sqlite" or os.path.exists(unquote(parts.path)[1:]):
        return None
    return redacted(settings.catalog_uri)


def _add(requests: Requests, more: Requests) -> None:
    for field in Requests.__struct_fields__:
        setattr(requests, field, getattr(requests, field) + getattr(more, field))
