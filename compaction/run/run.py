"""One compaction, from what the ledger says to tables that readers are switched to.

    tables are compared with the ledger -> in rounds, up to the head of the beginning:
    plan -> an accepted entry covers it -> tables are prepared -> Spark reads, sorts, writes
    -> one Iceberg commit per table -> one ledger transaction switches readers

The entry comes after the plan: offsets of what is compacted are then never given again, and what
the plan left out as evicted is evicted in a recovered ledger too.

Vocabulary: a *round* is as much of a run as its driver plans at one time; each ends with tables
committed and readers switched. What is in no table yet is the next round's, or the next run's.

Exactly once (docs/protocol.md 8): a table's commit carries watermarks and is refused unless the
table has those that the plan began after; if a run dies anywhere, the next one compares tables and
ledger first. One run at a time, by its lease (``run_lease.py``, decision 0004). Nothing is deleted
here; ``headgate gc`` does that.

The driver needs the owner of the ledger (``LedgerAccess``), the object store, and no file of the
data directory, so it may run on any machine. Who writes what: this module the run's row and the
switch; Spark's tasks Parquet files of names of their own; ``compaction/tables`` the tables.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import psutil

from compaction.access.http_calls import DaemonRefused
from compaction.access.ledger_access import LedgerAccess
from compaction.access.operations import NOW
from compaction.access.settings import LakeSettings
from compaction.inputs.place import permission_hint
from compaction.run.backlog import HISTORY_NOTE, planned_objects, topics_of
from compaction.run.report import (
    METADATA_PUTS,
    QuarantinedOffsets,
    RunReport,
    SetAside,
    TableReport,
    TopicFailed,
    file_puts,
    sizes_of,
)
from compaction.run.run_lease import RunLease
from ledger import notes
from ledger.errors import RunLost, SwitchRefused
from ledger.lake import lake_tables, pages
from ledger.lake.types import LakeFile, PlannedObject, TableSwitch
from ledger.log import backup
from ledger.types import Topic
from shards.clock import monotonic_ns, wall_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compaction.run.driver import JobOutcome
    from compaction.run.file_groups import JoiningFile
    from compaction.run.splits import SplitLimits
    from compaction.tables.commit import TableCommit
    from compaction.tables.lake import Lake
    from compaction.tables.prepare import TopicFailure, TopicTable

MIB = 1 << 20
# A planned extent is about 1 KB in the driver.
ROUND_EXTENTS_MAX = 400_000
SWITCHED_FILES_MAX = 5_000  # in one transaction and request; a single table may have more
TOO_LARGE = 413
TOO_LARGE_HINT = (
    "the table has its files, and readers read what is not compacted until the ledger knows them:"
    " stop the daemon, run `headgate compact` with its --data once, which needs no request, and"
    " start the daemon again"
)
REFUSED_HINT = (
    'ledger and table are of different histories: see docs/lake.md, "Changes from outside"'
)

Advance = Callable[[int], object]
Progress = Callable[[int], AbstractContextManager[Advance]]


class StoreIsEmpty(RuntimeError):
    """None of the objects that the ledger names is in the store: more likely the wrong store."""


class Run:
    """One run up to and with ``to_commit``.

    Lifecycle: ``begin`` -> ``reconcile`` -> ``rounds`` -> ``end``; ``stop`` whatever happened.
    """

    def __init__(
        self, access: LedgerAccess, settings: LakeSettings, to_commit: int, chosen: frozenset[str],
        report: RunReport,
    ) -> None:  # fmt: skip
        self._access = access
        self._settings = settings
        self._to_commit = to_commit
        self._chosen = chosen
        self._report = report
        self._place = settings.place
        self._refused: set[int] = set()
        self._tables: list[tuple[TableReport, int]] = []  # of this run, with their topics' ids
        report.run = new_run()
        self._lease = RunLease(access, report.run)

    def begin(self) -> None:
        """The run's row and lease; a run that died is ended. Raises RunUnfinished."""
        self._lease.begin()

    def end(self) -> None:
        """All that was begun is done, so the next run need not compare."""
        try:
            self._lease.end()
        except RunLost:
            return  # it is all done; the next run compares
        self._access.write(notes.put, HISTORY_NOTE, self._access.read(backup.history))

    def stop(self) -> None:
        """Ends the thread that keeps the lease."""
        self._lease.stop()

    def reconcile(self, lake: Lake) -> None:
        """Registers what the catalog has lost, and completes a run that died between tables and
        ledger. Raises LakeUnusable."""
        from compaction.tables.reconcile import reconcile, register_lost

        topics = topics_of(self._access)
        self._report.registered, lost = register_lost(lake, topics, self._access)
        self._refuse(lost)
        switches, failures = reconcile(lake, topics, self._access)
        self._refuse(failures)
        names = {topic.topic_id: topic.name for topic in topics}
        for switch in switches:
            try:
                is_switched = self._switch([switch], names)
            except SwitchRefused as error:
                self._refused.add(switch.topic_id)
                name = names[switch.topic_id]
                self._report.failed.append(TopicFailed(name, str(error), REFUSED_HINT))
                continue
            if is_switched and switch.added:
                self._report.made_up_for.append(switch.table)

    def _switch(self, some: Sequence[TableSwitch], names: Mapping[int, str]) -> bool:
        """Switches readers to tables, one by one if all are more than a daemon takes in a request;
        a table that alone is more waits for a run without one. Returns whether all are switched.
        Raises SwitchRefused."""
        try:
            self._access.write(lake_tables.switch, self._report.run, list(some), NOW)
        except DaemonRefused as error:
            if error.status != TOO_LARGE:
                raise
            if len(some) > 1:
                switched = [self._switch([switch], names) for switch in some]
                return all(switched)
            (switch,) = some
            ranges = sum(len(file.ranges) for file in switch.added)
            self._refused.add(switch.topic_id)
            self._report.failed.append(
                TopicFailed(
                    names[switch.topic_id],
                    f"the switch of {switch.table} (files: {len(switch.added)}, ranges of"
                    f" partitions: {ranges}) is more than the daemon takes in a request:"
                    f" {error.message}",
                    TOO_LARGE_HINT,
                )
            )
            return False
        return True

    def rounds(
        self, lake: Lake, spark: SparkSession, cores: int, limits: SplitLimits, progress: Progress
    ) -> None:
        """Compacts everything up to the head. Raises LakeUnusable, SparkJobFailed, LedgerError."""
        after = 0
        with progress(self._report.bytes_compacted) as advance:
            self._report.bytes_compacted = 0
            while True:
                topics = {t.topic_id: t for t in topics_of(self._access, self._chosen)}
                wanted = frozenset(topics.keys() - self._refused)
                objects = self._round(after, wanted)
                if not objects:
                    break
                after = objects[-1].commit_number
                self._access.await_backup()
                self._report.requests.puts += 1  # the entry
                self._one_round(lake, spark, cores, limits, advance, topics, objects)
        files = pages.files_of_each(self._access, [topic_id for _, topic_id in self._tables])
        for (told, _), of_table in zip(self._tables, files, strict=True):
            told.files_now = sizes_of(of_table)

    def _round(self, after: int, wanted: frozenset[int]) -> list[PlannedObject]:
        objects: list[PlannedObject] = []
        extents = 0
        for planned in planned_objects(self._access, after, self._to_commit, wanted):
            objects.append(planned)
            extents += len(planned.extents)
            if extents >= ROUND_EXTENTS_MAX:
                break
        return objects

    def _refuse(self, failures: Sequence[TopicFailure]) -> None:
        for failure in failures:
            if failure.topic_id not in self._refused:
                self._refused.add(failure.topic_id)
                error = failure.error
                self._report.failed.append(TopicFailed(failure.topic, error.problem, error.hint))

    def _one_round(
        self, lake: Lake, spark: SparkSession, cores: int, limits: SplitLimits, advance: Advance,
        topics: Mapping[int, Topic], objects: Sequence[PlannedObject],
    ) -> None:  # fmt: skip
        from compaction.run.driver import run_job
        from compaction.run.file_groups import TopicWork
        from compaction.tables.prepare import prepare_tables

        report = self._report
        needed = {extent.topic_id for planned in objects for extent in planned.extents}
        began_ns = monotonic_ns()
        tables, failures = prepare_tables(
            lake, [topics[topic_id] for topic_id in sorted(needed)], self._access
        )
        self._refuse(failures)
        self._make_up(lake, tables, topics)
        work = [
            TopicWork(
                table.topic_id, table.location, table.columns, *self._rewritten(lake, table, files)
            )
            for table, files in zip(
                tables.values(), pages.files_of_each(self._access, list(tables)), strict=True
            )
        ]
        report.commit_seconds += _since(began_ns)
        began_ns = monotonic_ns()
        outcome = run_job(
            spark, self._place, report.run, objects, work, cores=cores, limits=limits,
            advance=_by_bytes(advance),
        )  # fmt: skip
        report.spark_seconds += _since(began_ns)
        began_ns = monotonic_ns()
        _check_store_is_ours(outcome, self._settings.store_url)
        self._take(outcome, topics)
        written = {i: table for i, table in tables.items() if not outcome.topics[i].failed}
        self._commit(lake, commits_of(outcome, written, objects), objects)
        report.commit_seconds += _since(began_ns)

    def _make_up(
        self, lake: Lake, tables: dict[int, TopicTable], topics: Mapping[int, Topic]
    ) -> None:
        """Leaves out tables that are ahead of the ledger: another program committed
        to them after the comparison. The next run compares again."""
        states = pages.states(self._access, list(tables))
        for (topic_id, table), state in zip(list(tables.items()), states, strict=True):
            here = state.compacted
            if any(seq > here.get(partition, 0) for partition, seq in table.watermarks.items()):
                del tables[topic_id]
                self._refused.add(topic_id)
                self._report.failed.append(
                    TopicFailed(
                        topics[topic_id].name,
                        f"the table {table.table} is ahead of the ledger: another compaction"
                        " committed to it",
                        "run it again",
                    )
                )

    def _rewritten(
        self, lake: Lake, table: TopicTable, files: Sequence[LakeFile]
    ) -> tuple[tuple[JoiningFile, ...], tuple[tuple[JoiningFile, ...], ...]]:
        """Small files of the table that have gathered, and sets of files to merge. Each set, and
        the small files of each day, become one file."""
        from compaction.run.file_groups import JoiningFile
        from compaction.run.small_files import files_to_merge, files_to_rewrite

        sets = files_to_merge(files)
        merged = {path for some in sets for path in some}
        small = files_to_rewrite(file for file in files if file.path not in merged)
        if not merged and not small:
            return (), ()
        kept = set(lake.rewritable(table.table, [*small, *merged]))
        ranges = pages.ranges_of(self._access, table.topic_id)
        joining = {
            file.path: JoiningFile(file.path, file.size_bytes, ranges[file.file_id])
            for file in files
            if file.path in kept
        }
        return (
            tuple(joining[path] for path in small if path in kept),
            tuple(tuple(joining[path] for path in some) for some in sets if kept.issuperset(some)),
        )

    def _take(self, outcome: JobOutcome, topics: Mapping[int, Topic]) -> None:
        report = self._report
        report.objects += outcome.objects
        report.bytes_read += outcome.bytes_read
        report.requests.gets += outcome.requests
        report.requests.get_bytes += outcome.bytes_read
        report.peak_memory_bytes = max(report.peak_memory_bytes, outcome.memory_peak_bytes)
        report.quarantined += [
            QuarantinedOffsets(topics[topic_id].name, hole.partition, hole.first_offset,
                        hole.last_offset, hole.key, hole.reason)
            for topic_id, of_topic in outcome.topics.items() for hole in of_topic.holes
        ]  # fmt: skip
        for topic_id, of_topic in outcome.topics.items():
            name = topics[topic_id].name
            report.set_aside += [
                SetAside(name, each.partition, each.first_offset, each.last_offset, each.records,
                         each.value)
                for each in of_topic.set_aside
            ]  # fmt: skip
            if of_topic.failed:
                self._refused.add(topic_id)
                report.failed.append(
                    TopicFailed(
                        name,
                        f"its files cannot be written: {of_topic.failed}",
                        permission_hint(of_topic.failed)
                        or "see to the place of its table; the next run does it",
                    )
                )

    def _commit(
        self, lake: Lake, commits: Sequence[TableCommit], objects: Sequence[PlannedObject]
    ) -> None:
        from compaction.tables.commit import commit_tables, switch_of
        from compaction.tables.prepare import TopicFailure

        report = self._report
        size_of: dict[int, int] = {}
        for planned in objects:
            for extent in planned.extents:
                size_of[extent.topic_id] = size_of.get(extent.topic_id, 0) + extent.byte_length
        switches: list[TableSwitch] = []
        self._lease.renew()  # a catalog that the owner does not keep knows no fence
        for commit, answer in zip(commits, commit_tables(lake, report.run, commits), strict=True):
            table = commit.table
            if not isinstance(answer, str):
                self._refuse([TopicFailure(table.topic_id, table.topic, answer)])
                continue
            switches.append(switch_of(commit, answer))
            report.bytes_compacted += size_of.get(table.topic_id, 0)
            report.requests.puts += METADATA_PUTS
            self._tell(commit, answer)
        names = {commit.table.topic_id: commit.table.topic for commit in commits}
        for some in _by_files(switches):
            self._switch(some, names)

    def _tell(self, commit: TableCommit, metadata_location: str) -> None:
        report = self._report
        files = [file for file, _ in commit.files]
        told = next((each for each in report.tables if each.table == commit.table.table), None)
        if told is None:
            told = TableReport(commit.table.topic, commit.table.table, "", 0, 0, 0, {})
            report.tables.append(told)
            self._tables.append((told, commit.table.topic_id))
        told.metadata_location = metadata_location
        told.rows += sum(file.rows for file in files)
        told.files += len(files)
        told.bytes += sum(file.size_bytes for file in files)
        told.rewritten += len(commit.rewritten)
        told.watermarks = {**told.watermarks, **commit.watermarks}
        report.rows += sum(file.rows for file in files)
        report.files += len(files)
        size_bytes = sum(file.size_bytes for file in files)
        report.bytes_written += size_bytes
        report.requests.put_bytes += size_bytes
        report.requests.puts += sum(file_puts(file.size_bytes) for file in files)


