"""What a shard asks of the owner of a subscription.

A consumer's connection may be at any shard; one shard *owns* the subscription and decides. The
shard that has the connection checks what needs no decision, names the subscription by its id, and
asks the owner, in this process or through a pipe (``owners.py``). The owner answers with a value
(``schemas.py``), or refuses.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from delivery.subscriptions.schemas import (
    Acknowledged,
    BlockedKey,
    BlockedKeys,
    ConsumerLeft,
    KeyState,
    Polled,
    PushAttempt,
    PushAttempts,
    PushExchange,
    PushPaused,
    RepairedMessages,
    ResentMessage,
    Sought,
    SubscriptionState,
)

A = TypeVar("A")


class OwnerRefused(Exception):
    """The owner refuses; the client gets this status, code, message and detail."""

    def __init__(
        self, status: int, code: str, message: str, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail or {}


class MessageRef(NamedTuple):
    """A message, as it was sent in the batch ``epoch``."""

    partition: int
    seq: int
    epoch: int


class BatchRef(NamedTuple):
    """A whole batch but some of its messages: (partition, seq)."""

    epoch: int
    but: tuple[tuple[int, int], ...] = ()


class OwnerRequest(Struct, Generic[A], frozen=True, tag=True, array_like=True):
    """What all requests have in common; the answer is an ``A``."""

    subscription_id: int


class Consume(OwnerRequest[None], frozen=True, tag=True, array_like=True):
    """A stream for a consumer. Asked first, so that it can be refused with a status; then opened
    with an outlet. ``content_type`` is one of the formats of streams; empty: it is a sender, one of
    the daemon's own, of a push subscription (``handing.py``)."""

    consumer: str
    filters: list[str]
    content_type: str

    @property
    def is_sender(self) -> bool:
        """Whether it is one of the daemon's own."""
        return not self.content_type


class Poll(OwnerRequest[Polled], frozen=True, tag=True, array_like=True):
    """Up to ``max`` messages for a consumer that has no stream; waits for the first one."""

    consumer: str
    filters: list[str]
    max: int
    wait_ms: int


class Acknowledge(OwnerRequest[Acknowledged], frozen=True, tag=True, array_like=True):
    """The consumer has dealt with these."""

    consumer: str
    messages: list[MessageRef]
    batches: list[BatchRef]


class Nack(OwnerRequest[Acknowledged], frozen=True, tag=True, array_like=True):
    """The consumer could not deal with these; they are sent again after a rest, and not before
    ``delay_ms``. It counts as a failed delivery unless only the way to a receiver has failed."""

    consumer: str
    messages: list[MessageRef]
    batches: list[BatchRef]
    delay_ms: int
    reason: str
    is_counted: bool = True


class Leave(OwnerRequest[ConsumerLeft], frozen=True, tag=True, array_like=True):
    """The consumer goes, and does not come back: what it has goes to others immediately."""

    consumer: str


class Describe(OwnerRequest[SubscriptionState], frozen=True, tag=True, array_like=True):
    """The state of the subscription and its consumers."""


class DescribeKey(OwnerRequest[KeyState], frozen=True, tag=True, array_like=True):
    """The consumer that owns a key, and what its first message waits for."""

    key: str


class ListKeys(OwnerRequest[BlockedKeys], frozen=True, tag=True, array_like=True):
    """Keys whose first message is blocked, up to ``limit``."""

    limit: int


class RetryKey(OwnerRequest[BlockedKey], frozen=True, tag=True, array_like=True):
    """Sends the blocked message of a key again, as if it had never failed. ``place``, (partition,
    seq), names a message that has no key."""

    key: str | None
    place: tuple[int, int] | None = None


class SkipKey(OwnerRequest[BlockedKey], frozen=True, tag=True, array_like=True):
    """Gives up the blocked message of a key."""

    key: str | None
    place: tuple[int, int] | None = None


class BlockedWhere(Struct, frozen=True, array_like=True):
    """Which blocked messages: those that match all that is given. ``key`` and ``reason`` are
    patterns; a message without a key matches none. ``resting``: also those that are sent again by
    themselves."""

    key: str | None = None
    partition: int | None = None
    reason: str | None = None
    resting: bool = False


class RepairBlocked(OwnerRequest[RepairedMessages], frozen=True, tag=True, array_like=True):
    """Sends blocked messages again, or gives them up: all that match."""

    is_retry: bool
    where: BlockedWhere


class Resend(OwnerRequest[ResentMessage], frozen=True, tag=True, array_like=True):
    """Delivers a finished message, (partition, seq), once more. Asked again with the same ``id``,
    the owner tells what has become of it. ``topic_id``: only if the topic has this id."""

    place: tuple[int, int]
    id: str = ""
    topic_id: int | None = None


class Seek(OwnerRequest[Sought], frozen=True, tag=True, array_like=True):
    """Goes on elsewhere: by partition the offset that is the floor then. What is in flight is
    forgotten, and acknowledgments of it are refused."""

    floors: dict[int, int]


class PausePush(OwnerRequest[PushPaused], frozen=True, tag=True, array_like=True):
    """The receiver at ``endpoint`` wants no more (410): pauses the subscription until an operator
    resumes it. Without effect on one that is pushed elsewhere by now, or is paused."""

    endpoint: str
    because: str


class TryPush(OwnerRequest[PushExchange], frozen=True, tag=True, array_like=True):
    """Sends the receiver a record that is in no topic, and returns the whole exchange. ``data`` is
    JSON text; ``token`` makes its id another one than that of any other test."""

    data: str
    key: str | None
    token: str


class NoteAttempts(OwnerRequest[None], frozen=True, tag=True, array_like=True):
    """A sender has made these attempts."""

    attempts: list[PushAttempt]


class ListAttempts(OwnerRequest[PushAttempts], frozen=True, tag=True, array_like=True):
    """The last attempts: of a message, of a partition, or all."""

    partition: int | None
    seq: int | None
    limit: int


SenderRequest = TryPush | NoteAttempts | ListAttempts
"""What the senders at the owner's shard answer."""

AnyRequest = (
    Consume
    | Poll
    | Acknowledge
    | Nack
    | Leave
    | Describe
    | DescribeKey
    | ListKeys
    | RetryKey
    | SkipKey
    | RepairBlocked
    | Resend
    | Seek
    | PausePush
    | SenderRequest
)
