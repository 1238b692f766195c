"""Kafka's clients in a chaos run: idempotent producers, and a group that reads what they send.

Both are librdkafka as it is, which connects again and repeats by itself. Each record is an attempt
of its own, and all of one producer are on one connection for the checker: however often it had to
connect, none may be lost, doubled or out of order.

A member of the group reads a partition from what the group has committed, so all that its group
has committed was seen, and nothing after that is skipped, if each piece that it reads is whole
(``skipped`` of the checker). No commit that was acknowledged is forgotten.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from shards.clock import monotonic_ns
from tests.chaos.clients import PATIENCE_S, RETRY_S, Client, Numbers, Port, ask
from tests.chaos.history import Answered, History, Page, Place, Sent, fields_of
from tests.e2e.daemon import wait_until

TOPIC = "kafka"
PLACES: list[Place] = [(TOPIC, partition) for partition in range(3)]
TOPICS: dict[str, dict[str, object]] = {TOPIC: {"kafka_value": "json"}}
GROUP = "readers"
PRODUCERS = 3
MEMBERS = 3
FIRST_NUMBER = 100  # of a producer; those before it send by HTTP
POLLED = 50
LEAVES_AFTER = (20, 400)  # records
SESSION_MS = 6_000
FOR_EVER_MS = 2**31 - 1


class KafkaProducer(Client):
    """Sends records until it is told to stop, and then waits until all are stored."""

    def __init__(
        self, number: int, bootstrap: str, history: History, numbers: Numbers, pause_s: float
    ) -> None:
        super().__init__(f"kafka producer {number}")
        self.acknowledged = 0
        self._number = FIRST_NUMBER + number
        self._history = history
        self._numbers = numbers
        self._pause_s = pause_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": FOR_EVER_MS, "queue.buffering.max.messages": 1_000,
                "reconnect.backoff.max.ms": 500, "batch.num.messages": 20,
                "compression.type": ("none", "zstd", "gzip")[number % 3],
            }
        )  # fmt: skip

    def work(self) -> None:
        """Sends one record after the other."""
        connection = self._numbers.connection()
        places = itertools.cycle(PLACES)
        for made in itertools.count(1):
            if self.stopping.is_set():
                break
            record, place = f"{self._number}.{made}.1", next(places)
            attempt = self._numbers.attempt()
            self._history.add(Sent(attempt, connection, place, (record,)))
            while True:
                try:
                    self._producer.produce(
                        place[0], json.dumps(record), fields_of(record).get("key"), place[1],
                        on_delivery=partial(self._heard, attempt),
                    )  # fmt: skip
                    break
                except BufferError:
                    self._producer.poll(RETRY_S)
            self._producer.poll(0)
            self.stopping.wait(self._pause_s)
        left = self._producer.flush(PATIENCE_S)
        assert not left, f"{left} records of {self.name} are not acknowledged"

    def _heard(self, attempt: int, error: KafkaError | None, message: Message) -> None:
        assert error is None, f"{self.name}: {error}"
        self.acknowledged += 1
        offset = message.offset()
        assert offset is not None and offset >= 0
        self._history.add(Answered(attempt, 200, offset + 1, at_ms=monotonic_ns() // 1_000_000))


class Progress:
    """What the members of a group know together. ``seen`` and ``committed``: of each partition, the
    offset after the last record that any of them has read, and after the last acknowledged
    commit."""

    def __init__(self) -> None:
        self.contradictions: list[str] = []
        self.seen = [0] * len(PLACES)
        self._committed = [0] * len(PLACES)
        self._mutex = threading.Lock()

    def saw(self, partition: int, offset: int) -> None:
        """A record before this offset was read."""
        with self._mutex:
            self.seen[partition] = max(self.seen[partition], offset)

    def committed(self, partition: int, offset: int) -> None:
        """A commit was acknowledged."""
        with self._mutex:
            self._committed[partition] = max(self._committed[partition], offset)

    def known(self) -> list[int]:
        """What may not be forgotten."""
        with self._mutex:
            return self._committed[:]

    def begins(self, partition: int, offset: int, known: Sequence[int]) -> None:
        """A member was told what is committed; it had been ``known`` before it asked."""
        if offset < known[partition]:
            self.contradictions.append(
                f"forgotten: of partition {partition} {known[partition]} was committed, and later"
                f" {offset} is"
            )


class Member(Client):
    """Joins the group, reads and commits, and leaves, again and again."""

    def __init__(
        self, number: int, bootstrap: str, history: History, progress: Progress, seed: int
    ) -> None:
        super().__init__(f"kafka member {number}")
        self.records = 0
        self.joins = 0
        self._servers = bootstrap
        self._history = history
        self._progress = progress
        self._rng = random.Random(f"{seed} {number}")
        self._positions: dict[int, int] = {}

    def work(self) -> None:
        """Until it is told to stop."""
        while not self.stopping.is_set():
            consumer = Consumer(
                {
                    "bootstrap.servers": self._servers, "group.id": GROUP,
                    "enable.auto.commit": False, "auto.offset.reset": "error", "log_level": 0,
                    "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500,
                    "reconnect.backoff.max.ms": 500, "fetch.wait.max.ms": 200,
                }
            )  # fmt: skip
            with closing(consumer):
                consumer.subscribe([TOPIC], on_assign=self._assigned, on_lost=self._lost,
                                   on_revoke=self._lost)  # fmt: skip
                self._read(consumer, self._rng.randint(*LEAVES_AFTER))

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.joins += 1
        known = self._progress.known()
        while True:
            try:
                found = consumer.committed(partitions, PATIENCE_S)
                break
            except KafkaException:
                if self.stopping.is_set():
                    return
        for each in found:
            if each.error is not None:
                raise AssertionError(str(each.error))
            each.offset = max(0, each.offset)
            self._progress.begins(each.partition, each.offset, known)
            self._positions[each.partition] = each.offset
        consumer.assign(found)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._positions.pop(each.partition, None)

    def _read(self, consumer: Consumer, records: int) -> None:
        while not self.stopping.is_set() and records > 0:
            found: dict[int, list[Message]] = {}
            for message in consumer.consume(POLLED, 0.2):
                if message.error() is None:
                    found.setdefault(message.partition() or 0, []).append(message)
            for partition, messages in found.items():
                if partition in self._positions:
                    records -= len(messages)
                    self._note(partition, messages)
            if found and self._rng.random() < 0.5:
                self._commit(consumer)

    def _note(self, partition: int, messages: list[Message]) -> None:
        offsets = [message.offset() or 0 for message in messages]
        records = [json.loads(message.value() or b"null") for message in messages]
        seen = tuple(zip((offset + 1 for offset in offsets), records, strict=True))
        begin, end = self._positions[partition], offsets[-1] + 1
        self._history.add(Page(self.name, (TOPIC, partition), begin, end, seen))
        self._positions[partition] = offsets[-1] + 1
        self._progress.saw(partition, offsets[-1] + 1)
        self.records += len(messages)

    def _commit(self, consumer: Consumer) -> None:
        wanted = [TopicPartition(TOPIC, *each) for each in self._positions.items()]
        try:
            answered: Any = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # another generation began, or nobody answered
        for each in answered or ():
            if each.error is None:
                self._progress.committed(each.partition, each.offset)


def wait_until_read(port: Port, progress: Progress) -> None:
    """Until the group has read all that is there."""

    def is_read() -> bool:
        topic = ask(port(), "GET", f"/v0/topics/{TOPIC}")
        return topic is not None and progress.seen == [
            state["head_seq"] for state in topic["partitions"]
        ]

    wait_until(is_read, "the group to read everything", 2 * PATIENCE_S)
