"""The lake of one place: its catalog and its tables, and what their errors mean.

A ``Lake`` is used by one thread; ``map`` and ``attempt`` use several inside. Tables are prepared in
``prepare.py`` and committed to in ``commit.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from compaction.access.ledger_access import LedgerAccess
from compaction.access.settings import LakeSettings
from compaction.inputs.place import Place
from compaction.tables.catalog import (
    close_catalog,
    damage_errors,
    open_catalog,
    outside_errors,
    translated,
)
from compaction.tables.errors import (
    ForeignTable,
    LakeError,
    LakeUnusable,
    TableChanged,
    TableDamaged,
    TableRefused,
)
from compaction.tables.table_state import TOPIC_ID, check_properties
from ledger.lake.catalog import is_below
from ledger.table_names import NAMESPACE

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

# Tables that cannot be used, one after the other, before the lake is given up.
UNUSABLE_MAX = 8
# A commit on S3 waits for about ten requests one after the other, a local one for the disk: the
# more wait for it together, the fewer writes it needs.
THREADS_S3 = 8
THREADS_FILE = 16

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Lake:
    """The catalog and the tables of one place."""

    def __init__(
        self, place: Place, properties: Mapping[str, str], catalog_name: str | None = None,
        owner: LedgerAccess | None = None,
    ) -> None:  # fmt: skip
        """Opens the catalog. Raises LakeUnusable. ``properties`` are pyiceberg's: at least ``uri``,
        unless ``catalog_name`` names an entry of pyiceberg's own configuration, or ``owner`` keeps
        the catalog's pointers."""
        self.place = place
        self.catalog: Catalog = open_catalog(place, properties, catalog_name, owner)
        self.outside = outside_errors()
        self._damage = damage_errors()
        self._threads = THREADS_S3 if place.lake.startswith("s3://") else THREADS_FILE

    def close(self) -> None:
        """Closes the connections."""
        close_catalog(self.catalog)

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        """In the block, errors from outside become ForeignTable, TableDamaged or LakeUnusable with
        the name."""
        from compaction.tables.fileio import OutsideLake

        try:
            yield
        except OutsideLake as error:
            raise _elsewhere(name, str(error)) from error
        except self._damage as error:
            raise TableDamaged(name, error) from error
        except self.outside as error:
            raise translated(error, f"the table {name} in {self.place.lake}") from error

    def locations(self) -> dict[str, str | None]:
        """The metadata location of each table in the namespace, by identifier, with one request.
        None if the catalog cannot list locations. Raises LakeUnusable."""
        from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
        from sqlalchemy import select

        from compaction.tables.owner_catalog import OwnerCatalog

        try:
            if isinstance(self.catalog, OwnerCatalog):
                found = self.catalog.locations(NAMESPACE)
                return {f"{NAMESPACE}.{name}": location for name, location in found.items()}
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

    def load(self, name: str, at: str | None = None) -> Table | None:
        """A table by its identifier, or None. ``at`` is where its metadata was a moment ago, which
        saves a question to the catalog. Raises TableChanged for one of ours that has a property
        that no table needs."""
        from pyiceberg.exceptions import NoSuchTableError

        from compaction.tables.owner_catalog import OwnerCatalog

        loaded = None
        if at is not None and isinstance(self.catalog, OwnerCatalog):
            with suppress(*self._damage):  # it is somewhere else by now
                loaded = self.catalog.load_at(name, at)
        try:
            loaded = loaded or self.catalog.load_table(name)
        except NoSuchTableError:
            return None
        if TOPIC_ID in loaded.metadata.properties and self.has(loaded):
            check_properties(loaded.metadata.properties, name)
        return loaded

    def has(self, loaded: Table) -> bool:
        """Whether a table's files are in this lake."""
        return is_below(loaded.location(), self.place.lake)

    def check_has(self, loaded: Table) -> None:
        """Raises ForeignTable for a table of another lake."""
        if not self.has(loaded):
            raise _elsewhere(
                loaded_name(loaded), f"it is at {loaded.location()}, not below {self.place.lake}/"
            )

    def load_existing(self, name: str) -> Table:
        """A table by its identifier. Raises TableChanged if it no longer exists."""
        loaded = self.load(name)
        if loaded is None:
            raise TableChanged(
                f"the table {name} was dropped or renamed while a run wrote to it",
                "run it again",
            )
        return loaded

    def rewritable(self, table: str, paths: Iterable[str]) -> list[str]:
        """Those of ``paths`` that a run may rewrite: files that the table still has, unchanged.

        Empty if rows were deleted by delete files, because a rewrite would bring the rows back.
        Raises TableRefused, LakeUnusable.
        """
        listed = list(paths)
        with self.about(table):
            loaded = self.load_existing(table)
            if has_deletes(loaded):
                return []
            there = data_files_at(loaded, listed)
        return [path for path in listed if path in there]

    def attempt(
        self, function: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> list[_Result | LakeError]:
        """The result of ``function`` for each table, or its error; other tables are not affected.

        Raises LakeUnusable if the fault is not with single tables: the catalog cannot be used, or
        none of the first UNUSABLE_MAX tables can.
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
        """The results in order. Runs several calls at a time; an error stops those not begun."""
        if len(items) <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(self._threads, len(items)), "lake") as pool:
            futures = [pool.submit(function, item) for item in items]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise


def live_files(loaded: Table) -> Iterator[DataFile]:
    """The data files of the current snapshot; a manifest is read when its first file is taken."""
    snapshot = loaded.current_snapshot()
    for manifest in snapshot.manifests(loaded.io) if snapshot is not None else ():
        for entry in manifest.fetch_manifest_entry(loaded.io, discard_deleted=True):
            yield entry.data_file


def data_files_at(loaded: Table, paths: Iterable[str]) -> dict[str, DataFile]:
    """Those of ``paths`` that are data files of the current snapshot, by path."""
    wanted = set(paths)
    found: dict[str, DataFile] = {}
    if wanted:
        for file in live_files(loaded):
            if file.file_path in wanted:
                found[file.file_path] = file
                if len(found) == len(wanted):
                    break
    return found


def has_deletes(loaded: Table) -> bool:
    """Whether the current snapshot has delete files."""
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


def _elsewhere(name: str, why: str) -> ForeignTable:
    return ForeignTable(
        f"the table {name} belongs to another Headgate, or was changed: {why}",
        "give each Headgate a catalog or a database of its own, and register the metadata that"
        " this one wrote again",
    )


def open_lake(settings: LakeSettings, owner: LedgerAccess) -> Lake:
    """The lake that a daemon's settings say. Raises LakeUnusable."""
    if settings.catalog_name is not None:
        return Lake(settings.place, {}, settings.catalog_name)
    if settings.catalog_uri is not None:
        return Lake(settings.place, {"uri": settings.catalog_uri})
    return Lake(settings.place, {}, owner=owner)
