"""Orphans of a collection: named, told to the owner's log, deleted, forgotten (docs/protocol.md 7).

    raise the floor -> an entry has it -> LIST what is below it -> name orphans in the ledger
    -> an entry has the names -> DELETE -> the names go

Committed objects that nothing needs any more are ``collect_spent.py``'s, files of the lake
``collect_lake.py``'s.

An orphan goes when its grace time is over, counted from when the store took it. Killed between
any two steps and run again: rows of ``deletions`` whose objects are gone are dropped, the others
are found by LIST again. Names and objects move in rounds, so memory and entries are bounded.

What is deleted is judged three times by the same rule (``ledger/space/collection.py``): when it is
listed, in the transaction that names it, and behind the entry.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from msgspec import Struct, field

from daemon.upkeep.cover import Cover, Sleep
from ledger import epochs, reads
from ledger.ledger import Ledger
from ledger.space import deletions, orphans
from ledger.space.orphans import Candidate
from uploader.l0 import parse_key
from uploader.ownership.collect import Fate, epoch_prefix, fate
from uploader.stores.base import ObjectHead, ObjectStore
from uploader.stores.counted import Requests
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore

T = TypeVar("T")
PAGE_OBJECTS = 1_000
ROUND_ORPHANS = 10_000  # named by one entry: about 1 MB
KEYS_TOLD_MAX = 10_000  # in a report


class Report(Struct):
    """What a collection found and did. Objects are keys; equal copies of one count once.

    ``orphans`` are all that were found, of which ``young`` are still within the grace time, and
    ``deleted`` went. Of committed objects that nothing needs any more ``collected`` went,
    ``kept_by_lease`` are held by bulk readers, ``waiting`` are within their grace or may still be
    asked for; ``quarantined`` ones never go. ``lake_files`` are Parquet files and
    manifests, ``lake_bytes`` those of the former.
    ``keys`` are the objects deleted, or with ``dry_run`` those that would be; at most 10,000.
    ``problems``: what of the lake could not be collected, and why; the rest was done.
    """

    dry_run: bool
    daemon_pid: int | None = None
    epoch_floor: int = 0
    objects: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    young: int = 0
    foreign: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    collected: int = 0
    collected_bytes: int = 0
    kept_by_lease: int = 0
    waiting: int = 0
    quarantined: int = 0
    lake_files: int = 0
    lake_bytes: int = 0
    lake_snapshots: int = 0
    lake_skipped: str | None = None
    problems: list[str] = []
    keys: list[str] = []
    requests: Requests = field(default_factory=Requests)
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether all was done."""
        return not self.problems

    def tell(self, keys: Iterable[str]) -> None:
        """Adds keys of objects, as far as a report goes."""
        self.keys.extend(islice(keys, max(0, KEYS_TOLD_MAX - len(self.keys))))


class Collection:
    """The orphans of one run over a store."""

    def __init__(
        self, ledger: Ledger, store: ObjectStore, report: Report, grace_ms: int,
        now_ms: Callable[[], int], sleep_s: Sleep,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._store = RetryingStore(store, COMMAND, random.Random(store.url), sleep_s)
        self._report = report
        self._grace_ms = grace_ms
        self._now_ms = now_ms
        self._previous = ""  # key in the listing

    def look(self, floor: int) -> None:
        """Fills the report with what a collection at this floor would do; writes nothing."""
        for batch in self._rounds(floor, set()):
            self._tell(batch)

    def collect(self, cover: Cover, floor: int) -> None:
        """Deletes the orphans below a floor that an accepted entry has.

        Raises NotCovered, StoreError, LedgerError.
        """
        # Names that a killed run left; another collection may add some meanwhile, which are its.
        gone = self._named()
        for batch in self._rounds(floor, gone):
            named = self._ledger.write(orphans.name, [candidate for candidate, _ in batch])
            cover.cover()
            self._delete(batch, named)
        for some in pages(iter(sorted(gone)), PAGE_OBJECTS):
            self._ledger.write(orphans.forget, some)

    def _named(self) -> set[str]:
        names: set[str] = set()
        after = ""
        while page := self._ledger.read(orphans.named, after, PAGE_OBJECTS):
            names.update(page)
            after = page[-1]
        return names

    def _rounds(self, floor: int, gone: set[str]) -> Iterator[list[tuple[Candidate, int]]]:
        """Orphans past their grace with their sizes, in rounds; takes what is there from ``gone``.

        Equal copies of one key are in one round.
        """
        batch: list[tuple[Candidate, int]] = []
        for page in pages(self._below(floor), PAGE_OBJECTS):
            for candidate, size_bytes in self._orphans_of(page, floor, gone):
                if len(batch) >= ROUND_ORPHANS and candidate.key != batch[-1][0].key:
                    yield batch
                    batch = []
                batch.append((candidate, size_bytes))
        if batch:
            yield batch

    def _below(self, floor: int) -> Iterator[ObjectHead]:
        """LIST order is epoch order, so it ends at the floor."""
        end = epoch_prefix(floor)
        for head in self._store.list("l0/"):
            if head.key >= end:
                return
            yield head

    def _orphans_of(
        self, page: Sequence[ObjectHead], floor: int, gone: set[str]
    ) -> Iterator[tuple[Candidate, int]]:
        # Looked up behind the LIST: what was below the floor then is in the ledger or never will.
        there = self._ledger.read(reads.committed_keys, [head.key for head in page])
        incarnations = frozenset(self._ledger.read(epochs.incarnations))
        report = self._report
        for head in page:
            gone.discard(head.key)
            copy, self._previous = head.key == self._previous, head.key
            report.objects += not copy
            if head.key in there:
                continue
            if fate(head.key, floor, incarnations) is not Fate.ORPHAN:
                report.foreign += not copy
                continue
            young = max(0, self._now_ms() - head.modified_ms) < self._grace_ms
            report.orphans += not copy
            report.orphan_bytes += head.size_bytes
            report.young += young and not copy
            if not young:
                yield Candidate(head.key, head.locator, parse_key(head.key)), head.size_bytes

    def _delete(self, batch: list[tuple[Candidate, int]], named: Sequence[Candidate]) -> None:
        names = self._ledger.read(deletions.named, [candidate.key for candidate in named])
        still = {
            candidate.locator
            for candidate in self._ledger.read(orphans.among, list(named))
            if candidate.key in names
        }
        going = [(candidate, size) for candidate, size in batch if candidate.locator in still]
        for some in pages(iter(going), PAGE_OBJECTS):
            locators = [candidate.locator for candidate, _ in some]
            self._store.delete(locators)
            self._ledger.write(orphans.forget, [candidate.key for candidate, _ in some])
        self._tell(going)
        self._report.deleted += len({candidate.key for candidate, _ in going})
        self._report.deleted_bytes += sum(size for _, size in going)

    def _tell(self, batch: Sequence[tuple[Candidate, int]]) -> None:
        self._report.tell(dict.fromkeys(candidate.key for candidate, _ in batch))


def pages(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Items in lists of ``size``, the last one shorter."""
    while page := list(islice(items, size)):
        yield page
