"""Each message about topics in each version that is served, compared with kio."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from kio.index import load_request_schema

from daemon.kafka.admin import messages
from daemon.kafka.admin.messages import (
    ChangedTopic,
    ConfigSaid,
    ConfigsAsked,
    ConfigsSaid,
    MorePartitions,
    NewTopic,
)
from tests.daemon.kafka.frames import Key
from tests.daemon.kafka.test_messages import asked, made, nested, read, versions

TIMEOUT = timedelta(milliseconds=5_000)
ID = uuid.UUID(int=77)


@pytest.mark.parametrize(("key", "version"), versions(Key.CREATE_TOPICS))
def test_create_topics(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    topic = nested(schema, "topics")
    assignment, config = nested(topic, "assignments"), nested(topic, "configs")
    request = asked(
        key, version, timeout=TIMEOUT, validate_only=True,
        topics=(
            topic(name="a", num_partitions=3, replication_factor=1, assignments=(),
                  configs=(config(name="x", value="1"), config(name="y", value=None))),
            topic(name="b", num_partitions=-1, replication_factor=-1, configs=(),
                  assignments=(assignment(partition_index=0, broker_ids=(1, 2)),)),
        ),
    )  # fmt: skip
    found = messages.read_create_topics(request)
    assert found == (
        [NewTopic("a", 3, 1, False, [("x", "1"), ("y", None)]), NewTopic("b", -1, -1, True, [])],
        5_000, True,
    )  # fmt: skip
    said = [
        ChangedTopic("a", 0, None, ID, 3, [ConfigSaid("x", "1", True, 5, 2)]),
        ChangedTopic("b", 37, "why"),
    ]
    first, second = read(key, version, messages.created_topics(request.head(), said)).topics
    assert (first.name, first.error_code.value, first.error_message) == ("a", 0, None)
    assert (second.name, second.error_code.value, second.error_message) == ("b", 37, "why")
    if version >= 5:
        assert (first.num_partitions, first.replication_factor) == (3, 1)
        assert (second.num_partitions, second.replication_factor) == (-1, -1)
        (config_said,) = first.configs
        assert (config_said.name, config_said.value, config_said.read_only) == ("x", "1", True)
        assert config_said.config_source == 5
    if version >= 7:
        assert first.topic_id == ID


@pytest.mark.parametrize(("key", "version"), versions(Key.DELETE_TOPICS))
def test_delete_topics(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    if version >= 6:
        topic = nested(schema, "topics")
        request = asked(
            key, version, timeout=TIMEOUT,
            topics=(topic(name="a", topic_id=None), topic(name=None, topic_id=ID)),
        )  # fmt: skip
        expected = [("a", uuid.UUID(int=0)), (None, ID)]
    else:
        request = asked(key, version, timeout=TIMEOUT, topic_names=("a", "b", "a"))
        expected = [("a", uuid.UUID(int=0)), ("b", uuid.UUID(int=0))]
    assert messages.read_delete_topics(request) == (expected, 5_000)
    said = [ChangedTopic("a", 0, None, ID), ChangedTopic(None, 100, "why", ID)]
    first, second = read(key, version, messages.deleted_topics(request.head(), said)).responses
    assert (first.name, first.error_code.value, second.error_code.value) == ("a", 0, 100)
    if version >= 5:
        assert second.error_message == "why"
    if version >= 6:
        assert (second.name, second.topic_id) == (None, ID)


@pytest.mark.parametrize(("key", "version"), versions(Key.CREATE_PARTITIONS))
def test_create_partitions(key: int, version: int) -> None:
    topic = nested(load_request_schema(key, version), "topics")
    assignment = nested(topic, "assignments")
    request = asked(
        key, version, timeout=TIMEOUT, validate_only=False,
        topics=(
            topic(name="a", count=3, assignments=None),
            topic(name="b", count=4, assignments=(assignment(broker_ids=(1,)),)),
        ),
    )  # fmt: skip
    assert messages.read_create_partitions(request) == (
        [MorePartitions("a", 3, False), MorePartitions("b", 4, True)], 5_000, False,
    )  # fmt: skip
    said = [ChangedTopic("a"), ChangedTopic("b", 39, "why")]
    first, second = read(key, version, messages.created_partitions(request.head(), said)).results
    assert (first.name, first.error_code.value, first.error_message) == ("a", 0, None)
    assert (second.name, second.error_code.value, second.error_message) == ("b", 39, "why")


@pytest.mark.parametrize(("key", "version"), versions(Key.DESCRIBE_CONFIGS))
def test_describe_configs(key: int, version: int) -> None:
    resource = nested(load_request_schema(key, version), "resources")
    request = asked(
        key, version, include_synonyms=True, include_documentation=True,
        resources=(
            made(resource, resource_type=2, resource_name="a", configuration_keys=None),
            made(resource, resource_type=4, resource_name="0", configuration_keys=("x", "y")),
        ),
    )  # fmt: skip
    found = messages.read_describe_configs(request)
    assert found == [ConfigsAsked(2, "a", []), ConfigsAsked(4, "0", ["x", "y"])]
    said = [
        ConfigsSaid(found[0], [ConfigSaid("x", "1", False, 1, 5)]),
        ConfigsSaid(found[1], (), 42, "why"),
    ]
    first, second = read(key, version, messages.described_configs(request.head(), said)).results
    (one,) = first.configs
    assert (one.name, one.value, one.read_only, one.config_source) == ("x", "1", False, 1)
    if version >= 3:
        assert one.config_type == 5
    assert (first.resource_type, first.resource_name, first.error_code.value) == (2, "a", 0)
    assert (second.error_code.value, second.error_message) == (42, "why")


def test_settings_that_are_asked_for_twice_are_told_once() -> None:
    resource = nested(load_request_schema(Key.DESCRIBE_CONFIGS, 1), "resources")
    wanted = [(2, "a", ("y", "x", "y")), (4, "a", ("x",)), (2, "a", ("z", "x")),
              (2, "b", ("x",)), (2, "b", None), (2, "b", ("x",))]  # fmt: skip
    resources = tuple(
        resource(resource_type=kind, resource_name=name, configuration_keys=names)
        for kind, name, names in wanted
    )
    request = asked(Key.DESCRIBE_CONFIGS, 1, include_synonyms=False, resources=resources)
    assert messages.read_describe_configs(request) == [
        ConfigsAsked(2, "a", ["y", "x", "z"]), ConfigsAsked(4, "a", ["x"]),
        ConfigsAsked(2, "b", []),
    ]  # fmt: skip
