"""The one way into the ledger: a file, a lock, and what may be asked of them.

Vocabulary and tables: ``schema.py``. A commit's rules: ``commits.py`` and ``decide.py``.

One Ledger is one SQLite connection and is used by one thread at a time; a process opens as many
as it has threads that need one. Writing methods take the ledger lock (an argument: a lockf byte
under a threading lock in the daemon) around one IMMEDIATE transaction; reading methods take no
lock and see one committed state each. Time is an argument. What the lock's holder does after a
commit (the shared commit log) is the callback ``published``. Retention and collection are in
``upkeep.py``.

This module does not know shards, stores, HTTP, or what waits for a commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path

from ledger import ages, commits, reads, results, table_names, topics
from ledger.checks import invariants, soundness
from ledger.checks.soundness import Unsound
from ledger.dedupe import DedupeLimits
from ledger.errors import DraftInvalid
from ledger.lake import quarantine, readlease
from ledger.lake import statements as lake
from ledger.lake.types import (
    FileRange,
    Hole,
    LakeFile,
    LakeRange,
    LakeTable,
    PlannedObject,
    Quarantined,
    ReadLease,
    TableSwitch,
)
from ledger.log import backup, recovery
from ledger.log.backup import Changes, Mark
from ledger.log.recovery import TopicSeen
from ledger.session import Lock, Session
from ledger.space import collection
from ledger.space.collection import Candidate
from ledger.space.upkeep import Upkeep
from ledger.types import (
    Commit,
    CommitDraft,
    Extent,
    Gap,
    LeaseId,
    ObjectRow,
    PartitionState,
    Topic,
    TopicConfig,
)


class Ledger(Upkeep):
    """A connection to the ledger at ``path``; makes the file unless ``must_exist``.

    Raises LedgerMissing, LedgerUnusable, LedgerCorrupt, LedgerFromFuture; every method may raise
    LedgerUnusable, LedgerBusy and LedgerCorrupt.
    """

    def __init__(
        self,
        path: Path,
        lock: Lock,
        *,
        must_exist: bool = False,
        dedupe_limits: DedupeLimits | None = None,
    ) -> None:
        self.path = path
        self._dedupe_limits = dedupe_limits or DedupeLimits()
        self._session = Session(path, lock, must_exist)
        with self._session.reading() as connection:
            undecided = table_names.undecided(connection)
        if undecided:
            with self._session.writing() as connection:
                topics.decide_tables(connection)

    def close(self) -> None:
        """Ends the connection. The last one to close copies the WAL back into the file."""
        self._session.close()

    # Starts, epochs, notes

    def begin_incarnation(self, now_ms: int, above: int | None = None) -> tuple[int, int]:
        """A new start: (incarnation, epoch), both higher than ever; the floor is that epoch.

        ``above`` is the greatest incarnation that the owner's log knows. The new one is the next,
        whatever failed starts have left here: of two that start at once both want that number's
        first entry, and one gets it.
        """
        with self._session.writing() as connection:
            connection.execute(
                "UPDATE state SET incarnation = COALESCE(?, incarnation) + 1, epoch = epoch + 1,"
                " epoch_floor = epoch + 1 WHERE id = 1",
                (above,),
            )
            incarnation, epoch = connection.execute(
                "SELECT incarnation, epoch FROM state WHERE id = 1"
            ).fetchone()
            connection.execute(
                "INSERT INTO incarnations (incarnation, epoch, started_ms) VALUES (?, ?, ?)"
                " ON CONFLICT (incarnation) DO UPDATE SET epoch = excluded.epoch,"
                " started_ms = excluded.started_ms",
                (incarnation, epoch, now_ms),
            )
        return incarnation, epoch

    def raise_epoch(self) -> int:
        """The next epoch, from now on in the names of new objects."""
        with self._session.writing() as connection:
            connection.execute("UPDATE state SET epoch = epoch + 1 WHERE id = 1")
            return _state(connection, "epoch")

    def raise_epoch_floor(self, epoch_floor: int) -> int:
        """Refuses uncommitted leases of epochs below ``epoch_floor`` from now on.

        The floor never falls; the result is the one in force. Raises ValueError above the epoch.
        """
        with self._session.writing() as connection:
            epoch = _state(connection, "epoch")
            if epoch_floor > epoch:
                raise ValueError(f"epoch floor {epoch_floor} is above the epoch {epoch}")
            connection.execute(
                "UPDATE state SET epoch_floor = ? WHERE id = 1 AND epoch_floor < ?",
                (epoch_floor, epoch_floor),
            )
            return _state(connection, "epoch_floor")

    def epoch(self) -> int:
        with self._session.reading() as connection:
            return _state(connection, "epoch")

    def epoch_floor(self) -> int:
        with self._session.reading() as connection:
            return _state(connection, "epoch_floor")

    def incarnations(self) -> list[int]:
        """All starts on this ledger: only their orphans are this ledger's to delete."""
        with self._session.reading() as connection:
            rows = connection.execute("SELECT incarnation FROM incarnations ORDER BY incarnation")
            return [row[0] for row in rows]

    def meta(self, name: str) -> str | None:
        """A note by name."""
        with self._session.reading() as connection:
            return backup.meta(connection, name)

    def set_meta(self, name: str, value: str) -> None:
        with self._session.writing() as connection:
            connection.execute(
                "INSERT INTO meta (name, value) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, value),
            )

    # What the owner's log carries

    def mark(self) -> Mark:
        """Where the ledger stands."""
        with self._session.snapshot() as connection:
            return backup.mark_of(connection)

    def changes_since(self, mark: Mark) -> tuple[Mark, Changes]:
        """Where the ledger stands, and what is new behind ``mark``, as of one moment."""
        with self._session.snapshot() as connection:
            return backup.mark_of(connection), backup.changes_since(connection, mark)

    def copy_to(self, path: Path, between: Callable[[], None]) -> int:
        """The whole ledger as of one moment into a new file; returns its last commit's number.

        Commits go on meanwhile. ``between`` is called after each 16 MiB and may raise.
        """
        with self._session.snapshot() as connection:
            number = results.latest_commit_number(connection)
            backup.copy_to(connection, path, between)
        return number

    def apply_changes(self, changes: Changes) -> None:
        """Writes what an entry carries."""
        with self._session.writing() as connection:
            backup.apply(connection, changes)

    def want_entry(self) -> int:
        """Asks the daemon for an entry; it has come when an accepted mark's ``wanted`` is this."""
        with self._session.writing() as connection:
            number = backup.wanted(connection) + 1
            connection.execute(
                "INSERT INTO meta (name, value) VALUES ('entry_wanted', ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (str(number),),
            )
            return number

    # Recovery

    def begin_history(self, name: str, mark: Mark) -> None:
        """After the entries up to ``mark`` were applied: from here on it is another history."""
        with self._session.writing() as connection:
            backup.keep_ids_above(connection, mark)
            backup.forget_named(connection)
            recovery.begin_history(connection, name)

    def deletions(self) -> set[str]:
        """Keys of objects that are named for deletion."""
        with self._session.reading() as connection:
            return {row[0] for row in connection.execute("SELECT key FROM deletions")}

    def prepare_taking(
        self,
        seen: Sequence[TopicSeen],
        counts: dict[tuple[int, int], int],
        everywhere: int,
        epoch: int,
    ) -> tuple[list[str], list[Gap]]:
        """Before unlisted objects are taken: topics, gaps, the epoch. See ``recovery``."""
        with self._session.writing() as connection:
            recovery.raise_epoch_to(connection, epoch)
            names = recovery.restore_topics(connection, seen)
            return names, recovery.declare_gaps(connection, counts, everywhere)

    def take(
        self,
        drafts: Iterable[CommitDraft],
        told: Callable[[Commit | DraftInvalid], None],
    ) -> None:
        """Commits unlisted objects in one transaction, each as of the time it was made.

        ``told`` gets what became of each before the next one is asked for.
        """
        with self._session.writing() as connection:
            aged = ages.aged_of(backup.meta(connection, ages.NOTE))
            for draft in drafts:
                now_ms = ages.of_wall_time(aged, draft.created_ms)
                try:
                    told(commits.commit_draft(connection, draft, now_ms, self._dedupe_limits))
                except DraftInvalid as error:
                    told(error)

    def gaps(self) -> list[Gap]:
        """All gaps. They are made by recovery only, which no daemon runs beside."""
        with self._session.reading() as connection:
            return reads.gaps(connection)

    # Collection of orphans

    def name_orphans(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Names the orphans among the candidates for deletion, as of now; returns them."""
        with self._session.writing() as connection:
            return collection.name(connection, candidates)

    def orphans(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The orphans among the candidates, by the floor and the commits of now."""
        with self._session.snapshot() as connection:
            return collection.orphans(connection, candidates)

    def committed_keys(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys whose objects are committed."""
        with self._session.snapshot() as connection:
            return collection.committed(connection, keys)

    def named_keys(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that are named for deletion."""
        with self._session.snapshot() as connection:
            return collection.named(connection, keys)

    def forget_orphans(self, keys: Sequence[str]) -> None:
        """These objects are gone from the store."""
        with self._session.writing() as connection:
            collection.forget(connection, keys)

    def named_orphans(self, after_key: str = "", limit: int = 1_000) -> list[str]:
        """Orphans that are named for deletion, by key, a page at a time."""
        with self._session.reading() as connection:
            return collection.names_after(connection, after_key, limit)

    def objects_by_key(self, after_key: str = "", limit: int = 1_000) -> list[ObjectRow]:
        """Committed objects by key, as a store lists them, a page at a time."""
        with self._session.reading() as connection:
            return collection.objects_after(connection, after_key, limit)

    # Topics

    def create_topic(self, name: str, config: TopicConfig, now_ms: int) -> tuple[Topic, bool]:
        """The live topic and whether it is new; an existing one keeps its configuration.

        Raises PartitionsRefused and TableNameTaken.
        """
        with self._session.writing() as connection:
            return topics.create_topic(connection, name, config, now_ms)

    def alter_topic(self, name: str, config: TopicConfig) -> Topic:
        """Raises TopicMissing, PartitionsRefused and ColumnsRefused."""
        with self._session.writing() as connection:
            return topics.alter_topic(connection, name, config)

    def delete_topic(self, name: str, now_ms: int) -> Topic:
        """Later commits of its extents are void. Raises TopicMissing."""
        with self._session.writing() as connection:
            return topics.delete_topic(connection, name, now_ms)

    def topic(self, name: str) -> Topic | None:
        with self._session.reading() as connection:
            return topics.topic(connection, name)

    def topic_by_id(self, topic_id: int) -> Topic | None:
        """Deleted ones too."""
        with self._session.reading() as connection:
            return topics.topic_by_id(connection, topic_id)

    def topics(self, after_name: str = "", limit: int = 1_000) -> list[Topic]:
        """Live topics by name, a page at a time."""
        with self._session.reading() as connection:
            return topics.topics(connection, after_name, limit)

    def catalog_version(self) -> int:
        """A number that is another after each change of topics; one primary-key read."""
        with self._session.reading() as connection:
            return _state(connection, "catalog_version")

    # Commits

    def commit(
        self, draft: CommitDraft, now_ms: int, published: Callable[[Commit], None]
    ) -> Commit:
        """Commits a lease once, durably, then calls ``published`` still under the lock.

        A lease id that is there already gives its earlier result with ``repeated``. When
        ``published`` raises, the commit stands. Raises LeaseBelowFloor and DraftInvalid.
        """
        with self._session.lock:
            with self._session.transaction() as connection:
                commit = commits.commit_draft(connection, draft, now_ms, self._dedupe_limits)
            published(commit)
        return commit

    def publish_again(
        self, lease_id: LeaseId, published: Callable[[Commit], None]
    ) -> Commit | None:
        """The commit of a lease if it is there; ``published`` is called for it under the lock.

        For who takes over from a committer that may have died before it published.
        """
        with self._session.lock:
            commit = self.commit_by_lease(lease_id)
            if commit is not None:
                published(commit)
        return commit

    def latest_commit_number(self) -> int:
        with self._session.reading() as connection:
            return results.latest_commit_number(connection)

    def commit_by_number(self, number: int) -> Commit:
        """Raises KeyError for a number that is not given yet."""
        with self._session.reading() as connection:
            commit = results.commit_by_number(connection, number)
        if commit is None:
            raise KeyError(f"there is no commit {number} in the ledger {self.path}")
        return commit

    def lease_of_commit(self, number: int) -> LeaseId | None:
        """None for a number that is not given yet, or whose object is gone."""
        with self._session.reading() as connection:
            return results.lease_by_number(connection, number)

    def number_of_lease(self, lease_id: LeaseId) -> int | None:
        """The number of a lease's commit, None while there is none."""
        with self._session.reading() as connection:
            return results.number_by_lease(connection, lease_id)

    def commit_by_lease(self, lease_id: LeaseId) -> Commit | None:
        with self._session.reading() as connection:
            return results.commit_by_lease(connection, lease_id)

    # Reads

    def partition_states(self, topic_id: int) -> list[PartitionState]:
        with self._session.reading() as connection:
            return reads.partition_states(connection, topic_id)

    def partition_state(self, topic_id: int, partition: int) -> PartitionState | None:
        """None for a partition that never was."""
        with self._session.reading() as connection:
            return reads.partition_state(connection, topic_id, partition)

    def partition_view(
        self, topic_id: int, partition: int
    ) -> tuple[PartitionState, list[Gap]] | None:
        """A partition and its readable offsets that no reader gets: gaps, and holes of the
        quarantine; as of one moment. None for a partition that never was."""
        with self._session.snapshot() as connection:
            state = reads.partition_state(connection, topic_id, partition)
            if state is None:
                return None
            return state, reads.gaps_of(connection, topic_id, partition, state.earliest_seq)

    def heads_snapshot(
        self, topic_ids: int | Sequence[int]
    ) -> tuple[int, dict[tuple[int, int], PartitionState]]:
        """(commit number, partitions by (topic id, partition)) of one committed state.

        Commits with a higher number can be applied on top.
        """
        wanted = [topic_ids] if isinstance(topic_ids, int) else topic_ids
        with self._session.snapshot() as connection:
            return results.latest_commit_number(connection), reads.heads(connection, wanted)

    def extents_from(self, topic_id: int, partition: int, offset: int, limit: int) -> list[Extent]:
        """Extents with a live record at or behind ``offset``, in offset order."""
        with self._session.reading() as connection:
            return reads.extents_from(connection, topic_id, partition, offset, limit)

    def extents_of_commit(self, number: int) -> list[Extent]:
        """Those with a live record."""
        with self._session.reading() as connection:
            return reads.extents_of_commit(connection, number)

    def offset_at_time(self, topic_id: int, partition: int, timestamp_ms: int) -> int:
        """First offset of the first extent with a record that late; else the next offset."""
        with self._session.snapshot() as connection:
            return reads.offset_at_time(connection, topic_id, partition, timestamp_ms)

    def objects(self, after_commit_number: int = 0, limit: int = 1_000) -> list[ObjectRow]:
        with self._session.reading() as connection:
            return reads.objects(connection, after_commit_number, limit)

    def object_by_key(self, key: str) -> ObjectRow | None:
        with self._session.reading() as connection:
            return reads.object_by_key(connection, key)

    # The lake: the one compaction

    def begin_run(self, run: str, owner: str, now_ms: int) -> None:
        """The compaction under way. Raises RunUnfinished while another has not ended."""
        with self._session.writing() as connection:
            readlease.begin_run(connection, run, owner, now_ms)

    def unfinished_run(self) -> str | None:
        """The run that has begun and not ended: it is under way, or it died."""
        with self._session.reading() as connection:
            return readlease.unfinished_run(connection)

    def end_run(self, run: str, now_ms: int) -> None:
        """Raises RunLost when another took over, or it ended."""
        with self._session.writing() as connection:
            readlease.end_run(connection, run, now_ms)

    def plan_objects(
        self,
        after_commit: int,
        to_commit: int,
        limit: int = 1_000,
        topic_ids: AbstractSet[int] | None = None,
    ) -> list[PlannedObject]:
        """Objects behind one commit up to another with what of them L1 does not hold yet.

        In commit order; objects without such extents are left out, so the next page is behind
        the last one's commit, and an empty one is the end.
        """
        with self._session.reading() as connection:
            return lake.plan_objects(connection, after_commit, to_commit, limit, topic_ids)

    def compacted_seqs(self, topic_id: int) -> dict[int, int]:
        """By partition: the offset up to and with which readers read L1."""
        with self._session.reading() as connection:
            return lake.compacted_seqs(connection, topic_id)

    def switch_tables(self, run: str, switches: Sequence[TableSwitch], now_ms: int) -> None:
        """Readers read L1 of what a run committed to its tables. Raises RunLost, SwitchRefused.

        Files that are known already are passed over, so a repeated switch does no harm.
        """
        with self._session.writing() as connection:
            lake.switch_tables(connection, run, switches, now_ms)

    # The lake: tables and files

    def lake_table(self, topic_id: int) -> LakeTable | None:
        with self._session.reading() as connection:
            return lake.lake_table(connection, topic_id)

    def lake_tables(self) -> list[LakeTable]:
        """Those of deleted topics too."""
        with self._session.reading() as connection:
            return lake.lake_tables(connection)

    def lake_files(self, topic_id: int, with_dropped: bool = False) -> list[LakeFile]:
        with self._session.reading() as connection:
            return lake.lake_files(connection, topic_id, with_dropped)

    def ranges_of_files(self, topic_id: int) -> dict[int, tuple[LakeRange, ...]]:
        """Of live files, by their ``file_id``."""
        with self._session.reading() as connection:
            return lake.ranges_of_files(connection, topic_id)

    def file_ranges(
        self, topic_id: int, partition: int, from_offset: int, limit: int
    ) -> list[FileRange]:
        """Ranges of live files that end at or behind an offset, by their first offset."""
        with self._session.reading() as connection:
            return lake.file_ranges(connection, topic_id, partition, from_offset, limit)

    def holes(self, topic_id: int) -> list[Hole]:
        """Offsets in quarantine or given up, by partition and offset."""
        with self._session.reading() as connection:
            return lake.holes(connection, topic_id)

    def quarantine(self) -> list[Quarantined]:
        """All holes whose objects are kept, by object."""
        with self._session.reading() as connection:
            return quarantine.rows(connection)

    def accept_holes(self, holes: Sequence[Hole], now_ms: int) -> None:
        """Gives up the records of holes; they stay holes, and their objects are kept no longer."""
        with self._session.writing() as connection:
            quarantine.accept(connection, holes, now_ms)

    def drop_holes(self, holes: Sequence[Hole], now_ms: int) -> None:
        """Forgets holes that no reader could get anyway."""
        with self._session.writing() as connection:
            quarantine.drop(connection, holes, now_ms)

    # The lake: bulk readers

    def take_read_lease(self, lease: str, what: str, now_ms: int, expires_ms: int) -> None:
        """Nothing that is there now is deleted before the lease ends. Raises ReadLeasesFull."""
        with self._session.writing() as connection:
            readlease.take(connection, lease, what, now_ms, expires_ms)

    def renew_read_lease(self, lease: str, now_ms: int, expires_ms: int) -> bool:
        """False when it has ended or expired: plan anew."""
        with self._session.writing() as connection:
            return readlease.renew(connection, lease, now_ms, expires_ms)

    def end_read_lease(self, lease: str) -> bool:
        """Whether it was there."""
        with self._session.writing() as connection:
            return readlease.end(connection, lease)

    def read_leases(self, now_ms: int) -> list[ReadLease]:
        """Those that hold now, oldest first."""
        with self._session.reading() as connection:
            return readlease.live(connection, now_ms)

    # Housekeeping

    def check_invariants(self) -> None:
        """Raises ledger.invariants.InvariantBroken; reads everything."""
        with self._session.snapshot() as connection:
            invariants.check_invariants(connection)

    def unsound_extents(self, limit: int) -> list[Unsound]:
        """Places where offsets overlap or are missing, at most ``limit``; reads all extents."""
        with self._session.snapshot() as connection:
            return list(islice(soundness.unsound_extents(connection), limit))


def _state(connection: sqlite3.Connection, column: str) -> int:
    row = connection.execute(f"SELECT {column} FROM state WHERE id = 1").fetchone()
    return int(row[0])
