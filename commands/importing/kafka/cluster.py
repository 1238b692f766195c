"""A topic in a Kafka cluster, through librdkafka: the only module that knows confluent_kafka.

Every call blocks, up to TIMEOUT_S, and may come from any thread; ``poll`` from one at a time. The
consumer belongs to no group: it reads the partitions that it is given from the offsets that it is
given, and commits nothing to Kafka. It sees what transactions have committed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from commands.importing.kafka.address import FIXED, BadAddress, KafkaAddress
from commands.importing.reading.problems import SourceChanged, SourceMissing, SourceProblem
from uploader.l0.kafka import KafkaRecord

TIMEOUT_S = 10.0
RECORD_BYTES = 300  # of a small one in memory, besides its bytes
POLL_S = 0.2
POLL_BYTES = 4 << 20  # what one poll brings, about
POLL_MESSAGES_MAX = 1_000
# What librdkafka fetches ahead, of all partitions; at least 1 MiB of each, which is its own unit.
AHEAD_KIB = 32 << 10
# The user's file may say otherwise.
_OF_THE_CONSUMER: dict[str, Any] = {
    "fetch.max.bytes": 16 << 20,
    "group.id": "headgate-import",  # librdkafka wants one; nothing is joined
    "max.poll.interval.ms": 86_400_000,  # a gate may be closed for hours
}


class KafkaAway(SourceProblem):
    """The cluster does not answer, or not now."""

    code = "away"


class Ends(NamedTuple):
    """The oldest offset of a partition, and the one after its last record that can be read."""

    low: int
    high: int


class SeenTopic(NamedTuple):
    """A topic as it is now. ``identity`` is that of the cluster and the topic: another topic that
    is created under its name has another one."""

    identity: str
    ends: dict[int, Ends]


class FetchedRecord(NamedTuple):
    """A record; without one, the end of the partition, or why nothing more can be read."""

    partition: int
    offset: int
    record: KafkaRecord | None = None
    problem: SourceProblem | None = None
    size: int = 0


class KafkaTopic:
    """A topic. Raises BadAddress."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._trouble = ""  # what librdkafka said last
        self._mean_bytes = 8 << 10  # of the records of the last poll
        self._consumer: Consumer | None = None
        self._log = logging.getLogger("headgate.kafka")  # what matters is in the errors
        self._log.addHandler(logging.NullHandler())
        self._log.propagate = False
        try:
            self._admin = AdminClient(self._config(), logger=self._log)
        except (KafkaException, TypeError, ValueError) as error:
            raise _refused(error) from error

    def look(self) -> SeenTopic:
        """The topic as it is now. Raises SourceMissing and KafkaAway."""
        topic = self._address.topic
        try:
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)
            described = asked[topic].result(2 * TIMEOUT_S)
            cluster = self._admin.list_topics(topic, timeout=TIMEOUT_S).cluster_id
            numbers = sorted(each.id for each in described.partitions)
            lows = self._offsets(numbers, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
            highs = self._offsets(numbers, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        except (KafkaException, TimeoutError) as error:
            raise self._problem(error) from error
        self._trouble = ""
        return SeenTopic(
            f"kafka\0{cluster}\0{described.topic_id}\0{topic}",
            {number: Ends(lows[number], highs[number]) for number in numbers},
        )

    def open(self, partitions: int) -> None:
        """Opens the consumer, for about this many partitions. Raises BadAddress."""
        ahead_kib = max(1024, AHEAD_KIB // max(1, partitions))
        config = {
            **_OF_THE_CONSUMER,
            "queued.max.messages.kbytes": ahead_kib,
            **self._config(),
            **FIXED,
        }
        try:
            self._consumer = Consumer(config, logger=self._log)
        except (KafkaException, TypeError, ValueError) as error:
            raise _refused(error) from error

    def begin(self, partition: int, offset: int) -> None:
        """Reads a partition from this offset on. Raises KafkaAway."""
        assert self._consumer is not None
        try:
            self._consumer.incremental_assign(
                [TopicPartition(self._address.topic, partition, offset)]
            )
        except KafkaException as error:
            raise self._problem(error) from error

    def end(self, partition: int) -> None:
        """Reads a partition no more."""
        assert self._consumer is not None
        with suppress(KafkaException):  # what still comes of it is nobody's
            self._consumer.incremental_unassign([TopicPartition(self._address.topic, partition)])

    def poll(self) -> list[FetchedRecord]:
        """What has come; none after POLL_S. Raises SourceProblem."""
        assert self._consumer is not None
        try:
            messages = self._consumer.consume(
                min(POLL_MESSAGES_MAX, POLL_BYTES // self._mean_bytes + 1), POLL_S
            )
        except KafkaException as error:
            raise self._problem(error) from error
        found = [each for message in messages if (each := self._fetched(message)) is not None]
        if found:
            self._mean_bytes = 1 + sum(each.size for each in found) // len(found)
        return found

    def close(self) -> None:
        """Closes all connections."""
        if self._consumer is not None:
            self._consumer.close()
        del self._admin  # which has no close

    def _config(self) -> dict[str, Any]:
        return {
            "client.id": "headgate-import",
            **self._address.properties,
            "bootstrap.servers": self._address.brokers,
            "error_cb": self._on_error,
        }

    def _on_error(self, error: KafkaError) -> None:
        # That all brokers are away says less than why the last one is.
        if not self._trouble or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str()

    def _problem(self, error: Exception) -> SourceProblem:
        cause = error.args[0] if error.args else None
        if isinstance(cause, KafkaError):
            if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return SourceMissing(f"the cluster has no topic {self._address.topic!r}")
            if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return SourceProblem("the cluster lets this user not read the topic")
        self._admin.poll(0)  # it may say more
        reason = self._trouble or _text(error)
        return KafkaAway(f"the cluster does not answer: {reason}")

    def _offsets(self, numbers: list[int], spec: OffsetSpec) -> dict[int, int]:
        asked = self._admin.list_offsets(
            {TopicPartition(self._address.topic, number): spec for number in numbers},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=TIMEOUT_S,
        )
        return {each.partition: found.result(2 * TIMEOUT_S).offset for each, found in asked.items()}

    def _fetched(self, message: Message) -> FetchedRecord | None:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if partition is None or partition < 0 or offset is None:
            self._trouble = "" if error is None else error.str()
            return None
        if error is None:
            self._trouble = ""
            kind, ts = message.timestamp()
            record = KafkaRecord(
                None if kind == TIMESTAMP_NOT_AVAILABLE or ts == -1 else ts,
                message.key(),
                message.value(),
                tuple(message.headers() or ()),  # type: ignore[arg-type]
            )
            size = RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
            size += sum(len(name) + len(each or b"") for name, each in record.headers)
            return FetchedRecord(partition, offset, record, size=size)
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            return FetchedRecord(partition, offset)
        if code == KafkaError._AUTO_OFFSET_RESET:
            problem: SourceProblem = SourceChanged(
                f"Kafka has deleted records before they were imported: {error.str()}",
                hint="the same command says from where it can go on",
            )
        elif error.retriable():
            self._trouble = error.str()
            return None
        else:
            problem = SourceProblem(f"cannot be read: {error.str()}")
        return FetchedRecord(partition, offset, problem=problem)


def _refused(error: Exception) -> BadAddress:
    return BadAddress(
        f"librdkafka refuses the properties: {_text(error)}",
        "--kafka-config takes the names of librdkafka's CONFIGURATION.md",
    )


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else None
    return cause.str() if isinstance(cause, KafkaError) else str(error)
