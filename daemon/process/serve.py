"""``headgate serve`` until the first shard runs: what must hold, checked in order.

Lock the data directory -> wait for the shards of a killed run -> check the store, the ledger and
the address -> take the prefix over (seal the former owner's log) -> compare the histories of ledger
and log, or recover (``daemon/upkeep/recover.py``) -> the supervisor.

A refusal is one sentence and exit code 1. Nothing is stored before the prefix is owned.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from daemon import memory
from daemon.access.access import Access, read_before
from daemon.access.audit import AuditError, check_audit_log
from daemon.access.token_file import ReadBefore, TokenFile, TokenFileError
from daemon.config import Config
from daemon.governor.cgroup import CgroupMemory
from daemon.http.limits import http_limits
from daemon.process import logs, open_files
from daemon.process.inherit import Ground
from daemon.process.listeners import (
    ListenError,
    Listeners,
    address_of,
    admin_listener,
    open_kafka_listeners,
    open_listeners,
)
from daemon.process.notify import Notifier
from daemon.process.supervisor import Supervisor
from daemon.tls.certificate import Certificate, CertificateError, files_of
from daemon.upkeep.directory import StartError, open_config_store, take_directory
from daemon.upkeep.lake_catalog import register_tables
from daemon.upkeep.owner import OtherHistory, this_owner
from daemon.upkeep.recover import say, settle, sleep_s
from daemon.upkeep.standby import StandbyStopped, WarmLedger
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.log.entry import EntryError
from shards import barrier, locks
from shards.locks import LockFile, SharedLock
from uploader.ownership.ownerlog import OwnedByAnother, OwnerLog
from uploader.stores import faults
from uploader.stores.base import StoreError
from uploader.stores.counted import CountedPartedStore

log = logging.getLogger("headgate.serve")

# In the environment: the process of this pid has ended for a standby, and goes on as one.
GAVE_UP = "STANDBY_AFTER_PID"
_REFUSALS = (
    StoreError, LedgerError, ListenError, EntryError, OwnedByAnother, OtherHistory,
    TokenFileError, AuditError, CertificateError, faults.ChaosSpecError, barrier.MachineUnknown,
)  # fmt: skip


def run(config: Config, *, take_over: bool = False, standby: bool = False, chaos: str = "") -> int:
    """Runs the daemon until it is stopped. Returns the exit code.

    ``standby``: until nobody else owns the prefix, and again when another has taken it.
    ``chaos``: faults of the shards' store (``uploader/stores/faults.py``).
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    logs.start(config.log_level, config.log_format, "serve")
    notify = Notifier.take(os.environ, os.getpid())
    gave_up = os.environ.pop(GAVE_UP, "") == str(os.getpid())
    try:
        barrier.require_supported(platform.machine())
        if standby:
            _check_standby(config)
        with contextlib.closing(take_directory(config)) as lock_file:
            code, goes_on = _run(
                config, lock_file, notify, take_over=take_over, standby=standby, chaos=chaos,
                gave_up=gave_up,
            )  # fmt: skip
    except StandbyStopped:
        log.info("the standby was stopped")
        return 0
    except (*_REFUSALS, StartError) as error:
        log.error("%s", error)
        return 1
    if goes_on:
        _begin_again(notify)
    return code


def _begin_again(notify: Notifier) -> NoReturn:
    # Another process, and the same pid: nothing of this run is left, and the service manager, which
    # has seen it ready, sees no end.
    log.info("going on as a standby")
    os.environ.update(notify.taken)
    os.environ[GAVE_UP] = str(os.getpid())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _check_standby(config: Config) -> None:
    """Raises StartError for a store that no second machine can take over."""
    if config.store_url.startswith("file://"):
        raise StartError(
            f"--standby cannot be used with the embedded store {config.store_url}: it is this"
            " machine's, so nobody could take it over; give an s3:// store, or leave --standby out"
        )


def _check_tokens(path: Path, before: ReadBefore | None) -> Access:
    if before is not None and TokenFile(path).begin(before):
        log.warning(
            "%s was not there; it was made and has no tokens, so nobody can ask anything over TCP:"
            " make the first one with `headgate tokens create` and --data", path,
        )  # fmt: skip
    return Access(path, read_before=before)


