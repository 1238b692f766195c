"""The default catalog as pyiceberg sees it: pointers are kept by the owner of the ledger.

A table's metadata are files in the lake, written by the process that commits; the catalog holds one
pointer per table, and the owner (``ledger/lake/catalog.py``) swaps it if it still is what was read.
So a driver on another machine commits without a database. What a compaction does not need (views,
dropping, properties of namespaces) is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from compaction.access.ledger_access import LedgerAccess
from ledger.lake import catalog as pointers

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate


class OwnerCatalog(MetastoreCatalog):
    """A catalog whose pointers a LedgerAccess keeps."""

    def __init__(self, access: LedgerAccess, **properties: str) -> None:
        super().__init__(pointers.NAME, **properties)
        self._access = access

    def locations(self, namespace: str) -> dict[str, str]:
        """The metadata locations of all tables, by name; one call."""
        return self._access.catalog(pointers.pointers, namespace)

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        staged = self._create_staged_table(
            identifier, schema, location, partition_spec, sort_order, properties or {}
        )
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        return self.register_table(identifier, staged.metadata_location)

    def register_table(
        self, identifier: Any, metadata_location: str, overwrite: bool = False
    ) -> Table:
        namespace, name = _split(identifier)
        if overwrite:
            raise NotImplementedError("a table is not registered over another")
        if not self._access.catalog(pointers.add, namespace, name, metadata_location):
            raise TableAlreadyExistsError(f"table {namespace}.{name} already exists")
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> Table:
        namespace, name = _split(identifier)
        found = self._access.catalog(pointers.pointer, namespace, name)
        if found is None:
            raise NoSuchTableError(f"table does not exist: {namespace}.{name}")
        io = load_file_io(properties=self.properties, location=found)
        metadata = FromInputFile.table_metadata(io.new_input(found))
        return Table(
            identifier=(namespace, name),
            metadata=metadata,
            metadata_location=found,
            io=self._load_file_io(metadata.properties, found),
            catalog=self,
        )

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        namespace, name = _split(table.name())
        current = self.load_table(table.name())
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        if staged.metadata == current.metadata:
            return _response(current.metadata, current.metadata_location)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        before, after = current.metadata_location, staged.metadata_location
        if not self._access.catalog(pointers.swap, namespace, name, before, after):
            raise CommitFailedException(
                f"another writer changed the table {namespace}.{name} meanwhile"
            )
        return _response(staged.metadata, after)

    def rename_table(self, from_identifier: Any, to_identifier: Any) -> Table:
        namespace, name = _split(from_identifier)
        _, to = _split(to_identifier)
        location = self.load_table(from_identifier).metadata_location
        if not self._access.catalog(pointers.rename, namespace, name, to, location):
            raise TableAlreadyExistsError(f"table {namespace}.{to} already exists")
        return self.load_table(to_identifier)

    def list_tables(self, namespace: Any) -> list[Any]:
        text = Catalog.namespace_to_string(namespace)
        return [(text, name) for name in self.locations(text)]

    def namespace_exists(self, namespace: Any) -> bool:
        """Making one that is there changes nothing, so it is not asked."""
        return False

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        self._access.catalog(pointers.make_namespace, Catalog.namespace_to_string(namespace))

    def close(self) -> None:
        """Nothing is open."""

    # What a compaction does not do.

    def drop_table(self, identifier: Any) -> None:
        _not_here()

    def drop_namespace(self, namespace: Any) -> None:
        _not_here()

    def list_namespaces(self, namespace: Any = ()) -> list[Any]:
        _not_here()

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        _not_here()

    def update_namespace_properties(
        self, namespace: Any, removals: Any = None, updates: Any = None
    ) -> Any:
        _not_here()

    def list_views(self, namespace: Any) -> list[Any]:
        _not_here()

    def load_view(self, identifier: Any) -> Any:
        _not_here()

    def register_view(self, identifier: Any, metadata_location: str) -> Any:
        _not_here()

    def drop_view(self, identifier: Any) -> None:
        _not_here()

    def view_exists(self, identifier: Any) -> bool:
        _not_here()


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})


def _split(identifier: Any) -> tuple[str, str]:
    namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
    return namespace, Catalog.table_name_from(identifier)


def _not_here() -> NoReturn:
    raise NotImplementedError("open the catalog with pyiceberg's SqlCatalog for that: docs/lake.md")
