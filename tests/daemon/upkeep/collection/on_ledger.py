"""The calls on a ledger that a collection makes, for worlds that are their own LedgerAccess."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate

from ledger.lake.catalog import CatalogTx, opened
from ledger.ledger import Ledger
from ledger.tx import P, ReadTx, T, WriteTx


class OnLedger:
    """Works on ``ledger``, whichever that is at the moment."""

    ledger: Ledger
    default_catalog: tuple[Path, str]
    run: str | None = None
    daemon_pid: int | None = 1

    def catalog(
        self, function: Callable[Concatenate[CatalogTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with opened(*self.default_catalog) as tx:
            return function(tx, *args, **kwargs)

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self.ledger.read(function, *args, **kwargs)

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self.ledger.write(function, *args, **kwargs)