def _run(
    config: Config, lock_file: LockFile, notify: Notifier, *, take_over: bool, standby: bool,
    chaos: str, gave_up: bool,
) -> tuple[int, bool]:  # fmt: skip
    """The exit code, and whether this is to go on as a standby."""
    access = Access(None)
    if config.auth_file is not None:  # refused now, or never
        access = _check_tokens(Path(config.auth_file), read_before(config, writes=True))
    pem_files = files_of(config)
    certificate = None if pem_files is None else Certificate(pem_files)
    check_audit_log(config.audit_log)
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
        tls_listeners: list[socket.socket] = []
        if config.tls_listen is not None:
            tls_listeners = open_listeners(
                config.tls_host, config.tls_port, config.shards, "tls_listen"
            )
        kafka: tuple[list[socket.socket], list[socket.socket]] = ([], [])
        if config.kafka_listen is not None:
            kafka = open_kafka_listeners(*config.kafka_address, config.shards)
        for listener in (*listeners, *tls_listeners, *kafka[0], *kafka[1]):
            stack.enter_context(contextlib.closing(listener))
        admin = stack.enter_context(admin_listener(config.data_dir))
        ground = Ground(config, Listeners(listeners, tls_listeners, admin, *kafka), chaos)
        stack.enter_context(contextlib.closing(ground))
        warm = None
        if standby and (gave_up or not _is_ours(owner_log)):
            next(iter(store.list("l0/")), None)  # a take-over does: refused now, not then
            warm = WarmLedger(ledger_path, lock, owner_log, config.dedupe_limits, gave_up=gave_up)
            ground.prepare_spares(config, certificate)
            # Only a standby reads: its readers take memory and time to load.
            from daemon.process.standby import wait_as_standby

            taken = wait_as_standby(
                config, opened, owner_log, warm, ground.listeners, certificate, access, notify
            )
            notify.starting("taking over")
        else:
            taken = owner_log.take(take_over=take_over)
        report = settle(
            config.ledger_path, lock, store, taken, owner_log, config.dedupe_limits,
            take_over=take_over, warm=None if warm is None else warm.path,
        )  # fmt: skip
        if report is not None:
            say(report)
        with contextlib.closing(Ledger(ledger_path, lock)) as ledger:
            register_tables(config, ledger)
        told = stack.enter_context(contextlib.closing(Ledger(ledger_path, lock)))
        kept = Ledger(ledger_path, lock, dedupe_limits=config.dedupe_limits)
        stack.enter_context(contextlib.closing(kept))
        copied = Ledger(ledger_path, lock)  # its thread closes it, which a stop may not wait for
        supervisor = Supervisor(
            config, lock_file, owner_log, store, told, kept, copied, ground, certificate,
            notify=notify, standby=standby,
        )  # fmt: skip
        stack.enter_context(contextlib.closing(supervisor))
        try:
            supervisor.prepare(taken)
        except OtherHistory as error:
            if not standby:
                raise
            log.info("%s", error)
            return 0, True
        supervisor.audit.note(
            "started", former=taken.former.name.lower(), take_over=take_over,
            recovered=report is not None,
        )  # fmt: skip
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
        if certificate is not None and tls_listeners:
            log.info("TLS on https://%s for %s", address_of(tls_listeners[0]), certificate.in_force)
        if kafka[0]:
            how = "" if certificate is None else f" by TLS for {certificate.in_force}"
            log.info("Kafka's protocol on %s%s", address_of(kafka[0][0]), how)
        if config.insecure_open and config.auth_file is None:
            log.warning(
                "insecure_open is on: every client that reaches %s may read, write and delete"
                " everything",
                config.listen,
            )
        if chaos:
            log.warning("CHAOS IS ON: the shards' store fails on purpose (--chaos %s)", chaos)
        return supervisor.run(), supervisor.goes_on


def _is_ours(owner_log: OwnerLog) -> bool:
    """Whether the last owner was a run on this directory that is over, so nobody is to be waited
    for, and the ledger here is complete. Its own last owner needs no standby."""
    last = owner_log.last()
    return last is not None and last.owner.same_directory(owner_log.owner)
