"""Topics as clients see them: what the ledger has, and what shared memory says of delivery."""

from __future__ import annotations

from daemon.schemas.api import TopicState
from delivery.ready import PriorityInputs
from delivery.scheduler import priority
from delivery.scheduler.bands import band_of
from delivery.scheduler.recency import Recency
from ledger.types import PartitionState, Topic
from shards.boards.topicrows import TopicActivity, TopicRowsReader
from shards.clock import monotonic_ns
from shards.segment import Segment


class TopicActivityView:
    """Builds the state of topics from the shared segment."""

    def __init__(self, segment: Segment) -> None:
        rows = TopicRowsReader(segment.words, segment.layout)
        self.of = rows.of
        self.of_each = rows.of_each
        self._recency = Recency(segment.words, segment.layout)

    def state(
        self, topic: Topic, partitions: list[PartitionState], activity: TopicActivity
    ) -> TopicState:
        """A topic as clients see it."""
        now_ns = monotonic_ns()
        consumed_ns = self._recency.consumed_ns(topic.topic_id)
        since_ns = now_ns if activity.band is None else min(now_ns, activity.enqueued_ns)
        settings = topic.config
        inputs = PriorityInputs(settings.priority, settings.auto_priority, consumed_ns)
        effective = priority.effective(inputs, since_ns, now_ns)
        idle_ms = (now_ns - consumed_ns) // 1_000_000
        return TopicState(
            topic=topic.name,
            topic_id=topic.topic_id,
            table=topic.table,
            config=settings,
            partitions=partitions,
            effective_priority=effective,
            band=band_of(effective) if activity.band is None else activity.band,
            age_ms=(now_ns - since_ns) // 1_000_000,
            recency=priority.recency(idle_ms) if consumed_ns else 0,
            watchers=activity.watchers,
            lagged_watchers=activity.lagged,
            created_ms=topic.created_ms,
        )
