"""The ledger of a data directory without a daemon: this process holds the directory's lock.

Functions run in this process. A command that writes takes the prefix as a start does, with an
incarnation of its own that writes the entries of the owner's log, and gives it back at the end. Who
only reads begins none.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, Literal

from compaction.access.http_calls import answers, socket_address
from compaction.access.ledger_access import LedgerAccess, NotBackedUp
from compaction.access.operations import operation
from compaction.access.via_daemon import ViaDaemon
from daemon.access.audit import note_command
from daemon.config import Config
from daemon.config.lake_settings import default_catalog
from daemon.upkeep.directory import take_directory
from daemon.upkeep.owner import LOCK_NAME, check_history, this_owner
from daemon.upkeep.recover import say, settle
from daemon.upkeep.upkeep import clocks
from ledger import ages, commits, epochs
from ledger.errors import LedgerMissing
from ledger.lake import catalog, runs
from ledger.lake.catalog import CatalogTx
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.entry import Owner
from ledger.tx import P, ReadTx, T, WriteTx
from ledger.types import LeaseId
from shards import locks
from shards.clock import wall_ms
from shards.locks import SharedLock
from uploader.ownership.ownerlog import Former, OwnedByAnother, OwnerLog, SealedLog
from uploader.stores.base import StoreError
from uploader.stores.counted import CountedStore
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import Retry

log = logging.getLogger("headgate.exclusive")

Sleep = Callable[[float], object]


class EntryWriter:
    """The entries of an incarnation that only this process is."""

    def __init__(
        self, ledger: Ledger, owner_log: OwnerLog, taken: SealedLog, sleep_s: Sleep
    ) -> None:
        self._ledger = ledger
        self._log = owner_log
        self._retry = Retry(COMMAND, random.Random(owner_log.owner.pid), sleep_s)
        self._told = taken.told
        self._number = 0
        self._unsure = False
        self._incarnation, _ = ledger.write(epochs.begin_incarnation, wall_ms(), taken.incarnation)
        self.write("entry")

    def write(self, kind: Literal["entry", "release"]) -> None:
        """What is new in the ledger. Raises StoreError, NotBackedUp when another start came."""
        mark, changes = self._ledger.read(backup.changes_since, self._told)
        entry = self._log.entry(self._incarnation, self._number + 1, kind, mark, changes)
        self._unsure = True
        if not self._retry(lambda: self._log.put(entry)):
            there = self._log.read(entry.incarnation, entry.number)
            if there.nonce != entry.nonce:
                raise NotBackedUp(
                    f"{there.owner.host} (pid {there.owner.pid}, {there.owner.data_dir}) has taken"
                    f" {self._log.store_url} over; this command gives way"
                )
        self._unsure = False
        self._told = mark
        self._number += 1

    def release(self) -> None:
        """Gives the prefix back; not when it is unknown whether the last entry was kept."""
        if not self._unsure:
            self.write("release")


class Exclusive:
    """A LedgerAccess for a ledger that nobody else has. Threads may share it."""

    daemon_pid: int | None = None

    def __init__(self, ledger: Ledger, config: Config, entries: EntryWriter | None = None) -> None:
        self.run: str | None = None
        self._ledger = ledger
        self._config = config
        self._entries = entries
        self._audited: set[str] = set()
        self._threads = threading.Lock()  # a ledger is one thread's at a time

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        call: Callable[..., T] = function
        with self._threads:
            named = operation(function).bind(args, kwargs, self._now_ms())
            return self._ledger.read(call, **named)

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        call: Callable[..., T] = function
        with self._threads:
            now_ms = self._now_ms()
            asked = operation(function)
            named = asked.bind(args, kwargs, now_ms)
            asked.check_lake(named, default_catalog(self._config)[1])
            if asked.name not in self._audited:  # a compaction does the same a thousand times
                self._audited.add(asked.name)
                note_command(self._config.audit_log, "command", operation=asked.name)
            with self._ledger.writing() as tx:
                if self.run is not None:
                    runs.check(tx, self.run, now_ms)
                return call(tx, **named)

    def catalog(
        self, function: Callable[Concatenate[CatalogTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with self._threads:
            if self.run is not None:
                self._ledger.read(runs.check, self.run, self._now_ms())
            with catalog.opened(*default_catalog(self._config)) as tx:
                return function(tx, *args, **kwargs)

    def await_backup(self) -> None:
        if self._entries is None:
            raise AssertionError("the ledger was opened to read from")
        with self._threads:
            self._entries.write("entry")

    def live_leases(self) -> list[LeaseId]:
        return []

    def settled_commits(self) -> int:
        return self.read(commits.latest_number)

    def _now_ms(self) -> int:
        return self._ledger.read(ages.now_ms, clocks())


@contextlib.contextmanager
def opened_ledger(config: Config) -> Iterator[ViaDaemon | Exclusive]:
    """The ledger of a data directory, for what needs no backup.

    Raises LedgerMissing, StartError, LedgerError, DaemonUnreachable, DaemonRefused.
    """
    _check_there(config)
    daemon = _daemon_of(config)
    if daemon is not None:
        yield daemon
        return
    with contextlib.closing(take_directory(config)) as lock_file:
        lock = SharedLock(lock_file, locks.LEDGER)
        path = Path(config.ledger_path)
        with contextlib.closing(Ledger(path, lock, must_exist=True)) as ledger:
            yield Exclusive(ledger, config)


@contextlib.contextmanager
def writable_ledger(
    config: Config, store: CountedStore, sleep_s: Sleep
) -> Iterator[ViaDaemon | Exclusive]:
    """The ledger of a data directory, to be changed and backed up.

    Raises what ``opened_ledger`` does, and OwnedByAnother, OtherHistory, NotBackedUp, StoreError,
    EntryError.
    """
    _check_there(config)
    daemon = _daemon_of(config)
    if daemon is not None:
        if daemon.settings.store_url != config.store_url:
            raise NotBackedUp(
                f"the store is {config.store_url}, and the daemon with pid {daemon.daemon_pid} that"
                f" has this data directory uses {daemon.settings.store_url}; give the --store that"
                " the daemon was started with"
            )
        yield daemon
        return
    with contextlib.closing(take_directory(config)) as lock_file:
        lock = SharedLock(lock_file, locks.LEDGER)
        owner_log = OwnerLog(store, this_owner(config.data_dir), sleep_s)
        store.check()
        taken = owner_log.take(take_over=False)
        report = settle(config.ledger_path, lock, store, taken, owner_log, take_over=False)
        if report is not None:
            say(report)
        path = Path(config.ledger_path)
        with contextlib.closing(Ledger(path, lock, must_exist=True)) as ledger:
            entries = EntryWriter(ledger, owner_log, taken, sleep_s)
            try:
                yield Exclusive(ledger, config, entries)
            except BaseException:
                try:
                    entries.release()
                except (StoreError, NotBackedUp) as error:
                    log.warning("the store is not given back: %s", error)
                raise
            entries.release()


def former_owner(
    config: Config, ledger: LedgerAccess, store: CountedStore, sleep_s: Sleep
) -> Former:
    """Who wrote the store's last entry; refuses what ``writable_ledger`` would refuse, and writes
    nothing.

    Raises OwnedByAnother, OtherHistory, StoreError, LedgerError.
    """
    owner_log = OwnerLog(store, owner_here(config), sleep_s)
    last = owner_log.last()
    former = owner_log.former(last)
    if last is not None and former is Former.ANOTHER:
        raise OwnedByAnother(last, wall_ms())
    check_history(ledger, last, store.url)
    return former


def owner_here(config: Config) -> Owner:
    """Who we are, for reading a log; a directory without a lock file will do."""
    if (Path(config.data_dir) / LOCK_NAME).exists():
        return this_owner(config.data_dir)
    return Owner("", 0, "", 0, 0, config.data_dir)


def _check_there(config: Config) -> None:
    path = Path(config.ledger_path)
    if not path.exists():
        raise LedgerMissing(path)


def _daemon_of(config: Config) -> ViaDaemon | None:
    address = socket_address(config.data_dir)
    return ViaDaemon(address) if answers(address) else None
