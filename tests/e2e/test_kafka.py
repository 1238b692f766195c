"""Kafka's protocol by librdkafka as it is, on a real daemon; and what no client should send."""

from __future__ import annotations

import contextlib
import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from daemon.kafka.served import SERVED
from tests.compaction.by_hand import compact, delete_compacted
from tests.daemon.kafka.frames import Key
from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tests.e2e.kafka import Sender, bootstrap, consume, kafka_daemon
from tests.e2e.processes import kill_shards
from uploader.l0.kafka import KafkaRecord, encode_batch, seal


def test_records_come_back_byte_for_byte(daemon: Daemon, topic: str) -> None:
    sender = Sender(daemon)
    records: list[tuple[Any, Any, Any]] = [
        (b"k", b'{"n": 1}', None),
        (b"\xff\x00", b"\x80", [("h", b"x"), ("h", None), ("\u00e9", b"\xff")]),
        (None, None, [("only", b"")]),
        (b"", b"", None),
        (None, "text", None),
    ]
    for key, value, headers in records:
        sender.send(topic, value, key, headers=headers or [], timestamp=1_700_000_000_123)
    assert [message.offset() for message in sender.flush()] == [0, 1, 2, 3, 4]
    found = consume(daemon, topic, 5)
    assert [(m.key(), m.value(), m.headers()) for m in found] == [
        (key, value.encode() if isinstance(value, str) else value, headers)
        for key, value, headers in records
    ]
    assert [m.offset() for m in found] == [0, 1, 2, 3, 4]
    assert {m.timestamp()[1] for m in found} == {1_700_000_000_123}
    by_http = daemon.read_all(topic)
    assert by_http[0]["key"] == "k" and b64decode(by_http[0]["data_b64"]) == b'{"n": 1}'
    assert by_http[2]["data"] is None
    assert by_http[2]["meta"] == {"kafka": {"value": None, "headers": [["only", ""]]}}


def test_what_came_by_http_is_read_by_a_consumer(daemon: Daemon, topic: str) -> None:
    records = [{"data": {"a": 1}, "key": "k", "tag": "t", "meta": {"m": 1}}, {"data": None}]
    assert daemon.json("POST", f"/v0/topics/{topic}", {"records": records}).status == 200
    first, second = consume(daemon, topic, 2)
    assert (first.key(), first.value()) == (b"k", b'{"a": 1}')
    assert first.headers() == [("headgate.tag", b"t"), ("headgate.meta", b'{"m": 1}')]
    assert (second.key(), second.value(), second.headers()) == (None, b"null", None)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_stored(daemon: Daemon, topic: str, codec: str) -> None:
    sender = Sender(daemon, **{"compression.type": codec, "linger.ms": 50})
    for number in range(200):
        sender.send(topic, b"value %d" % number * 20)
    sender.flush()
    found = consume(daemon, topic, 200)
    assert [m.value() for m in found] == [b"value %d" % number * 20 for number in range(200)]


