"""Kafka's protocol of a shard, wired. Loaded only where ``kafka_listen`` is set."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex

from daemon.config import Config
from daemon.intake.admission import Admission
from daemon.intake.pending import PendingRequests
from daemon.intake.topic_cache import TopicCache
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.groups.commits import GroupCommits, Write
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.producing import KafkaProducer
from daemon.kafka.server import KafkaServer
from daemon.kafka.topics import KafkaTopics
from delivery.ledger_thread import LedgerThread
from delivery.reading.partition import PartitionReader
from delivery.reading.waiters import Waiters
from shards.clock import monotonic_ns, wall_ms
from shards.ring import RingWriter
from uploader.l0.kafka import BatchLimits


def kafka_server(
    config: Config,
    shard: int,
    ports: tuple[int, ...],
    topics: TopicCache,
    ring: RingWriter,
    pending: PendingRequests,
    admission: Admission,
    partitions: PartitionReader,
    waiters: Waiters,
    published: Callable[[], None],
    short_of_time: Callable[[int, int], None],
    ledger: LedgerThread,
    write: Write,
    is_owned: Callable[[], bool],
) -> KafkaServer:
    """What serves Kafka's clients of one shard, when it is started. ``ports`` are those of all
    shards; ``published`` and ``short_of_time`` are as the producer by HTTP has them."""
    names = KafkaTopics(topics, ports, config.store_url, auto_create=config.auto_create_topics)
    limits = BatchLimits(config.records_max, config.record_bytes_max, config.body_bytes_max)
    producer = KafkaProducer(
        shard, names, topics, ring, pending, admission, limits, published, short_of_time,
        config.ack_timeout_ms,
    )  # fmt: skip
    reads = KafkaReads(names, partitions, waiters)
    commits = GroupCommits(write, ledger, is_owned, wall_ms, monotonic_ns)
    coordinator = Coordinator(shard, names, commits, lambda: token_hex(16), monotonic_ns)
    return KafkaServer(
        names, producer, reads, coordinator, config.kafka_advertised, config.body_bytes_max
    )
