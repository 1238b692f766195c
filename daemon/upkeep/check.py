"""``headgate check``: the ledger against the store, with or without a running daemon.

Writes nothing. Ledger and store move on meanwhile, so each comparison is one-sided: what the
ledger had before the LIST must be in it, and what the LIST had is looked up in the ledger after
it. Keys come in the same order from both, so neither is held in memory.

Vocabulary of problems: ``missing``, ``size``, ``damaged`` (an object that the ledger needs);
``orphan``, ``foreign`` (one that it does not have); ``overlap``, ``gap``, ``extent``
(offsets); ``ledger`` (any other rule of it); ``log`` (the owner's log).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import groupby
from typing import TypeVar

from msgspec import Struct

from compaction.access.ledger_access import LedgerAccess
from daemon.config import Config
from daemon.upkeep.collection.orphans import lease_of
from daemon.upkeep.exclusive import owner_here
from daemon.upkeep.owner import OtherHistory, check_history
from ledger import commits, epochs, reads
from ledger.checks import invariants, soundness
from ledger.log.entry import PREFIX as LOG_PREFIX
from ledger.log.entry import Entry, EntryError, parse_entry_key, parse_image_key
from ledger.space import deletions
from ledger.types import ObjectRow
from shards.clock import monotonic_ns, wall_ms
from uploader.l0 import verify
from uploader.ownership.ownerlog import OwnerLog
from uploader.ownership.unlisted import is_orphan
from uploader.stores.base import ObjectHead, ObjectMissing, ObjectStore, StoreError
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore

PROBLEMS_MAX = 10_000  # named; more are counted
PAGE_OBJECTS = 1_000
CHAIN_TRIES = 3  # a daemon writes a snapshot an hour
# What else lies below the prefix: tables of compaction, and probes of a start.
OTHER_PREFIXES = ("lake/", "probe/", "probe-")

T = TypeVar("T")
Sleep = Callable[[float], object]
Advance = Callable[[int], object]

HINTS = {
    "missing": "put it back from the bucket's versions or a backup; its records cannot be read",
    "size": "put the whole object back from the bucket's versions or a backup",
    "damaged": "put the whole object back from the bucket's versions or a backup",
    "orphan": "harmless: `headgate gc` removes it when its grace time is over",
    "foreign": "headgate never touches it; find out who writes here, and move it away",
    "overlap": "do not start the daemon; `headgate recover` rebuilds the ledger, keeps this one",
    "gap": "do not start the daemon; `headgate recover` rebuilds the ledger, keeps this one",
    "extent": "do not start the daemon; `headgate recover` rebuilds the ledger, keeps this one",
    "ledger": "do not start the daemon; `headgate recover` rebuilds the ledger, keeps this one",
    "log": "make sure that --data and --store belong together; then `headgate recover`",
}


class CheckProblem(Struct, frozen=True):
    """Something that is not as it must be. ``key`` is empty where no object is to blame."""

    kind: str
    key: str
    problem: str
    hint: str


class LastEntry(Struct, frozen=True):
    """The last entry of the owner's log that is not a seal."""

    incarnation: int
    number: int
    kind: str
    age_s: float
    commits: int
    host: str
    pid: int
    data_dir: str


