"""Subscriptions: who shares the records of a topic, by which rules, and what is finished.

Lifecycle of a subscription: created -> changed, any number of times -> deleted. Its row stays, its
cursor goes with it. It is bound to the id of its topic.

- Each subscription has a cursor of the kind ``subscription``. Its position in a partition is the
  *floor*: this offset and all before it are finished.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ledger.types import Offset, PartitionState, Topic

SUBSCRIPTIONS_MAX = 1_024  # of a daemon; each has a row of the shared segment
CONSUMERS_MAX = 1_000  # of a subscription

Mode = Literal["key_shared", "shared", "exclusive"]
Poison = Literal["block", "drop", "dead_letter"]
Unmatched = Literal["hold", "skip"]
SubscriptionStart = Literal["earliest", "latest"] | Offset | list[Offset]
"""Before the first record that can be read, after the last one, or after an offset; a list has the
offset of each partition."""

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]


class SubscriptionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a subscription."""

    mode: Mode = "key_shared"
    reliable: bool = True
    ack_timeout_ms: Milliseconds = 30_000
    redeliveries_max: Annotated[int, Meta(ge=0, le=1_000)] = 5
    backoff_ms: tuple[Milliseconds, Milliseconds] = (1_000, 60_000)
    poison: Poison = "block"
    dead_letter_topic: str | None = None
    window_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    consumer_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    unmatched: Unmatched = "hold"
    paused: bool = False


class Subscription(Struct, frozen=True):
    """A subscription. Ids are never used twice; a deleted one's row stays.

    ``generation`` grows with each seek: what is flushed for an older one is not written. No batch
    with an epoch above ``epoch`` has been sent.
    """

    subscription_id: int
    name: str
    topic_id: int
    config: SubscriptionConfig
    created_ms: int
    deleted_ms: int | None
    cursor_id: int
    slot: int
    generation: int
    epoch: int


class SubscriptionView(Struct, frozen=True):
    """A subscription with its topic and, by partition, (floor, state) as of one moment."""

    subscription: Subscription
    topic: Topic
    partitions: list[tuple[int, PartitionState]]
    dead_letter: Topic | None = None
