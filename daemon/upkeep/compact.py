"""``headgate compact``: one run, from the ledger's words to tables that readers are switched to.

    tables are compared with the ledger -> in rounds, up to the head of the beginning:
    plan -> an accepted entry covers it -> tables are prepared -> Spark reads, sorts, writes
    -> one Iceberg commit per table -> one ledger transaction switches readers

The entry comes behind the plan: offsets of what is compacted are then never given again, and what
the plan left out as evicted is evicted in a recovered ledger too.

Vocabulary: a *round* is as much of a run as its driver plans at once; each ends with tables
committed and readers switched. What is in no table yet is the next round's, or the next run's.

Exactly once (protocol 8): a table's commit carries watermarks and is refused unless the table has
those that the plan began behind; killed anywhere, the next run compares tables and ledger first.
One run at a time, by a lock on ``compaction.lock`` in the data directory that the kernel frees
(docs/decisions/0010). Nothing is deleted here; that is ``gc``'s.

Who writes what: this module the run's row and the switch; Spark's tasks Parquet files of names of
their own; ``compaction.tables.commit`` the tables. The owner's log is written by whoever owns the
prefix.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec import Struct

from compaction.place import Place
from compaction.run.report import (
    METADATA_PUTS,
    Quarantined,
    RunReport,
    SetAside,
    TableReport,
    TopicFailed,
    file_puts,
)
from compaction.tables.commit import commit_tables
from compaction.tables.prepare import prepare_tables
from daemon.config import Config
from daemon.upkeep.owner import LOCK_NAME
from daemon.upkeep.upkeep import clocks
from ledger import ages, commits, notes, topics
from ledger.errors import SwitchRefused
from ledger.lake import lake_files, lake_tables, runs
from ledger.lake.types import PlannedObject, TableSwitch
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.types import Topic
from shards import locks
from shards.clock import monotonic_ns, wall_ms
from shards.locks import LockFile, SharedLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compaction.run.driver import Outcome
    from compaction.run.file_groups import JoiningFile
    from compaction.run.splits import Limits
    from compaction.tables.commit import TableCommit
    from compaction.tables.lake import Lake
    from compaction.tables.prepare import TopicFailure, TopicTable

MIB = 1 << 20
RUN_LOCK_NAME = "compaction.lock"
RUN_LOCK_BYTE = 0
# The lock says whether a run lives; the row's time is for people.
PAGE_OBJECTS = 1_000
# A planned extent is about 1 KB in the driver.
ROUND_EXTENTS_MAX = 400_000
REFUSED_HINT = (
    'ledger and table are of different histories: see docs/lake.md, "Changes from outside"'
)
HISTORY_NOTE = "lake_history"  # of the ledger that was last compared with the tables

Advance = Callable[[int], object]
Progress = Callable[[int], AbstractContextManager[Advance]]


class OtherRun(RuntimeError):
    """Another compaction is at work on this data directory."""


class Ready(Struct, frozen=True):
    """What a run would do: objects, bytes of extents, topics by name."""

    to_commit: int
    objects: int
    bytes: int
    topics: dict[str, int]
    unfinished: bool


@contextlib.contextmanager
def only_run(config: Config) -> Iterator[None]:
    """For as long as the block lasts no other compaction runs here. Raises OtherRun."""
    lock_file = LockFile(Path(config.data_dir) / RUN_LOCK_NAME)
    with contextlib.closing(lock_file):
        if not lock_file.try_lock(RUN_LOCK_BYTE):
            raise OtherRun(
                f"another compaction is at work on {config.data_dir}"
                f" (pid {lock_file.holder(RUN_LOCK_BYTE)})"
            )
        yield


@contextlib.contextmanager
def writable_ledger(config: Config) -> Iterator[Ledger]:
    """The ledger for short writes beside a daemon or without one. Raises LedgerError."""
    lock_file = LockFile(Path(config.data_dir) / LOCK_NAME)
    with contextlib.closing(lock_file):
        lock = SharedLock(lock_file, locks.LEDGER)
        with contextlib.closing(Ledger(Path(config.ledger_path), lock, must_exist=True)) as ledger:
            yield ledger


def place_of(config: Config) -> Place:
    """Where L0 and the lake are."""
    return Place(config.store_url, config.s3_endpoint_url, config.s3_region, config.lake_url)


def catalog_of(config: Config) -> tuple[dict[str, str], str | None]:
    """pyiceberg's properties of the catalog, and its name in pyiceberg's own configuration."""
    if config.catalog_name is not None:
        return {}, config.catalog_name
    return {"uri": config.catalog_uri}, None


def look(ledger: Ledger, chosen: frozenset[str]) -> Ready:
    """What there is to do, up to the head of now. ``chosen`` are topics by name, empty for all."""
    to_commit = ledger.read(commits.latest_number)
    names = {topic.topic_id: topic.name for topic in topics_of(ledger, chosen)}
    objects, total = 0, 0
    by_topic: dict[str, int] = {}
    for planned in planned_objects(ledger, 0, to_commit, frozenset(names)):
        objects += 1
        for extent in planned.extents:
            total += extent.byte_length
            name = names[extent.topic_id]
            by_topic[name] = by_topic.get(name, 0) + extent.byte_length
    history = ledger.read(backup.mark).history
    unfinished = ledger.read(runs.unfinished) is not None or (
        bool(ledger.read(lake_tables.every)) and ledger.read(notes.get, HISTORY_NOTE) != history
    )
    return Ready(to_commit, objects, total, dict(sorted(by_topic.items())), unfinished)


def topics_of(ledger: Ledger, chosen: frozenset[str] = frozenset()) -> list[Topic]:
    """The live topics of these names, all without names. Raises UnknownTopics."""
    found: list[Topic] = []
    after = ""
    while page := ledger.read(topics.page, after):
        found += [topic for topic in page if not chosen or topic.name in chosen]
        after = page[-1].name
    missing = chosen - {topic.name for topic in found}
    if missing:
        raise UnknownTopics(sorted(missing))
    return found


class StoreIsEmpty(RuntimeError):
    """None of the objects that the ledger names is in the store: more likely the wrong store."""


class UnknownTopics(ValueError):
    """Topics that were asked for and are not there."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"there is no topic {', '.join(map(repr, names))}")


