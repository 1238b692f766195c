"""Commits a run's files to a table, exactly once.

A commit makes one Iceberg snapshot of files, watermarks, holes and the run's id. It is refused
unless the table's properties have the watermarks that ``prepare_tables`` saw; it sets them; and the
catalog accepts it only if the table's snapshot is still the one that was read. Each commit makes a
snapshot, even one without files. If an answer is lost, the table is read again: the run's id and
the watermarks say whether the commit is there. The caller then switches the ledger.

pyiceberg applies all staged updates to a deep copy of the metadata at each access: fifteen times
per commit, which is half of its time, and more with each snapshot. No caller changes the metadata
in place, so a transaction here computes it once per change.

pyiceberg's own retry is off (``commit.retry.num-retries``), because it checks no watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from compaction.tables.errors import (
    CommitConflict,
    FilesRefused,
    LakeError,
    LakeUnusable,
    RewriteConflict,
    TableChanged,
    TableDamaged,
    busy,
)
from compaction.tables.lake import Lake, data_files_at, has_deletes, loaded_name
from compaction.tables.names import run_of_file
from compaction.tables.prepare import TopicTable
from compaction.tables.table_state import (
    RUN,
    TableState,
    check_not_rolled_back,
    committed_properties,
    merged,
    sort_order_id,
    state_of,
)
from ledger.lake.coverage import OffsetRanges
from ledger.lake.types import Hole, LakeRange, NewFile, TableSwitch

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate


class OneLookTransaction(Transaction):
    """A pyiceberg transaction that computes its metadata once per change, not at each access."""

    _seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with all staged updates."""
        base, updates = self._table.metadata, self._updates
        if not updates:
            return base
        if self._seen is None or self._seen[0] is not base or self._seen[1] is not updates:
            self._seen = (base, updates, super().table_metadata)
        return self._seen[2]


# Commits by others that one of ours may meet; each costs three small files.
TRIES_MAX = 8


class TableCommit(Struct, frozen=True):
    """A commit to one table. ``files`` come with their footers (``datafiles.py``).

    ``rewritten`` are paths of data files and ``restored`` are holes whose rows are in ``files``. A
    commit that restores is refused if the table has changed at all since it was prepared.
    """

    table: TopicTable
    files: Sequence[tuple[NewFile, bytes]]
    watermarks: Mapping[int, int]
    rewritten: Sequence[str] = ()
    holes: Sequence[Hole] = ()
    restored: Sequence[Hole] = ()


def commit_tables(lake: Lake, run: str, commits: Sequence[TableCommit]) -> list[str | LakeError]:
    """Commits to many tables, several at a time. Returns for each the new metadata location or the
    error. Raises LakeUnusable, as ``Lake.attempt``."""
    return lake.attempt(lambda commit: commit_table(lake, run, commit), commits)


def commit_table(lake: Lake, run: str, commit: TableCommit) -> str:
    """One Iceberg commit; returns the table's new metadata location.

    A second call with the same run and watermarks returns the location of the first. Raises
    TableRefused (nothing was committed) and LakeUnusable (unknown; the next run finds out).
    """
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    check_commit(run, commit)
    name = commit.table.table
    after = merged(commit.table.watermarks, commit.watermarks)
    for _ in range(TRIES_MAX):
        with lake.about(name):
            loaded = lake.load_existing(name)
            state = state_of(loaded.metadata.properties, name)
            if state.run == run and state.watermarks == after:
                return loaded.metadata_location
            if state.topic_id != commit.table.topic_id:
                raise _renamed(name)
            if state.watermarks != commit.table.watermarks:
                raise CommitConflict(name, commit.table.watermarks, state.watermarks)
            check_not_rolled_back(loaded.metadata, state, name)
            if commit.restored and loaded.metadata_location != commit.table.metadata_location:
                # Watermarks cannot tell whether these rows are there already.
                raise TableChanged(
                    f"another writer committed to the table {name} while holes of it were"
                    " restored", "run it again",
                )  # fmt: skip
        files = _files_of(loaded, commit)
        try:
            with lake.about(name):
                return _commit(loaded, state, run, commit, files)
        except (CommitFailedException, ValidationException):
            continue  # another writer was quicker: read the table again
        except (LakeUnusable, TableDamaged):
            if not _landed(lake, name, run, after):
                raise
    raise busy(name, TRIES_MAX)


