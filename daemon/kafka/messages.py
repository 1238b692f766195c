"""The requests and answers of each key, for all versions that are served, as plain values.

Fields that mean nothing here are passed over in requests and have Kafka's default in answers. The
tests compare each with another implementation (tests/daemon/kafka/test_messages.py). A topic or
partition that is named twice is asked for once, except in a Produce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from daemon.kafka.wire import KafkaRequest, ServedVersions, WireReader, WireWriter

NO_OPERATIONS = -(1 << 31)


# ApiVersions


def api_versions(
    asked: KafkaRequest, served: Mapping[int, ServedVersions], error: int = 0
) -> bytearray:
    """The keys and versions that are served. The head never has tags: who asks does not know yet
    which versions there are."""
    answer = WireWriter(flexible=asked.body.flexible)
    answer.int32(asked.correlation)
    answer.int16(error)

    def one(each: tuple[int, ServedVersions]) -> None:
        key, versions = each
        answer.int16(key)
        answer.int16(versions.oldest if versions.told_from is None else versions.told_from)
        answer.int16(versions.newest)

    answer.structs(served.items(), one)
    if asked.version >= 1:
        answer.int32(asked.throttle_ms)
    return answer.end()


# Metadata


class MetadataAsked(NamedTuple):
    """Topics by name or id; None asks for all."""

    topics: list[tuple[str | None, UUID]] | None
    may_create: bool


class Broker(NamedTuple):
    """A shard, as clients reach it."""

    node: int
    host: str
    port: int


class TopicSaid(NamedTuple):
    """A topic, with the leader of each partition; or an error."""

    error: int
    name: str | None
    id: UUID
    leaders: Sequence[int] = ()


NO_ID = UUID(int=0)


def read_metadata(asked: KafkaRequest) -> MetadataAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version

    def topic(reader: WireReader) -> tuple[str | None, UUID]:
        topic_id = UUID(bytes=reader.take(16)) if version >= 10 else NO_ID
        return reader.string(), topic_id

    topics = body.structs(topic)
    if version == 0 and not topics:
        topics = None
    if topics is not None:
        topics = list(dict.fromkeys(topics))
    return MetadataAsked(topics, version < 4 or bool(body.int8()))


def metadata(
    asked: KafkaRequest, brokers: Sequence[Broker], cluster: str, topics: Iterable[TopicSaid]
) -> bytearray:
    """The answer that names brokers and topics."""
    version, answer = asked.version, asked.throttled(3)
    nodes = [broker.node for broker in brokers]

    def broker(each: Broker) -> None:
        answer.int32(each.node)
        answer.string(each.host)
        answer.int32(each.port)
        if version >= 1:
            answer.string(None)  # rack

    def partition(numbered: tuple[int, int]) -> None:
        number, leader = numbered
        answer.int16(0)
        answer.int32(number)
        answer.int32(leader)
        if version >= 7:
            answer.int32(-1)  # leader's epoch: nobody asks for its end then
        answer.array([leader], answer.int32)  # replicas
        answer.array([leader], answer.int32)  # in sync
        if version >= 5:
            answer.array([], answer.int32)

    def topic(each: TopicSaid) -> None:
        answer.int16(each.error)
        answer.string(each.name if version >= 12 else each.name or "")
        if version >= 10:
            answer.data += each.id.bytes
        if version >= 1:
            answer.int8(0)
        answer.structs(enumerate(each.leaders), partition)
        if version >= 8:
            answer.int32(NO_OPERATIONS)

    answer.structs(brokers, broker)
    if version >= 2:
        answer.string(cluster)
    if version >= 1:
        answer.int32(nodes[0])  # the controller
    answer.structs(topics, topic)
    if 8 <= version <= 10:
        answer.int32(NO_OPERATIONS)
    if version >= 13:
        answer.int16(0)
    return answer.end()


# Produce


class ProduceAsked(NamedTuple):
    """``topics``: (name, [(partition, batch)])."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, bytes | None]]]]


class ProducedBatch(NamedTuple):
    """What became of one batch."""

    error: int
    base_offset: int = -1
    message: str | None = None


def read_produce(asked: KafkaRequest) -> ProduceAsked:
    """Raises Malformed."""
    body = asked.body

    def partition(reader: WireReader) -> tuple[int, bytes | None]:
        number, batch = reader.int32(), reader.blob()
        reader.tags()
        return number, batch

    def topic(reader: WireReader) -> tuple[str, list[tuple[int, bytes | None]]]:
        name = reader.name()
        partitions = reader.array(partition) or []
        reader.tags()
        return name, partitions

    transactional_id, acks, timeout_ms = body.string(), body.int16(), body.int32()
    return ProduceAsked(transactional_id, acks, timeout_ms, body.array(topic) or [])


def produced(
    asked: KafkaRequest, topics: Iterable[tuple[str, list[tuple[int, ProducedBatch]]]]
) -> bytearray:
    """The answer with what became of each batch."""
    version, answer = asked.version, asked.answer()

    def partition(numbered: tuple[int, ProducedBatch]) -> None:
        number, each = numbered
        answer.int32(number)
        answer.int16(each.error)
        answer.int64(each.base_offset)
        answer.int64(-1)  # the records have their own times
        if version >= 5:
            answer.int64(-1 if each.error else 0)
        if version >= 8:
            answer.array([], answer.int32)
            answer.string(each.message)
        answer.tags()

    def topic(named: tuple[str, list[tuple[int, ProducedBatch]]]) -> None:
        answer.string(named[0])
        answer.array(named[1], partition)
        answer.tags()

    answer.array(topics, topic)
    answer.int32(asked.throttle_ms)
    answer.tags()
    return answer.data


