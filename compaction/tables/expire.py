"""Expires a table's former snapshots, and says which files nothing names any more.

The order is crash-safe: the catalog first, then the files. A collection that is killed in between
leaves files that no snapshot names; ``orphans.py`` finds those. pyiceberg's own expiry changes the
metadata only.

Kept are: the newest snapshots of the current branch, those that a branch or a tag points to, and
those that are younger than the bound, which the caller works out of read leases and grace times.
A snapshot's age is when it stopped being the current one: until then readers planned with it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from compaction.tables.errors import busy
from compaction.tables.lake import Lake
from compaction.tables.orphans import TableFiles, files_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

TRIES_MAX = 8  # changes by others that one expiry may meet


class ExpiredSnapshots(Struct, frozen=True):
    """What an expiry did, or would do. ``data`` and ``metadata`` are locations to remove now."""

    table: str
    snapshots: int
    metadata_location: str
    data: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()


def expire(
    lake: Lake,
    table: str,
    *,
    older_than_ms: int,
    read_files: AbstractSet[str],
    keep: int = 1,
    dry_run: bool = False,
    known: Table | None = None,
) -> ExpiredSnapshots | None:
    """Expires snapshots of ``table`` that were replaced before ``older_than_ms``. ``known`` is the
    table as it was a moment ago.

    ``read_files`` are the paths of the ledger's live files: never named for removal, whatever the
    table says. None when there is no such table. No file is removed here. Raises TableDamaged and
    LakeUnusable.
    """
    from pyiceberg.exceptions import CommitFailedException

    for _ in range(TRIES_MAX):
        try:
            with lake.about(table):
                loaded = known or lake.load(table)
                if loaded is None:
                    return None
                found = _expire(loaded, table, older_than_ms, max(keep, 1), dry_run)
        except CommitFailedException:
            known = None
            continue  # another commit changed it meanwhile: look again
        data = tuple(path for path in found.data if path not in read_files)
        return structs.replace(found, data=data)
    raise busy(table, TRIES_MAX)


def _expire(
    loaded: Table, table: str, older_than_ms: int, keep: int, dry_run: bool
) -> ExpiredSnapshots:
    metadata = loaded.metadata
    snapshots = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    held = {ref.snapshot_id for ref in metadata.refs.values()}
    held |= {each.snapshot_id for each in snapshots[-keep:]}
    old = [
        each
        for each, after in pairwise(snapshots)
        if after.timestamp_ms < older_than_ms and each.snapshot_id not in held
    ]
    if not old:
        return ExpiredSnapshots(table, 0, loaded.metadata_location)
    gone = {each.snapshot_id for each in old}
    named = files_of(loaded, old)
    kept = files_of(loaded, [each for each in snapshots if each.snapshot_id not in gone])
    if not dry_run:
        loaded.maintenance.expire_snapshots().by_ids(sorted(gone)).commit()
    return ExpiredSnapshots(
        table,
        len(old),
        loaded.metadata_location,
        _only(named, kept, "data"),
        _only(named, kept, "metadata"),
    )


def _only(named: TableFiles, kept: TableFiles, kind: str) -> tuple[str, ...]:
    return tuple(sorted(getattr(named, kind) - getattr(kept, kind)))
