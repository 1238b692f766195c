"""The ledger: a file, a lock, and transactions in which functions read and write.

Vocabulary and tables: ``schema.py``. What is read and written is in one module per subject, whose
functions take a transaction first (``tx.py``)::

    ledger.read(topics.find, "clicks")  # one function in a transaction of its own
    ledger.write(topics.delete, "clicks", now_ms)
    with ledger.reading() as tx:  # several functions that see one committed state
        ...

A Ledger is one SQLite connection, used by one thread at a time; a process opens one for each
thread that needs it. Writing takes the ledger lock (an argument; in the daemon a byte lock of a
file under a threading lock) and one IMMEDIATE transaction. Reading takes no lock. Time is an
argument.

This module does not know shards, stores, HTTP, or what waits for a commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Concatenate

from ledger import commits, schema, table_names, topics
from ledger.dedupe import DedupeLimits
from ledger.errors import translated
from ledger.tx import P, ReadTx, T, WriteTx
from ledger.types import Commit, CommitDraft, LeaseId

Lock = AbstractContextManager[object]


class Ledger:
    """A connection to the ledger at ``path``; creates the file unless ``must_exist``.

    Raises LedgerMissing, LedgerUnusable, LedgerCorrupt, LedgerFromFuture. Each transaction may
    raise LedgerUnusable, LedgerBusy and LedgerCorrupt.
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
        self.lock = lock
        self.dedupe_limits = dedupe_limits or DedupeLimits()
        with lock, self._translating():
            connection = schema.connect(path, must_exist)
            try:
                schema.migrate(connection, path)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        self._read_tx = ReadTx(connection)
        self._write_tx = WriteTx(connection)
        if self.read(table_names.undecided):
            self.write(topics.decide_tables)

    def close(self) -> None:
        """Ends the connection. The last one to close copies the WAL back into the file."""
        with self._translating():
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[ReadTx]:
        """A transaction without the lock; its statements see one committed state."""
        with self._transaction("BEGIN"):
            yield self._read_tx

    @contextmanager
    def writing(self) -> Iterator[WriteTx]:
        """The lock around one transaction: durable at its end, rolled back if it raises."""
        with self.lock, self._transaction("BEGIN IMMEDIATE"):
            yield self._write_tx

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Calls ``function`` with a ``reading`` transaction of its own."""
        with self._transaction("BEGIN"):
            return function(self._read_tx, *args, **kwargs)

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Calls ``function`` with a ``writing`` transaction of its own."""
        with self.lock, self._transaction("BEGIN IMMEDIATE"):
            return function(self._write_tx, *args, **kwargs)

    def commit(
        self, draft: CommitDraft, now_ms: int, published: Callable[[Commit], None]
    ) -> Commit:
        """Commits a lease once, durably, then calls ``published`` still under the lock.

        A lease id that is committed already gives its earlier result with ``repeated``. If
        ``published`` raises, the commit remains. Raises DraftInvalid.
        """
        with self.lock:
            with self._transaction("BEGIN IMMEDIATE"):
                commit = commits.commit(self._write_tx, draft, now_ms, self.dedupe_limits)
            published(commit)
        return commit

    def publish_again(
        self, lease_id: LeaseId, published: Callable[[Commit], None]
    ) -> Commit | None:
        """The commit of a lease if it exists; calls ``published`` for it under the lock.

        For a process that takes over from a committer that may have died before it published.
        """
        with self.lock:
            commit = self.read(commits.by_lease, lease_id)
            if commit is not None:
                published(commit)
        return commit

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        connection = self._connection
        try:
            connection.execute(begin)
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, MemoryError) as error:
            raise translated(error, self.path, schema.BUSY_TIMEOUT_MS) from error

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, MemoryError) as error:
            raise translated(error, self.path, schema.BUSY_TIMEOUT_MS) from error
