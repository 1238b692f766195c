"""Kafka's protocol of a shard, wired. Loaded only where ``kafka_listen`` is set."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_hex

from daemon.kafka.admin.administration import Administration
from daemon.kafka.admin.configs import Configs
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.groups.expiry import GroupExpiry
from daemon.kafka.producing import KafkaProducer
from daemon.kafka.served import KafkaParts
from daemon.kafka.server import KafkaServer
from daemon.kafka.topics import KafkaTopics
from daemon.process.delivery_side import DeliverySide
from daemon.process.opened import Opened
from daemon.process.write_side import WriteSide
from shards.clock import monotonic_ns, wall_ms
from uploader.l0.kafka import BatchLimits


def kafka_server(
    opened: Opened,
    write: WriteSide,
    delivery: DeliverySide,
    ports: tuple[int, ...],
    published: Callable[[], None],
    short_of_time: Callable[[int, int], None],
) -> KafkaServer:
    """What serves Kafka's clients of one shard, when it is started. ``ports`` are those of all
    shards; ``published`` and ``short_of_time`` are those of the write side."""
    config, topics, age_ms = opened.config, write.topics, write.topics.age_ms
    names = KafkaTopics(
        topics, ports, config.store_url, auto_create=config.auto_create_topics,
        partitions=config.kafka_partitions, objects=write.objects,
        advertised=config.kafka_advertised,
    )  # fmt: skip
    limits = BatchLimits(config.records_max, config.record_bytes_max, config.body_bytes_max)
    producer = KafkaProducer(
        opened.shard, names, topics, write.ring, write.pending, write.admission, limits,
        published, short_of_time, config.ack_timeout_ms,
    )  # fmt: skip
    commits = GroupCommits(
        delivery.flush.write, opened.ledger, write.may_deliver, wall_ms, age_ms, monotonic_ns
    )
    coordinator = Coordinator(
        opened.shard, names, commits, lambda: token_hex(16), monotonic_ns, write.objects
    )
    parts = KafkaParts(
        names, producer, KafkaReads(names, delivery.partitions, delivery.reader.waiters),
        coordinator,
        Administration(names, topics, Configs(config), monotonic_ns, write.objects),
    )  # fmt: skip
    return KafkaServer(
        parts, GroupExpiry(coordinator, commits, age_ms), config.body_bytes_max, opened.access,
        opened.audit,
    )  # fmt: skip
