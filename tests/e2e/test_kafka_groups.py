"""Consumer groups by librdkafka as it is, on a real daemon: partitions are shared and handed over,
and what was committed is read on from, whatever dies."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from binascii import crc32
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.e2e.daemon import HANG_S, Daemon, wait_until
from tests.e2e.kafka import Sender, bootstrap, kafka_daemon
from tests.e2e.processes import kill_shards

SHARDS, PARTITIONS = 2, 4


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with kafka_daemon(tmp_path_factory.mktemp("data"), shards=SHARDS) as made:
        yield made


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group of this test's own."""
    return str(request.node.name)


@pytest.fixture
def spread(daemon: Daemon, topic: str) -> str:
    """A topic with PARTITIONS partitions of ten records."""
    fill(daemon, topic)
    return topic


def fill(daemon: Daemon, topic: str, start: int = 0) -> None:
    daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": PARTITIONS})
    sender = Sender(daemon)
    for number in range(start, start + 10 * PARTITIONS):
        sender.send(topic, b"%d" % number, partition=number % PARTITIONS)
    sender.flush()


class Reader:
    """A consumer in a group, and what it has read."""

    def __init__(self, daemon: Daemon, group: str, topic: str, **config: Any) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap(daemon),
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 60_000,  # a member on a busy machine lives
                "heartbeat.interval.ms": 200,
                "reconnect.backoff.max.ms": 200,
                **config,
            }
        )
        self.read: list[int] = []
        self.consumer.subscribe([topic])

    def poll(self) -> None:
        """Takes what is there."""
        for message in self.consumer.consume(100, 0.1):
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None:
                self.read.append(int(message.value() or b""))

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.consumer.assignment()}

    def commit(self) -> None:
        """Of what was read; waits until the coordinator has it."""
        wait_until(self._committed, "a commit")

    def _committed(self) -> bool:
        try:
            self.consumer.commit(asynchronous=False)
        except KafkaException as error:
            why = error.args[0]
            if why.name() != "_NO_OFFSET" and not why.retriable():
                raise
            return bool(why.name() == "_NO_OFFSET")
        return True


@contextlib.contextmanager
def reader(*args: Any, **config: Any) -> Iterator[Reader]:
    made = Reader(*args, **config)
    with contextlib.closing(made.consumer):
        yield made


def polled(*readers: Reader, until: Callable[[], object]) -> None:
    """Polls all of them until something is so."""

    def step() -> object:
        for each in readers:
            each.poll()
        return until()

    wait_until(step, "what the consumers are to do")


def committed(daemon: Daemon, group: str, topic: str) -> list[int]:
    """The offset of each partition; -1001: none."""
    places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": bootstrap(daemon), "group.id": group})
    with contextlib.closing(consumer):
        return [each.offset for each in consumer.committed(places, HANG_S)]


def test_two_share_and_one_takes_over_what_the_other_leaves(
    daemon: Daemon, spread: str, group: str
) -> None:
    with reader(daemon, group, spread) as first:
        polled(first, until=lambda: len(first.read) == 40)
        assert first.partitions == {0, 1, 2, 3} and sorted(first.read) == list(range(40))
        first.commit()
        with reader(daemon, group, spread) as second:
            polled(first, second, until=lambda: len(first.partitions) == 2 == len(
                second.partitions))  # fmt: skip
            assert first.partitions | second.partitions == {0, 1, 2, 3}
            fill(daemon, spread, 40)
            polled(first, second, until=lambda: len(first.read + second.read) == 80)
            assert sorted(first.read + second.read) == list(range(80))
            assert len(second.read) == 20, "nothing that was committed is read again"
            second.commit()
            first.commit()
        polled(first, until=lambda: len(first.partitions) == 4)
        assert len(first.read) == 60
    assert committed(daemon, group, spread) == [20] * PARTITIONS


def test_commits_go_back_have_texts_and_end_with_their_topic(
    daemon: Daemon, topic: str, group: str
) -> None:
    daemon.json("PUT", f"/v0/topics/{topic}", {})
    consumer = Consumer({"bootstrap.servers": bootstrap(daemon), "group.id": group})
    with contextlib.closing(consumer):
        for offset, text in ((7, "seven"), (3, "three")):
            place = TopicPartition(topic, 0, offset, metadata=text)
            (said,) = consumer.commit(offsets=[place], asynchronous=False)
            assert said.error is None
        (found,) = consumer.committed([TopicPartition(topic, 0)], HANG_S)
        assert (found.offset, found.metadata) == (3, "three")
        for place, name in (
            (TopicPartition(topic, 0, 1, metadata="x" * 4_097), "OFFSET_METADATA_TOO_LARGE"),
            (TopicPartition(topic, 1, 1), "UNKNOWN_TOPIC_OR_PART"),
            (TopicPartition("not." + topic, 0, 1), "UNKNOWN_TOPIC_OR_PART"),
        ):
            with pytest.raises(KafkaException) as refused:
                consumer.commit(offsets=[place], asynchronous=False)
            assert refused.value.args[0].name() == name
        cursors = {each["cursor"]: each for each in daemon.get("/v0/cursors").json["cursors"]}
        ours = [each for name, each in cursors.items() if name.endswith(f"/{group}")]
        assert [(each["kind"], each["positions"]) for each in ours] == [
            ("kafka", [{"partition": 0, "seq": 3}])
        ]
        assert daemon.json("DELETE", f"/v0/topics/{topic}").status == 200
        daemon.json("PUT", f"/v0/topics/{topic}", {})
        (found,) = consumer.committed([TopicPartition(topic, 0)], HANG_S)
        assert found.offset == -1001


