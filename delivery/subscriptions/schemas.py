"""What subscriptions look like to clients: the answers of owners, and what a batch consists of."""

from __future__ import annotations

from msgspec import Struct

from delivery.schemas import DiffRecord


class RefusedMessage(Struct, frozen=True):
    """A message that an acknowledgment named and that it does not finish."""

    partition: int
    seq: int
    epoch: int
    reason: str  # finished, or epoch: the message was never sent in this batch to this consumer


class Acknowledged(Struct, frozen=True):
    """How many messages were finished (or, after a nack, are to be sent again), and how many were
    refused; ``refused_messages`` names the first hundred."""

    accepted: int
    refused: int
    refused_messages: list[RefusedMessage] = []


class ConsumerState(Struct, frozen=True):
    """A consumer that is present. ``share`` is its part of all keys, from 0 to 1."""

    consumer: str
    kind: str  # stream or poll
    filters: list[str]
    share: float
    in_flight: int
    ready: int
    active: bool
    connected: bool


class BlockedKey(Struct, frozen=True):
    """A key whose first message nobody gets. ``key`` is null for a message without one."""

    key: str | None
    partition: int
    seq: int
    attempts: int
    since_ms: int
    reason: str
    waiting: int | None = None


class MissedOffsets(Struct, frozen=True):
    """Offsets that are not delivered: retention removed them."""

    partition: int
    gap_from: int
    gap_to: int
    reason: str


class PartitionProgress(Struct, frozen=True):
    """A partition of the subscription: all up to ``floor`` is finished."""

    partition: int
    floor: int
    head_seq: int
    lag: int


class SubscriptionState(Struct, frozen=True):
    """A subscription as its owner sees it. ``lag`` counts the records that are not finished,
    ``drainable_lag`` those of them that more consumers would help with."""

    subscription: str
    topic: str
    owner_shard: int
    lag: int
    drainable_lag: int
    in_flight: int
    waiting: int
    blocked_keys: int
    oldest_unacknowledged_ms: int
    delivered: int
    acknowledged: int
    redelivered: int
    refused: int
    dropped: int
    dead_lettered: int
    evicted: int
    unmatched: int
    held: str
    partitions: list[PartitionProgress]
    consumers: list[ConsumerState]
    blocked: list[BlockedKey]
    gaps: list[MissedOffsets]


class KeyState(Struct, frozen=True):
    """A key: its consumer, and its first message that is not finished. ``state`` is ready, sent,
    resting, stuck, held, or idle if nothing of it is known."""

    key: str
    state: str
    owner: str | None
    partition: int | None = None
    seq: int | None = None
    since_ms: int | None = None
    attempts: int = 0
    reason: str = ""
    waiting: int = 0


class ConsumedMessage(DiffRecord, frozen=True, kw_only=True):
    """A message of a poll's answer, and of a stream: a record, in the batch ``epoch``. ``attempt``
    counts its deliveries, from 1."""

    partition: int
    epoch: int
    attempt: int


class Polled(Struct, frozen=True):
    """The answer to a poll. ``epoch`` is the number of the batch, null if there is no message.
    ``gaps`` are those that nobody was told of yet."""

    epoch: int | None
    messages: list[ConsumedMessage]
    gaps: list[MissedOffsets] = []
