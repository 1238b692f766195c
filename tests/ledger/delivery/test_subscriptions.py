"""Subscriptions in the ledger: bound to topic ids, from offsets of one moment, with settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import changes, cursors, topics
from ledger.delivery import progress, routers, subscriptions
from ledger.delivery.record_filter import NO_FILTER
from ledger.delivery.start_offsets import AtTime, SubscriptionStart
from ledger.delivery.subscription_errors import (
    DeadLetterCycle,
    SubscriptionMissing,
    SubscriptionRefused,
    SubscriptionsFull,
)
from ledger.delivery.subscriptions import PartitionGrowth, Subscription, SubscriptionConfig
from ledger.errors import RouterCycle, TopicHoldsDeadLetters, TopicMissing
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.space import retention
from ledger.types import Topic, TopicConfig
from tests.ledger.requests import Request, draft_of, lease

DEAD_LETTERS = SubscriptionConfig(poison="dead_letter", dead_letter_topic="dead")


def add(
    ledger: Ledger,
    name: str = "s",
    start: SubscriptionStart = "latest",
    config: SubscriptionConfig | None = None,
    topic: str = "orders",
) -> Subscription:
    config = SubscriptionConfig() if config is None else config
    return ledger.write(subscriptions.create, topic, name, config, start, 5)


def add_topics(ledger: Ledger, *names: str) -> list[Topic]:
    return [ledger.write(topics.create, name, TopicConfig(), 1)[0] for name in names]


def fill(
    ledger: Ledger, counter: int, topic: Topic, *counts: int, timestamp_ms: int = 1_000
) -> None:
    requests = [
        Request(topic.topic_id, parts=((partition, count),), timestamp_ms=timestamp_ms)
        for partition, count in enumerate(counts)
        if count
    ]
    ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)


def floors(ledger: Ledger, made: Subscription) -> list[int]:
    view = ledger.read(subscriptions.view, made.topic_id, made.name)
    assert view is not None
    return [floor for floor, _ in view.partitions]


def test_a_subscription_is_found_by_topic_and_name_with_its_settings(
    ledger: Ledger, topic: Topic
) -> None:
    (dead,) = add_topics(ledger, "dead")
    made = add(ledger, config=DEAD_LETTERS)
    assert made == Subscription(
        1, "s", topic.topic_id, DEAD_LETTERS, 5, None, made.cursor_id, 0, dead.topic_id
    )
    assert ledger.read(subscriptions.find, topic.topic_id, "s") == made
    assert ledger.read(subscriptions.find, dead.topic_id, "s") is None
    cursor = ledger.read(cursors.by_id, made.cursor_id)
    assert cursor is not None
    assert (cursor.name, cursor.kind) == (f"subscription/{topic.topic_id}/s", "subscription")
    view = ledger.read(subscriptions.view, topic.topic_id, "s")
    assert view is not None and view.topic == topic and view.dead_letter == dead
    with pytest.raises(TopicMissing):
        add(ledger, topic="nowhere")


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("earliest", [2, 0]),
        ("latest", [8, 3]),
        ([4, 1], [4, 1]),
        (AtTime(0), [2, 0]),
        (AtTime(1_500), [5, 3]),
        (AtTime(9_999), [8, 3]),
    ],
)
def test_where_it_begins_is_resolved_to_offsets_when_it_is_created(
    ledger: Ledger, topic: Topic, start: SubscriptionStart, wanted: Sequence[int]
) -> None:
    fill(ledger, 1, topic, 5, 3)
    fill(ledger, 2, topic, 3, 0, timestamp_ms=2_000)
    retention.trim(ledger, "orders", 0, 3)
    made = add(ledger, start=start)
    fill(ledger, 3, topic, 1, 1)
    assert floors(ledger, made) == wanted


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (3, "has 1 offsets, but its topic has 2 partitions"),
        ([3, 3, 3], "has 3 offsets, but its topic has 2 partitions"),
        ([5, 4], "is 4 for partition 1, whose last offset is 3"),
    ],
)
def test_a_start_that_the_topic_does_not_have_is_refused_and_nothing_is_created(
    ledger: Ledger, topic: Topic, start: SubscriptionStart, problem: str
) -> None:
    fill(ledger, 1, topic, 5, 3)
    with pytest.raises(SubscriptionRefused, match=problem):
        add(ledger, start=start)
    assert ledger.read(subscriptions.all_views) == []
    assert ledger.read(cursors.count) == 0


def test_settings_change_alone_and_those_that_contradict_each_other_are_refused(
    ledger: Ledger, topic: Topic
) -> None:
    (dead,) = add_topics(ledger, "dead")
    made = add(ledger)
    number = ledger.read(changes.latest)
    alter = subscriptions.alter
    with pytest.raises(SubscriptionRefused, match=r"backoff_ms .* is \[9, 2\]"):
        ledger.write(alter, "orders", "s", {"backoff_ms": (9, 2)})
    with pytest.raises(SubscriptionRefused, match=r"dead_letter_topic .* is null"):
        ledger.write(alter, "orders", "s", {"poison": "dead_letter"})
    with pytest.raises(TopicMissing, match="nowhere"):
        ledger.write(alter, "orders", "s", {"dead_letter_topic": "nowhere"})
    with pytest.raises(SubscriptionMissing, match="'orders' has no subscription 't'"):
        ledger.write(alter, "orders", "t", {})
    assert ledger.write(alter, "orders", "s", {"window_max": 10_000}) == made
    assert ledger.read(changes.latest) == number
    wanted = {"poison": "dead_letter", "dead_letter_topic": "dead", "paused": True}
    changed = ledger.write(alter, "orders", "s", wanted)
    assert (changed.config.paused, changed.dead_letter_id) == (True, dead.topic_id)
    assert ledger.read(subscriptions.find, topic.topic_id, "s") == changed


def test_a_topic_of_dead_letters_that_is_named_again_is_looked_up_again(
    ledger: Ledger, topic: Topic
) -> None:
    (dead,) = add_topics(ledger, "dead")
    made = add(ledger, config=DEAD_LETTERS)
    assert made.dead_letter_id == dead.topic_id
    add_topics(ledger, "other")
    ledger.write(subscriptions.alter, "orders", "s", {"dead_letter_topic": "other"})
    ledger.write(topics.delete, "dead", 6)
    (another,) = add_topics(ledger, "dead")
    again = ledger.write(subscriptions.alter, "orders", "s", {"dead_letter_topic": "dead"})
    assert again.dead_letter_id == another.topic_id != dead.topic_id


def test_a_topic_that_takes_dead_letters_is_deleted_only_by_force(
    ledger: Ledger, topic: Topic
) -> None:
    add_topics(ledger, "dead", "third")
    for name, source in (("b", "orders"), ("a", "third")):
        add(ledger, name, topic=source, config=DEAD_LETTERS)
    add(ledger, "gone", topic="third", config=DEAD_LETTERS)
    ledger.write(subscriptions.delete, "third", "gone", 6)
    with pytest.raises(TopicHoldsDeadLetters, match="of b of orders, a of third, which") as refused:
        ledger.write(topics.delete, "dead", 6)
    assert refused.value.subscriptions == ["b of orders", "a of third"]
    ledger.write(topics.delete, "third", 6)
    with pytest.raises(TopicHoldsDeadLetters, match="of b of orders, which"):
        ledger.write(topics.delete, "dead", 6)
    assert ledger.write(topics.delete, "dead", 6, force=True).deleted_ms == 6


def test_a_topic_that_is_created_again_takes_the_dead_letters_of_the_former_one(
    ledger: Ledger, topic: Topic
) -> None:
    add_topics(ledger, "dead")
    add(ledger, config=DEAD_LETTERS)
    number = ledger.read(changes.latest)
    for _ in range(2):
        ledger.write(topics.delete, "dead", 6, force=True)
        view = ledger.read(subscriptions.view, topic.topic_id, "s")
        assert view is not None and view.dead_letter is not None
        assert view.dead_letter.deleted_ms == 6
        add_topics(ledger, "another")
        (again,) = add_topics(ledger, "dead")
        view = ledger.read(subscriptions.view, topic.topic_id, "s")
        assert view is not None and view.dead_letter == again
    _, changed = ledger.read(subscriptions.changed, number)
    assert [each.dead_letter_id for each, _ in changed] == [again.topic_id]
    with pytest.raises(RouterCycle, match="dead -> orders -> dead;"):
        ledger.write(routers.create, "r", "dead", "orders", NO_FILTER, "now", True, 5)


def test_a_topic_that_a_recovery_restores_takes_the_dead_letters_of_the_former_one(
    ledger: Ledger, topic: Topic
) -> None:
    add_topics(ledger, "dead")
    add(ledger, config=DEAD_LETTERS)
    ledger.write(topics.delete, "dead", 6, force=True)
    ledger.write(topics.restore, 99, "dead", TopicConfig(), 7)
    view = ledger.read(subscriptions.view, topic.topic_id, "s")
    assert view is not None and view.dead_letter is not None
    assert (view.dead_letter.topic_id, view.dead_letter.deleted_ms) == (99, None)


def test_dead_letters_and_routers_close_no_cycle_together(ledger: Ledger, topic: Topic) -> None:
    add_topics(ledger, "dead", "third")
    with pytest.raises(DeadLetterCycle, match="orders -> orders;"):
        add(ledger, config=SubscriptionConfig(dead_letter_topic="orders"))
    add(ledger, config=SubscriptionConfig(dead_letter_topic="dead"))
    create = routers.create
    with pytest.raises(RouterCycle, match="dead -> orders -> dead;"):
        ledger.write(create, "r", "dead", "orders", NO_FILTER, "now", True, 5)
    ledger.write(create, "r", "dead", "third", NO_FILTER, "now", True, 5)
    with pytest.raises(DeadLetterCycle, match="third -> orders -> dead -> third;"):
        add(ledger, topic="third", config=SubscriptionConfig(dead_letter_topic="orders"))
    ledger.write(subscriptions.delete, "orders", "s", 6)
    add(ledger, topic="third", config=SubscriptionConfig(dead_letter_topic="orders"))


def test_a_deleted_subscription_frees_its_name_and_slot_and_its_cursor_ends(
    ledger: Ledger, topic: Topic
) -> None:
    fill(ledger, 1, topic, 5, 3)
    made, other = add(ledger), add(ledger, "t")
    assert (made.slot, other.slot) == (0, 1)
    assert ledger.write(subscriptions.delete, "orders", "s", 6).deleted_ms == 6
    with pytest.raises(SubscriptionMissing):
        ledger.write(subscriptions.delete, "orders", "s", 6)
    assert ledger.read(cursors.positions, made.cursor_id) == []
    again = add(ledger)
    assert (again.subscription_id, again.slot) == (3, 0)
    assert again.cursor_id > other.cursor_id


def test_the_subscriptions_of_a_topic_are_deleted_with_it(ledger: Ledger, topic: Topic) -> None:
    add_topics(ledger, "other")
    made, stays = add(ledger), add(ledger, topic="other")
    ledger.write(topics.delete, "orders", 9)
    _, (view,) = ledger.read(subscriptions.owned, 0, 1, also=[made.subscription_id, 77], after=99)
    assert view.subscription.deleted_ms == 9
    assert [view.subscription for view in ledger.read(subscriptions.all_views)] == [stays]
    assert ledger.read(progress.state_of, made.subscription_id) is None


def test_there_are_at_most_as_many_as_have_a_place_in_the_segment(
    ledger: Ledger, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_MAX", 2)
    add(ledger, "a")
    add(ledger, "b")
    with pytest.raises(SubscriptionsFull, match="there are 2 subscriptions, which is the limit"):
        add(ledger, "c")
    ledger.write(subscriptions.delete, "orders", "a", 6)
    assert add(ledger, "c").slot == 0


def test_lists_are_by_topic_and_name_a_page_at_a_time(ledger: Ledger, topic: Topic) -> None:
    add_topics(ledger, "other")
    for name in ("b", "a", "c"):
        add(ledger, name)
    elsewhere = add(ledger, "a", topic="other")
    page = ledger.read(subscriptions.page, topic.topic_id, "a", 1)
    assert [each.name for each in page] == ["b"]
    views = ledger.read(subscriptions.views, topic.topic_id)
    assert [view.subscription.name for view in views] == ["a", "b", "c"]
    (last,) = ledger.read(subscriptions.all_views, 3)
    assert (last.topic.name, last.subscription) == ("other", elsewhere)
    assert len(ledger.read(subscriptions.all_views, 0, 2)) == 2


def test_each_shard_hears_of_its_own_changes_and_a_flush_is_none(
    ledger: Ledger, topic: Topic
) -> None:
    made = [add(ledger, name) for name in ("a", "b", "c", "d")]
    change, views = ledger.read(subscriptions.owned, 1, 2)
    assert [view.subscription.name for view in views] == ["a", "c"]
    ledger.write(
        progress.flush, [progress.SubscriptionFlush(1, made[0].generation, 9, [(0, 0)], [])]
    )
    later, views = ledger.read(subscriptions.owned, 1, 2, change)
    assert views == [] and later >= change
    ledger.write(subscriptions.alter, "orders", "c", {"paused": True})
    ledger.write(subscriptions.delete, "orders", "d", 6)
    _, views = ledger.read(subscriptions.owned, 1, 2, later)
    assert [view.subscription.name for view in views] == ["c"]
    _, views = ledger.read(subscriptions.owned, 0, 2, later)
    assert [view.subscription.deleted_ms for view in views] == [6]


def test_new_partitions_are_told_with_the_heads_of_the_older_ones_until_these_are_passed(
    ledger: Ledger, topic: Topic
) -> None:
    fill(ledger, 1, topic, 5, 3)
    made = add(ledger, start="earliest")
    ledger.write(topics.grow, topic, 4)
    fill(ledger, 2, topic, 1, 0, 2, 0)
    late = add(ledger, "late")

    def growth(name: str) -> list[PartitionGrowth]:
        view = ledger.read(subscriptions.view, topic.topic_id, name)
        assert view is not None
        return view.growth

    assert growth("s") == [PartitionGrowth(2, [5, 3])]
    assert growth("late") == []
    generation = made.generation
    flush = progress.SubscriptionFlush(made.subscription_id, generation, 1, [(0, 5), (1, 3)], [])
    assert ledger.write(progress.flush, [flush]) == set()
    assert growth("s") == []
    assert floors(ledger, late) == [6, 3, 2, 0]
    ledger.write(topics.grow, topic, 5)
    assert growth("late") == [] and growth("s") == [PartitionGrowth(4, [6, 3, 2, 0])]


def test_a_seek_gives_another_generation_with_other_floors_and_nothing_finished_after_them(
    ledger: Ledger, topic: Topic
) -> None:
    fill(ledger, 1, topic, 9, 9)
    made = add(ledger)
    sought = ledger.write(subscriptions.seek, made.subscription_id, {0: 4}, 7)
    assert sought is not None and sought.generation > made.generation
    assert floors(ledger, sought) == [4, 9]
    assert ledger.read(subscriptions.find, topic.topic_id, "s") == sought
    cursor = ledger.read(cursors.find, f"subscription/{topic.topic_id}/s")
    assert cursor is not None and cursor.cursor_id == sought.generation
    ledger.write(subscriptions.delete, "orders", "s", 8)
    assert ledger.write(subscriptions.seek, made.subscription_id, {0: 4}, 9) is None


def test_the_owners_log_carries_subscriptions_and_only_those_that_changed(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    fill(ledger, 1, topic, 9, 9)
    made, gone = add(ledger), add(ledger, "t", "earliest")
    ledger.write(topics.grow, topic, 3)
    mark, first = ledger.read(backup.changes_since, backup.Mark())
    ledger.write(subscriptions.alter, "orders", "s", {"paused": True})
    ledger.write(subscriptions.seek, made.subscription_id, {0: 4}, 7)
    ledger.write(subscriptions.delete, "orders", "t", 8)
    again = add(ledger, "t")
    mark, second = ledger.read(backup.changes_since, mark)
    assert [row[0] for row in second.rows["subscriptions"]] == [1, 2, 3]
    assert "partition_growth" not in second.rows
    _, third = ledger.read(backup.changes_since, mark)
    assert "subscriptions" not in third.rows
    with closing(Ledger(tmp_path / "copy.db", nullcontext())) as copy:
        for each in (first, second, first, second):
            copy.write(backup.apply, each)
        assert copy.read(subscriptions.all_views) == ledger.read(subscriptions.all_views)
        for living in (made, again):
            assert copy.read(subscriptions.view, topic.topic_id, living.name) == ledger.read(
                subscriptions.view, topic.topic_id, living.name
            )
        assert copy.read(cursors.positions, gone.cursor_id) == []
        assert copy.read(topics.growth, topic.topic_id) == [(2, [9, 9])]
