"""A shard process: one pinned event loop that takes records in, uploads, answers and reads.

The loop wakes for sockets and for its doorbell. When the bell rings it reads the shared words: new
commits (for answers and readers), uploads whose predecessors are committed, orphaned leases, the
backlog of its group. After records were published it looks at its group, but only as often as that
can matter. Disk and network I/O is in threads: uploaders, one ledger thread, readers of the store.

This module wires parts and decides nothing. ``shards/layout.py`` says who may write what.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import uvloop

from daemon.api import openapi
from daemon.api.admin import AdminRoutes
from daemon.api.application import Api
from daemon.api.consumer_routes import ConsumerRoutes
from daemon.api.cursor_routes import CursorRoutes
from daemon.api.daemon_routes import DaemonRoutes
from daemon.api.diff_routes import DiffRoutes
from daemon.api.plan_routes import PlanRoutes
from daemon.api.route import Handlers
from daemon.api.router_routes import RouterRoutes
from daemon.api.routes import ROUTES
from daemon.api.status import StatusBuilder
from daemon.api.subscription_directory import SubscriptionDirectory
from daemon.api.subscription_routes import SubscriptionRoutes
from daemon.api.topic_activity import TopicActivityView
from daemon.api.topic_routes import TopicRoutes
from daemon.api.watch_routes import WatchRoutes
from daemon.config import Config
from daemon.governor.board import pressure_of
from daemon.governor.freed_memory import FreedMemory, be_killed_first
from daemon.governor.gate import gate_band
from daemon.governor.routers_gate import RoutersGate
from daemon.governor.shard_sensors import ShardSensors
from daemon.http.guard import guard_of
from daemon.http.limits import http_limits
from daemon.http.server import Server
from daemon.intake.caps import CapTrackers
from daemon.intake.commit_feed import CommitFeed
from daemon.intake.copies import Copies
from daemon.intake.cursor_cache import CursorCache
from daemon.intake.drained import is_drained
from daemon.intake.formats import BodyLimits
from daemon.intake.pending import ExpiredRequests, PendingRequests
from daemon.intake.producer import Producer
from daemon.intake.topic_cache import TopicCache
from daemon.memory import READERS_AT_ONCE, answers_bytes, pipe_frame_bytes_max
from daemon.process import inherit, logs, open_files
from daemon.process.after_commit import AfterCommit
from daemon.process.inherit import Inheritance
from daemon.process.pushing import push_senders
from delivery.changes import DeliveryChanges
from delivery.cursors.flush import CursorFlush
from delivery.dispatch import SLICE_NS
from delivery.ledger_thread import LedgerThread
from delivery.pipes.addresses import pipe_name
from delivery.pipes.buffers import PipeBuffers
from delivery.pipes.client import Pipes
from delivery.pipes.server import PipeServer
from delivery.push.secrets import SecretsFile
from delivery.routers.runtime import PAGE_BYTES_MAX, Routers
from delivery.store_threads import StoreThreads
from delivery.subscriptions.inspection import OwnerClocks
from delivery.subscriptions.owners import Owners, PipedRequests
from delivery.subscriptions.runtime import Subscriptions
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.types import Commit
from shards import layout as at
from shards import locks
from shards.alarms import AlarmBoard
from shards.clock import boottime_ns, monotonic_ns, process_cpu_ns, wall_ms, wall_ns
from shards.commitlog import CommitLog
from shards.doorbell import Doorbells
from shards.journal import FinishedJournal
from shards.leases import LeaseTable
from shards.locks import LockFile, SharedLock
from shards.ring import RingReader, RingWriter
from shards.rowboard import router_board, subscription_board
from shards.segment import Segment
from shards.topiccounts import TopicCounts
from uploader.groups.adopt import adopt_orphans
from uploader.groups.puller import Puller
from uploader.groups.turn import NEVER, Policy
from uploader.groups.urgent import UrgentRequests
from uploader.ownership.ownership import Moment, may_commit, sent_of, should_ask
from uploader.pipeline.upload import Uploads
from uploader.pipeline.voids import Run, Voids
from uploader.stores import faults, open_store
from uploader.stores.base import ObjectStore, StoreError

log = logging.getLogger("headgate.shard")

HEARTBEAT_S = 0.1
ANSWERS_NS = 20_000_000  # in one turn of the loop: about 4,000 answers
GC_THRESHOLD = 50_000  # at the default, 700, a thousand requests in flight are walked often
EXIT_FAULT = 1
ANSWERS_FLUSH_S = 3.0  # at a stop, for clients to take the last answers


def _end() -> None:
    """Ends the process immediately: the supervisor finds its leases, and starts another."""
    os._exit(EXIT_FAULT)


def _failed(error: Exception) -> None:
    """Ends the process because of an error. asyncio would log it and continue, with leases that
    nobody uploads or commits that nobody follows."""
    log.critical("this process ends; other shards take its leases over", exc_info=error)
    _end()


def _or_end(step: Callable[[Shard], None]) -> Callable[[Shard], None]:
    """A callback of the loop whose error ends the process."""

    @functools.wraps(step)
    def callback(shard: Shard) -> None:
        try:
            step(shard)
        except Exception as error:  # noqa: BLE001 - told by _failed
            _failed(error)

    return callback


class Shard:
    """The parts of one shard, wired."""

    def __init__(self, inheritance: Inheritance) -> None:
        config: Config = inheritance.config
        self.shard = inheritance.shard
        self.segment = Segment.attach(inheritance.segment_fd, inheritance.layout)
        self._words = self.segment.words
        self._base = self.segment.layout.shard(self.shard)
        self._bells = Doorbells(inheritance.bell_fds)
        self._listener = socket.socket(fileno=inheritance.listen_fd)
        self._admin_listener = socket.socket(fileno=inheritance.admin_fd)
        self._pipe_listener = socket.socket(fileno=inheritance.pipe_fd)
        self._alive_fd = inheritance.alive_fd
        self._lock_file = LockFile(Path(config.data_dir) / "lock")
        if not self._lock_file.try_share(locks.SHARDS):
            raise RuntimeError("another daemon is starting on this data directory")
        ledger_lock = SharedLock(self._lock_file, locks.LEDGER)
        ledger_path = Path(config.ledger_path)
        rng = random.Random(f"{os.getpid()} {self.shard} {monotonic_ns()}")
        self._store: ObjectStore = open_store(
            config.store_url,
            endpoint_url=config.s3_endpoint_url,
            region=config.s3_region,
            threads=config.uploads_in_flight_max * (1 + config.hedge_puts) + READERS_AT_ONCE,
        )
        if inheritance.chaos:
            plan = faults.parse(inheritance.chaos)
            self._store = faults.FaultyStore(
                self._store, plan, rng, threading.Event().wait, lambda: monotonic_ns() / 1e9
            )
        open_ledger = partial(
            Ledger, ledger_path, ledger_lock, must_exist=True, dedupe_limits=config.dedupe_limits
        )
        self._commit_ledger, self._read_ledger = open_ledger(), open_ledger()
        self._ledger_thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._readers = ThreadPoolExecutor(READERS_AT_ONCE, thread_name_prefix="reader")
        ledger = LedgerThread(self._read_ledger, self._ledger_thread)
        self._log = CommitLog(self.segment)
        alarms = AlarmBoard(self.segment, self.shard)
        alarms.clear_all()  # those of the previous process
        self._feed = CommitFeed(
            self._log, ledger, alarms, rng, self._take,
            lambda: self._uploads.committed_moved(), _end,
        )  # fmt: skip
        self._leases = LeaseTable(self._words, self.segment.layout)
        self._ring = RingWriter(self.segment, self.shard)
        self._topic_counts = TopicCounts(
            self.segment, self.shard,
            partial(self._lock_file.try_lock, locks.TOPIC_SLOTS),
            partial(self._lock_file.unlock, locks.TOPIC_SLOTS),
        )  # fmt: skip
        self.pending = PendingRequests(
            self.segment, self.shard, self._topic_counts.tally_of, config.ack_timeout_ms * 1_000_000
        )
        committed = int(self._words[self._base + at.S_COMMITTED])
        self.pending.inherit(
            RingReader(self.segment, self.shard).requests(committed, self._ring.head)
        )
        trackers = CapTrackers(self._words, self.shard, lambda: self._feed.seen)
        self.topics = TopicCache(self.segment, ledger, ledger_lock, trackers, config.partitions_max)
        cursors = CursorCache(self.segment, ledger, ledger_lock)
        self.cursor_flush = CursorFlush(open_ledger, monotonic_ns, _end)
        self._puller = Puller(
            self.segment, self.shard, self._lock_file, self._bells, self._leases,
            Policy(object_bytes_target=config.object_bytes_target),
        )  # fmt: skip
        self._voids = Voids(self.segment, self._puller, self._ring)
        self._urgent = UrgentRequests(self.segment, self.shard)
        self._uploads = Uploads(
            self.segment,
            self.shard,
            self._leases,
            self._bells,
            self._store,
            self._commit_ledger,
            self.topics.name_of,
            rng,
            alarms,
            _end,
            hedge_puts=config.hedge_puts,
        )
        self._after = AfterCommit(
            self.segment, self.shard, config, self.topics, ledger, self._store,
            StoreThreads(self._readers, self._count_get, rng), self._feed.recent, rng,
        )  # fmt: skip
        self._freed_memory = FreedMemory(lambda: pressure_of(self._words, "memory"))
        limits = BodyLimits(
            body_bytes_max=config.body_bytes_max,
            record_bytes_max=config.record_bytes_max,
            records_max=config.records_max,
        )
        self._producer = Producer(
            self.segment, self.shard, self.topics, cursors, self._ring, self.pending, limits,
            self._published, self._short_of_time, rng, config.ack_timeout_ms,
            auto_create=config.auto_create_topics,
        )  # fmt: skip
        self._admission = self._producer.admission
        self._sensors = ShardSensors(
            self.segment, self.shard, self._after.dispatcher, self._leases, self._uploads.health,
            lambda: self._admission.promised_bytes,
        )  # fmt: skip
        copies = Copies(self.topics, self._ring, self.pending, self._admission, self._published)
        self._after.routers = self._routers = Routers(
            self.shard, self.segment.layout.shards, self._after.partitions, ledger,
            copies,
            router_board(self.segment), self._after.dispatcher.dirty, self._delivery_settings,
            monotonic_ns, self._after.priorities.learn, _end,
            min(PAGE_BYTES_MAX, config.ring_bytes // 64),
        )  # fmt: skip
        self.cursor_flush.add(self._routers)
        changes = DeliveryChanges(self.segment, self._bells, ledger, ledger_lock)
        self._after.subscriptions = self._subscriptions = Subscriptions(
            self.shard, self.segment.layout.shards, int(self._words[at.G_INCARNATION]),
            self._after.partitions, ledger, FinishedJournal(self.segment, self.shard),
            self.cursor_flush, copies, subscription_board(self.segment),
            self._after.dispatcher.dirty, self._delivery_settings, trackers.evicted,
            OwnerClocks(monotonic_ns, wall_ms), self._after.priorities.learn, self._may_deliver,
            self._after.consumed, changes, _end,
        )  # fmt: skip
        buffers, frame_bytes_max = PipeBuffers(), pipe_frame_bytes_max(config)
        names = [pipe_name(inheritance.pipe_token, shard) for shard in range(config.shards)]
        self._pipes = Pipes(names, buffers, frame_bytes_max)
        self._piped_requests = PipedRequests(self._subscriptions)
        self._pipe_server = PipeServer(self._piped_requests, buffers, frame_bytes_max)
        owners = Owners(self.shard, config.shards, self._subscriptions, self._pipes)
        self._after.senders = push_senders(
            self.segment, self.shard, config, ledger, owners, self._delivery_settings,
            self._may_deliver, self.cursor_flush, _failed,
        )  # fmt: skip
        self._subscriptions.wants_senders = self._after.senders.wants_more
        self._subscriptions.rows.sender_rows = self._after.senders.rows
        self._subscriptions.try_push = self._after.senders.test
        self._routers_gate = RoutersGate(
            self.segment, self.shard, gate_band(config), lambda: self._ring.used_bytes,
            lambda: copies.in_flight_bytes, self._pause_routers, self._resume_routers,
        )  # fmt: skip
        self._admin = AdminRoutes(
            self.segment, self.shard, self._bells, self._leases, ledger, config
        )
        directory = SubscriptionDirectory(self.segment, ledger, self.topics)
        partitions = self._after.partitions
        subscriptions = SubscriptionRoutes(
            self.segment, changes, ledger, self.topics, partitions,
            SecretsFile(Path(config.data_dir)), self._after.senders.allow, directory, owners,
        )  # fmt: skip
        handlers = Handlers(
            topics=TopicRoutes(self.topics, TopicActivityView(self.segment)),
            cursors=CursorRoutes(cursors),
            routers=RouterRoutes(self.segment, changes, ledger),
            subscriptions=subscriptions,
            consumers=ConsumerRoutes(directory, owners),
            reads=DiffRoutes(
                self.topics,
                self._after.reader,
                self._after.recency,
                lambda: self._server.unsent.is_half_full,
            ),
            watch=WatchRoutes(self.topics, partitions, self._after.hub, self._after.priorities),
            plans=PlanRoutes(self.topics, ledger, config),
            daemon=DaemonRoutes(StatusBuilder(self.segment, config), openapi.served),
            admin=self._admin,
        )
        self.api = Api(
            ROUTES,
            handlers,
            self._producer,
            self._after.reader.waiters,
            options=bool(config.cors_origins),
            admin_over_tcp=config.admin_over_tcp,
        )
        self._http_limits = open_files.fitted(
            http_limits(config), open_files.limit(), config.shards
        )
        self._guard = guard_of(config)
        self._server = Server()
        self._loop: asyncio.AbstractEventLoop
        self._look_soon = False
        self._answers_soon = False
        self._look_timer: asyncio.TimerHandle | None = None
        self._quiet_until = 0  # publications below this ring position change no decision
        self._log_level = -1
        self._drain_timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Future[None]

    async def run(self) -> None:
        """Serves until the daemon drains."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        # Ctrl-C in a terminal goes to the whole process group; the supervisor handles it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._loop.add_signal_handler(signal.SIGTERM, self._do_nothing)
        self._loop.add_reader(self._alive_fd, self._orphaned)
        self._loop.add_reader(self._bells.fds[self.shard], self._rung)
        self._after.start(self._loop, _failed)
        await self._server.start(
            self.api, "", 0, self._http_limits, sock=self._listener, guard=self._guard
        )
        await self._server.listen_on(self._admin_listener)
        await self._pipe_server.start(self._pipe_listener)
        self.cursor_flush.start()
        self._heartbeat()
        self._words[self._base + at.S_READY] = 1
        self._rung()
        await self._ended
        await self._stop()

    def _do_nothing(self) -> None:
        """A SIGTERM to the process group reaches the supervisor too, which drains."""

    def _delivery_settings(self) -> int:
        """A number that changes with routers and subscriptions."""
        # Both only grow. A shard may die between a change and the change of the word.
        return int(self._words[at.G_DELIVERY] + self._words[at.G_DEATHS])

    def _may_deliver(self) -> bool:
        """Whether the prefix is ours: messages of a superseded daemon go to nobody. Asks for an
        entry of the owner's log if the last one grows old."""
        now, sent = Moment(boottime_ns(), wall_ns()), sent_of(self._words)
        if should_ask(now, sent) and not self._words[at.G_SUPERSEDED]:
            self._uploads.ask_for_entry()
        return may_commit(now, sent) and not self._words[at.G_SUPERSEDED]

    def _orphaned(self) -> None:
        """The supervisor is gone: nothing would restart or drain this process."""
        log.critical("the supervisor is gone; stopping immediately")
        os._exit(1)

    def _count_get(self, size_bytes: int) -> None:
        self._words[self._base + at.S_GETS] += 1
        self._words[self._base + at.S_GET_BYTES] += size_bytes

    @_or_end
    def _heartbeat(self) -> None:
        words, base = self._words, self._base
        words[base + at.S_HEARTBEAT] += 1
        words[base + at.S_HEARTBEAT_NS] = monotonic_ns()
        words[base + at.S_CPU_NS] = process_cpu_ns()
        words[base + at.S_SEEN] = self._feed.seen
        words[base + at.S_CONNECTIONS] = self._server.connections
        words[base + at.S_STREAMS] = len(self._server.streams)
        self._server.limit_memory(answers_bytes(int(words[at.G_BODIES_BYTES])))
        words[base + at.S_QUEUED] = self._admission.queued
        self.segment.follow_epoch(self.shard)
        self._routers_gate.look(monotonic_ns())
        self._after.tick()
        self._topic_counts.store()
        words[base + at.S_OWNS] = self._after.owned
        self._sensors.store(monotonic_ns())
        self._freed_memory.look(monotonic_ns())
        level = words[at.G_LOG_LEVEL]
        if level != self._log_level:
            self._log_level = level
            logs.set_level(logs.LEVELS[level])
        self._end_overdue()
        self._loop.call_later(HEARTBEAT_S, self._heartbeat)

    def _pause_routers(self, why: str) -> None:
        log.info("routers of this shard pause, %s", why)
        self._routers.pause(why)

    def _resume_routers(self) -> None:
        log.info("routers of this shard go on")
        self._routers.resume()

    # Deadlines

    def _end_overdue(self) -> None:
        """Takes back requests that nobody pulled in time, and gives up those whose outcome is
        unknown; at the next heartbeat if another shard holds the group's lock.
        """
        now_ns = monotonic_ns()
        self._admission.end_overdue(now_ns)
        if not self.pending.is_due(now_ns):
            self._voids.pass_over()
            return
        expired = self._expired(now_ns, int(self._words[self._base + at.S_PULLED]))
        if expired.void:

            def choose(pulled: int) -> Sequence[Run]:
                nonlocal expired
                expired = self._expired(now_ns, pulled)
                return expired.runs

            if not self._voids.take_back(choose):
                return
            self._look_again()
        self.pending.end(expired, self._producer.overdue, self._producer.unknown)

    def _expired(self, now_ns: int, pulled: int) -> ExpiredRequests:
        return self.pending.expired(now_ns, pulled, self._ring.head)

    # The group

    def _look_again(self) -> None:
        if not self._look_soon:
            self._look_soon = True
            self._loop.call_soon(self._look)

    def _short_of_time(self, arrival_ns: int, timeout_ns: int) -> None:
        """A request with less time than usual was published, and ``_published`` follows."""
        if self._urgent.published(arrival_ns, timeout_ns, self._ring.head):
            self._quiet_until = 0

    def _published(self) -> None:
        # With many busy connections one turn of the loop lasts 10 ms and more, and the bell would
        # be heard after it. This costs 0.1 us per request.
        if self._words[at.G_COMMITS] != self._feed.seen:
            self._follow_now()
        if self._ring.head > self._quiet_until:
            self._look_again()

    @_or_end
    def _look(self) -> None:
        self._look_soon = False
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        now_ns = monotonic_ns()
        look = self._puller.look(now_ns)
        for pulled in look.pulled:
            self._uploads.start(pulled.lease, pulled.requests)
        self._quiet_until = self._ring.head + look.quiet_bytes
        if look.again_at_ns >= NEVER:
            return
        delay_s = (look.again_at_ns - now_ns) / 1e9
        if delay_s <= 0:
            self._look_soon = True
            self._loop.call_soon(self._look)
        else:
            self._look_timer = self._loop.call_later(delay_s, self._look)

    # The bell

    @_or_end
    def _follow_now(self) -> None:
        """Delivers what was committed during this turn of the loop."""
        self._feed.follow()
        self._after.dispatcher.serve_now()

    @_or_end
    def _rung(self) -> None:
        self._bells.clear(self.shard)
        self._admission.read_gate()
        self._admin.rung()
        self._feed.follow()
        self._uploads.committed_moved()
        for lease in adopt_orphans(self._leases, self._lock_file, self.shard, monotonic_ns()):
            log.warning("taking over lease %s of shard %d (adoption %d)", lease.lease_id,
                        lease.shard, lease.deaths)  # fmt: skip
            self._uploads.start(lease)
        self._look_again()
        if self._words[at.G_DRAINING]:
            self._drain()

    def _take(self, commit: Commit) -> None:
        """What a commit means for this shard. Readers come first; nothing here takes long."""
        self._after.take(commit)
        self.topics.trackers.committed(commit)
        self.pending.committed(commit)
        self._answer_soon()

    def _answer_soon(self) -> None:
        if self.pending.has_known and not self._answers_soon:
            self._answers_soon = True
            self._loop.call_soon(self._answer)

    @_or_end
    def _answer(self) -> None:
        """Answers producers in slices, and delivers what was committed meanwhile between two. New
        requests wait for the turn: answered in small lots, producers would come back in small lots,
        for a quarter more CPU per request (decision 0010)."""
        self._answers_soon = False
        until_ns = monotonic_ns() + ANSWERS_NS
        while self.pending.has_known and (now_ns := monotonic_ns()) < until_ns:
            self.pending.answer(monotonic_ns, now_ns + SLICE_NS)
            self._follow_now()
        self._answer_soon()
        if self._words[at.G_DRAINING] and not self.pending.has_known:
            self._drain()

    # The end

    def _drain(self) -> None:
        """Ends when no shard has anything left that was accepted and not answered."""
        self._server.stop_accepting()
        self._after.drain()
        self._pipes.drain()
        self._piped_requests.close()
        self._server.drain()
        if is_drained(self.segment, self._leases, self.shard, len(self.pending)):
            if not self._ended.done():
                self._ended.set_result(None)
            return
        # The last commit of a group rings every bell; the rest is noticed at the next heartbeat.
        if self._drain_timer is None:
            self._drain_timer = self._loop.call_later(HEARTBEAT_S, self._drain_again)

    @_or_end
    def _drain_again(self) -> None:
        self._drain_timer = None
        self._rung()

    async def _stop(self) -> None:
        await self.api.finish()
        try:
            async with asyncio.timeout(ANSWERS_FLUSH_S):
                await self._server.drained()
        except TimeoutError:
            log.warning(
                "%d connections and %d streams did not end in time and are closed",
                self._server.connections, len(self._server.streams),
            )  # fmt: skip
        await self._after.senders.ended()
        await self._server.close()
        await self._pipes.close()
        await self._pipe_server.close()
        await self.cursor_flush.stop()
        self._uploads.stop()
        self._ledger_thread.shutdown()
        self._readers.shutdown()
        self._commit_ledger.close()
        self._read_ledger.close()
        self._store.close()


async def serve(inheritance: Inheritance) -> None:
    """Runs one shard in the running loop."""
    await Shard(inheritance).run()


def main() -> int:
    """The entry point of a shard process; its standard input is an Inheritance."""
    faulthandler.enable()  # a loop that is stuck is aborted, and writes where
    inheritance = inherit.decode(sys.stdin.buffer.read())
    os.sched_setaffinity(0, {inheritance.cpu})
    be_killed_first()
    config = inheritance.config
    logs.start(config.log_level, config.log_format, f"shard {inheritance.shard}")
    # What exists now stays, and requests make no cycles: the collector has little to find.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    try:
        uvloop.run(serve(inheritance))
    except (LedgerError, StoreError) as error:
        log.critical("ended: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
