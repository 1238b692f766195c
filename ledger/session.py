"""One connection with its lock: how a statement gets a transaction, and an error its kind.

- ``reading``: single statements, each of which sees one committed state; no lock.
- ``snapshot``: several statements that see the same committed state; no lock.
- ``writing``: the ledger lock around one IMMEDIATE transaction. ``transaction`` is the inner
  half, for a commit that goes on under the lock.

A transaction is rolled back when its block raises. Who has a session uses it from one thread at
a time. This module knows no table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ledger import schema
from ledger.errors import translated

Lock = AbstractContextManager[object]


class Session:
    """A connection to the file at ``path``, its schema brought up to date under the lock."""

    def __init__(self, path: Path, lock: Lock, must_exist: bool) -> None:
        self.lock = lock
        self._path = path
        with self.lock, self._translating():
            self._connection = schema.connect(path, must_exist)
            try:
                schema.migrate(self._connection, path)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        with self._translating():
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._translating():
            yield self._connection

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self.lock, self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """An IMMEDIATE transaction for a caller that holds ``lock``."""
        return self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        with self._translating():
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, MemoryError) as error:
            raise translated(error, self._path, schema.BUSY_TIMEOUT_MS) from error
