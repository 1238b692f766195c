"""What worlds of collections share: calls on a ledger, deaths, and what a store is not asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate

from ledger.lake.catalog import CatalogTx, opened
from ledger.ledger import Ledger
from ledger.tx import P, ReadTx, T, WriteTx
from uploader.stores.base import ObjectHead


class Killed(BaseException):
    """The process of the collection ends here."""


class OnLedger:
    """A LedgerAccess that works on ``ledger``, whichever that is at the moment."""

    ledger: Ledger
    steps_left: int | None = None  # until the collection is killed
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

    def step(self) -> None:
        """A point at which the collection may be killed."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Killed


class UnaskedStore:
    """A store of which a collection may ask nothing but what is overridden."""

    url = "file:///shelf"

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        raise AssertionError("what is collected is known, not listed")

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        raise AssertionError("a collection puts nothing")

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        raise AssertionError("a collection reads no object")

    def put_if_absent(self, key: str, body: bytes) -> bool:
        raise AssertionError("entries are the owner's")

    def check(self) -> None:
        """Nothing to check."""

    def reconnect(self) -> None:
        """Nothing to connect to."""

    def close(self) -> None:
        """Nothing to close."""