def commits_of(
    outcome: JobOutcome, tables: Mapping[int, TopicTable], objects: Sequence[PlannedObject]
) -> list[TableCommit]:
    """What the round does to each table. Watermarks are the ends of the planned extents: all
    before them were planned too, for a partition's offsets rise with the commits."""
    from compaction.tables.commit import TableCommit

    ends: dict[int, dict[int, int]] = {topic_id: {} for topic_id in tables}
    for planned in objects:
        for extent in planned.extents:
            if extent.topic_id in ends:
                of_topic = ends[extent.topic_id]
                of_topic[extent.partition] = max(
                    of_topic.get(extent.partition, 0), extent.last_offset
                )
    return [
        TableCommit(
            table=table,
            files=[(each.file, each.footer) for each in outcome.topics[topic_id].files],
            watermarks=ends[topic_id],
            rewritten=outcome.topics[topic_id].joined,
            holes=outcome.topics[topic_id].holes,
        )
        for topic_id, table in tables.items()
    ]


def _check_store_is_ours(outcome: JobOutcome, store_url: str) -> None:
    """Refuses to quarantine everything that there is, for quarantine is for good.

    One missing object is a loss to be named; all of several are a bucket or a mount that is not
    the one they are in. Raises StoreIsEmpty; nothing is committed.
    """
    holes = [hole for of_topic in outcome.topics.values() for hole in of_topic.holes]
    keys = {hole.key for hole in holes if hole.reason.startswith("missing:")}
    if not outcome.rows and len(keys) > 1 and len(keys) == len({hole.key for hole in holes}):
        raise StoreIsEmpty(
            f"none of the {len(keys)} objects to compact is in {store_url} (the first is"
            f" {min(keys)}), so nothing was done"
        )


def run_bytes_of(settings: LakeSettings, cores: int) -> int:
    """What a task may hold: as configured, and at most a quarter of the free memory's share."""
    free = psutil.virtual_memory().available // (4 * cores)
    return max(32 * MIB, min(settings.run_bytes_max, free))


def new_run() -> str:
    """The id of a new run."""
    return f"{wall_ms():013d}{secrets.token_hex(4)}"


def _by_files(switches: Sequence[TableSwitch]) -> Iterator[list[TableSwitch]]:
    some: list[TableSwitch] = []
    files = 0
    for switch in switches:
        if some and files + len(switch.added) > SWITCHED_FILES_MAX:
            yield some
            some, files = [], 0
        some.append(switch)
        files += len(switch.added)
    if some:
        yield some


def _by_bytes(advance: Advance) -> Callable[[int, int], None]:
    """Steps for a bar, out of how much there is so far."""
    told = 0

    def so_far(_: int, done_bytes: int) -> None:
        nonlocal told
        advance(max(0, done_bytes - told))
        told = max(told, done_bytes)

    return so_far


def _since(began_ns: int) -> float:
    return (monotonic_ns() - began_ns) / 1e9
