"""Each message in each version that is served, compared with kio, which is made of Kafka's own."""

from __future__ import annotations

import io
import uuid
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, get_args

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from daemon.access.rights import EVERYTHING, Rights, unauthenticated
from daemon.kafka import error_codes, messages, sasl
from daemon.kafka.messages import (
    Broker,
    FetchedPartition,
    FetchTopic,
    OffsetSaid,
    ProducedBatch,
    TopicSaid,
)
from daemon.kafka.sasl import Exchange
from daemon.kafka.served import SERVED, read_request, said_versions
from daemon.kafka.wire import KafkaRequest
from tests.daemon.kafka.frames import Key

ID = uuid.UUID(int=77)


def versions(key: int) -> list[tuple[int, int]]:
    oldest, newest, *_ = SERVED[key].versions
    return [(key, version) for version in range(oldest, newest + 1)]


def made(schema: Any, **values: Any) -> Any:
    """An entity of this version, without the values that it does not have."""
    known = {each.name for each in fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in known})


def nested(schema: Any, name: str) -> Any:
    """The type of the elements of a field."""
    found = next(each.type for each in fields(schema) if each.name == name)
    module = __import__(schema.__module__, fromlist=["_"])
    if isinstance(found, str):
        found = eval(found, vars(module))
    while not (isinstance(found, type) and is_dataclass(found)):
        found = next(each for each in get_args(found) if each is not type(None))
    return found


def framed(key: int, version: int, entity: Any) -> bytes:
    """A request as a client sends it, without its length."""
    schema = type(entity)
    header_schema = schema.__header_schema__
    header = made(
        header_schema, request_api_key=key, request_api_version=version, correlation_id=9,
        client_id="me",
    )  # fmt: skip
    buffer = io.BytesIO()
    entity_writer(header_schema)(buffer, header)
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue()


def asked(key: int, version: int, /, **values: Any) -> KafkaRequest:
    request = read_request(framed(key, version, made(load_request_schema(key, version), **values)))
    assert (request.key, request.version, request.correlation) == (key, version, 9)
    return request


def empty(key: int, version: int) -> KafkaRequest:
    """A request of which only the head counts."""
    return read_request(
        key.to_bytes(2, "big") + version.to_bytes(2, "big") + (9).to_bytes(4, "big")
        + b"\xff\xff" + (b"\0" if version >= SERVED[key].versions.flexible_from else b"")
    )  # fmt: skip


def read(key: int, version: int, data: bytearray) -> Any:
    """What kio reads in an answer, after its head; it must be all of it."""
    schema = load_response_schema(key, version)
    header, at = entity_reader(schema.__header_schema__)(bytes(data), 0)
    assert header.correlation_id == 9
    found, size = entity_reader(schema)(bytes(data), at)
    assert at + size == len(data)
    return found


def test_error_codes_have_the_names_that_kafka_gives_them() -> None:
    codes = {name: code for name, code in vars(error_codes).items() if name.isupper()}
    assert len(codes) > 40
    assert {name: ErrorCode[name.lower()] for name in codes} == codes


@pytest.mark.parametrize(("key", "version"), versions(Key.API_VERSIONS))
def test_api_versions_says_what_is_served(key: int, version: int) -> None:
    found = read(key, version, said_versions(empty(key, version)))
    said = {each.api_key: (each.min_version, each.max_version) for each in found.api_keys}
    served = {key: (row.versions.oldest, row.versions.newest) for key, row in SERVED.items()}
    assert said == served | {Key.PRODUCE: (0, 11)}
    assert found.error_code.value == 0


@pytest.mark.parametrize(("key", "version"), versions(Key.METADATA))
@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_metadata_requests(key: int, version: int, names: list[str] | None) -> None:
    schema = load_request_schema(key, version)
    topic = nested(schema, "topics")
    topics = [made(topic, name=name, topic_id=None) for name in names or ()]
    wanted = None if names is None and version > 0 else tuple(topics)
    found = messages.read_metadata(
        asked(key, version, topics=wanted, allow_auto_topic_creation=False,
              include_cluster_authorized_operations=False,
              include_topic_authorized_operations=False)
    )  # fmt: skip
    assert (None if found.topics is None else [name for name, _ in found.topics]) == names
    assert found.may_create == (version < 4)


@pytest.mark.parametrize(("key", "version"), versions(Key.METADATA))
def test_metadata_answers(key: int, version: int) -> None:
    topics = [TopicSaid(0, "t", ID, [0, 1, 0]), TopicSaid(3, "none", messages.NO_ID)]
    brokers = [Broker(0, "h", 1), Broker(1, "h", 2)]
    found = read(key, version, messages.metadata(empty(key, version), brokers, "c", topics))
    assert [(b.node_id, b.host, b.port) for b in found.brokers] == brokers
    assert [(t.name, t.error_code.value) for t in found.topics] == [("t", 0), ("none", 3)]
    leaders = [(p.partition_index, p.leader_id) for p in found.topics[0].partitions]
    assert leaders == [(0, 0), (1, 1), (2, 0)]
    if version >= 10:
        assert found.topics[0].topic_id == ID
    if version >= 2:
        assert found.cluster_id == "c"


