"""Files below our tables that no snapshot names: what killed runs and expired snapshots left.

A data file is an orphan when all of this holds: it lies in ``data/`` of a table that is ours, its
name is one that a run gives (``<run>-<task>-<n>.parquet``), its run is not the active one, no
snapshot of the table names it, the ledger does not read it, and it is older than a grace time. A
manifest or manifest list (``metadata/*.avro``) is one when no snapshot names it and it is older
than the grace time. Everything else is left alone: other programs may own it.

Files are listed before the table's snapshots are read, so a file that is committed in between is
named. The grace time must be longer than a run that lost its lease may still take to commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from msgspec import Struct

from compaction.tables.errors import ForeignTable, TableRefused
from compaction.tables.lake import Lake, loaded_name
from compaction.tables.lake_listing import FoundFile, LakeListing
from compaction.tables.names import run_of_file
from compaction.tables.table_state import owner_of

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# As pyiceberg and Iceberg's Java name them.
_METADATA = re.compile(r"(?:snap-\d+-\d+-[0-9a-f-]{36}|[0-9a-f-]{36}-m\d+)\.avro$")


class Orphan(Struct, frozen=True):
    """A file that nothing names."""

    table: str
    location: str
    size_bytes: int


class TableFiles(Struct):
    """What the snapshots of a table name. ``data`` holds files of every snapshot."""

    data: set[str]
    metadata: set[str]


def our_tables(lake: Lake) -> Iterator[tuple[str, Table | TableRefused]]:
    """This lake's tables by identifier, renamed ones too, as they were when their turn came or a
    little before; for those that cannot be used, why. Raises LakeUnusable.
    """
    for name, at in sorted(lake.locations().items()):
        try:
            with lake.about(name):
                loaded = _ours(lake, name, at)
        except ForeignTable:
            continue
        except TableRefused as error:
            yield name, error
            continue
        if loaded is not None:
            yield name, loaded


def find_orphans(
    lake: Lake,
    listing: LakeListing,
    table: Table,
    *,
    older_than_ms: int,
    active_runs: AbstractSet[str],
    read_files: AbstractSet[str],
) -> list[Orphan]:
    """The orphans of one table of ``our_tables``.

    ``older_than_ms`` is a time, ``read_files`` are the paths of the ledger's live files. Raises
    TableRefused, LakeUnusable, StoreError.
    """
    name = loaded_name(table)
    with lake.about(name):
        old = _old_files(listing, table.location().rstrip("/"), older_than_ms, active_runs)
        loaded = _ours(lake, name) if old else None  # after the listing
        if loaded is None:
            return []
        named = files_of(loaded, loaded.metadata.snapshots)
    keep = named.data | named.metadata | read_files
    return [
        Orphan(name, file.location, file.size_bytes) for file in old if file.location not in keep
    ]


def files_of(loaded: Table, snapshots: Iterable[Snapshot]) -> TableFiles:
    """All files that the snapshots name; each manifest is read once."""
    from pyiceberg.manifest import ManifestEntryStatus

    found = TableFiles(set(), set())
    for snapshot in snapshots:
        found.metadata.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(loaded.io):
            if manifest.manifest_path in found.metadata:
                continue
            found.metadata.add(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(loaded.io, discard_deleted=False):
                # A manifest outlives the snapshot that made it: what it says is deleted is so.
                if entry.status != ManifestEntryStatus.DELETED:
                    found.data.add(entry.data_file.file_path)
    return found


def _ours(lake: Lake, name: str, at: str | None = None) -> Table | None:
    loaded = lake.load(name, at)
    if loaded is None or not lake.has(loaded):
        return None
    try:
        owner_of(loaded.metadata.properties, name)
    except ForeignTable:
        return None
    return loaded


def _old_files(
    listing: LakeListing, location: str, older_than_ms: int, active_runs: AbstractSet[str]
) -> list[FoundFile]:
    found = []
    for file in listing.below(f"{location}/data"):
        run = run_of_file(file.location.rpartition("/")[2])
        if run is not None and run not in active_runs and file.modified_ms < older_than_ms:
            found.append(file)
    found += [
        file
        for file in listing.below(f"{location}/metadata")
        if _METADATA.fullmatch(file.location.rpartition("/")[2])
        and file.modified_ms < older_than_ms
    ]
    return found
