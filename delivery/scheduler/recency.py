"""When topics were last consumed, shared by all shards without locks.

A diff and a delivery to a watcher store the time in the word of the topic (shards/layout.py). Words
are hashed and stores race, on purpose: a wrong word only changes whose turn comes first.
"""

from __future__ import annotations

from shards.layout import RECENCY_WORDS, Layout

# A word that is as fresh as this is not stored again: 50 ms are less than a point, and cores do not
# take the line from each other for each record.
FRESH_NS = 50_000_000


class Recency:
    """The words of recency. Times are monotonic nanoseconds, 0 for never."""

    def __init__(self, words: memoryview, layout: Layout) -> None:
        first = layout.recency
        self._words = words[first : first + RECENCY_WORDS]

    def consumed(self, topic_id: int, now_ns: int) -> None:
        """A client takes records of the topic, or asks for some."""
        slot = topic_id % RECENCY_WORDS
        if now_ns - self._words[slot] > FRESH_NS:
            self._words[slot] = now_ns

    def consumed_ns(self, topic_id: int) -> int:
        """When the topic was last consumed."""
        return int(self._words[topic_id % RECENCY_WORDS])
