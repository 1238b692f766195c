"""The tables of topics: made, evolved, and committed to exactly once.

Lifecycle of a topic's table in a run:

1. ``reconcile.py``: a run that was killed between its Iceberg commit and the ledger's switch is
   made up for, so that ledger and tables agree.
2. ``prepare``: the table is found or made, its columns are added, its watermarks read. What the
   run then reads and writes begins behind these watermarks, with the column ids of this table.
3. ``commit``: files, watermarks, holes and the run's id become one Iceberg commit.
4. The caller switches the ledger.

What makes a commit happen once: it is refused unless the watermarks in the table's properties are
those that ``prepare`` saw, it sets them, and the catalog takes it only if the table's snapshot is
the one that was looked at. Every commit of ours makes a snapshot, even one without files. Where an
answer was lost, the table is read again: the run's id and watermarks say whether it is there.

pyiceberg's own retry is off (``commit.retry.num-retries``); it looks at no watermark.

A ``Lake`` is used by one thread; ``commit_all`` and ``prepare`` use several inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from compaction.place import Place
from compaction.tables.catalog import (
    close_catalog,
    damage_errors,
    open_catalog,
    outside_errors,
    translated,
)
from compaction.tables.errors import (
    CommitConflict,
    FilesRefused,
    LakeError,
    LakeUnusable,
    RewriteConflict,
    TableChanged,
    TableDamaged,
    TableRefused,
    busy,
)
from compaction.tables.names import NAMESPACE
from compaction.tables.prepare import prepare_one
from compaction.tables.table_state import (
    RUN,
    TableState,
    check_not_rolled_back,
    committed_properties,
    merged,
    sort_order_id,
    state_of,
)
from compaction.tables.topic_tables import (
    LakeLedger,
    TableCommit,
    TopicFailure,
    TopicTable,
    check_commit,
    switch_of,
)
from ledger.types import Topic

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

__all__ = ["Lake", "LakeLedger", "TableCommit", "TopicFailure", "TopicTable", "switch_of"]

# Somebody else's commits that one of ours may meet; each costs three small files.
TRIES_MAX = 8
# Tables that cannot be used, one after the other, before the lake is given up.
UNUSABLE_MAX = 8
# An S3 commit waits for some ten requests one after the other; locally it is all work.
THREADS_S3 = 8
THREADS_FILE = 2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Lake:
    """The catalog and the tables of one place."""

    def __init__(
        self, place: Place, properties: Mapping[str, str], catalog_name: str | None = None
    ) -> None:
        """Opens the catalog. Raises LakeUnusable. ``properties`` are pyiceberg's, at least ``uri``
        unless ``catalog_name`` names an entry of pyiceberg's own configuration."""
        self.place = place
        self.catalog: Catalog = open_catalog(place, properties, catalog_name)
        self.outside = outside_errors()
        self._damage = damage_errors()
        self._threads = THREADS_S3 if place.lake.startswith("s3://") else THREADS_FILE

    def close(self) -> None:
        """Ends connections."""
        close_catalog(self.catalog)

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Preparing

    def prepare(
        self, topics: Iterable[Topic], ledger: LakeLedger
    ) -> tuple[dict[int, TopicTable], list[TopicFailure]]:
        """The tables of ``topics`` by topic id, and the topics that cannot be compacted.

        The ledger is asked by this thread only. Raises LakeUnusable, as ``attempt``.
        """
        wanted = [
            (topic, ledger.lake_table(topic.topic_id), ledger.compacted_seqs(topic.topic_id))
            for topic in topics
        ]

        found = self.attempt(lambda item: prepare_one(self, *item), wanted)
        tables: dict[int, TopicTable] = {}
        failures: list[TopicFailure] = []
        for (topic, *_), each in zip(wanted, found, strict=True):
            if isinstance(each, LakeError):
                failures.append(TopicFailure(topic.topic_id, topic.name, each))
            else:
                tables[topic.topic_id] = each
        return tables, failures

    # Committing

    def commit_all(self, run: str, commits: Sequence[TableCommit]) -> list[str | LakeError]:
        """Commits to many tables, several at a time. Each answer is the new metadata location, or
        why there is none: refused, nothing was committed there; unusable, the next run finds out.
        Raises LakeUnusable, as ``attempt``."""
        return self.attempt(lambda commit: self.commit(run, commit), commits)

    def commit(self, run: str, commit: TableCommit) -> str:
        """One Iceberg commit; returns the table's new metadata location.

        Called again with the same run and watermarks it finds what is there. Raises TableRefused
        (nothing is committed) and LakeUnusable (unknown; the next run finds out).
        """
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        check_commit(run, commit)
        name = commit.table.table
        after = merged(commit.table.watermarks, commit.watermarks)
        for _ in range(TRIES_MAX):
            with self.about(name):
                loaded = self._load(name)
                state = state_of(loaded.metadata.properties, name)
                if state.run == run and state.watermarks == after:
                    return loaded.metadata_location
                if state.topic_id != commit.table.topic_id:
                    raise _renamed(name)
                if state.watermarks != commit.table.watermarks:
                    raise CommitConflict(name, commit.table.watermarks, state.watermarks)
                check_not_rolled_back(loaded.metadata, state, name)
                if commit.restored and loaded.metadata_location != commit.table.metadata_location:
                    # Watermarks do not tell whether these rows are there: nothing came between.
                    raise TableChanged(
                        f"another writer committed to the table {name} while holes of it were"
                        " restored", "run it again",
                    )  # fmt: skip
            files = self._files_of(loaded, commit)
            try:
                with self.about(name):
                    return self._commit(loaded, state, run, commit, files)
            except (CommitFailedException, ValidationException):
                continue  # somebody was quicker: look again
            except (LakeUnusable, TableDamaged):
                if not self._landed(name, run, after):
                    raise
        raise busy(name, TRIES_MAX)

    def _files_of(self, loaded: Table, commit: TableCommit) -> list[DataFile]:
        """The run's files as a manifest has them. Raises FilesRefused."""
        from compaction.tables.datafiles import DataFiles

        made = DataFiles(loaded.metadata, sort_order_id(loaded.metadata))
        try:
            return [made.of(file, footer) for file, footer in commit.files]
        except (ValueError, ArithmeticError) as error:
            raise FilesRefused(loaded_name(loaded), error) from error

    def _commit(
        self,
        loaded: Table,
        state: TableState,
        run: str,
        commit: TableCommit,
        files: Sequence[DataFile],
    ) -> str:
        from compaction.tables.transaction import OneLookTransaction

        rewritten = self.data_files(loaded, commit.rewritten)
        gone = [path for path in commit.rewritten if path not in rewritten]
        if gone:
            raise RewriteConflict(loaded_name(loaded), gone, "somebody else removed them")
        if commit.rewritten and has_deletes(loaded):
            raise RewriteConflict(
                loaded_name(loaded), commit.rewritten, "somebody else deleted rows meanwhile"
            )
        transaction = OneLookTransaction(loaded)
        snapshot = transaction.update_snapshot(snapshot_properties={RUN: run})
        with snapshot.overwrite() if rewritten else snapshot.merge_append() as update:
            for file in files:
                update.append_data_file(file)
            for file in rewritten.values():
                update.delete_data_file(file)
        transaction.set_properties(
            committed_properties(
                state, commit.table.topic, run, commit.watermarks, commit.holes, commit.restored
            )
        )
        return transaction.commit_transaction().metadata_location

    def _landed(self, name: str, run: str, after: Mapping[int, int]) -> bool:
        """Whether the commit whose answer was lost is there; if so, the next look finds it."""
        try:
            with self.about(name):
                state = state_of(self._load(name).metadata.properties, name)
        except LakeError:
            return False
        return state.run == run and state.watermarks == after

    # Reading

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        """Errors from outside become TableDamaged or LakeUnusable that name the table."""
        try:
            yield
        except self._damage as error:
            raise TableDamaged(name, error) from error
        except self.outside as error:
            raise translated(error, f"the table {name} in {self.place.lake}") from error

    def locations(self) -> dict[str, str | None]:
        """The metadata location of each table in the namespace, by identifier; None where the
        catalog tells it only table by table. One request. Raises LakeUnusable."""
        from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
        from sqlalchemy import select

        try:
            if not isinstance(self.catalog, SqlCatalog):
                return {".".join(name): None for name in self.catalog.list_tables(NAMESPACE)}
            wanted = select(IcebergTables.table_name, IcebergTables.metadata_location).where(
                IcebergTables.catalog_name == self.catalog.name,
                IcebergTables.table_namespace == NAMESPACE,
            )
            with self.catalog.engine.connect() as connection:
                return {f"{NAMESPACE}.{name}": at for name, at in connection.execute(wanted)}
        except self.outside as error:
            raise translated(error, "the catalog") from error

    def load(self, name: str) -> Table | None:
        """A table by its identifier; None when there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.catalog.load_table(name)
        except NoSuchTableError:
            return None

    def _load(self, name: str) -> Table:
        loaded = self.load(name)
        if loaded is None:
            raise TableChanged(
                f"the table {name} was dropped or renamed while a run wrote to it",
                "run it again",
            )
        return loaded

    def data_files(self, loaded: Table, paths: Iterable[str]) -> dict[str, DataFile]:
        """Those of ``paths`` that are data files of the current snapshot."""
        wanted = set(paths)
        snapshot = loaded.current_snapshot() if wanted else None
        found: dict[str, DataFile] = {}
        if snapshot is None:
            return found
        for manifest in snapshot.manifests(loaded.io):
            if len(found) == len(wanted):
                break
            for entry in manifest.fetch_manifest_entry(loaded.io, discard_deleted=True):
                if entry.data_file.file_path in wanted:
                    found[entry.data_file.file_path] = entry.data_file
        return found

    def rewritable(self, table: TopicTable, paths: Iterable[str]) -> list[str]:
        """Those of ``paths`` that a run may rewrite: the table still has them as we wrote them.

        None where somebody deleted rows without rewriting the files: rewritten, the rows would be
        back. Raises TableRefused, LakeUnusable.
        """
        listed = list(paths)
        with self.about(table.table):
            loaded = self._load(table.table)
            if has_deletes(loaded):
                return []
            there = self.data_files(loaded, listed)
        return [path for path in listed if path in there]

    def attempt(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> list[_Result | LakeError]:
        """What ``function`` makes of each table, or what is wrong with that one; the others go on.

        Raises LakeUnusable when it is not this table or that: the catalog cannot be used, or none
        of the first UNUSABLE_MAX tables can.
        """
        used = 0
        unusable: list[LakeUnusable] = []

        def one(item: _Item) -> _Result | LakeError:
            nonlocal used
            if not used and len(unusable) >= UNUSABLE_MAX:
                raise unusable[0]
            try:
                result = function(item)
            except TableRefused as error:
                return error
            except LakeUnusable as error:
                unusable.append(error)
                return error
            used += 1
            return result

        found = self.map(one, items)
        if unusable and not used:
            try:
                self.locations()
            except LakeUnusable:
                raise unusable[0] from None
        return found

    def map(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """The results in order; several at a time. The first error stops what has not begun."""
        if len(items) <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(self._threads, len(items)), "lake") as pool:
            futures = [pool.submit(function, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def has_deletes(loaded: Table) -> bool:
    """Whether rows are deleted by files beside the data files."""
    from pyiceberg.manifest import ManifestContent

    snapshot = loaded.current_snapshot()
    return snapshot is not None and any(
        manifest.content == ManifestContent.DELETES
        and (manifest.has_added_files() or manifest.has_existing_files())
        for manifest in snapshot.manifests(loaded.io)
    )


def loaded_name(loaded: Table) -> str:
    """A table's identifier as one text."""
    return ".".join(loaded.name())


def _renamed(name: str) -> TableChanged:
    return TableChanged(f"the table {name} became another topic's meanwhile", "run it again")