@pytest.mark.parametrize(("key", "version"), versions(Key.PRODUCE))
def test_produce(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    topic = nested(schema, "topic_data")
    partition = nested(topic, "partition_data")
    request = asked(
        key, version, transactional_id=None, acks=-1, timeout=timedelta(milliseconds=1500),
        topic_data=(topic(name="t", partition_data=(
            partition(index=3, records=b"batch"), partition(index=4, records=None))),),
    )  # fmt: skip
    found = messages.read_produce(request)
    assert found == (None, -1, 1500, [("t", [(3, b"batch"), (4, None)])])
    said = [("t", [(3, ProducedBatch(0, 41)), (4, ProducedBatch(87, message="why"))])]
    answer = read(key, version, messages.produced(request.head(), said))
    (stored, refused) = answer.responses[0].partition_responses
    assert (stored.index, stored.error_code.value, stored.base_offset) == (3, 0, 41)
    assert (refused.index, refused.error_code.value, refused.base_offset) == (4, 87, -1)
    if version >= 8:
        assert (stored.error_message, refused.error_message) == (None, "why")


@pytest.mark.parametrize(("key", "version"), versions(Key.LIST_OFFSETS))
def test_list_offsets(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    topic = nested(schema, "topics")
    place = made(nested(topic, "partitions"), partition_index=2, timestamp=-1)
    request = asked(key, version, replica_id=-1, isolation_level=0,
                    topics=(topic(name="t", partitions=(place,)),))  # fmt: skip
    assert messages.read_list_offsets(request) == [("t", [(2, -1)])]
    said = [("t", [(2, OffsetSaid(0, 5, 40))])]
    found = read(key, version, messages.listed_offsets(request, said)).topics[0].partitions[0]
    assert (found.partition_index, found.timestamp, found.offset) == (2, 5, 40)


@pytest.mark.parametrize(("key", "version"), versions(Key.FETCH))
def test_fetch(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    topic = nested(schema, "topics")
    place = made(
        nested(topic, "partitions"), partition=2, fetch_offset=40, partition_max_bytes=7,
        log_start_offset=-1,
    )  # fmt: skip
    request = asked(
        key, version, max_wait=timedelta(milliseconds=500), min_bytes=1, max_bytes=99,
        isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
        replica_id=-1,
        topics=(made(topic, topic="t", topic_id=ID, partitions=(place,)),),
    )  # fmt: skip
    found = messages.read_fetch(request)
    assert found[:4] == (500, 1, 99, 0)
    (one,) = found.topics
    assert one.places == [(2, 40, 7)]
    assert (one.name, one.id) == ((None, ID) if version >= 13 else ("t", messages.NO_ID))
    said = [(FetchTopic("t", ID, []), [FetchedPartition(2, 0, 50, 3, b"records")])]
    answer = read(key, version, messages.fetched(request, 0, said))
    (place,) = answer.responses[0].partitions
    assert (place.partition_index, place.high_watermark, place.records) == (2, 50, b"records")
    assert place.error_code.value == 0


def test_what_is_named_twice_is_asked_for_once() -> None:
    topic = b"\0\1t"
    head = b"\0\0\0\x09\xff\xff"
    two = (2).to_bytes(4, "big")
    metadata = read_request(b"\0\3\0\0" + head + two + topic * 2)
    assert messages.read_metadata(metadata).topics == [("t", messages.NO_ID)]
    place = bytes(4) + (5).to_bytes(8, "big")
    body = head + b"\xff" * 4 + two + (topic + two + place * 2) * 2
    assert messages.read_list_offsets(read_request(b"\0\2\0\1" + body)) == [("t", [(0, 5)])]
    place += (7).to_bytes(4, "big")
    body = head + b"\xff" * 4 + bytes(12) + b"\0" + two + (topic + two + place * 2) * 2
    (found,) = messages.read_fetch(read_request(b"\0\1\0\4" + body)).topics
    assert found == ("t", messages.NO_ID, [(0, 5, 7)])


@pytest.mark.parametrize(("key", "version"), versions(Key.INIT_PRODUCER_ID))
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_init_producer_id(key: int, version: int, transactional_id: str | None) -> None:
    request = asked(
        key, version, transactional_id=transactional_id,
        transaction_timeout=timedelta(milliseconds=5), producer_id=-1, producer_epoch=-1,
    )  # fmt: skip
    assert messages.read_init_producer_id(request) == transactional_id
    found = read(key, version, messages.init_producer_id(request.head(), 0, 1 << 62))
    assert (found.error_code.value, found.producer_id, found.producer_epoch) == (0, 1 << 62, 0)
    found = read(key, version, messages.init_producer_id(request.head(), 53, 1 << 62))
    assert (found.error_code.value, found.producer_id, found.producer_epoch) == (53, -1, -1)


@pytest.mark.parametrize(("key", "version"), versions(Key.SASL_AUTHENTICATE))
@pytest.mark.parametrize("token", ["right", "wrong"])
def test_an_exchange_of_sasl(key: int, version: int, token: str) -> None:
    def rights_of(shown: str) -> Rights:
        if shown != "right":
            raise unauthenticated("wrong")
        return EVERYTHING

    exchange = Exchange(rights_of)
    first = asked(Key.SASL_HANDSHAKE, 1, mechanism="PLAIN")
    begun = read(Key.SASL_HANDSHAKE, 1, exchange.begin(first.head(), sasl.read_mechanism(first)))
    assert (begun.error_code.value, begun.mechanisms) == (0, ("PLAIN", "OAUTHBEARER"))
    then = asked(key, version, auth_bytes=b"\0user\0" + token.encode())
    found = read(key, version, exchange.authenticate(then.head(), sasl.read_said(then)))
    assert found.error_code.value == (0 if token == "right" else 58)
    assert (found.error_message is None) == (token == "right")
    assert (exchange.rights is EVERYTHING) == (token == "right")