def _files_of(loaded: Table, commit: TableCommit) -> list[DataFile]:
    """The run's files as data files of a manifest. Raises FilesRefused."""
    from compaction.tables.datafiles import DataFiles

    made = DataFiles(loaded.metadata, sort_order_id(loaded.metadata))
    try:
        return [made.of(file, footer) for file, footer in commit.files]
    except (ValueError, ArithmeticError) as error:
        raise FilesRefused(loaded_name(loaded), error) from error


def _commit(
    loaded: Table,
    state: TableState,
    run: str,
    commit: TableCommit,
    files: Sequence[DataFile],
) -> str:
    from compaction.tables.commit import OneLookTransaction

    rewritten = data_files_at(loaded, commit.rewritten)
    gone = [path for path in commit.rewritten if path not in rewritten]
    if gone:
        raise RewriteConflict(loaded_name(loaded), gone, "another writer removed them")
    if commit.rewritten and has_deletes(loaded):
        raise RewriteConflict(
            loaded_name(loaded), commit.rewritten, "another writer has deleted rows"
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


def _landed(lake: Lake, name: str, run: str, after: Mapping[int, int]) -> bool:
    """Whether a commit whose answer was lost is in the table."""
    try:
        with lake.about(name):
            state = state_of(lake.load_existing(name).metadata.properties, name)
    except LakeError:
        return False
    return state.run == run and state.watermarks == after


def _renamed(name: str) -> TableChanged:
    return TableChanged(f"the table {name} now belongs to another topic", "run it again")


def switch_of(commit: TableCommit, metadata_location: str) -> TableSwitch:
    """The ledger's part of a commit."""
    return TableSwitch(
        topic_id=commit.table.topic_id,
        table=commit.table.table,
        metadata_location=metadata_location,
        watermarks=dict(commit.watermarks),
        added=tuple(file for file, _ in commit.files),
        dropped=tuple(commit.rewritten),
        holes=tuple(commit.holes),
        restored=tuple(commit.restored),
    )


def check_commit(run: str, commit: TableCommit) -> None:
    """Checks that the files are the run's and within the watermarks, and that these do not fall.

    Raises ValueError.
    """
    table = commit.table
    after = merged(table.watermarks, commit.watermarks)
    for partition, seq in table.watermarks.items():
        if after[partition] < seq:
            raise ValueError(
                f"the watermark of partition {partition} of {table.table} would fall from {seq}"
                f" to {after[partition]}"
            )
    for file, _ in commit.files:
        if not file.path.startswith(f"{table.location}/data/"):
            raise ValueError(f"{file.path} is not below {table.location}/data/")
        if run_of_file(file.path.rpartition("/")[2]) != run:
            raise ValueError(f"{file.path} does not have the name of a file of the run {run}")
        for one in file.ranges:
            if one.last_offset > after.get(one.partition, 0):
                raise ValueError(
                    f"{file.path} holds offset {one.last_offset} of partition {one.partition},"
                    f" its watermark is {after.get(one.partition, 0)}"
                )
            if commit.restored:
                if not _is_of(commit.restored, one):
                    raise ValueError(
                        f"{file.path} holds offsets {one.first_offset} to {one.last_offset} of"
                        f" partition {one.partition}, which are not offsets of the holes"
                    )
            elif not commit.rewritten and one.first_offset <= table.watermarks.get(
                one.partition, 0
            ):
                raise ValueError(
                    f"{file.path} holds offset {one.first_offset} of partition {one.partition},"
                    f" which {table.table} has already"
                )


def _is_of(holes: Sequence[Hole], one: LakeRange) -> bool:
    """Whether a range can have rows of the holes only, by its ends and its number of rows."""
    holes_here = OffsetRanges(
        [(h.first_offset, h.last_offset) for h in holes if h.partition == one.partition]
    )
    length = one.last_offset + 1 - one.first_offset
    ends = {one.first_offset, one.last_offset}
    return all(
        holes_here.count_outside(end, end) == 0 for end in ends
    ) and one.rows <= length - holes_here.count_outside(one.first_offset, one.last_offset)