def test_each_partition_is_led_by_one_shard_and_takes_records(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/spread", {"partitions": 4})
    sender = Sender(daemon)
    for number in range(40):
        sender.send("spread", b"%d" % number, partition=number % 4)
    sender.flush()
    for partition in range(4):
        values = [m.value() for m in consume(daemon, "spread", 10, partition)]
        assert values == [b"%d" % number for number in range(partition, 40, 4)]
    told = AdminClient({"bootstrap.servers": bootstrap(daemon)}).list_topics("spread", HANG_S)
    leaders = {each.leader for each in told.topics["spread"].partitions.values()}
    assert leaders == {0, 1} == set(told.brokers)


def test_a_topic_may_have_values_of_json(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/of.json", {"kafka_value": "json"})
    sender = Sender(daemon)
    for value in (b'{"a": 1}', b" [ 1 ]\n", None):
        sender.send("of.json", value)
    sender.flush()
    assert [each["data"] for each in daemon.read_all("of.json")] == [{"a": 1}, [1], None]
    assert [m.value() for m in consume(daemon, "of.json", 3)] == [b'{"a": 1}', b" [ 1 ]\n", None]
    for bad in (b"no json", b"[" * 513 + b"]" * 513):
        sender.send("of.json", bad)
        with pytest.raises(AssertionError, match="INVALID_RECORD"):
            sender.flush()
        sender.failed.clear()
    assert len(daemon.read_all("of.json")) == 3


def test_a_topic_that_is_asked_for_is_created(daemon: Daemon) -> None:
    sender = Sender(daemon)
    sender.send("asked.for", b"1")
    sender.flush()
    assert daemon.get("/v0/topics/asked.for").status == 200
    sender.send("not/a/topic", b"1")
    # Unknown if the client has just asked for all topics, and refuses it itself.
    with pytest.raises(AssertionError, match=r"Broker: Invalid topic|Local: Unknown topic"):
        sender.flush()


def test_offsets_are_found_by_time_and_at_both_ends(daemon: Daemon, topic: str) -> None:
    sender = Sender(daemon)
    for number in range(5):
        sender.send(topic, b"%d" % number, timestamp=1_000 * (number + 1))
    sender.flush()
    daemon.json("POST", f"/v0/topics/{topic}/trim", {"partition": 0, "before_seq": 2})
    consumer = Consumer({"bootstrap.servers": bootstrap(daemon), "group.id": "g"})
    with contextlib.closing(consumer):
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), HANG_S) == (1, 5)
        for time, offset in ((2_500, 2), (3_000, 2), (9_000, -1)):
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, time)], HANG_S)
            assert found.offset == offset
    assert [m.offset() for m in consume(daemon, topic, 3, offset=2)] == [2, 3, 4]
    with pytest.raises(AssertionError, match="Offset out of range"):
        consume(daemon, topic, 1, offset=0)


def test_a_fetch_waits_for_the_next_record(daemon: Daemon, topic: str) -> None:
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.extend(consume(daemon, topic, 1)))
    reader.start()
    daemon.produce(topic, "late")
    reader.join(HANG_S)
    assert [m.value() for m in found] == [b'"late"']


def test_an_idempotent_producer_works_as_it_is(daemon: Daemon, topic: str) -> None:
    sender = Sender(daemon, **{"enable.idempotence": True, "acks": "all"})
    for number in range(300):
        sender.send(topic, b"%d" % number)
        if number % 100 == 50:
            sender.flush()
    assert [m.offset() for m in sender.flush()] == list(range(300))
    values = [m.value() for m in consume(daemon, topic, 300)]
    assert values == [b"%d" % number for number in range(300)]


@pytest.mark.slow
def test_an_idempotent_producer_stores_each_record_once_when_shards_are_killed(
    data: Path,
) -> None:
    with kafka_daemon(data, shards=2) as daemon:
        daemon.json("PUT", "/v0/topics/t", {"partitions": 2})
        sender = Sender(daemon, **{"enable.idempotence": True, "retry.backoff.ms": 50})
        for number in range(2_000):
            sender.send("t", b"%d" % number, partition=number % 2)
            sender.producer.poll(0.0005)
            if number == 600:
                kill_shards(daemon, 0)
            if number == 1_300:
                kill_shards(daemon, 1)
        sender.flush()
        for partition in range(2):
            values = [int(m.value() or b"") for m in consume(daemon, "t", 1_000, partition)]
            assert values == list(range(partition, 2_000, 2))
            head = daemon.get("/v0/topics/t").json["partitions"][partition]["head_seq"]
            assert head == 1_000


@pytest.mark.slow
def test_nothing_that_was_acknowledged_is_lost_when_a_shard_is_killed(data: Path) -> None:
    with kafka_daemon(data, shards=2) as daemon:
        daemon.json("PUT", "/v0/topics/t", {"partitions": 2})
        sender = Sender(daemon, **{"retry.backoff.ms": 50, "max.in.flight": 1})
        for number in range(600):
            sender.send("t", b"%d" % number, partition=number % 2)
            sender.producer.poll(0.001)
            if number == 200:
                kill_shards(daemon, 0)
            if number == 400:
                kill_shards(daemon, 1)
        sender.flush()
        for partition in range(2):
            head = daemon.get("/v0/topics/t").json["partitions"][partition]["head_seq"]
            values = [int(m.value() or b"") for m in consume(daemon, "t", head, partition)]
            once = sorted(set(values))
            assert once == list(range(partition, 600, 2))
            # A batch may be there twice, but the first ones are in order.
            assert list(dict.fromkeys(values)) == once


