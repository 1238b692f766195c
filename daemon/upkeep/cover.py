"""How a command has what it left in the ledger covered by an accepted entry of the owner's log.

protocol 5: while a daemon holds the directory's lock it alone writes entries, and a command asks
for one and waits (``Beside``). Without a daemon the command takes the lock, starts an incarnation
of its own like any start, writes the entries itself, and gives the prefix back (``Alone``).

An accepted entry counts only when it was written from this very ledger: by a process on this
directory, in this history. Another owner's log may carry the same numbers.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from daemon.config import Config
from daemon.serve import StartError, say, take_directory
from daemon.upkeep.owner import LOCK_NAME, check_history, this_owner
from daemon.upkeep.recover import settle
from ledger import commits, epochs
from ledger.errors import LedgerMissing
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.log.entry import Entry, Owner
from ledger.space import settle as ledger_settle
from ledger.space.settle import Settled
from shards import locks
from shards.clock import monotonic_ns, wall_ms
from shards.locks import LockFile, SharedLock
from uploader.ownership.collect import collectable_floor
from uploader.ownership.ownerlog import Former, OwnedByAnother, OwnerLog, Taken
from uploader.stores.base import ObjectMissing, StoreError
from uploader.stores.counted import CountedStore
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import Retry

log = logging.getLogger("headgate.cover")

POLL_S = 1.0  # the daemon looks as often, and writes at most one entry per 5 s
WAIT_S = 120.0  # a store that takes no entry for so long is down

Sleep = Callable[[float], object]


class NotCovered(RuntimeError):
    """No accepted entry covers what was written, so nothing that needs one may be done."""


class Cover(Protocol):
    """The way to an accepted entry."""

    daemon_pid: int | None

    def raise_floor(self) -> int:
        """Raises the epoch floor as far as is safe; the one in force, covered by an entry."""
        ...

    def cover(self) -> None:
        """Returns when an accepted entry covers the ledger as it is now. Raises NotCovered."""
        ...

    def settle(self) -> Settled:
        """How far the commits of now are settled; the floor is raised to what that says."""
        ...


class Beside:
    """Asks the daemon that holds the directory's lock."""

    def __init__(
        self, ledger: Ledger, owner_log: OwnerLog, store: CountedStore, lock_file: LockFile,
        pid: int, sleep_s: Sleep,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._log = owner_log
        self._store = store
        self._lock_file = lock_file
        self.daemon_pid: int | None = pid
        self._sleep_s = sleep_s

    def check_store(self) -> None:
        """Raises NotCovered when the daemon writes its entries elsewhere: none would ever come."""
        last = self._log.last()
        if last is None:
            raise NotCovered(
                f"{self._log.store_url} has no owner's log, so it is not the store of the daemon"
                f" with pid {self.daemon_pid} that has this data directory; give the --store that"
                " the daemon was started with"
            )
        self._check_owner(last)

    def _check_owner(self, last: Entry) -> None:
        if not self._is_ours(last):
            raise NotCovered(
                f"{self._log.store_url} belongs to {last.owner.host} (pid {last.owner.pid},"
                f" {last.owner.data_dir}), not to the daemon with pid {self.daemon_pid} that has"
                " this data directory; give the --store that the daemon was started with"
            )

    def raise_floor(self) -> int:
        """Up to the epoch before the present one; see ``collectable_floor``."""
        wanted = collectable_floor(
            self._ledger.read(epochs.current), self._ledger.read(epochs.floor)
        )
        floor = self._ledger.write(epochs.raise_floor, wanted)
        try:
            last = self._log.last()
        except StoreError:
            last = None  # the wait looks again
        if last is None or not self._is_ours(last) or last.mark.epoch_floor < floor:
            self.cover()
        return floor

    def settle(self) -> Settled:
        """Asks the daemon, which knows leases and shards, and waits for its answer."""
        asked = self._ledger.write(ledger_settle.ask)
        deadline_ns = monotonic_ns() + int(WAIT_S * 1e9)
        while True:
            settled = self._ledger.read(ledger_settle.answer)
            if settled is not None and settled.asked >= asked:
                floor = self._ledger.write(epochs.raise_floor, settled.epoch_floor)
                return msgspec.structs.replace(settled, epoch_floor=floor)
            self._check_waiting(deadline_ns, "not said which commits are settled", "")
            self._sleep_s(POLL_S)

    def _check_waiting(self, deadline_ns: int, what: str, trouble: str) -> None:
        if self._lock_file.holder(locks.DIRECTORY) is None:
            raise NotCovered(
                f"the process with pid {self.daemon_pid} that had the data directory has ended"
                " before it answered; run the command again"
            )
        if monotonic_ns() > deadline_ns:
            raise NotCovered(
                f"the process with pid {self.daemon_pid} that has the data directory has {what} for"
                f" {WAIT_S:.0f} s{trouble}; see its log, and run the command again"
            )

    def cover(self) -> None:
        """Asks, and looks at the log until the answer is there."""
        asked = self._ledger.write(backup.want_entry)
        self._store.requests.puts += 1  # the daemon's, on our behalf
        deadline_ns = monotonic_ns() + int(WAIT_S * 1e9)
        trouble = ""
        while True:
            try:
                last = self._log.last()
            except StoreError as error:
                # An entry that was there a moment ago went behind a snapshot.
                if not error.retryable and not isinstance(error, ObjectMissing):
                    raise
                last, trouble = None, f" ({error})"
            if last is not None:
                self._check_owner(last)
                if last.mark.wanted >= asked:
                    return
            self._check_waiting(deadline_ns, "written no entry of the owner's log", trouble)
            self._sleep_s(POLL_S)

    def _is_ours(self, entry: Entry) -> bool:
        mine = entry.owner.same_directory(self._log.owner)
        return mine and entry.mark.history == self._ledger.read(backup.mark).history


class Alone:
    """Writes the entries of an incarnation that only this command is."""

    def __init__(self, ledger: Ledger, owner_log: OwnerLog, taken: Taken, sleep_s: Sleep) -> None:
        self.daemon_pid: int | None = None
        self._ledger = ledger
        self._log = owner_log
        self._retry = Retry(COMMAND, random.Random(owner_log.owner.pid), sleep_s)
        self._told = Mark() if taken.last is None else taken.last.mark
        self._number = 0
        self._unsure = False
        self._incarnation, _ = ledger.write(epochs.begin_incarnation, wall_ms(), taken.incarnation)
        self._tell("entry")

    def raise_floor(self) -> int:
        """It is the epoch of this incarnation, and the first entry has it."""
        return self._ledger.read(epochs.floor)

    def settle(self) -> Settled:
        """All of it: nobody else has the ledger, and the floor is this incarnation's epoch."""
        return Settled(0, self._ledger.read(epochs.floor), self._ledger.read(commits.latest_number))

    def cover(self) -> None:
        """Writes an entry. Raises StoreError, NotCovered when another start was faster."""
        self._tell("entry")

    def release(self) -> None:
        """Gives the prefix back; not when it is unknown whether the last entry was kept."""
        if not self._unsure:
            self._tell("release")

    def _tell(self, kind: Literal["entry", "release"]) -> None:
        mark, changes = self._ledger.read(backup.changes_since, self._told)
        entry = self._log.entry(self._incarnation, self._number + 1, kind, mark, changes)
        self._unsure = True
        if not self._retry(lambda: self._log.put(entry)):
            there = self._log.read(entry.incarnation, entry.number)
            if there.nonce != entry.nonce:
                raise NotCovered(
                    f"{there.owner.host} (pid {there.owner.pid}, {there.owner.data_dir}) has taken"
                    f" {self._log.store_url} over; this command gives way"
                )
        self._unsure = False
        self._told = mark
        self._number += 1


@contextlib.contextmanager
def covering(
    config: Config, store: CountedStore, sleep_s: Sleep
) -> Iterator[tuple[Ledger, Beside | Alone]]:
    """The ledger of a data directory, to be written beside its daemon or without one.

    Raises LedgerMissing, StartError, OwnedByAnother, OtherHistory, NotCovered, StoreError,
    LedgerError, EntryError.
    """
    path = Path(config.ledger_path)
    if not path.exists():
        raise LedgerMissing(path)
    lock_file, pid = _directory(config)
    with contextlib.closing(lock_file):
        lock = SharedLock(lock_file, locks.LEDGER)
        owner_log = OwnerLog(store, this_owner(config.data_dir), sleep_s)
        if pid is not None:
            with contextlib.closing(Ledger(path, lock, must_exist=True)) as ledger:
                beside = Beside(ledger, owner_log, store, lock_file, pid, sleep_s)
                beside.check_store()
                yield ledger, beside
            return
        store.check()
        taken = owner_log.take(take_over=False)
        report = settle(config.ledger_path, lock, store, taken, owner_log, take_over=False)
        if report is not None:
            say(report)
        with contextlib.closing(Ledger(path, lock, must_exist=True)) as ledger:
            alone = Alone(ledger, owner_log, taken, sleep_s)
            try:
                yield ledger, alone
            except BaseException:
                try:
                    alone.release()
                except (StoreError, NotCovered) as error:
                    log.warning("the store is not given back: %s", error)
                raise
            alone.release()


def may_collect(
    config: Config, ledger: Ledger, store: CountedStore, sleep_s: Sleep
) -> tuple[int | None, int]:
    """For a look without a write: who has the directory, and the floor of a collection now.

    Refuses what a collection would refuse: OwnedByAnother, OtherHistory. Raises StoreError too.
    """
    pid = directory_holder(config)
    owner_log = OwnerLog(store, owner_here(config), sleep_s)
    last = owner_log.last()
    former = owner_log.former(last)
    if last is not None and former is Former.ANOTHER:
        raise OwnedByAnother(last, wall_ms())
    check_history(ledger, last, store.url)
    epoch, floor = ledger.read(epochs.current), ledger.read(epochs.floor)
    if pid is not None:
        return pid, collectable_floor(epoch, floor)
    # Behind a boot a start takes what no entry lists before it raises the floor.
    return None, floor if former is Former.REBOOTED else epoch + 1


def directory_holder(config: Config) -> int | None:
    """The pid of the process that has the data directory; None without one. Makes no file."""
    path = Path(config.data_dir) / LOCK_NAME
    if not path.exists():
        return None  # opening it would make one
    with contextlib.closing(LockFile(path)) as lock_file:
        return lock_file.holder(locks.DIRECTORY)


def owner_here(config: Config) -> Owner:
    """Who we are, for reading a log; a directory without a lock file will do."""
    if (Path(config.data_dir) / LOCK_NAME).exists():
        return this_owner(config.data_dir)
    return Owner("", 0, "", 0, 0, config.data_dir)


def _directory(config: Config) -> tuple[LockFile, int | None]:
    """The lock file, and the pid of the process that has the directory, None when we have it."""
    try:
        return take_directory(config), None
    except StartError:
        # One descriptor at a time: closing it gives back all locks of this process.
        lock_file = LockFile(Path(config.data_dir) / LOCK_NAME)
        pid = lock_file.holder(locks.DIRECTORY)
        if pid is None:
            lock_file.close()
            raise
        return lock_file, pid
