"""Transactions as functions see them: ``ReadTx`` to read in, ``WriteTx`` to also write in.

Functions of the ledger live in one module per subject and take a transaction first. ``Ledger``
(``ledger.py``) begins it, and commits it or rolls it back if the function raises. mypy refuses a
function that writes where only a ``ReadTx`` is available. These two types are also the seam for
another database: all SQL goes through ``execute`` and ``executemany``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ReadTx:
    """A transaction for statements that only read; all of them see one committed state.

    ``connection`` is the driver's, for what only SQLite does.
    """

    # Bound methods of the driver: a call costs what it costs without this class.
    __slots__ = ("connection", "execute")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute


class WriteTx(ReadTx):
    """The one transaction that may write, under the ledger lock."""

    __slots__ = ("executemany",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.executemany = connection.executemany


class Reads(Protocol):
    """Runs functions that read, each on one committed state; ``Ledger`` does."""

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What ``function`` returns of one committed state."""
        ...


class Transactions(Reads, Protocol):
    """Runs functions in transactions of their own; ``Ledger`` does."""

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What ``function`` returns, once what it wrote is durable."""
        ...
