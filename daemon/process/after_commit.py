"""The part of a shard that works after the commit: reads, streams, and their order, wired.

The shard gives it each commit that it follows. It belongs to the loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from daemon.api.refusals import stream_error
from daemon.config import Config
from daemon.intake.topic_cache import TopicCache
from delivery.diff import DiffReader
from delivery.dispatch import Dispatcher, Served
from delivery.fifo import FifoReadySet
from delivery.followed import FollowedPartitions
from delivery.l0_reader import L0Reader
from delivery.lake_reader import LakeReader
from delivery.ledger_thread import LedgerThread
from delivery.partition_reader import PartitionReader
from delivery.push.runtime import PushSenders
from delivery.ready import Kind, ReadySet, Turn
from delivery.routers.runtime import Routers
from delivery.scheduler.recency import Recency
from delivery.scheduler.scheduler import BandedReadySet
from delivery.scheduler.settings import TopicPriorities
from delivery.store_threads import StoreThreads
from delivery.stored_reader import StoredReader
from delivery.subscriptions.runtime import Subscriptions
from delivery.tail_reader import TailReader
from delivery.topic_changes import TopicChanges
from delivery.topic_rows import TopicRows
from delivery.watch.hub import WatchHub
from ledger.types import Commit, Topic
from shards import layout as at
from shards.clock import monotonic_ns
from shards.latency import LatencyHistogram, Stage
from shards.segment import Segment
from uploader.stores.base import ObjectStore

if TYPE_CHECKING:
    from compaction.place import Place


class AfterCommit:
    """What one shard does with commits. ``recent`` gives the last ones that it has followed."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        config: Config,
        topics: TopicCache,
        ledger: LedgerThread,
        store: ObjectStore,
        threads: StoreThreads,
        recent: Callable[[], Iterable[Commit]],
        rng: random.Random,
    ) -> None:
        self._words = segment.words
        self._coalesce_ns = 0
        self._is_deferring = False
        lake = LakeReader(partial(_place_of, config), threads)
        self.partitions = PartitionReader(
            FollowedPartitions(recent), TailReader(segment), ledger,
            StoredReader(ledger, L0Reader(store, threads), lake, rng), topics.trackers.evicted,
        )  # fmt: skip
        self.reader = DiffReader(self.partitions, ledger)
        self.recency = Recency(segment.words, segment.layout)
        self.priorities = TopicPriorities(self.recency)
        self._rows = TopicRows(segment.words, segment.layout, shard)
        self._ready: ReadySet = BandedReadySet() if config.scheduler == "on" else FifoReadySet()
        self.dispatcher = Dispatcher(
            self._ready, self.priorities.inputs, monotonic_ns,
            LatencyHistogram(segment, shard, Stage.DISPATCHED).observe,
        )  # fmt: skip
        self.hub = WatchHub(
            self.partitions, self.dispatcher.dirty, stream_error,
            self._delivered, lambda: self._coalesce_ns > 0, monotonic_ns, self._watched,
        )  # fmt: skip
        self._words = segment.words
        self._shard_at = segment.layout.shard(shard)
        self._lags = int(self._words[self._shard_at + at.S_LAGS])  # of watchers of predecessors
        self._latencies = LatencyHistogram(segment, shard, Stage.DELIVERED)
        self.routers: Routers  # set before ``start``
        self.subscriptions: Subscriptions  # likewise
        self.senders: PushSenders  # likewise
        self._topic_changes = TopicChanges(ledger, topics.version, self._topic_changed)

    def start(self, loop: asyncio.AbstractEventLoop, failed: Callable[[Exception], None]) -> None:
        """Begins, in the shard's loop; ``failed`` ends the process."""
        servers = {
            Kind.PUSH: self._push,
            Kind.ROUTE: self.routers.serve,
            Kind.CONSUME: self.subscriptions.serve,
        }
        self.dispatcher.start(loop, servers, failed)

    def take(self, commit: Commit) -> None:
        """Marks what a commit made ready. Nothing here takes long."""
        moved = self.partitions.followed.apply(commit)
        published_ns = commit.published_ns or monotonic_ns()
        self.hub.committed(moved, published_ns)
        self.routers.committed(moved, published_ns)
        self.subscriptions.committed(moved, published_ns)
        self.reader.waiters.wake(moved)

    def tick(self) -> None:
        """To be called with each heartbeat."""
        self._follow_governor()
        self._topic_changes.look()
        self.hub.tick()
        self.routers.look()
        self.subscriptions.look()
        self.senders.look()
        self.subscriptions.hold_pushed(self.senders.secrets_missing)
        for band, depth in enumerate(self._ready.depths()):
            self._words[self._shard_at + at.S_BANDS + band] = depth
        self._words[self._shard_at + at.S_DEFERRED] = self._ready.deferred()
        self._words[self._shard_at + at.S_LAGGED] = self.hub.lagged
        self._words[self._shard_at + at.S_LAGS] = self._lags + self.hub.lags
        self._rows.refresh(lambda topic_id: self._ready.view((topic_id, Kind.PUSH)))

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
        return len(self.routers) + len(self.subscriptions) + len(self.senders)

    def drain(self) -> None:
        """Ends streams, long polls and copies: the process will end."""
        self._topic_changes.close()
        self.hub.close()
        self.routers.close()
        self.senders.close()
        self.subscriptions.close()
        self.reader.waiters.wake_all()

    def _delivered(self, topic_id: int, after_ns: int) -> None:
        """A watcher was written to, this long after the publication of its commit."""
        self._latencies.observe(after_ns)

    def consumed(self, topic_id: int, after_ns: int) -> None:
        """Consumers of a subscription were sent something, this long after its publication."""
        self._latencies.observe(after_ns)
        self.recency.consumed(topic_id, monotonic_ns())

    def _push(self, turn: Turn) -> Served:
        served = self.hub.serve(turn)
        if served.cost_bytes:
            self.recency.consumed(turn.key[0], monotonic_ns())
        return served

    def _watched(self, topic_id: int, watchers: int, lagged: int) -> None:
        self._rows.watched(topic_id, watchers, lagged)
        if not watchers:
            self._ready.forget((topic_id, Kind.PUSH))

    def _topic_changed(self, topic: Topic) -> None:
        self.priorities.changed(topic)
        self.hub.topic_changed(topic)
        self.routers.topic_changed(topic)
        self.subscriptions.topic_changed(topic)
        self.senders.topic_changed(topic)


def _place_of(config: Config) -> Place:
    """Where the lake is. Called at the first read of L1, since it loads pyarrow."""
    from compaction.place import Place

    return Place(config.store_url, config.s3_endpoint_url, config.s3_region, config.lake_url)
