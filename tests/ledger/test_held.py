"""What a subscription has not finished with stays, up to a limit, if its topic says so."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from ledger import commits, reads, topics
from ledger.delivery import progress, subscriptions
from ledger.delivery.progress import SubscriptionFlush
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.lake.types import Evicted
from ledger.ledger import Ledger
from ledger.space import retention
from ledger.types import Topic, TopicConfig
from tests.ledger.lakes import commit
from tests.ledger.requests import Request
from tests.ledger.upkeep import evict_all

NOW_MS = 100_000
PLENTY = 10_000


def capped(ledger: Ledger, retain: int | None, partitions: int = 1) -> Topic:
    """A topic that keeps two records; ten records are written, two to an object."""
    config = TopicConfig(partitions, cap_records=2, retain_for_subscriptions=retain)
    topic = ledger.write(topics.create, "t", config, 1)[0]
    for _ in range(5):
        write(ledger, topic)
    return topic


def write(ledger: Ledger, topic: Topic, partition: int = 0, timestamp_ms: int = NOW_MS) -> None:
    """An object of two records, 20 bytes."""
    counter = ledger.read(commits.latest_number) + 1
    request = Request(topic.topic_id, ((partition, 2),), timestamp_ms=timestamp_ms)
    commit(ledger, counter, request)


def subscribe(ledger: Ledger, name: str = "s", *, reliable: bool = True) -> Subscription:
    config = SubscriptionConfig(reliable=reliable)
    return ledger.write(subscriptions.create, "t", name, config, "earliest", 5)


def finish(ledger: Ledger, made: Subscription, floor: int, partition: int = 0) -> None:
    flushed = SubscriptionFlush(made.subscription_id, made.generation, 1, [(partition, floor)])
    assert ledger.write(progress.flush, [flushed]) == set()


def earliest(ledger: Ledger, topic: Topic) -> list[int]:
    return [state.earliest_seq for state in ledger.read(reads.partition_states, topic.topic_id)]


def test_a_cap_evicts_what_is_finished_and_nothing_more(ledger: Ledger) -> None:
    topic = capped(ledger, PLENTY)
    slow, fast = subscribe(ledger), subscribe(ledger, "fast")
    finish(ledger, fast, 9)
    assert evict_all(ledger, NOW_MS) == [] and earliest(ledger, topic) == [1]
    finish(ledger, slow, 5)
    assert evict_all(ledger, NOW_MS) == [Evicted("t", topic.topic_id, 0, 6, 5, "cap")]
    finish(ledger, slow, 10)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [9]  # the cap itself


def test_the_time_to_live_waits_as_a_cap_does(ledger: Ledger) -> None:
    config = TopicConfig(ttl_ms=1_000, retain_for_subscriptions=PLENTY)
    topic = ledger.write(topics.create, "t", config, 1)[0]
    for timestamp_ms in (0, 500, 1_000):
        write(ledger, topic, timestamp_ms=timestamp_ms)
    made = subscribe(ledger)
    finish(ledger, made, 2)
    assert [one.reason for one in evict_all(ledger, NOW_MS)] == ["ttl"]
    assert earliest(ledger, topic) == [3]
    ledger.write(subscriptions.delete, "t", "s", 6)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [7]


def test_beyond_the_limit_the_oldest_records_go_finished_or_not(ledger: Ledger) -> None:
    topic = capped(ledger, 60)
    made = subscribe(ledger)
    finish(ledger, made, 1)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [5]  # three objects of 20 bytes stay
    write(ledger, topic)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [7]


def test_the_limit_never_evicts_what_the_topic_keeps_anyway(ledger: Ledger) -> None:
    topic = capped(ledger, 1)
    subscribe(ledger)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [9]


def test_without_the_setting_or_a_reliable_subscription_limits_hold_as_ever(
    ledger: Ledger,
) -> None:
    topic = capped(ledger, None)
    subscribe(ledger)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [9]
    ledger.write(topics.delete, "t", 6)
    topic = capped(ledger, PLENTY)
    subscribe(ledger, reliable=False)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [9]


def test_each_partition_is_held_by_its_own_floor(ledger: Ledger) -> None:
    topic = capped(ledger, PLENTY, partitions=2)
    for _ in range(3):
        write(ledger, topic, partition=1)
    made = subscribe(ledger)
    finish(ledger, made, 3, partition=1)
    evict_all(ledger, NOW_MS)
    assert earliest(ledger, topic) == [1, 4]


def test_a_trim_holds_for_everybody(ledger: Ledger) -> None:
    topic = capped(ledger, PLENTY)
    subscribe(ledger)
    retention.trim(ledger, "t", 0, 5)
    assert earliest(ledger, topic) == [5]


def test_a_partition_of_which_nothing_may_go_is_not_walked(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TopicConfig(cap_bytes=20, ttl_ms=1_000, retain_for_subscriptions=PLENTY)
    topic = ledger.write(topics.create, "t", config, 1)[0]
    for _ in range(3):
        write(ledger, topic, timestamp_ms=0)
    made = subscribe(ledger)
    walked = Mock(side_effect=retention._steps)
    monkeypatch.setattr(retention, "_steps", walked)
    assert ledger.read(retention.due_evictions, topic, NOW_MS).evictions == []
    walked.assert_not_called()
    finish(ledger, made, 1)
    assert len(ledger.read(retention.due_evictions, topic, NOW_MS).evictions) == 1
    walked.assert_called()
