"""``headgate quarantine``: what a compaction could not read, and its two ways out.

*Retry* reads the objects again. An extent that is whole now goes into its topic's table as a
compaction would have put it there, without Spark:

    the tables are compared with the ledger -> per object: read -> write files
    -> one Iceberg commit per table, which takes the holes out of the table's property
    -> one ledger transaction: readers find the rows, the holes are gone, the object is free

Exactly once, as a compaction is: one of both runs at a time; a commit that restores is refused
unless the table is as it was prepared after the comparison; and a retry that died between commit
and ledger is completed by the next comparison, which looks into the files that the ledger does not
know (``compaction/tables/reconcile.py``). Each object is a run of its own.

*Accept* gives the records up. The hole stays declared, and the object is kept no longer.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from compaction.access.ledger_access import LedgerAccess
from compaction.access.operations import NOW
from compaction.access.settings import LakeSettings
from compaction.inputs.objects import ExtentBytes, TaskExtent, TaskObject, fetch
from compaction.inputs.place import Place
from compaction.parquet.writer import Syncs
from compaction.run.backlog import topics_of
from compaction.run.file_groups import TopicWork, write_file_group
from compaction.run.report import RunReport
from compaction.run.run import Run, new_run
from compaction.run.run_lease import RunLease
from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.prepare import prepare_tables
from ledger import reads
from ledger.lake import lake_tables, pages, quarantine
from ledger.lake.types import Hole, Quarantined
from ledger.types import Extent, Topic

if TYPE_CHECKING:
    from compaction.tables.lake import Lake
    from compaction.tables.prepare import TopicTable

EVICTED = "evicted"  # its offsets cannot be read any more, or its topic is deleted


class RetryOutcome(Struct, frozen=True):
    """The outcome for one hole: ``restored``, ``evicted`` (nothing is to be brought back), or
    ``kept``; with the ``problem``, if there is one."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    key: str
    outcome: str
    problem: str = ""


