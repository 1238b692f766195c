"""The one procedure by which anything is deleted from the store (docs/protocol.md 7).

    find -> name in the ledger -> an accepted entry has the names -> judge again -> delete -> forget

A *collectable* is a kind of thing that may be deleted: orphan objects (``orphans.py``),
unreferenced objects (``unreferenced.py``), files of the lake (``lake_files.py``). It says what may
go and how; the order is the collector's.

It may be killed between any two steps and run again: what is named and still there is found again,
and ``finish`` forgets names whose things are gone. Deleting what is gone is not an error. Things
move in rounds, so memory and entries are bounded; transactions are short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Protocol, TypeVar

T = TypeVar("T")

PAGE = 1_000  # of one LIST, one DELETE, one look at the ledger
ROUND = 10_000  # named by one entry: about 1 MB
NAMES_MAX = 500  # in one transaction: some milliseconds


class Collectable(Protocol[T]):
    """One kind. Every call may be made again after a kill."""

    def find(self) -> Iterator[list[T]]:
        """Pages of what may go, as of now."""
        ...

    def name(self, found: list[T]) -> list[T]:
        """Names in the ledger what may still go, in one transaction; returns it."""
        ...

    def judge(self, named: list[T]) -> list[T]:
        """What may still go now that an entry names it."""
        ...

    def delete(self, going: list[T]) -> None:
        """Removes it from the store."""
        ...

    def forget(self, gone: list[T]) -> None:
        """It is gone from the store: its names go, and its rows."""
        ...

    def tell(self, gone: list[T]) -> None:
        """Adds it to the report."""
        ...

    def finish(self) -> None:
        """After everything: forgets names whose things are gone, and completes the report."""
        ...


class Collector:
    """Deletes one kind after the other."""

    def __init__(self, await_backup: Callable[[], None]) -> None:
        """``await_backup`` returns when an accepted entry covers the ledger as it is then."""
        self._await_backup = await_backup

    def collect(self, kind: Collectable[T]) -> None:
        """Deletes everything of a kind that may go. Raises what its calls raise."""
        for batch in pages(chain.from_iterable(kind.find()), ROUND):
            named = [one for some in pages(batch, NAMES_MAX) for one in kind.name(some)]
            if not named:
                continue
            self._await_backup()
            for some in pages(named, PAGE):
                going = kind.judge(some)
                kind.delete(going)
                kind.forget(going)
                kind.tell(going)
        kind.finish()


def look(kind: Collectable[T]) -> None:
    """Reports what a collection would delete; writes nothing."""
    for page in kind.find():
        kind.tell(page)


def pages(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items in lists of ``size``, the last one shorter."""
    left = iter(items)
    while page := list(islice(left, size)):
        yield page
