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
from delivery.dispatch import Dispatcher
from delivery.fifo import FifoReadySet
from delivery.followed import FollowedPartitions
from delivery.l0_reader import L0Reader
from delivery.lake_reader import LakeReader
from delivery.ledger_thread import LedgerThread
from delivery.partition_reader import PartitionReader
from delivery.ready import Kind, PriorityInputs
from delivery.routers.runtime import Routers
from delivery.store_threads import StoreThreads
from delivery.stored_reader import StoredReader
from delivery.tail_reader import TailReader
from delivery.topic_changes import TopicChanges
from delivery.watch.hub import WatchHub
from ledger.types import Commit
from shards.clock import monotonic_ns
from shards.segment import Segment
from uploader.stores.base import ObjectStore

if TYPE_CHECKING:
    from compaction.place import Place


class AfterCommit:
    """What one shard does with commits. ``recent`` gives the last ones that it has followed."""

    def __init__(
        self,
        segment: Segment,
        config: Config,
        topics: TopicCache,
        ledger: LedgerThread,
        store: ObjectStore,
        threads: StoreThreads,
        recent: Callable[[], Iterable[Commit]],
        rng: random.Random,
    ) -> None:
        lake = LakeReader(partial(_place_of, config), threads)
        self.partitions = PartitionReader(
            FollowedPartitions(recent), TailReader(segment), ledger,
            StoredReader(ledger, L0Reader(store, threads), lake, rng), topics.trackers.evicted,
        )  # fmt: skip
        self.reader = DiffReader(self.partitions, ledger)
        self.dispatcher = Dispatcher(FifoReadySet(), lambda _: PriorityInputs(), monotonic_ns)
        self.hub = WatchHub(
            self.partitions, self.dispatcher.dirty, stream_error,
            self._delivered, lambda: False, monotonic_ns,
        )  # fmt: skip
        self.routers: Routers  # set before ``start``
        self._topic_changes = TopicChanges(ledger, topics.version, self.hub.topic_changed)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins, in the shard's loop."""
        self.dispatcher.start(loop, {Kind.PUSH: self.hub.serve, Kind.ROUTE: self.routers.serve})

    def take(self, commit: Commit) -> None:
        """Marks what a commit made ready. Nothing here takes long."""
        moved = self.partitions.followed.apply(commit)
        published_ns = commit.published_ns or monotonic_ns()
        self.hub.committed(moved, published_ns)
        self.routers.committed(moved, published_ns)
        self.reader.waiters.wake(moved)

    def tick(self) -> None:
        """To be called with each heartbeat."""
        self._topic_changes.look()
        self.hub.tick()
        self.routers.look()

    def drain(self) -> None:
        """Ends streams, long polls and copies: the process will end."""
        self.hub.close()
        self.routers.close()
        self.reader.waiters.wake_all()

    def _delivered(self, topic_id: int, after_ns: int) -> None:
        """A watcher was written to, this long after the publication of its commit."""


def _place_of(config: Config) -> Place:
    """Where the lake is. Called at the first read of L1, since it loads pyarrow."""
    from compaction.place import Place

    return Place(config.store_url, config.s3_endpoint_url, config.s3_region, config.lake_url)
