"""What a topic's priority follows from: settings as last heard, and words that all shards share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delivery.ready import PriorityInputs
from delivery.scheduler.recency import FRESH_NS, Recency
from delivery.scheduler.settings import TopicPriorities
from ledger.types import Topic, TopicConfig
from shards.layout import RECENCY_WORDS, Layout
from shards.segment import Segment

NOW = 10**12


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(2, 4096))
    yield made
    made.close()


def topic(priority: int | None = None, auto: bool = True, deleted: bool = False) -> Topic:
    config = TopicConfig(priority=priority, auto_priority=auto)
    return Topic(7, "t", config, 1, deleted_ms=2 if deleted else None)


def test_a_shard_sees_when_another_one_served_the_topic(segment: Segment) -> None:
    one, other = (Recency(segment.words, segment.layout) for _ in range(2))
    assert one.consumed_ns(7) == 0
    other.consumed(7, NOW)
    assert (one.consumed_ns(7), one.consumed_ns(8)) == (NOW, 0)
    assert one.consumed_ns(7 + RECENCY_WORDS) == NOW, "a word is shared, on purpose"


def test_a_fresh_word_is_not_stored_again(segment: Segment) -> None:
    recency = Recency(segment.words, segment.layout)
    recency.consumed(7, NOW)
    recency.consumed(7, NOW + FRESH_NS)
    recency.consumed(7, NOW - 5)
    assert recency.consumed_ns(7) == NOW
    recency.consumed(7, NOW + FRESH_NS + 1)
    assert recency.consumed_ns(7) == NOW + FRESH_NS + 1


def test_the_last_and_the_first_word_lie_within_the_segment(segment: Segment) -> None:
    recency = Recency(segment.words, segment.layout)
    for topic_id in (0, RECENCY_WORDS - 1):
        recency.consumed(topic_id, NOW)
        assert recency.consumed_ns(topic_id) == NOW


def test_recency_counts_for_topics_without_a_priority_only(segment: Segment) -> None:
    recency = Recency(segment.words, segment.layout)
    priorities = TopicPriorities(recency)
    recency.consumed(7, NOW)
    assert priorities.inputs(7) == PriorityInputs(None, True, NOW), "unknown: as the default"
    priorities.learn(topic(priority=-3))
    assert priorities.inputs(7) == PriorityInputs(-3, True, 0)
    priorities.changed(topic(auto=False))
    assert priorities.inputs(7) == PriorityInputs(None, False, 0)
    priorities.changed(topic(deleted=True))
    assert priorities.inputs(7) == PriorityInputs(None, True, NOW)


def test_what_was_looked_up_before_a_change_does_not_undo_it(segment: Segment) -> None:
    priorities = TopicPriorities(Recency(segment.words, segment.layout))
    looked_up = topic(priority=1)
    priorities.changed(topic(priority=2))
    priorities.learn(looked_up)
    assert priorities.inputs(7).priority == 2
