"""What a collection takes of the lake: former snapshots, rewritten files, files of dead runs.

    expire snapshots in the catalog -> find files that no snapshot names -> name those that the
    ledger knows -> an entry has the names and the tables' new metadata -> remove -> rows go

A file that the ledger reads is never taken. One that it dropped goes when its grace is over and no
read lease is as old as the drop; until then it may lie in no snapshot any more, and a later run
finds it as one that nothing names. So does a run that was killed in between.

Without the extra ``spark`` there is no pyiceberg, and the lake is left alone. What goes wrong here
is a problem in the report: objects are collected whatever the catalog says.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from importlib import util
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from compaction.tables.errors import LakeError, LakeUnusable, TableDamaged
from daemon.config import Config
from daemon.lake_settings import lake_settings
from daemon.upkeep.collect import PAGE_OBJECTS, Report, pages
from daemon.upkeep.cover import Cover
from ledger import topics
from ledger.lake import lake_files, lake_tables
from ledger.lake import runs as ledger_runs
from ledger.lake.types import LakeTable
from ledger.ledger import Ledger
from ledger.space import deletions
from ledger.space.deletions import DeletionPolicy
from uploader.stores.base import StoreError
from uploader.stores.counted import Requests

if TYPE_CHECKING:
    from compaction.tables.lake import Lake
    from compaction.tables.lake_listing import LakeListing

NAMES_AT_ONCE = 500  # in one transaction
EVER = 1 << 62


class LakeCollection:
    """The lake's part of one run. Without a cover it is a look, which writes nothing."""

    def __init__(
        self, config: Config, ledger: Ledger, report: Report, now_ms: Callable[[], int],
        cover: Cover | None, ahead_ms: int = 0,
    ) -> None:  # fmt: skip
        """``now_ms`` is the clock of ages, ``ahead_ms`` how far it is ahead of the wall clock, by
        which files and snapshots are dated."""
        self._config = config
        self._ledger = ledger
        self._report = report
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self._cover = cover
        self._going: dict[str, int] = {}  # location: bytes of data
        self._moved = False

    def run(self) -> None:
        """Collects what it can and says what not. Raises NotCovered, LedgerError."""
        tables = self._ledger.read(lake_tables.every)
        if not tables and not self._ledger.read(lake_files.named, "", 1):
            return
        if util.find_spec("pyiceberg") is None:
            self._report.lake_skipped = "the extra `spark`, which brings pyiceberg, is missing"
            return
        missing = _missing_catalog(self._config)
        if missing is not None:
            self._report.problems.append(
                f"there is no catalog at {missing}, so the lake is left alone; see docs/lake.md"
            )
            return
        from compaction.tables.lake import Lake
        from compaction.tables.lake_listing import LakeListing

        place = lake_settings(self._config).place
        try:
            with (
                contextlib.closing(LakeListing(place)) as listing,
                Lake(place, *_catalog_of(self._config)) as lake,
            ):
                try:
                    self._collect(lake, listing, tables)
                finally:
                    _add(self._report.requests, listing.requests)
        except (LakeError, StoreError, OSError) as error:
            self._report.problems.append(str(error))

    def _collect(self, lake: Lake, listing: LakeListing, tables: Sequence[LakeTable]) -> None:
        from compaction.tables.orphans import our_tables

        began_ms = self._now_ms()
        run = self._ledger.read(ledger_runs.living, began_ms)
        rule = self._ledger.read(
            deletions.policy,
            began_ms,
            self._config.gc_grace_ms,
            EVER,
            EVER,
            run_lives=run is not None,
        )
        live = {
            file.path
            for table in tables
            for file in self._ledger.read(lake_files.of_topic, table.topic_id)
        }
        # What a killed run named: removed already or not.
        after = ""
        while page := self._ledger.read(lake_files.named, after, PAGE_OBJECTS):
            self._going.update(dict.fromkeys(page, 0))
            after = page[-1]
        names, damaged = our_tables(lake)
        self._report.problems += [str(error) for error in damaged]
        self._name_missing(tables, names, damaged)
        newest = {table.name: table for table in tables}  # by topic id: the last has the name
        runs = {run} if run else set()
        for name in names:
            try:
                self._expire(lake, name, newest.get(name), rule, live)
                self._find_orphans(lake, listing, name, began_ms - self._ahead_ms, runs, live)
            except LakeUnusable:
                raise
            except LakeError as error:
                self._report.problems.append(str(error))
        self._keep_what_may_be_read(tables, rule)
        self._remove(listing)

    def _name_missing(
        self, tables: Sequence[LakeTable], names: Sequence[str], damaged: Sequence[TableDamaged]
    ) -> None:
        there = {*names, *(error.table for error in damaged)}
        for table in tables:
            topic = self._ledger.read(topics.by_id, table.topic_id)
            if topic is not None and topic.deleted_ms is None and table.name not in there:
                self._report.problems.append(
                    f"the table {table.name} is not in the catalog any more, and the ledger reads"
                    " its files; see docs/lake.md"
                )

    def _expire(
        self, lake: Lake, name: str, table: LakeTable | None, rule: DeletionPolicy, live: set[str]
    ) -> None:
        from compaction.tables.expire import expire

        keep_ms = max(self._config.snapshot_keep_ms, self._config.gc_grace_ms)
        held_ms = EVER if rule.held_from_ms is None else rule.held_from_ms
        older_than_ms = min(self._now_ms() - keep_ms, held_ms) - self._ahead_ms
        expired = expire(
            lake, name, older_than_ms=older_than_ms, read_files=live,
            dry_run=self._cover is None,
        )  # fmt: skip
        if expired is None or not expired.snapshots:
            return
        self._report.lake_snapshots += expired.snapshots
        self._going.update(dict.fromkeys((*expired.data, *expired.metadata), 0))
        if self._cover is not None and table is not None:
            self._moved |= self._ledger.write(lake_tables.move, table, expired.metadata_location)

    def _find_orphans(
        self, lake: Lake, listing: LakeListing, name: str, began_ms: int, runs: set[str],
        live: set[str],
    ) -> None:  # fmt: skip
        from compaction.tables.orphans import find_orphans

        for orphan in find_orphans(
            lake, listing, name, older_than_ms=began_ms - self._config.gc_grace_ms,
            active_runs=runs, read_files=live,
        ):  # fmt: skip
            is_data = orphan.location.endswith(".parquet")
            self._going[orphan.location] = orphan.size_bytes if is_data else 0

    def _keep_what_may_be_read(self, tables: Sequence[LakeTable], rule: DeletionPolicy) -> None:
        """Dropped files within their grace, or that a read lease is older than, stay."""
        may_go: dict[str, int] = {}
        after = ""
        while page := self._ledger.read(lake_files.dropped_page, rule, after, PAGE_OBJECTS):
            may_go.update((one.path, one.size_bytes) for one in page)
            after = page[-1].path
        for table in tables:
            for file in self._ledger.read(lake_files.of_topic, table.topic_id, with_dropped=True):
                if file.path in may_go:
                    if file.path in self._going:
                        self._going[file.path] = file.size_bytes
                elif self._going.pop(file.path, None) is not None:
                    self._report.kept_by_lease += rule.held_from_ms is not None

    def _remove(self, listing: LakeListing) -> None:
        report = self._report
        if self._cover is None:
            report.lake_files = len(self._going)
            report.lake_bytes = sum(self._going.values())
            return
        if not self._going and not self._moved:
            return
        for some in pages(iter(self._going), NAMES_AT_ONCE):
            self._ledger.write(lake_files.name, some)
        self._cover.cover()
        items = iter(self._going.items())
        while some_items := list(islice(items, NAMES_AT_ONCE)):
            locations = [location for location, _ in some_items]
            report.lake_files += listing.remove(locations)
            report.lake_bytes += sum(size for _, size in some_items)
            self._ledger.write(lake_files.forget, locations)


def _catalog_of(config: Config) -> tuple[dict[str, str], str | None]:
    """pyiceberg's properties of the catalog, and its name in pyiceberg's own configuration."""
    if config.catalog_name is not None:
        return {}, config.catalog_name
    return {"uri": config.catalog_uri}, None


def _missing_catalog(config: Config) -> str | None:
    """The file of an SQLite catalog that is not there; opening it would make an empty one."""
    if config.catalog_name is not None:
        return None
    parts = urlsplit(config.catalog_uri)
    if parts.scheme != "sqlite" or os.path.exists(unquote(parts.path)[1:]):
        return None
    return config.catalog_uri


def _add(requests: Requests, more: Requests) -> None:
    for field in Requests.__struct_fields__:
        setattr(requests, field, getattr(requests, field) + getattr(more, field))
