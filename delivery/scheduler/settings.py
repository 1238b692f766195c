"""What the priority of a topic follows from: its settings, and when it was last consumed.

Settings are learned when a stream or a router begins with a topic, and again when they change. A
topic whose settings are not known here has the default ones: only the order of deliveries follows
from them.
"""

from __future__ import annotations

from delivery.ready import PriorityInputs
from delivery.scheduler.recency import Recency
from ledger.types import Topic
from uploader.lru import LruCache

# A shard pins 50,000 partitions at most (delivery/reading/followed.py).
TOPICS_MAX = 50_000
TOPIC_BYTES = 256


class TopicPriorities:
    """The settings of the topics that this shard delivers."""

    def __init__(self, recency: Recency) -> None:
        self._recency = recency
        self._settings: LruCache[int, tuple[int | None, bool]] = LruCache(TOPICS_MAX)

    def learn(self, topic: Topic) -> None:
        """A topic begins to be delivered. It may have changed since it was looked up, so what is
        known already stays."""
        if topic.topic_id not in self._settings:
            self.changed(topic)

    def changed(self, topic: Topic) -> None:
        """A topic has these settings from now on, or is deleted."""
        if topic.deleted_ms is not None:
            self._settings.drop(topic.topic_id)
        else:
            settings = (topic.config.priority, topic.config.auto_priority)
            self._settings.keep(topic.topic_id, settings)

    def inputs(self, topic_id: int) -> PriorityInputs:
        """What the topic's priority follows from, now."""
        priority, auto = self._settings.get(topic_id) or (None, True)
        if priority is not None or not auto:
            return PriorityInputs(priority, auto)
        return PriorityInputs(None, True, self._recency.consumed_ns(topic_id))
