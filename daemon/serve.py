"""``headgate serve`` until the first shard runs: what must hold, checked in order.

Lock the data directory -> wait for the shards of a killed run -> check the store, the ledger and
the address -> take the prefix over (seal the former owner's log) -> compare the histories of ledger
and log, or recover (``daemon/upkeep/recover.py``) -> the supervisor.

A refusal is one sentence and exit code 1. Nothing is stored before the prefix is owned.
"""

from __future__ import annotations

import contextlib
import logging
import platform
from pathlib import Path
from urllib.parse import unquote, urlsplit

from daemon import logs, memory, open_files
from daemon.config import Config
from daemon.governor.cgroup import CgroupMemory
from daemon.http.limits import http_limits
from daemon.listeners import ListenError, admin_listener, open_listeners
from daemon.supervisor import TICK_S, Supervisor
from daemon.upkeep.lake_catalog import register_tables
from daemon.upkeep.owner import LOCK_NAME, OtherHistory, this_owner
from daemon.upkeep.recover import RecoveryReport, settle, sleep_s
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.log.entry import EntryError
from ledger.private_files import close_to_others
from shards import barrier, locks
from shards.locks import LockFile, SharedLock
from uploader.ownership.ownerlog import OwnedByAnother, OwnerLog
from uploader.stores import faults, open_store
from uploader.stores.base import PartedStore, StoreError
from uploader.stores.counted import CountedPartedStore
from uploader.stores.disk import settle_directory

log = logging.getLogger("headgate.serve")

# How the names begin that a data directory and an embedded store have.
_DATA_NAMES = (
    "lock",
    "ledger",
    "store",
    "catalog.db",
    "admin.sock",
    "push-secrets",
    "lost+found",
)
_STORE_NAMES = ("segments", "entries", "lake")

ORPHAN_TICKS = 150  # shards of a killed supervisor see its pipe close, and end immediately

_REFUSALS = (
    StoreError, LedgerError, ListenError, EntryError, OwnedByAnother, OtherHistory,
    faults.ChaosSpecError, barrier.MachineUnknown,
)  # fmt: skip


class StartError(RuntimeError):
    """The daemon cannot start, for the reason in the message."""


def run(config: Config, *, take_over: bool = False, chaos: str = "") -> int:
    """Runs the daemon until it is stopped. Returns the exit code.

    ``chaos``: faults of the shards' store (``uploader/stores/faults.py``).
    """
    logs.start(config.log_level, config.log_format, "serve")
    try:
        barrier.require_supported(platform.machine())
        with contextlib.closing(take_directory(config)) as lock_file:
            return _run(config, lock_file, take_over, chaos)
    except (*_REFUSALS, StartError) as error:
        log.error("%s", error)
        return 1


def take_directory(config: Config) -> LockFile:
    """The lock file of the data directory, its lock held. Raises StartError."""
    try:
        data_dir = Path(config.data_dir)
        settle_directory(Path(config.ledger_path).parent)
        lock_file = LockFile(data_dir / LOCK_NAME)
    except OSError as error:
        raise StartError(f"data_dir {config.data_dir} cannot be used: {error.strerror}") from error
    try:
        if not lock_file.try_lock(locks.DIRECTORY):
            pid = lock_file.holder(locks.DIRECTORY)
            raise StartError(f"data_dir {config.data_dir} is in use by the headgate with pid {pid}")
        _wait_for_orphaned_shards(lock_file)
        _close_to_others(config)
    except BaseException:
        lock_file.close()
        raise
    return lock_file


def _close_to_others(config: Config) -> None:
    """Makes private what former versions left open to other users."""
    folders: list[tuple[Path, tuple[str, ...]]] = [(Path(config.data_dir), _DATA_NAMES)]
    for url, ours in ((config.store_url, _STORE_NAMES), (config.lake_url, ("",))):
        if url.startswith("file://"):
            folders.append((Path(unquote(urlsplit(url).path)), ours))
    for folder, names in folders:
        try:
            closed = close_to_others(folder, names)
        except OSError as error:
            log.warning("other users may be able to read what is in %s: %s", folder, error)
            continue
        if closed:
            log.warning(
                "other users could read %d files and folders of %s; now only this one can",
                closed, folder,
            )  # fmt: skip