class CheckReport(Struct):
    """What was compared and found. ``in_flight``: put, and its lease may still commit."""

    store: str
    data_dir: str
    deep: bool
    daemon_pid: int | None = None
    objects: int = 0
    object_bytes: int = 0
    orphans: int = 0
    in_flight: int = 0
    named_for_deletion: int = 0
    copies: int = 0
    foreign: int = 0
    gaps_declared: int = 0
    entries: int = 0
    last_entry: LastEntry | None = None
    problems: list[CheckProblem] = []
    problems_more: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def tell(self, kind: str, key: str, problem: str) -> None:
        """Adds a problem, or counts it when there are too many."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(CheckProblem(kind, key, problem, HINTS[kind]))
        else:
            self.problems_more += 1


class StoreCheck:
    """One run. ``deep`` also reads every object."""

    def __init__(
        self,
        config: Config,
        ledger: LedgerAccess,
        store: ObjectStore,
        sleep_s: Sleep,
        *,
        deep: bool,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._store = RetryingStore(store, COMMAND, random.Random(store.url), sleep_s)
        self._owner_log = OwnerLog(store, owner_here(config), sleep_s)
        self.report = CheckReport(store.url, config.data_dir, deep)

    def run(self, progress: Callable[[int], AbstractContextManager[Advance]]) -> CheckReport:
        """Looks at everything. ``progress(n)`` shows n objects. Raises StoreError, LedgerError."""
        began_ns = monotonic_ns()
        report = self.report
        report.daemon_pid = self._ledger.daemon_pid
        self._check_log()
        self._check_ledger()
        with progress(self._ledger.read(commits.latest_number)) as advance:
            self._check_objects(advance)
        report.seconds = (monotonic_ns() - began_ns) / 1e9
        return report

    def _check_log(self) -> None:
        report = self.report
        try:
            last = self._owner_log.last()
            report.last_entry = None if last is None else _told(last)
            check_history(self._ledger, last, self._store.url)
            report.entries = self._count()
        except (EntryError, OtherHistory, ObjectMissing) as error:
            report.tell("log", "", str(error))

    def _count(self) -> int:
        """How many entries there are; each is read. Raises EntryError for one that is missing."""
        owner_log = self._owner_log
        tries = 0
        while True:
            try:
                image = owner_log.image()
                if image is not None and self.report.deep:
                    owner_log.get_image(image)
                return sum(1 for _ in owner_log.chain(image))
            except ObjectMissing:
                # The daemon named an image and removed what it makes needless.
                tries += 1
                if tries == CHAIN_TRIES:
                    raise

    def _check_ledger(self) -> None:
        report = self.report
        report.gaps_declared = self._ledger.read(reads.gap_count)
        for place in self._ledger.read(soundness.problems, PROBLEMS_MAX):
            report.tell(place.kind, place.key, place.problem)
        if report.problems and report.problems[-1].kind in ("overlap", "gap", "extent"):
            return  # the rest would say the same again, without the place
        broken = self._ledger.read(invariants.broken)
        if broken is not None:
            report.tell("ledger", "", f"a rule of the ledger does not hold: {broken}")

    def _check_objects(self, advance: Advance) -> None:
        ledger = self._ledger
        commits_before = ledger.read(commits.latest_number)
        rows = self._rows()
        row = next(rows, None)
        heads = self._store.list("")
        unlisted: list[ObjectHead] = []
        for key, group in groupby(heads, lambda head: head.key):
            if not key.startswith("l0/"):
                self._check_other(key)
                continue
            frames = list(group)
            while row is not None and row.key < key:
                self._not_listed(row, commits_before, [])
                advance(1)
                row = next(rows, None)
            if row is not None and row.key == key:
                self._compare(row, commits_before, frames)
                advance(1)
                row = next(rows, None)
                continue
            unlisted.append(frames[0])
            if len(unlisted) >= PAGE_OBJECTS:
                self._check_unlisted(unlisted)
                unlisted = []
        self._check_unlisted(unlisted)
        while row is not None:
            self._not_listed(row, commits_before, [])
            advance(1)
            row = next(rows, None)

    def _rows(self) -> Iterator[ObjectRow]:
        after = ""
        while page := self._ledger.read(reads.objects_by_key, after, PAGE_OBJECTS):
            yield from page
            after = page[-1].key

    def _compare(self, row: ObjectRow, commits_before: int, frames: list[ObjectHead]) -> None:
        ours = [frame for frame in frames if frame.locator == row.locator]
        if not ours:
            self._not_listed(row, commits_before, frames)
            return
        report = self.report
        report.objects += 1
        report.object_bytes += row.size_bytes
        report.copies += len(frames) - 1
        if ours[0].size_bytes != row.size_bytes:
            report.tell(
                "size", row.key,
                f"{row.key} has {ours[0].size_bytes} bytes, the ledger says {row.size_bytes}",
            )  # fmt: skip
        if report.deep:
            self._read(row)

    def _not_listed(self, row: ObjectRow, commits_before: int, copies: list[ObjectHead]) -> None:
        if row.commit_number > commits_before or self._ledger.read(deletions.named, [row.key]):
            return  # put, or deleted, after the LIST
        self.report.objects += 1
        where = f" at {row.locator}" if row.locator != row.key else ""
        also = f"; an equal copy lies at {copies[0].locator}" if copies else ""
        self.report.tell(
            "missing", row.key,
            f"{row.key} with {row.records} records is not in the store{where}{also}",
        )  # fmt: skip

    def _check_unlisted(self, heads: list[ObjectHead]) -> None:
        keys = [head.key for head in heads]
        # Before commits are looked at: what is an orphan by these and not committed then never is.
        floor = self._ledger.read(epochs.floor)
        incarnations = self._ledger.read(epochs.incarnations)
        present = max(incarnations, default=0)
        committed = self._ledger.read(reads.committed_keys, keys)
        named = self._ledger.read(deletions.named, keys)
        report = self.report
        for head in heads:
            if head.key in committed:
                continue  # meanwhile
            lease_id = lease_of(head.key, incarnations)
            if lease_id is None:
                report.foreign += 1
                report.tell("foreign", head.key, f"{head.key} was put by no daemon of this ledger")
            elif head.key in named:
                report.named_for_deletion += 1
            elif not is_orphan(lease_id, floor, present) and report.daemon_pid is not None:
                report.in_flight += 1
            else:
                report.orphans += 1
                report.tell(
                    "orphan", head.key,
                    f"{head.key} ({head.size_bytes} bytes) was put and never committed",
                )  # fmt: skip

    def _check_other(self, key: str) -> None:
        if key.startswith(OTHER_PREFIXES):
            return
        if parse_image_key(key) is not None:
            return
        if key.startswith(LOG_PREFIX):
            try:
                parse_entry_key(key)
            except EntryError:
                pass  # told below, with the other foreign ones
            else:
                return
        self.report.foreign += 1
        self.report.tell("foreign", key, f"{key} is not an object of headgate")

    def _read(self, row: ObjectRow) -> None:
        try:
            body = self._store.get(row.locator)
        except ObjectMissing as error:
            if not self._ledger.read(deletions.named, [row.key]):
                self.report.tell("missing", row.key, str(error))
            return
        except StoreError as error:
            if error.retryable:
                raise
            self.report.tell("damaged", row.key, str(error))
            return
        for problem in verify(body, row.key):
            self.report.tell("damaged", row.key, str(problem))


def _told(last: Entry) -> LastEntry:
    age_s = max(0, wall_ms() - last.created_ms) / 1000
    owner = last.owner
    return LastEntry(
        last.incarnation, last.number, last.kind, age_s, last.mark.commit_number,
        owner.host, owner.pid, owner.data_dir,
    )  # fmt: skip
