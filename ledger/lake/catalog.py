"""The default Iceberg catalog: a SQLite file that names each table's present metadata.

Tables and columns are those of pyiceberg's SqlCatalog, so pyiceberg, DuckDB's users and others open
the file themselves. A *pointer* is a table's metadata location; it moves by compare and swap. The
file is another database than the ledger, and only the ledger's owner changes it; other programs may
too, which is why nothing here is cached. A pointer never leaves the lake: every program that opens
the table reads what it names, and believes it.

Functions take a ``CatalogTx``; ``opened`` gives one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from ledger.errors import translated
from ledger.private_files import make_file

NAME = "headgate"  # of the catalog in its own file
BUSY_TIMEOUT_MS = 30_000  # another program's commit

_SCHEMA = """CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000),
    previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name));
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
    property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key));
"""
_ONE = "catalog_name = ? AND table_namespace = ? AND table_name = ?"


class Pointer(Struct, frozen=True, array_like=True):
    """A new table, and where its metadata is."""

    namespace: str
    table: str
    location: str


class Move(Struct, frozen=True, array_like=True):
    """A pointer that is to move."""

    namespace: str
    table: str
    before: str
    after: str


class CatalogTx:
    """A transaction on the catalog's file; ``lake`` is the location above all tables."""

    def __init__(self, connection: sqlite3.Connection, lake: str) -> None:
        self.execute = connection.execute
        self.lake = lake


@contextmanager
def opened(path: Path, lake: str) -> Iterator[CatalogTx]:
    """One transaction; makes the file where there is none. Raises LedgerError.

    ``lake`` is the location above all tables.
    """
    try:
        make_file(path)
        with closing(
            sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None)
        ) as connection:
            connection.executescript(_SCHEMA)
            connection.execute("BEGIN IMMEDIATE")
            yield CatalogTx(connection, lake)
            connection.execute("COMMIT")
    except (sqlite3.Error, MemoryError) as error:
        raise translated(error, path, BUSY_TIMEOUT_MS) from error


def is_below(location: str, lake: str) -> bool:
    """Whether a location is one of a file in the lake."""
    steps = location.removeprefix(lake).split("/")
    return location.startswith(f"{lake}/") and not {".", ".."} & set(steps)


def pointers(tx: CatalogTx, namespace: str) -> dict[str, str]:
    """The metadata locations of a namespace's tables, by name."""
    rows = tx.execute(
        "SELECT table_name, metadata_location FROM iceberg_tables WHERE catalog_name = ?"
        " AND table_namespace = ? AND metadata_location IS NOT NULL ORDER BY table_name",
        (NAME, namespace),
    )
    return dict(rows.fetchall())


def pointer(tx: CatalogTx, namespace: str, table: str) -> str | None:
    """Where a table's metadata is; None without such a table."""
    row = tx.execute(
        f"SELECT metadata_location FROM iceberg_tables WHERE {_ONE}", (NAME, namespace, table)
    ).fetchone()
    return None if row is None else row[0]


def pointers_of(tx: CatalogTx, tables: list[tuple[str, str]]) -> list[str | None]:
    """The same of many tables, each by namespace and name."""
    return [pointer(tx, namespace, table) for namespace, table in tables]


def add(tx: CatalogTx, tables: list[Pointer]) -> list[bool]:
    """Names new tables; False for one whose name is taken. Raises ValueError, and names none."""
    for each in tables:
        _check(tx, each.location)
    return [_added(tx, each) for each in tables]


def _added(tx: CatalogTx, new: Pointer) -> bool:
    found = tx.execute(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location)"
        " VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (NAME, new.namespace, new.table, new.location),
    )
    return found.rowcount == 1 or pointer(tx, new.namespace, new.table) == new.location


def swap(tx: CatalogTx, moves: list[Move]) -> list[bool]:
    """Moves pointers from ``before`` to ``after``; False for one that is neither.

    Raises ValueError, and moves none.
    """
    for each in moves:
        _check(tx, each.after)
    return [_swapped(tx, each) for each in moves]


def _swapped(tx: CatalogTx, move: Move) -> bool:
    found = tx.execute(
        "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
        f" WHERE {_ONE} AND metadata_location = ?",
        (move.after, move.before, NAME, move.namespace, move.table, move.before),
    )
    return found.rowcount == 1 or pointer(tx, move.namespace, move.table) == move.after


def add_missing(tx: CatalogTx, tables: Mapping[str, str]) -> list[str]:
    """Names those tables that are not there, given with their metadata locations by identifier;
    returns their identifiers. What is not below the lake is left out."""
    added = []
    for identifier, location in tables.items():
        namespace, _, table = identifier.partition(".")
        if pointer(tx, namespace, table) is None and is_below(location, tx.lake):
            make_namespace(tx, namespace)
            add(tx, [Pointer(namespace, table, location)])
            added.append(identifier)
    return added


def rename(tx: CatalogTx, namespace: str, table: str, to: str, metadata_location: str) -> bool:
    """Renames a table whose pointer is this one; False where ``to`` is another's name."""
    taken = pointer(tx, namespace, to)
    if taken is not None:
        return taken == metadata_location and pointer(tx, namespace, table) is None
    tx.execute(
        f"UPDATE iceberg_tables SET table_name = ? WHERE {_ONE} AND metadata_location = ?",
        (to, NAME, namespace, table, metadata_location),
    )
    return True


def make_namespace(tx: CatalogTx, namespace: str) -> None:
    """Makes a namespace unless it is there."""
    tx.execute(
        "INSERT INTO iceberg_namespace_properties VALUES (?, ?, 'exists', 'true')"
        " ON CONFLICT DO NOTHING",
        (NAME, namespace),
    )


def _check(tx: CatalogTx, metadata_location: str) -> None:
    if not is_below(metadata_location, tx.lake):
        raise ValueError(
            f"a table's metadata must be below {tx.lake}/, got {metadata_location[:300]!r}"
        )