def _wait_for_orphaned_shards(lock_file: LockFile) -> None:
    """Shards whose supervisor was killed end by themselves; nothing is started before."""
    tries = 0
    while not lock_file.try_lock(locks.SHARDS):
        pid = lock_file.holder(locks.SHARDS)
        if tries == ORPHAN_TICKS:
            raise StartError(f"process {pid} of an earlier run still uses the data directory")
        if tries % 10 == 0:
            log.warning("waiting for process %s of an earlier run to end", pid)
        tries += 1
        sleep_s(TICK_S)
    lock_file.unlock(locks.SHARDS)


def open_config_store(config: Config, threads: int = 4) -> PartedStore:
    """The store that a configuration names, for calls from up to ``threads`` threads."""
    return open_store(
        config.store_url,
        endpoint_url=config.s3_endpoint_url,
        region=config.s3_region,
        threads=threads,
    )


def _run(config: Config, lock_file: LockFile, take_over: bool, chaos: str) -> int:
    ledger_path = Path(config.ledger_path)
    lock = SharedLock(lock_file, locks.LEDGER)  # waited for: the supervisor's tick never takes it
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(contextlib.closing(open_config_store(config)))
        if chaos:
            faults.require_possible(faults.parse(chaos), opened)
        store = CountedPartedStore(opened)
        store.check()
        Ledger(ledger_path, lock).close()
        owner_log = OwnerLog(store, this_owner(config.data_dir), sleep_s)
        listeners = open_listeners(config.listen_host, config.listen_port, config.shards)
        for listener in listeners:
            stack.enter_context(contextlib.closing(listener))
        taken = owner_log.take(take_over=take_over)
        report = settle(
            config.ledger_path, lock, store, taken, owner_log, config.dedupe_limits,
            take_over=take_over,
        )  # fmt: skip
        if report is not None:
            say(report)
        with contextlib.closing(Ledger(ledger_path, lock)) as ledger:
            register_tables(config, ledger)
        told = stack.enter_context(contextlib.closing(Ledger(ledger_path, lock)))
        kept = Ledger(ledger_path, lock, dedupe_limits=config.dedupe_limits)
        stack.enter_context(contextlib.closing(kept))
        copied = Ledger(ledger_path, lock)  # its thread closes it, which a stop may not wait for
        supervisor = Supervisor(config, lock_file, owner_log, store, told, kept, copied)
        stack.enter_context(contextlib.closing(supervisor))
        supervisor.listeners = listeners
        supervisor.admin_listener = stack.enter_context(admin_listener(config.data_dir))
        supervisor.chaos = chaos
        supervisor.prepare(taken)
        parts = memory.bounds(config)
        shares = ", ".join(f"{name} {size >> 20} MiB" for name, size in parts.items())
        log.info("memory is limited to %d MiB: %s", sum(parts.values()) >> 20, shares)
        too_much = memory.above_limit(config, CgroupMemory())
        if too_much:
            log.warning("%s", too_much)
        open_files.raise_limit()
        files = open_files.needed(http_limits(config), config.shards)
        if open_files.limit() < files:
            log.warning(
                "a process may open %d files, and a shard could need %d for its connections and"
                " streams; it will serve fewer: raise the limit (LimitNOFILE, ulimit -n) or lower"
                " streams_max", open_files.limit(), files,
            )  # fmt: skip
        log.info("store %s, data directory %s", config.store_url, config.data_dir)
        if chaos:
            log.warning("CHAOS IS ON: the shards' store fails on purpose (--chaos %s)", chaos)
        return supervisor.run()


def say(report: RecoveryReport) -> None:
    """Logs what a start had to recover."""
    if report.objects_taken or report.gaps:
        log.warning(
            "%d objects with %d records that no entry lists were taken, since they may have been"
            " acknowledged; %d of their records may be duplicates; offsets were skipped in %d"
            " partitions", report.objects_taken, report.records_taken,
            report.records_may_be_doubled, len(report.gaps),
        )  # fmt: skip
    for problem in report.corrupt:
        log.error("object %s is damaged or foreign: %s", problem.key, problem.problem)
    for key in report.missing:
        log.error("object %s is in the ledger and not in the store", key)
