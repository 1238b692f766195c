"""``headgate serve --standby`` until it owns the prefix: one process, without shards.

Its main thread turns a loop that serves the standby's HTTP on the daemon's own addresses, feeds the
service manager's watchdog, and waits for signals; a thread follows the owner's log
(``daemon/upkeep/standby.py``). Then ``serve.py`` goes on as for any start, in the same process, and
shards accept on the same sockets: clients that connect meanwhile wait, and are not refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import uvloop

from daemon.access.access import Access
from daemon.api.handlers.stale import StaleReads
from daemon.api.standby import StandbyApi
from daemon.config import Config
from daemon.http.guard import guard_of
from daemon.http.limits import http_limits
from daemon.http.server import Server
from daemon.process.listeners import Listeners, address_of
from daemon.process.notify import Notifier
from daemon.tls.certificate import Certificate, CertificateError
from daemon.upkeep.directory import place_of
from daemon.upkeep.standby import StandbyStopped, StandbyThread, WarmLedger
from delivery.ledger_thread import LedgerReads
from delivery.reading.lake import LakeReader
from delivery.reading.objects import L0Reader
from delivery.reading.store_threads import StoreThreads
from delivery.reading.stored import StoredReader
from shards.clock import monotonic_ns
from uploader.ownership.ownerlog import OwnerLog, SealedLog
from uploader.stores.base import ObjectStore

log = logging.getLogger("headgate.standby")

TICK_S = 0.5
BACKLOG = 1024  # of what turns clients of Kafka's protocol away
READERS = 2  # threads that read the store for stale reads
CACHE_BYTES_MAX = 16 << 20  # of objects, of row groups, and of blocks


def wait_as_standby(
    config: Config, store: ObjectStore, owner_log: OwnerLog, warm: WarmLedger,
    listeners: Listeners, certificate: Certificate | None, access: Access, notify: Notifier,
) -> SealedLog:  # fmt: skip
    """Returns when this process has sealed the log for itself. Raises StandbyStopped after SIGTERM
    or SIGINT; EntryError for a log that this version does not know, or that is incomplete."""
    threads = [
        ThreadPoolExecutor(count, thread_name_prefix=name)
        for count, name in ((1, "ledger"), (READERS, "reader"))
    ]
    try:
        reads = _reads(config, store, warm, *threads)
        return uvloop.run(
            _wait(config, owner_log, warm, listeners, certificate, access, notify, reads)
        )
    finally:
        for each in threads:
            each.shutdown(wait=False, cancel_futures=True)


def _reads(
    config: Config, store: ObjectStore, warm: WarmLedger, ledger_thread: Executor, readers: Executor
) -> StaleReads:
    """What reads the store for those who allow stale answers. Its GETs are not counted."""
    rng = random.Random(f"{os.getpid()} standby")
    threads = StoreThreads(readers, lambda _: None, rng)
    ledger = LedgerReads(warm, ledger_thread)
    objects = L0Reader(store, threads, CACHE_BYTES_MAX)
    lake = LakeReader(partial(place_of, config), threads, CACHE_BYTES_MAX, CACHE_BYTES_MAX)
    return StaleReads(ledger, StoredReader(ledger, objects, lake, rng))


async def _wait(
    config: Config, owner_log: OwnerLog, warm: WarmLedger, listeners: Listeners,
    certificate: Certificate | None, access: Access, notify: Notifier, reads: StaleReads,
) -> SealedLog:  # fmt: skip
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(
        signal.SIGHUP, lambda: log.warning("a standby reads its configuration at its start only")
    )
    thread = StandbyThread(owner_log, warm, lambda: loop.call_soon_threadsafe(ended.set))
    server = Server()
    api = StandbyApi(access, lambda: thread.view, reads)
    await _listen(server, api, config, listeners, certificate)
    turning_away = await _turn_away(listeners)
    thread.start()
    said = f"standby on http://{address_of(listeners.http[0])}"
    log.info("%s: it takes %s over when its owner is silent", said, config.store_url)
    notify.ready(said)
    try:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), TICK_S)
            notify.alive(monotonic_ns())
            if access.look():
                server.end_revoked()
            if certificate is not None:
                with contextlib.suppress(CertificateError):
                    if certificate.look():
                        server.serve_certificate(certificate.in_force)
    finally:
        await asyncio.to_thread(thread.stop)
        await api.finish()
        for each in turning_away:
            each.close()
        server.stop_accepting()
        server.drain()
        await server.close()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it would end a take-over
    if thread.error is not None:
        raise thread.error
    if stopped or thread.taken is None:
        raise StandbyStopped
    return thread.taken


class _TurnedAway(asyncio.Protocol):
    """A connection that ends: Kafka's protocol cannot say "not here", and a client that gets no
    answer waits for it before it asks another broker."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _turn_away(listeners: Listeners) -> list[asyncio.AbstractServer]:
    """Ends connections of Kafka's protocol; closing what it returns lets them wait again."""
    loop = asyncio.get_running_loop()
    return [
        await loop.create_server(_TurnedAway, sock=_unblocked(each.dup()), backlog=BACKLOG)
        for each in (*listeners.kafka, *listeners.brokers)
    ]


async def _listen(
    server: Server, api: StandbyApi, config: Config, listeners: Listeners,
    certificate: Certificate | None,
) -> None:  # fmt: skip
    """Serves on duplicates: to close these ends nothing for the shards to come."""
    first, *others = (each.dup() for each in listeners.http)
    await server.start(
        api, "", 0, http_limits(config), sock=_unblocked(first), guard=guard_of(config)
    )
    for each in others:
        await server.listen_too(_unblocked(each))
    await server.listen_on(_unblocked(listeners.admin.dup()))
    if certificate is not None:
        server.serve_certificate(certificate.in_force)
        for each in listeners.tls:
            await server.listen_by_tls(_unblocked(each.dup()))


def _unblocked(listener: socket.socket) -> socket.socket:
    listener.setblocking(False)
    return listener
