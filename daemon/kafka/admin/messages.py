"""The requests about topics and their settings, and the answers, for all versions that are served.

As in ``daemon/kafka/messages.py``, and compared with the same other implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from daemon.kafka.messages import NO_ID
from daemon.kafka.wire import KafkaRequest, WireReader

ANY = -1  # of partitions and of copies: the broker chooses


class NewTopic(NamedTuple):
    """A topic to create. ``is_assigned``: whether its client says where partitions are to be."""

    name: str
    partitions: int
    copies: int
    is_assigned: bool
    configs: list[tuple[str, str | None]]


class CreateAsked(NamedTuple):
    """Topics to create, or only to check."""

    topics: list[NewTopic]
    timeout_ms: int
    only_check: bool


class ConfigSaid(NamedTuple):
    """A setting as it is. ``source`` and ``kind`` are Kafka's numbers."""

    name: str
    value: str
    is_fixed: bool
    source: int
    kind: int


class ChangedTopic(NamedTuple):
    """What became of one topic of a request; one that was created has its settings."""

    name: str | None
    error: int = 0
    message: str | None = None
    id: UUID = NO_ID
    partitions: int = ANY
    configs: Sequence[ConfigSaid] = ()


# CreateTopics


def read_create_topics(asked: KafkaRequest) -> CreateAsked:
    """Raises Malformed."""
    body = asked.body

    def assignment(reader: WireReader) -> None:
        reader.int32()
        reader.array(WireReader.int32)

    def config(reader: WireReader) -> tuple[str, str | None]:
        return reader.name(), reader.string()

    def topic(reader: WireReader) -> NewTopic:
        name, partitions, copies = reader.name(), reader.int32(), reader.int16()
        assigned = bool(reader.structs(assignment))
        return NewTopic(name, partitions, copies, assigned, reader.structs(config) or [])

    return CreateAsked(body.structs(topic) or [], body.int32(), bool(body.int8()))


def created_topics(asked: KafkaRequest, topics: Iterable[ChangedTopic]) -> bytearray:
    """The answer with what became of each."""
    version, answer = asked.version, asked.throttled()

    def config(each: ConfigSaid) -> None:
        answer.string(each.name)
        answer.string(each.value)
        answer.int8(each.is_fixed)
        answer.int8(each.source)
        answer.int8(0)  # it is not secret

    def topic(each: ChangedTopic) -> None:
        answer.string(each.name)
        if version >= 7:
            answer.data += each.id.bytes
        answer.int16(each.error)
        answer.string(each.message)
        if version >= 5:
            answer.int32(each.partitions)
            answer.int16(ANY if each.error else 1)
            answer.structs(each.configs, config)

    answer.structs(topics, topic)
    return answer.end()


# DeleteTopics


class DeleteAsked(NamedTuple):
    """Topics to delete, by name, or from version 6 also by id."""

    topics: list[tuple[str | None, UUID]]
    timeout_ms: int


def read_delete_topics(asked: KafkaRequest) -> DeleteAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version

    def topic(reader: WireReader) -> tuple[str | None, UUID]:
        if version < 6:
            return reader.name(), NO_ID
        return reader.string(), UUID(bytes=reader.take(16))

    # Before version 6 they are names, which have no tags.
    topics = (body.array(topic) if version < 6 else body.structs(topic)) or []
    return DeleteAsked(list(dict.fromkeys(topics)), body.int32())


def deleted_topics(asked: KafkaRequest, topics: Iterable[ChangedTopic]) -> bytearray:
    """The answer with what became of each."""
    version, answer = asked.version, asked.throttled()

    def topic(each: ChangedTopic) -> None:
        answer.string(each.name if version >= 6 else each.name or "")
        if version >= 6:
            answer.data += each.id.bytes
        answer.int16(each.error)
        if version >= 5:
            answer.string(each.message)

    answer.structs(topics, topic)
    return answer.end()


# CreatePartitions


class MorePartitions(NamedTuple):
    """How many partitions a topic is to have. ``is_assigned``: as of a NewTopic."""

    name: str
    partitions: int
    is_assigned: bool


class GrowAsked(NamedTuple):
    """Topics to give more partitions, or only to check."""

    topics: list[MorePartitions]
    timeout_ms: int
    only_check: bool


def read_create_partitions(asked: KafkaRequest) -> GrowAsked:
    """Raises Malformed."""
    body = asked.body

    def assignment(reader: WireReader) -> None:
        reader.array(WireReader.int32)

    def topic(reader: WireReader) -> MorePartitions:
        return MorePartitions(reader.name(), reader.int32(), bool(reader.structs(assignment)))

    return GrowAsked(body.structs(topic) or [], body.int32(), bool(body.int8()))


def created_partitions(asked: KafkaRequest, topics: Iterable[ChangedTopic]) -> bytearray:
    """The answer with what became of each."""
    answer = asked.throttled()

    def topic(each: ChangedTopic) -> None:
        answer.string(each.name)
        answer.int16(each.error)
        answer.string(each.message)

    answer.structs(topics, topic)
    return answer.end()


# DescribeConfigs


class ConfigsAsked(NamedTuple):
    """A topic or a broker, by Kafka's number of its kind; without names all its settings."""

    kind: int
    name: str
    names: list[str]


class ConfigsSaid(NamedTuple):
    """The settings of one, or why they are not told."""

    asked: ConfigsAsked
    configs: Sequence[ConfigSaid] = ()
    error: int = 0
    message: str | None = None


def read_describe_configs(asked: KafkaRequest) -> list[ConfigsAsked]:
    """A resource that is named twice gets the settings that either mention asks for. Raises
    Malformed."""

    def resource(reader: WireReader) -> ConfigsAsked:
        kind, name, names = reader.int8(), reader.name(), reader.array(WireReader.name)
        return ConfigsAsked(kind, name, names or [])

    once: dict[tuple[int, str], dict[str, None]] = {}
    for kind, name, names in asked.body.structs(resource) or ():
        wanted = dict.fromkeys(names)
        known = once.setdefault((kind, name), wanted)
        if known and wanted:
            known.update(wanted)
        else:
            known.clear()
    # Whether synonyms and documentation are wanted follows: there are none.
    return [ConfigsAsked(kind, name, list(names)) for (kind, name), names in once.items()]


def described_configs(asked: KafkaRequest, said: Iterable[ConfigsSaid]) -> bytearray:
    """The answer with the settings of each."""
    version, answer = asked.version, asked.throttled()

    def config(each: ConfigSaid) -> None:
        answer.string(each.name)
        answer.string(each.value)
        answer.int8(each.is_fixed)
        answer.int8(each.source)
        answer.int8(0)
        answer.array([], answer.int8)  # synonyms
        if version >= 3:
            answer.int8(each.kind)
            answer.string(None)

    def resource(each: ConfigsSaid) -> None:
        answer.int16(each.error)
        answer.string(each.message)
        answer.int8(each.asked.kind)
        answer.string(each.asked.name)
        answer.structs(each.configs, config)

    answer.structs(said, resource)
    return answer.end()
