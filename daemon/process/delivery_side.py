"""The delivery side of a shard, wired: reads, streams, routers, subscriptions, push, their order.

The shard gives it each commit that it follows. It belongs to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from daemon.api.refusals import stream_error
from daemon.config import Config
from daemon.governor.gate import gate_band
from daemon.governor.routers_gate import RoutersGate
from daemon.memory import pipe_frame_bytes_max
from daemon.process.opened import Opened
from daemon.process.write_side import WriteSide
from daemon.upkeep.directory import place_of
from delivery.changes import ChangesFound, DeliveryChanges, FollowedChanges
from delivery.dispatch import Dispatcher, Served
from delivery.flush import Flush
from delivery.ledger_thread import LedgerThread
from delivery.pipes.addresses import pipe_name
from delivery.pipes.buffers import PipeBuffers
from delivery.pipes.client import Pipes
from delivery.pipes.server import PipeServer
from delivery.push.posts.addresses import AllowList
from delivery.push.posts.client import PushClient
from delivery.push.rates.limiter import LearnedRates, LimiterSettings
from delivery.push.secrets import SecretsFile
from delivery.push.sender import QUEUED_BYTES_MAX, SenderTools
from delivery.push.senders import PushSenders
from delivery.reading.diff import DiffReader
from delivery.reading.followed import FollowedPartitions
from delivery.reading.lake import LakeReader
from delivery.reading.objects import L0Reader
from delivery.reading.partition import PartitionReader
from delivery.reading.stored import StoredReader
from delivery.reading.tail import TailReader
from delivery.ready import Kind, Turn
from delivery.routers.shard_routers import PAGE_BYTES_MAX, Routers
from delivery.scheduler.recency import Recency
from delivery.scheduler.scheduler import BandedReadySet
from delivery.scheduler.settings import TopicPriorities
from delivery.subscriptions.budget import QueuedBudget
from delivery.subscriptions.owners import Owners, PipedRequests
from delivery.subscriptions.runtime import Subscriptions
from delivery.subscriptions.shown.inspection import OwnerClocks
from delivery.tasks import Tasks
from delivery.watch.hub import WatchHub
from ledger import topics
from ledger.types import Commit, Topic
from shards import layout as at
from shards.boards.endpointholds import EndpointHolds
from shards.boards.rowboard import router_board, subscription_board
from shards.boards.topicrows import TopicRows
from shards.clock import monotonic_ns, wall_ms
from shards.journal import FinishedJournal
from shards.latency import LatencyHistogram, Stage

log = logging.getLogger("headgate.shard")

TOPICS_AT_ONCE = 1_000  # changes of topics that are read together: 10 ms of the ledger's thread


class DeliverySide:
    """What one shard does with commits. ``failed`` ends the process because of an error, ``ended``
    without one."""

    def __init__(
        self,
        opened: Opened,
        write: WriteSide,
        failed: Callable[[Exception], None],
        ended: Callable[[], None],
    ) -> None:
        config, segment, shard, ledger = opened.config, opened.segment, opened.shard, opened.ledger
        self._listener = socket.socket(fileno=opened.inheritance.pipe_fd)
        self._words = opened.words
        self._failed = failed
        self._coalesce_ns = 0
        self._is_deferring = False
        lake = LakeReader(partial(place_of, config), opened.threads)
        objects = L0Reader(opened.store, opened.threads)
        self.partitions = PartitionReader(
            FollowedPartitions(write.feed.recent), TailReader(segment), ledger,
            StoredReader(ledger, objects, lake, opened.rng), write.trackers.evicted,
            write.feed.reach,
        )  # fmt: skip
        self.reader = DiffReader(self.partitions, ledger)
        self.recency = Recency(segment.words, segment.layout)
        self.priorities = TopicPriorities(self.recency)
        # A topic that is looked up later is as it was then or newer, so no change is missed.
        self._topic_changes = FollowedChanges(
            "changes of topics", write.topics.version, partial(_changed_topics, ledger),
            self._topic_changed, Tasks(failed), ledger.read_now(topics.catalog_version),
        )  # fmt: skip

        self._rows = TopicRows(segment.words, segment.layout, shard)
        self._shard_at = opened.base
        self._lags = int(self._words[opened.base + at.S_LAGS])  # of watchers of predecessors
        self._latencies = LatencyHistogram(segment, shard, Stage.DELIVERED)
        self._ready = BandedReadySet()
        self.dispatcher = Dispatcher(
            self._ready, self.priorities.inputs, monotonic_ns,
            LatencyHistogram(segment, shard, Stage.DISPATCHED).observe,
        )  # fmt: skip
        self.hub = WatchHub(
            self.partitions, self.dispatcher.dirty, stream_error,
            self._delivered, lambda: self._coalesce_ns > 0, monotonic_ns, self._watched,
        )  # fmt: skip

        self.flush = Flush(opened.open_ledger, monotonic_ns, ended)
        self.changes = DeliveryChanges(segment, opened.bells, ledger, opened.ledger_lock)
        self._routers = Routers(
            shard, segment.layout.shards, self.partitions, ledger, write.copies,
            router_board(segment), self.dispatcher.dirty, self._delivery_version, monotonic_ns,
            self.priorities.learn, failed, min(PAGE_BYTES_MAX, config.ring_bytes // 64),
            opened.access,
        )  # fmt: skip
        self.flush.add(self._routers)
        self._routers_gate = RoutersGate(
            segment, shard, gate_band(config), lambda: write.ring.used_bytes,
            lambda: write.copies.in_flight_bytes, self._pause_routers, self._resume_routers,
        )  # fmt: skip

        self._subscriptions = Subscriptions(
            shard, segment.layout.shards, int(opened.words[at.G_INCARNATION]), self.partitions,
            ledger, FinishedJournal(segment, shard), self.flush, write.copies,
            subscription_board(segment), self.dispatcher.dirty, self._delivery_version,
            write.trackers.evicted, lambda topic_id: int(opened.words[at.grown(topic_id)]),
            OwnerClocks(monotonic_ns, wall_ms), self.priorities.learn, write.may_deliver,
            self._consumed, self.changes, failed, lambda: self.senders,
        )  # fmt: skip
        buffers, frame_bytes_max = PipeBuffers(), pipe_frame_bytes_max(config)
        names = [pipe_name(opened.inheritance.pipe_token, each) for each in range(config.shards)]
        self._pipes = Pipes(names, buffers, frame_bytes_max)
        self._piped_requests = PipedRequests(self._subscriptions)
        self._pipe_server = PipeServer(self._piped_requests, buffers, frame_bytes_max)
        self.owners = Owners(shard, config.shards, self._subscriptions, self._pipes)
        learned = LearnedRates()
        self.flush.add_rates(learned)
        self.senders = PushSenders(
            segment, shard, ledger, self._delivery_version, SecretsFile(Path(config.data_dir)),
            SenderTools(
                self.owners, _push_client(config), _limiter_settings(config), learned,
                QueuedBudget(QUEUED_BYTES_MAX), EndpointHolds(segment), monotonic_ns, wall_ms,
                write.may_deliver, failed,
            ),
            opened.access,
        )  # fmt: skip

    async def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins, in the shard's loop."""
        servers = {
            Kind.WATCH: self._watch,
            Kind.ROUTE: self._routers.serve,
            Kind.CONSUME: self._subscriptions.serve,
        }
        self.dispatcher.start(loop, servers, self._failed)
        await self._pipe_server.start(self._listener)
        self.flush.start()

    def take(self, commit: Commit) -> None:
        """Marks what a commit made ready. Nothing here takes long."""
        moved = self.partitions.followed.apply(commit)
        published_ns = commit.published_ns or monotonic_ns()
        self.hub.committed(moved, published_ns)
        self._routers.committed(moved, published_ns)
        self._subscriptions.committed(moved, published_ns)
        self.reader.waiters.wake(moved)

    def tick(self) -> None:
        """To be called with each heartbeat."""
        self._follow_governor()
        self._topic_changes.look()
        self._routers_gate.look(monotonic_ns())
        self.hub.tick()
        self._routers.look()
        self._subscriptions.look()
        self.senders.look()
        self._subscriptions.hold_pushed(self.senders.held_pushed)
        for band, depth in enumerate(self._ready.depths()):
            self._words[self._shard_at + at.S_BANDS + band] = depth
        self._words[self._shard_at + at.S_DEFERRED] = self._ready.deferred()
        self._words[self._shard_at + at.S_HEARD_TOPICS] = self._topic_changes.heard
        self._words[self._shard_at + at.S_HEARD_DELIVERY] = min(
            self._routers.heard, self._subscriptions.heard, self.senders.heard
        )
        self._words[self._shard_at + at.S_LAGGED] = self.hub.lagged
        self._words[self._shard_at + at.S_LAGS] = self._lags + self.hub.lags
        self._rows.refresh(lambda topic_id: self._ready.view((topic_id, Kind.WATCH)))

    def _follow_governor(self) -> None:
        coalesce_ns = int(self._words[at.G_COALESCE_NS])
        is_deferring = bool(self._words[at.G_DEFERRING])
        if (coalesce_ns, is_deferring) != (self._coalesce_ns, self._is_deferring):
            self._coalesce_ns, self._is_deferring = coalesce_ns, is_deferring
            self.dispatcher.set_pressure(coalesce_ns, is_deferring)
            self.senders.set_pressure(is_coalescing=coalesce_ns > 0, is_deferring=is_deferring)

    @property
    def owned(self) -> int:
        """How much waits for this process alone, whichever shard has the connections."""
        return len(self._routers) + len(self._subscriptions) + len(self.senders)

    def drain(self) -> None:
        """Ends streams, long polls and copies: the process will end."""
        self._topic_changes.close()
        self.hub.close()
        self._routers.close()
        self.senders.close()
        self._subscriptions.close()
        self.reader.waiters.wake_all()
        self._pipes.drain()
        self._piped_requests.close()

    async def close(self) -> None:
        """Closes the pipes and flushes for the last time; after the server has closed."""
        await self._pipes.close()
        await self._pipe_server.close()
        await self.flush.stop()

    def _delivery_version(self) -> int:
        """A number that changes with routers and subscriptions."""
        # Both only grow. A shard may die between a change and the change of the word.
        return int(self._words[at.G_DELIVERY] + self._words[at.G_DEATHS])

    def _pause_routers(self, why: str) -> None:
        log.info("routers of this shard pause, %s", why)
        self._routers.pause(why)

    def _resume_routers(self) -> None:
        log.info("routers of this shard go on")
        self._routers.resume()

    def _delivered(self, topic_id: int, after_ns: int) -> None:
        """A watcher was written to, this long after the publication of its commit."""
        self._latencies.observe(after_ns)

    def _consumed(self, topic_id: int, after_ns: int) -> None:
        """Consumers of a subscription were sent something, this long after its publication."""
        self._latencies.observe(after_ns)
        self.recency.consumed(topic_id, monotonic_ns())

    def _watch(self, turn: Turn) -> Served:
        served = self.hub.serve(turn)
        if served.cost_bytes:
            self.recency.consumed(turn.key[0], monotonic_ns())
        return served

    def _watched(self, topic_id: int, watchers: int, lagged: int) -> None:
        self._rows.watched(topic_id, watchers, lagged)
        if not watchers:
            self._ready.forget((topic_id, Kind.WATCH))

    async def _topic_changed(self, topic: Topic) -> None:
        self.priorities.changed(topic)
        self.hub.topic_changed(topic)
        self._routers.topic_changed(topic)
        self._subscriptions.topic_changed(topic)
        self.senders.topic_changed(topic)


async def _changed_topics(ledger: LedgerThread, heard: int, _: set[int]) -> ChangesFound[Topic]:
    version, found = await ledger.read(topics.changed_since, heard, TOPICS_AT_ONCE)
    return ChangesFound(version, found, len(found) < TOPICS_AT_ONCE)


def _push_client(config: Config) -> PushClient:
    return PushClient(AllowList(config.push_allow, config.push_deny), config.push_ca_file)


def _limiter_settings(config: Config) -> LimiterSettings:
    return LimiterSettings(
        period_s=config.push_limiter_period_s,
        slow_delay_s=config.push_slow_delay_s,
        update_interval_s=config.push_balance_interval_s / 2,
    )