def test_tools_list_describe_and_delete_groups(daemon: Daemon, spread: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap(daemon)})
    with reader(daemon, group, spread) as one:
        polled(one, until=lambda: len(one.read) == 40)
        one.commit()
        listed = {each.group_id: each for each in admin.list_consumer_groups().result().valid}
        assert listed[group].state == ConsumerGroupState.STABLE
        found = admin.describe_consumer_groups([group])[group].result()
        (member,) = found.members
        assert member.host == "127.0.0.1"
        assert len(member.assignment.topic_partitions) == PARTITIONS
        assert found.coordinator.id == crc32(group.encode()) % SHARDS
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result()
        assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    wait_until(
        lambda: admin.describe_consumer_groups([group])[group].result().state
        == ConsumerGroupState.EMPTY, "the group is empty",
    )  # fmt: skip
    asked = [ConsumerGroupTopicPartitions(group)]
    offsets = admin.list_consumer_group_offsets(asked)[group].result().topic_partitions
    assert sorted((each.partition, each.offset) for each in offsets) == [
        (each, 10) for each in range(PARTITIONS)
    ]
    admin.delete_consumer_groups([group])[group].result()
    assert committed(daemon, group, spread) == [-1001] * PARTITIONS
    assert group not in {each.group_id for each in admin.list_consumer_groups().result().valid}


def test_a_topic_lives_by_a_tool_and_the_lag_of_its_group_is_told(
    daemon: Daemon, group: str
) -> None:
    admin, name = AdminClient({"bootstrap.servers": bootstrap(daemon)}), "of.a.tool"
    wanted = NewTopic(name, 2, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([wanted], validate_only=True)[name].result()
    assert daemon.get(f"/v0/topics/{name}").status == 404
    admin.create_topics([wanted])[name].result()
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([wanted])[name].result()
    assert refused.value.args[0].name() == "TOPIC_ALREADY_EXISTS"
    assert "already" in refused.value.args[0].str()
    wait_until(lambda: "nothing is compacted by key" in daemon.text, "the line of the log")
    admin.create_partitions([NewPartitions(name, PARTITIONS)])[name].result()
    (found,) = admin.describe_configs([ConfigResource("topic", name)]).values()
    assert found.result()["cleanup.policy"].value == "compact"
    fill(daemon, name)

    def lag() -> int | None:
        scaled = daemon.get("/v0/scaling").json["kafka_groups"]
        return next((each["lag"] for each in scaled if each["group"] == group), None)

    with reader(daemon, group, name) as one:
        polled(one, until=lambda: len(one.read) == 40)
        one.commit()
        fill(daemon, name, 40)
        wait_until(lambda: lag() == 40, "the lag")
        kafka = daemon.get("/v0/status").json["kafka"]
        assert kafka["connections"] > 0 and kafka["groups"] == 1 == kafka["members"]
        assert {"topic": name, "group": group, "partitions": 4, "lag": 40} in kafka["first"]
        series = f'headgate_kafka_group_lag_records{{group="{group}",topic="{name}"}} 40.0'
        assert series in daemon.get("/metrics").body.decode().splitlines()
    admin.delete_topics([name])[name].result()
    assert name not in admin.list_topics(timeout=HANG_S).topics
    assert daemon.get(f"/v0/topics/{name}").status == 404
    wait_until(lambda: lag() is None, "the end of its lag")


# Says how many partitions it has, whenever that changes.
DIES = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
                     "session.timeout.ms": 1_000, "heartbeat.interval.ms": 200})
consumer.subscribe([sys.argv[3]], on_assign=lambda _, places: print(len(places), flush=True))
while True:
    consumer.poll(0.1)
"""


def test_a_consumer_that_dies_is_replaced_after_its_session(
    daemon: Daemon, spread: str, group: str
) -> None:
    command = [sys.executable, "-c", DIES, bootstrap(daemon), group, spread]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        try:
            assert dying.stdout is not None and dying.stdout.readline() == "4\n"
            with reader(daemon, group, spread) as other:
                polled(other, until=lambda: len(other.partitions) == 2)
                dying.kill()
                polled(other, until=lambda: len(other.partitions) == 4)
        finally:
            dying.kill()


@pytest.mark.slow
def test_commits_survive_the_coordinator_and_the_daemon(data: Path) -> None:
    group, coordinator = "survivors", crc32(b"survivors") % SHARDS
    with kafka_daemon(data, shards=SHARDS) as daemon:
        fill(daemon, "t")
        with reader(daemon, group, "t") as first, reader(daemon, group, "t") as second:
            polled(first, second, until=lambda: len(first.read + second.read) >= 40
                   and len(first.partitions) == 2 == len(second.partitions))  # fmt: skip
            first.commit()
            second.commit()
            assert committed(daemon, group, "t") == [10] * PARTITIONS
            before = len(first.read + second.read)
            kill_shards(daemon, coordinator)
            assert committed(daemon, group, "t") == [10] * PARTITIONS
            fill(daemon, "t", 40)
            polled(first, second, until=lambda: len({*first.read, *second.read}) == 80)
            # Members join again where they have committed.
            polled(first, second, until=lambda: len(first.partitions) == 2 == len(
                second.partitions))  # fmt: skip
            again = [each for each in first.read + second.read if each < 40]
            assert len(again) == before, "nothing that was committed is read again"
            first.commit()
            second.commit()
        daemon.kill_everything()
    with kafka_daemon(data, shards=SHARDS) as daemon:
        assert committed(daemon, group, "t") == [20] * PARTITIONS
        fill(daemon, "t", 80)
        with reader(daemon, group, "t") as third:
            polled(third, until=lambda: len(third.read) == 40)
            assert sorted(third.read) == list(range(80, 120))