# Bad input, on a socket


class Wire:
    """A connection to the shard that leads partition 0 of a topic."""

    def __init__(self, daemon: Daemon, topic: str) -> None:
        told = AdminClient({"bootstrap.servers": bootstrap(daemon)}).list_topics(topic, HANG_S)
        broker = told.brokers[told.topics[topic].partitions[0].leader]
        self.offset = -1  # of the last batch that was stored
        self.socket = socket.create_connection((broker.host, broker.port), HANG_S)
        self.stream = self.socket.makefile("rb")

    def ask(self, key: int, version: int, body: bytes) -> bytes:
        """The answer without its length and number; empty if the connection was closed."""
        head = b"".join(each.to_bytes(2, "big") for each in (key, version))
        frame = head + (5).to_bytes(4, "big") + b"\xff\xff" + body
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        return self.answer()

    def answer(self) -> bytes:
        try:
            size = self.stream.read(4)
            return self.stream.read(int.from_bytes(size, "big"))[4:] if size else b""
        except ConnectionResetError:
            return b""

    def produce(self, topic: str, batch: bytes, *, acks: int = -1, partition: int = 0,
                transaction: bytes | None = None) -> int | None:  # fmt: skip
        """The error code of version 3; None if the connection was closed."""
        name = topic.encode()
        body = (
            (b"\xff\xff" if transaction is None
             else len(transaction).to_bytes(2, "big") + transaction)
            + acks.to_bytes(2, "big", signed=True) + (30_000).to_bytes(4, "big")
            + (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name
            + (1).to_bytes(4, "big") + partition.to_bytes(4, "big", signed=True)
            + len(batch).to_bytes(4, "big") + batch
        )  # fmt: skip
        answer = self.ask(Key.PRODUCE, 3, body)
        at = 4 + 2 + len(name) + 4 + 4
        self.offset = int.from_bytes(answer[at + 2 : at + 10], "big", signed=True)
        return int.from_bytes(answer[at : at + 2], "big") if answer else None


@pytest.fixture
def wire(daemon: Daemon, topic: str) -> Iterator[Wire]:
    made = Wire(daemon, topic)
    yield made
    made.stream.close()
    made.socket.close()


GOOD = encode_batch(0, [(0, KafkaRecord(5, b"k", b"good"))])


def test_bad_batches_have_the_codes_of_kafka_and_nothing_is_stored(
    daemon: Daemon, topic: str, wire: Wire
) -> None:
    payload = GOOD[61:]
    codes = [
        wire.produce(topic, GOOD[:-1] + b"\1"),
        wire.produce(topic, GOOD[:16] + b"\1" + GOOD[17:]),
        wire.produce(topic, seal(0, 0x10, 0, (5, 5), (7, 0, 0), 1, payload)),
        wire.produce(topic, seal(0, 0x20, 0, (5, 5), (-1, -1, -1), 1, payload)),
        wire.produce(topic, seal(0, 7, 0, (5, 5), (-1, -1, -1), 1, payload)),
        wire.produce(topic, seal(0, 0, -2, (5, 5), (-1, -1, -1), -1, payload)),
        wire.produce(topic, seal(0, 0, 0, (5, 5), (7, 0, -1), 1, payload)),
        wire.produce(topic, encode_batch(0, [(0, KafkaRecord(5, None, bytes(2 << 20)))])),
        wire.produce(topic, GOOD + GOOD),
        wire.produce(topic, GOOD, acks=2),
        wire.produce(topic, GOOD, transaction=b"t"),
        wire.produce(topic, GOOD, partition=1),
        wire.produce(topic, GOOD, partition=-1),
        wire.produce("no." + topic, GOOD),
    ]
    assert codes == [2, 43, 48, 48, 76, 87, 87, 10, 87, 21, 48, 3, 3, 3]
    assert wire.produce(topic, GOOD) == 0
    assert [each["seq"] for each in daemon.read_all(topic)] == [1]


def test_a_transactional_producer_is_refused(daemon: Daemon, wire: Wire) -> None:
    answer = wire.ask(Key.INIT_PRODUCER_ID, 1, b"\0\2tx" + bytes(4))
    assert (int.from_bytes(answer[4:6], "big"), answer[6:]) == (53, b"\xff" * 10)
    ids = {wire.ask(Key.INIT_PRODUCER_ID, 1, b"\xff\xff" + bytes(4))[6:14] for _ in range(3)}
    assert len(ids) == 3 and all(each[0] < 0x80 for each in ids)


def test_a_refusal_with_acks_0_closes_the_connection(
    daemon: Daemon, topic: str, wire: Wire
) -> None:
    assert wire.produce(topic, GOOD[:-1] + b"\1", acks=0) is None
    assert daemon.read_all(topic) == []
    sender = Sender(daemon, acks=0)
    sender.send(topic, b"1")
    sender.flush()
    wait_until(lambda: len(daemon.read_all(topic)) == 1, "the record without an answer")


def test_a_newer_api_versions_is_told_the_versions_in_the_oldest_form(wire: Wire) -> None:
    answer = wire.ask(Key.API_VERSIONS, 99, b"")
    assert int.from_bytes(answer[:2], "big") == 35
    assert int.from_bytes(answer[2:6], "big") == len(SERVED)
    assert len(answer) == 6 + 6 * len(SERVED)


def test_a_repeat_to_a_full_topic_has_its_first_answer(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/fills", {"cap_records": 1, "discard": "reject"})
    made = Wire(daemon, "fills")
    with contextlib.closing(made.socket), contextlib.closing(made.stream):
        sent = [
            (made.produce("fills", seal(0, 0, 0, (5, 5), (7, 0, n), 1, GOOD[61:])), made.offset)
            for n in (0, 1, 0)
        ]
    assert [code for code, _ in sent] == [0, 44, 0] and sent[2] == (0, 0)
    assert [each["seq"] for each in daemon.read_all("fills")] == [1]


def test_a_deleted_topic_and_one_that_refuses_say_so(daemon: Daemon, topic: str) -> None:
    daemon.json("PUT", "/v0/topics/full", {"cap_records": 2, "discard": "reject"})
    sender = Sender(daemon)
    for _ in range(2):
        sender.send("full", b"1")
        sender.flush()
    sender.send("full", b"1")
    with pytest.raises(AssertionError, match="POLICY_VIOLATION"):
        sender.flush()
    assert len(daemon.read_all("full")) == 2


@pytest.mark.slow
def test_records_come_back_byte_for_byte_from_the_lake_and_through_a_router(data: Path) -> None:
    records: list[tuple[Any, Any, Any]] = [
        (b"k", b'{"n": 1}', None),
        (b"\xff\x00", b"\x80", [("h", b"x"), ("h", None), ("\u00e9", b"\xff")]),
        (None, None, [("only", b"")]),
        (b"", b"", None),
    ]

    def seen(daemon: Daemon, topic: str) -> list[tuple[Any, Any, Any]]:
        found = consume(daemon, topic, len(records) + 1)
        assert [m.offset() for m in found] == list(range(len(records) + 1))
        return [(m.key(), m.value(), m.headers()) for m in found]

    with kafka_daemon(data) as daemon:
        sender = Sender(daemon)
        for key, value, headers in records:
            sender.send("t", value, key, headers=headers or [])
        sender.flush()
        by_http = {"data": {"a": [1]}, "key": "k", "node": "n"}
        daemon.json("POST", "/v0/topics/t", {"records": [by_http]})
        daemon.json("PUT", "/v0/topics/copies", {})
        router = {"source": "t", "dest": "copies", "from": "earliest"}
        assert daemon.json("PUT", "/v0/routers/r", router).status in (200, 201)
        expected = [*records, (b"k", b'{"a": [1]}', [("headgate.node", b"n")])]
        assert seen(daemon, "t") == expected
        assert seen(daemon, "copies") == expected
        stored = [daemon.read_all(topic) for topic in ("t", "copies")]
    compact(data, "r1", ["t", "copies"])
    assert delete_compacted(data) > 0
    with kafka_daemon(data) as daemon:
        assert seen(daemon, "t") == expected
        assert seen(daemon, "copies") == expected
        assert [daemon.read_all(topic) for topic in ("t", "copies")] == stored
