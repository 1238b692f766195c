"""The write side of a shard, wired: from a request's body to the committed object and the answer.

``shard.py`` says when its parts take their steps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daemon.intake.caps import CapTrackers
from daemon.intake.commit_feed import CommitFeed
from daemon.intake.copies import Copies
from daemon.intake.cursor_cache import CursorCache
from daemon.intake.formats import BodyLimits
from daemon.intake.object_limits import ObjectLimits
from daemon.intake.pending import PendingRequests
from daemon.intake.producer import Producer
from daemon.intake.topic_cache import TopicCache
from daemon.process.opened import Opened
from delivery.push.secrets import SecretsFile
from ledger.types import Commit
from shards import layout as at
from shards.boards.namecounts import TOPICS
from shards.clock import boottime_ns, wall_ns
from shards.commitlog import CommitLog
from shards.leases import LeaseTable
from shards.ring import RingReader, RingWriter
from uploader.groups.puller import Puller
from uploader.groups.upload_turn import Policy
from uploader.groups.urgent import UrgentRequests
from uploader.ownership.ownership import Moment, may_commit, sent_of, should_ask
from uploader.pipeline.upload import Uploads
from uploader.pipeline.voids import Voids


class WriteSide:
    """``take`` is given each commit, in order. ``published`` is called after a request went into
    the ring, and before it ``short_of_time`` for one with less time than usual. ``ended`` ends the
    process."""

    def __init__(
        self,
        opened: Opened,
        take: Callable[[Commit], None],
        published: Callable[[], None],
        short_of_time: Callable[[int, int], None],
        ended: Callable[[], None],
    ) -> None:
        config, segment, shard = opened.config, opened.segment, opened.shard
        self._words = opened.words
        self.feed = CommitFeed(
            CommitLog(segment), opened.ledger, opened.alarms, opened.rng, take,
            lambda: self.uploads.committed_moved(), ended,
        )  # fmt: skip
        self.leases = LeaseTable(opened.words, segment.layout)
        self.ring = RingWriter(segment, shard)
        self.topic_counts = opened.counts_of(TOPICS)
        self.pending = PendingRequests(
            segment, shard, self.topic_counts.tally_of, config.ack_timeout_ms * 1_000_000
        )
        committed = int(opened.words[opened.base + at.S_COMMITTED])
        self.pending.inherit(RingReader(segment, shard).requests(committed, self.ring.head))
        self.trackers = CapTrackers(opened.words, shard, lambda: self.feed.seen)
        self.topics = TopicCache(
            segment, opened.ledger, opened.ledger_lock, self.trackers, config.partitions_max,
            SecretsFile(Path(config.data_dir)),
        )  # fmt: skip
        self.cursors = CursorCache(segment, opened.ledger, opened.ledger_lock)
        self.puller = Puller(
            segment, shard, opened.lock_file, opened.bells, self.leases,
            Policy(object_bytes_target=config.object_bytes_target),
        )  # fmt: skip
        self.voids = Voids(segment, self.puller, self.ring)
        self.urgent = UrgentRequests(segment, shard)
        self.uploads = Uploads(
            segment, shard, self.leases, opened.bells, opened.store, opened.commit_ledger,
            self.topics.name_of, opened.rng, opened.alarms, ended, hedge_puts=config.hedge_puts,
        )  # fmt: skip
        limits = BodyLimits(
            body_bytes_max=config.body_bytes_max,
            record_bytes_max=config.record_bytes_max,
            records_max=config.records_max,
        )
        self.objects = ObjectLimits(opened.ledger)
        self.producer = Producer(
            segment, shard, self.topics, self.cursors, self.ring, self.pending, limits,
            published, short_of_time, opened.rng, config.ack_timeout_ms,
            auto_create=config.auto_create_topics, audit=opened.audit,
            objects=self.objects,
        )  # fmt: skip
        self.admission = self.producer.admission
        self.copies = Copies(self.topics, self.ring, self.pending, self.admission, published)

    def may_deliver(self) -> bool:
        """Whether the prefix is ours: messages of a superseded daemon go to nobody. Asks for an
        entry of the owner's log if the last one grows old."""
        now, sent = Moment(boottime_ns(), wall_ns()), sent_of(self._words)
        if should_ask(now, sent) and not self._words[at.G_SUPERSEDED]:
            self.uploads.ask_for_entry()
        return may_commit(now, sent) and not self._words[at.G_SUPERSEDED]
