"""What the status and the scaling signal say of Kafka's protocol. See ``api.py``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shards import layout as at
from shards.boards.figures import KafkaGroupCounters, figure


class KafkaGroupFigures(KafkaGroupCounters, frozen=True, kw_only=True):
    """A group in a topic of which it has committed something, as it was about a second ago."""

    topic: str
    group: str
    partitions: Annotated[int, figure("of which it has committed something")]


class KafkaStatus(KafkaGroupCounters, frozen=True, kw_only=True):
    """Clients of Kafka's protocol, and their groups."""

    connections: Annotated[
        int,
        figure(
            "connections of Kafka's protocol",
            "headgate_kafka_connections",
            word=at.S_KAFKA_CONNECTIONS,
        ),
    ]
    groups: Annotated[
        int,
        figure("consumer groups with members", "headgate_kafka_groups", word=at.S_KAFKA_GROUPS),
    ]
    members: Annotated[
        int,
        figure(
            "members of consumer groups", "headgate_kafka_group_members", word=at.S_KAFKA_MEMBERS
        ),
    ]
    unauthenticated: Annotated[
        int,
        figure(
            "connections that ended before they had shown a valid token, since their shard started",
            "headgate_kafka_unauthenticated_total",
            word=at.S_KAFKA_FAILURES,
        ),
    ]
    pairs: Annotated[
        int,
        figure("pairs of a group, with or without members, and a topic of which it has committed"),
    ]
    first: Annotated[list[KafkaGroupFigures], figure("up to 20, with the most lag")]


class KafkaGroupScaling(Struct, frozen=True):
    """The lag of a group in a topic. More consumers than partitions have nothing to do."""

    topic: str
    group: str
    lag: Annotated[int, figure("records that are there and follow what it has committed")]
    partitions: Annotated[int, figure("of which it has committed something")]
