"""The default catalog as pyiceberg sees it: pointers are kept by the owner of the ledger.

A table's metadata are files in the lake, written by the process that commits; the catalog holds one
pointer per table, and the owner (``ledger/lake/catalog.py``) moves it if it still is what was read.
So a driver on another machine commits without a database. What a compaction does not need (views,
dropping, properties of namespaces) is not here.

Threads may commit to many tables at the same time: their pointers are read, and moved, in one
transaction of the owner for all that wait for one. Files are durable before the pointer moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from compaction.access.ledger_access import LedgerAccess
from compaction.tables.fileio import LakeFileIO
from ledger.lake import catalog as pointers
from ledger.lake.catalog import Move, Pointer

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate


class OwnerCatalog(MetastoreCatalog):
    """A catalog whose pointers a LedgerAccess keeps."""

    def __init__(self, access: LedgerAccess, files: LakeFileIO, **properties: str) -> None:
        super().__init__(pointers.NAME, **properties)
        self._access = access
        self._files = files
        self._pointer: Grouped[tuple[str, str], str | None] = Grouped(
            lambda asked: access.catalog(pointers.pointers_of, asked)
        )
        self._named: Grouped[Pointer, bool] = Grouped(
            lambda tables: access.catalog(pointers.add, tables)
        )
        self._moved: Grouped[Move, bool] = Grouped(
            lambda moves: access.catalog(pointers.swap, moves)
        )

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
        self._write_metadata(staged.metadata, self._files, staged.metadata_location)
        self._add(identifier, staged.metadata_location)
        return self._table(identifier, staged.metadata, staged.metadata_location)

    def register_table(
        self, identifier: Any, metadata_location: str, overwrite: bool = False
    ) -> Table:
        if overwrite:
            raise NotImplementedError("a table is not registered over another")
        self._add(identifier, metadata_location)
        return self.load_table(identifier)

    def _add(self, identifier: Any, metadata_location: str) -> None:
        namespace, name = _split(identifier)
        self._files.settle(metadata_location)
        if not self._named(Pointer(namespace, name, metadata_location)):
            raise TableAlreadyExistsError(f"table {namespace}.{name} already exists")

    def load_table(self, identifier: Any) -> Table:
        namespace, name = _split(identifier)
        found = self._pointer((namespace, name))
        if found is None:
            raise NoSuchTableError(f"table does not exist: {namespace}.{name}")
        return self.load_at(identifier, found)

    def load_at(self, identifier: Any, metadata_location: str) -> Table:
        """A table of which this is a version; a commit to an older one fails."""
        metadata = FromInputFile.table_metadata(self._files.new_input(metadata_location))
        return self._table(identifier, metadata, metadata_location)

    def _table(self, identifier: Any, metadata: TableMetadata, location: str) -> Table:
        return Table(
            identifier=_split(identifier),
            metadata=metadata,
            metadata_location=location,
            io=self._files,
            catalog=self,
        )

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """The pointer moves only from the version that ``table`` is, so that one is current."""
        namespace, name = _split(table.name())
        staged = self._update_and_stage_table(table, table.name(), requirements, updates)
        before, after = table.metadata_location, staged.metadata_location
        if staged.metadata == table.metadata:
            return _response(table.metadata, before)
        self._write_metadata(staged.metadata, self._files, after)
        self._files.settle(after)
        if not self._moved(Move(namespace, name, before, after)):
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


Item = TypeVar("Item")
Result = TypeVar("Result")


class Grouped(Generic[Item, Result]):
    """Answers single questions with a function that answers many.

    Who asks while a call is under way waits for the next one, which takes all that wait then. So a
    call has at most one question of each thread, and none waits for others to come. An error is
    raised to all whose question was in the call.
    """

    def __init__(self, answers: Callable[[list[Item]], Sequence[Result]]) -> None:
        self._answers = answers
        self._waiting: list[tuple[Item, Future[Result]]] = []
        self._asking = threading.Lock()
        self._turn = threading.Lock()

    def __call__(self, item: Item) -> Result:
        """The answer to one question."""
        answer: Future[Result] = Future()
        with self._asking:
            self._waiting.append((item, answer))
        with self._turn:
            if not answer.done():
                self._call()
        return answer.result()

    def _call(self) -> None:
        with self._asking:
            taken, self._waiting = self._waiting, []
        try:
            found = self._answers([item for item, _ in taken])
            for (_, answer), result in zip(taken, found, strict=True):
                answer.set_result(result)
        except BaseException as error:
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(error)
            raise