def planned_objects(
    ledger: Ledger, after: int, to_commit: int, topic_ids: frozenset[int]
) -> Iterator[PlannedObject]:
    """What L1 does not hold of these topics, in commit order, a page of the ledger at a time."""
    while page := ledger.read(lake_tables.plan_objects, after, to_commit, PAGE_OBJECTS, topic_ids):
        yield from page
        after = page[-1].commit_number


class Run:
    """One run up to and with ``to_commit``; its lock is held. ``cover`` returns when an accepted
    entry covers the ledger as it is, or raises what ``daemon.upkeep.cover`` does."""

    def __init__(
        self, config: Config, ledger: Ledger, to_commit: int, chosen: frozenset[str],
        report: RunReport, cover: Callable[[], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._ledger = ledger
        self._to_commit = to_commit
        self._chosen = chosen
        self._report = report
        self._cover = cover
        self._place = place_of(config)
        self._refused: set[int] = set()
        report.run = f"{wall_ms():013d}{secrets.token_hex(4)}"

    def _age_ms(self) -> int:
        return self._ledger.read(ages.now_ms, clocks())

    def begin(self) -> None:
        """The run's row; one that a dead run left is ended, for we hold the lock."""
        now_ms = self._age_ms()
        former = self._ledger.read(runs.unfinished)
        if former is not None:
            self._ledger.write(runs.end, former, now_ms)
        owner = f"{socket.gethostname()} pid {os.getpid()}"
        self._ledger.write(runs.begin, self._report.run, owner, now_ms)

    def end(self) -> None:
        """All that was begun is done, so the next run need not compare."""
        self._ledger.write(runs.end, self._report.run, self._age_ms())
        self._ledger.write(notes.put, HISTORY_NOTE, self._ledger.read(backup.mark).history)

    def reconcile(self, lake: Lake) -> None:
        """Makes up for a run that was killed between tables and ledger. Raises LakeUnusable."""
        from compaction.tables.reconcile import reconcile

        topics = topics_of(self._ledger)
        switches, failures = reconcile(lake, topics, self._ledger)
        self._refuse(failures)
        for switch in switches:
            try:
                self._ledger.write(lake_tables.switch, self._report.run, [switch], self._age_ms())
            except SwitchRefused as error:
                topic = next(t for t in topics if t.topic_id == switch.topic_id)
                self._refused.add(topic.topic_id)
                self._report.failed.append(TopicFailed(topic.name, str(error), REFUSED_HINT))
                continue
            if switch.added:
                self._report.made_up_for.append(switch.table)

    def rounds(
        self, lake: Lake, spark: SparkSession, cores: int, limits: Limits, progress: Progress
    ) -> None:
        """Compacts everything up to the head. Raises LakeUnusable, SparkJobFailed, LedgerError."""
        after = 0
        with progress(self._report.bytes_compacted) as advance:
            self._report.bytes_compacted = 0
            while True:
                topics = {t.topic_id: t for t in topics_of(self._ledger, self._chosen)}
                wanted = frozenset(topics.keys() - self._refused)
                objects = self._round(after, wanted)
                if not objects:
                    return
                after = objects[-1].commit_number
                self._cover()
                self._one_round(lake, spark, cores, limits, advance, topics, objects)

    def _round(self, after: int, wanted: frozenset[int]) -> list[PlannedObject]:
        objects: list[PlannedObject] = []
        extents = 0
        for planned in planned_objects(self._ledger, after, self._to_commit, wanted):
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
        self, lake: Lake, spark: SparkSession, cores: int, limits: Limits, advance: Advance,
        topics: Mapping[int, Topic], objects: Sequence[PlannedObject],
    ) -> None:  # fmt: skip
        from compaction.run.driver import run_job
        from compaction.run.file_groups import TopicWork

        report, ledger = self._report, self._ledger
        needed = {extent.topic_id for planned in objects for extent in planned.extents}
        began_ns = monotonic_ns()
        tables, failures = prepare_tables(
            lake, [topics[topic_id] for topic_id in sorted(needed)], ledger
        )
        self._refuse(failures)
        self._make_up(lake, tables, topics)
        work = [
            TopicWork(table.topic_id, table.location, table.columns, self._joining(lake, table))
            for table in tables.values()
        ]
        report.commit_seconds += _since(began_ns)
        began_ns = monotonic_ns()
        outcome = run_job(
            spark, self._place, report.run, objects, work, cores=cores, limits=limits,
            advance=_by_bytes(advance),
        )  # fmt: skip
        report.spark_seconds += _since(began_ns)
        began_ns = monotonic_ns()
        _check_store_is_ours(outcome, self._config.store_url)
        self._take(outcome, topics)
        written = {i: table for i, table in tables.items() if not outcome.topics[i].failed}
        self._commit(lake, commits_of(outcome, written, objects), objects)
        report.commit_seconds += _since(began_ns)

    def _make_up(
        self, lake: Lake, tables: dict[int, TopicTable], topics: Mapping[int, Topic]
    ) -> None:
        """Leaves out tables that are ahead of the ledger: somebody committed to them since they
        were compared. The next run compares again."""
        for topic_id, table in list(tables.items()):
            here = self._ledger.read(lake_tables.compacted_seqs, topic_id)
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

    def _joining(self, lake: Lake, table: TopicTable) -> tuple[JoiningFile, ...]:
        """Small files of the table that have gathered; what remains of each day is one file."""
        from compaction.run.file_groups import JoiningFile
        from compaction.tables.small_files import files_to_rewrite

        files = self._ledger.read(lake_files.of_topic, table.topic_id)
        chosen = files_to_rewrite(files)
        if not chosen:
            return ()
        kept = set(lake.rewritable(table.table, chosen))
        ranges = self._ledger.read(lake_files.ranges, table.topic_id)
        return tuple(
            JoiningFile(file.path, file.size_bytes, ranges[file.file_id])
            for file in files
            if file.path in kept
        )

    def _take(self, outcome: Outcome, topics: Mapping[int, Topic]) -> None:
        report = self._report
        report.objects += outcome.objects
        report.bytes_read += outcome.bytes_read
        report.requests.gets += outcome.requests
        report.peak_memory_bytes = max(report.peak_memory_bytes, outcome.memory_peak_bytes)
        report.quarantined += [
            Quarantined(topics[topic_id].name, hole.partition, hole.first_offset,
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
                        "see to the place of its table; the next run does it",
                    )
                )

    def _commit(
        self, lake: Lake, commits: Sequence[TableCommit], objects: Sequence[PlannedObject]
    ) -> None:
        from compaction.tables.commit import switch_of
        from compaction.tables.prepare import TopicFailure

        report = self._report
        size_of: dict[int, int] = {}
        for planned in objects:
            for extent in planned.extents:
                size_of[extent.topic_id] = size_of.get(extent.topic_id, 0) + extent.byte_length
        switches: list[TableSwitch] = []
        for commit, answer in zip(commits, commit_tables(lake, report.run, commits), strict=True):
            table = commit.table
            if not isinstance(answer, str):
                self._refuse([TopicFailure(table.topic_id, table.topic, answer)])
                continue
            switches.append(switch_of(commit, answer))
            report.bytes_compacted += size_of.get(table.topic_id, 0)
            report.requests.puts += METADATA_PUTS
            self._tell(commit, answer)
        if switches:
            self._ledger.write(lake_tables.switch, report.run, switches, self._age_ms())

    def _tell(self, commit: TableCommit, metadata_location: str) -> None:
        report = self._report
        files = [file for file, _ in commit.files]
        told = next((each for each in report.tables if each.table == commit.table.table), None)
        if told is None:
            told = TableReport(commit.table.topic, commit.table.table, "", 0, 0, 0, {})
            report.tables.append(told)
        told.metadata_location = metadata_location
        told.rows += sum(file.rows for file in files)
        told.files += len(files)
        told.bytes += sum(file.size_bytes for file in files)
        told.rewritten += len(commit.rewritten)
        told.watermarks = {**told.watermarks, **commit.watermarks}
        report.rows += sum(file.rows for file in files)
        report.files += len(files)
        report.bytes_written += sum(file.size_bytes for file in files)
        report.requests.puts += sum(file_puts(file.size_bytes) for file in files)


def commits_of(
    outcome: Outcome, tables: Mapping[int, TopicTable], objects: Sequence[PlannedObject]
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


def _check_store_is_ours(outcome: Outcome, store_url: str) -> None:
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


def run_bytes_of(config: Config, cores: int) -> int:
    """What a task may hold: as configured, and at most a quarter of the free memory's share."""
    free = psutil.virtual_memory().available // (4 * cores)
    return max(32 * MIB, min(config.compact_run_bytes, free))


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
