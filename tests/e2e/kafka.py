"""Kafka's clients for tests: librdkafka, unchanged, on a real daemon."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.e2e.daemon import HANG_S, Daemon, running, wait_until


@contextlib.contextmanager
def kafka_daemon(data: Path, **options: Any) -> Iterator[Daemon]:
    """A daemon that serves Kafka's protocol on a free port."""
    settings = {"kafka_listen": "127.0.0.1:0", **options.pop("settings", {})}
    with running(data, settings=settings, **options) as daemon:
        yield daemon


def bootstrap(daemon: Daemon) -> str:
    """The address that the log names."""

    def said() -> str:
        found = re.search(r"Kafka's protocol on (\S+)", daemon.text)
        return found.group(1) if found else ""

    return wait_until(said, "the address of Kafka's protocol")


class Sender:
    """A producer of librdkafka that notes what became of each record."""

    def __init__(self, daemon: Daemon, **config: object) -> None:
        self.producer = Producer({"bootstrap.servers": bootstrap(daemon), "linger.ms": 5, **config})
        self.stored: list[Message] = []
        self.failed: list[KafkaError] = []

    def send(
        self, topic: str, value: bytes | str | None, key: bytes | str | None = None, **more: Any
    ) -> None:
        """Gives one record to the client, which refuses it itself if it knows already why."""
        try:
            self.producer.produce(topic, value, key, on_delivery=self._heard, **more)
        except KafkaException as error:
            self.failed.append(error.args[0])

    def _heard(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.stored.append(message)
        else:
            self.failed.append(error)

    def flush(self) -> list[Message]:
        """What was stored, once all of it is; fails if anything was not."""
        assert self.producer.flush(HANG_S) == 0, "records were not acknowledged in time"
        assert not self.failed, self.failed
        return self.stored


def consume(
    daemon: Daemon, topic: str, count: int, partition: int = 0, offset: int = 0, **config: object
) -> list[Message]:
    """``count`` records of one partition from an offset on, by a consumer without a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(daemon),
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **config,
        }
    )
    found: list[Message] = []
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, partition, offset)])

        def polled() -> bool:
            for message in consumer.consume(count - len(found), 0.2):
                assert message.error() is None, message.error()
                found.append(message)
            return len(found) >= count

        wait_until(polled, f"{count} records of {topic}")
    return found