class QuarantineRetry:
    """Reads objects of the quarantine again."""

    def __init__(self, access: LedgerAccess, settings: LakeSettings, lake: Lake) -> None:
        self._access = access
        self._settings = settings
        self._lake = lake
        self._place: Place = settings.place
        self._refused: dict[str, str] = {}

    def compare(self) -> None:
        """Completes what was killed between tables and ledger."""
        report = RunReport(False)
        run = Run(self._access, self._settings, 0, frozenset(), report)
        run.begin()
        try:
            run.reconcile(self._lake)
            run.end()
        finally:
            run.stop()
        self._refused = {failed.topic: failed.problem for failed in report.failed}

    def retry(self, rows: Iterable[Quarantined]) -> list[RetryOutcome]:
        """What became of holes of one object."""
        still_there = {_place(one.hole) for one in pages.quarantined(self._access)}
        outcomes: list[RetryOutcome] = []
        wanted: dict[str, list[Quarantined]] = {}
        for one in rows:
            if _place(one.hole) not in still_there:
                outcomes.append(_outcome(one, "restored"))  # by the run that was completed
            elif not one.readable:
                self._access.write(quarantine.drop, [one.hole], NOW)
                outcomes.append(_outcome(one, EVICTED))
            elif one.topic in self._refused:
                outcomes.append(_outcome(one, "kept", self._refused[one.topic]))
            else:
                wanted.setdefault(one.topic, []).append(one)
        return outcomes + self._restore(wanted)

    def _restore(self, wanted: dict[str, list[Quarantined]]) -> list[RetryOutcome]:
        from compaction.tables.errors import LakeError

        if not wanted:
            return []
        topics = {topic.name: topic for topic in topics_of(self._access, frozenset(wanted))}
        outcomes: list[RetryOutcome] = []
        run = new_run()
        lease = RunLease(self._access, run)
        lease.begin("quarantine")
        try:
            for name, rows in sorted(wanted.items()):
                try:
                    outcomes += self._restore_topic(run, topics[name], rows)
                except LakeError as error:
                    problem = f"{error.problem}: {error.hint}"
                    outcomes += [_outcome(one, "kept", problem) for one in rows]
            lease.end()
        finally:
            lease.stop()
        return outcomes

    def _restore_topic(
        self, run: str, topic: Topic, rows: Sequence[Quarantined]
    ) -> list[RetryOutcome]:
        outcomes: list[RetryOutcome] = []
        whole: list[Quarantined] = []
        extents: list[ExtentBytes] = []
        for one, found in self._read(rows):
            if isinstance(found, str):
                outcomes.append(_outcome(one, "kept", found))
                continue
            whole.append(one)
            extents.append(found)
        if not whole:
            return outcomes
        tables, failures = prepare_tables(self._lake, [topic], self._access)
        for failure in failures:
            raise failure.error
        table = tables[topic.topic_id]
        syncs = Syncs()
        work = TopicWork(table.topic_id, table.location, table.columns)
        try:
            result = write_file_group(
                self._place, syncs, work, extents, (), run, secrets.randbelow(10**8), 0
            )
            syncs.wait()
        finally:
            syncs.close()
        reasons = {(hole.partition, hole.first_offset): hole.reason for hole in result.holes}
        back: list[Quarantined] = []
        for one in whole:
            problem = reasons.get((one.hole.partition, one.hole.first_offset))
            if problem is None:
                back.append(one)
            else:
                outcomes.append(_outcome(one, "kept", problem))
        if back:
            self._commit(run, table, [(w.file, w.footer) for w in result.files], back)
        times = {(each.partition, each.first_offset): each.records for each in result.set_aside}
        return outcomes + [_outcome(one, "restored", _aside(one.hole, times)) for one in back]

    def _commit(
        self, run: str, table: TopicTable, files: Sequence[Any], back: Sequence[Quarantined]
    ) -> None:
        commit = TableCommit(table, files, {}, restored=[one.hole for one in back])
        location = commit_table(self._lake, run, commit)
        self._access.write(lake_tables.switch, run, [switch_of(commit, location)], NOW)

    def _read(self, rows: Sequence[Quarantined]) -> list[tuple[Quarantined, ExtentBytes | str]]:
        """The holes' extents of one object, each with its bytes or what is wrong with them."""
        known = {_place(one.hole): self._extent(one.hole) for one in rows}
        extents = sorted(
            (
                TaskExtent.of(extent, extent.topic_id)
                for extent in known.values()
                if extent is not None
            ),
            key=lambda extent: extent.byte_start,
        )
        first = rows[0]
        found: dict[tuple[int, int], ExtentBytes | str] = {}
        if extents:
            wanted = TaskObject(
                first.hole.key, first.locator, first.size_bytes, tuple(extents), shared=True
            )
            for extent, data in fetch(self._place.store(), wanted).extents:
                found[extent.partition, extent.first_offset] = data
        unknown = "the ledger has no extent of these offsets any more"
        return [
            (one, found.get((one.hole.partition, one.hole.first_offset), unknown)) for one in rows
        ]

    def _extent(self, hole: Hole) -> Extent | None:
        """The extent that is the hole."""
        for extent in self._access.read(
            reads.extents_from, hole.topic_id, hole.partition, hole.first_offset, 1
        ):
            if (extent.first_offset, extent.last_offset) == (hole.first_offset, hole.last_offset):
                return extent
        return None


def _aside(hole: Hole, times: dict[tuple[int, int], int]) -> str:
    """The sentence about records whose time no table can have."""
    count = sum(
        records
        for (partition, first), records in times.items()
        if partition == hole.partition and hole.first_offset <= first <= hole.last_offset
    )
    return f"{count} times that no table can have are set aside" if count else ""


def _place(hole: Hole) -> tuple[int, int, int]:
    return (hole.topic_id, hole.partition, hole.first_offset)


def _outcome(one: Quarantined, outcome: str, problem: str = "") -> RetryOutcome:
    hole = one.hole
    return RetryOutcome(
        one.topic, hole.partition, hole.first_offset, hole.last_offset, hole.key, outcome, problem
    )