# InitProducerId


def read_init_producer_id(asked: KafkaRequest) -> str | None:
    """The transactional id. Raises Malformed."""
    return asked.body.string()


def init_producer_id(asked: KafkaRequest, error: int, producer_id: int) -> bytearray:
    """A new producer has the epoch 0."""
    answer = asked.throttled()
    answer.int16(error)
    answer.int64(-1 if error else producer_id)
    answer.int16(-1 if error else 0)
    return answer.end()


# ListOffsets


OffsetsAsked = list[tuple[str, list[tuple[int, int]]]]


def read_list_offsets(asked: KafkaRequest) -> OffsetsAsked:
    """Topics with (partition, time). Raises Malformed."""
    body, version = asked.body, asked.version

    def partition(reader: WireReader) -> tuple[int, int]:
        number = reader.int32()
        if version >= 4:
            reader.int32()
        return number, reader.int64()

    body.int32()  # replica
    if version >= 2:
        body.int8()  # isolation
    once: dict[str, dict[int, int]] = {}
    for name, places in body.topics(partition) or ():
        known = once.setdefault(name, {})
        for number, time in places:
            known.setdefault(number, time)
    return [(name, list(known.items())) for name, known in once.items()]


class OffsetSaid(NamedTuple):
    """The first offset that is not before a time, and its time."""

    error: int
    ts_ms: int = -1
    offset: int = -1


def listed_offsets(
    asked: KafkaRequest, topics: Iterable[tuple[str, list[tuple[int, OffsetSaid]]]]
) -> bytearray:
    """The answer with an offset of each partition."""
    version, answer = asked.version, asked.throttled(2)

    def partition(numbered: tuple[int, OffsetSaid]) -> None:
        number, each = numbered
        answer.int32(number)
        answer.int16(each.error)
        answer.int64(each.ts_ms)
        answer.int64(each.offset)
        if version >= 4:
            answer.int32(-1)

    answer.topics(topics, partition)
    return answer.end()


# Fetch


class FetchPlace(NamedTuple):
    """A partition, and where to read on."""

    partition: int
    offset: int
    bytes_max: int


class FetchTopic(NamedTuple):
    """A topic by its name, or from version 13 by its id."""

    name: str | None
    id: UUID
    places: list[FetchPlace]


class FetchAsked(NamedTuple):
    """What to read, how much, and how long to wait for ``bytes_min``."""

    wait_ms: int
    bytes_min: int
    bytes_max: int
    session_id: int
    topics: list[FetchTopic]


class FetchedPartition(NamedTuple):
    """What is read of one partition."""

    partition: int
    error: int
    head: int = -1
    earliest: int = -1
    records: bytes = b""


def read_fetch(asked: KafkaRequest) -> FetchAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version

    def place(reader: WireReader) -> FetchPlace:
        number = reader.int32()
        if version >= 9:
            reader.int32()  # leader's epoch
        offset = reader.int64()
        if version >= 12:
            reader.int32()
        if version >= 5:
            reader.int64()
        return FetchPlace(number, offset, reader.int32())

    def topic(reader: WireReader) -> FetchTopic:
        topic_id = UUID(bytes=reader.take(16)) if version >= 13 else NO_ID
        name = None if version >= 13 else reader.name()
        return FetchTopic(name, topic_id, reader.structs(place) or [])

    if version <= 14:
        body.int32()  # replica
    wait_ms, bytes_min, bytes_max = body.int32(), body.int32(), body.int32()
    body.int8()  # isolation
    session_id = 0
    if version >= 7:
        session_id = body.int32()
        body.int32()
    once: dict[tuple[str | None, UUID], dict[int, FetchPlace]] = {}
    for name, topic_id, places in body.structs(topic) or ():
        known = once.setdefault((name, topic_id), {})
        for each in places:
            known.setdefault(each.partition, each)
    topics = [FetchTopic(*named, list(known.values())) for named, known in once.items()]
    return FetchAsked(wait_ms, bytes_min, bytes_max, session_id, topics)


def fetched(
    asked: KafkaRequest, error: int, topics: Iterable[tuple[FetchTopic, list[FetchedPartition]]]
) -> bytearray:
    """Session id 0: there are no sessions, so each request names all its partitions."""
    version, answer = asked.version, asked.throttled()

    def partition(each: FetchedPartition) -> None:
        answer.int32(each.partition)
        answer.int16(each.error)
        answer.int64(each.head)
        answer.int64(each.head)  # last stable
        if version >= 5:
            answer.int64(each.earliest)
        answer.array([], answer.int64)  # aborted transactions
        if version >= 11:
            answer.int32(-1)
        answer.blob(each.records)

    def topic(read: tuple[FetchTopic, list[FetchedPartition]]) -> None:
        if version >= 13:
            answer.data += read[0].id.bytes
        else:
            answer.string(read[0].name)
        answer.structs(read[1], partition)

    if version >= 7:
        answer.int16(error)
        answer.int32(0)
    answer.structs(topics, topic)
    return answer.end()
