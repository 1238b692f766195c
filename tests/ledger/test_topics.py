"""Topics: create, alter, delete, list, and the catalog's version."""

from __future__ import annotations

import pytest

from ledger import reads, topics
from ledger.errors import PartitionsRefused, TopicMissing
from ledger.ledger import Ledger
from ledger.types import PartitionState, Topic, TopicConfig


def test_a_topic_has_all_its_partitions_empty_from_the_start(ledger: Ledger, topic: Topic) -> None:
    assert ledger.read(topics.find, "orders") == topic
    assert ledger.read(reads.partition_states, topic.topic_id) == [
        PartitionState(partition, 0, 1, 1, 0, 0) for partition in (0, 1)
    ]


def test_creating_a_topic_again_returns_the_first_unchanged(ledger: Ledger, topic: Topic) -> None:
    version = ledger.read(topics.catalog_version)
    again = ledger.write(topics.create, "orders", TopicConfig(partitions=9), 7)
    assert again == (topic, False)
    assert ledger.read(topics.catalog_version) == version


def test_a_configuration_survives_with_all_its_fields(ledger: Ledger) -> None:
    config = TopicConfig(3, {"price": "double"}, 2, False, True, 10, 20, 30, "reject")
    ledger.write(topics.create, "full", config, 1)
    found = ledger.read(topics.find, "full")
    assert found is not None
    assert found.config == config


def test_partitions_grow_and_keep_what_they_hold(ledger: Ledger, topic: Topic) -> None:
    altered = ledger.write(topics.alter, "orders", TopicConfig(partitions=4))
    assert altered.topic_id == topic.topic_id
    assert [state.partition for state in ledger.read(reads.partition_states, topic.topic_id)] == [
        0,
        1,
        2,
        3,
    ]
    assert ledger.read(topics.by_id, topic.topic_id) == altered


def test_partitions_never_shrink_and_the_refusal_names_both_numbers(
    ledger: Ledger, topic: Topic
) -> None:
    with pytest.raises(PartitionsRefused, match="has 2 partitions and cannot shrink to 1"):
        ledger.write(topics.alter, "orders", TopicConfig(partitions=1))
    assert ledger.read(topics.find, "orders") == topic


@pytest.mark.parametrize("partitions", [0, -1, 1_001])
def test_a_number_of_partitions_outside_the_limits_is_refused(
    ledger: Ledger, partitions: int
) -> None:
    with pytest.raises(PartitionsRefused, match=str(partitions)):
        ledger.write(topics.create, "odd", TopicConfig(partitions=partitions), 1)
    assert ledger.read(topics.find, "odd") is None


def test_a_deleted_topic_is_found_by_its_id_only_and_its_id_is_never_given_again(
    ledger: Ledger, topic: Topic
) -> None:
    deleted = ledger.write(topics.delete, "orders", 9)
    assert deleted.deleted_ms == 9
    assert ledger.read(topics.find, "orders") is None
    assert ledger.read(topics.page) == []
    assert ledger.read(topics.by_id, topic.topic_id) == deleted
    again, created = ledger.write(topics.create, "orders", TopicConfig(), 10)
    assert created
    assert again.topic_id != topic.topic_id
    assert ledger.read(topics.find, "orders") == again


def test_what_is_not_there_is_said_by_name(ledger: Ledger) -> None:
    assert ledger.read(topics.by_id, 77) is None
    with pytest.raises(TopicMissing, match="'nowhere'"):
        ledger.write(topics.delete, "nowhere", 1)
    with pytest.raises(TopicMissing, match="'nowhere'"):
        ledger.write(topics.alter, "nowhere", TopicConfig())


def test_topics_are_listed_by_name_in_pages(ledger: Ledger) -> None:
    for name in ("b", "d", "a", "c"):
        ledger.write(topics.create, name, TopicConfig(), 1)
    assert [topic.name for topic in ledger.read(topics.page, "", 3)] == ["a", "b", "c"]
    assert [topic.name for topic in ledger.read(topics.page, "c", 3)] == ["d"]


def test_the_catalog_version_is_another_after_each_change(ledger: Ledger) -> None:
    versions = [ledger.read(topics.catalog_version)]
    for change in (
        lambda: ledger.write(topics.create, "a", TopicConfig(), 1),
        lambda: ledger.write(topics.alter, "a", TopicConfig(partitions=2)),
        lambda: ledger.write(topics.delete, "a", 2),
    ):
        change()
        versions.append(ledger.read(topics.catalog_version))
    assert len(set(versions)) == 4
