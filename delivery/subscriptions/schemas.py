"""What subscriptions look like to clients: the answers of owners, and what a batch consists of."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from delivery.schemas import DiffRecord
from ledger.types import Offset
from shards.boards.figures import SubscriptionCounts


class RefusedMessage(Struct, frozen=True):
    """A message, or a whole batch, that an acknowledgment named and that it does not finish."""

    partition: Annotated[int | None, Meta(description="null: the whole batch")]
    seq: Annotated[Offset | None, Meta(description="null: the whole batch")]
    epoch: int
    reason: Annotated[
        str,
        Meta(
            description="`finished`, or `epoch`: it was not sent in this batch to this"
            " consumer, or was taken back"
        ),
    ]


class Acknowledged(Struct, frozen=True):
    """What became of an acknowledgment."""

    accepted: Annotated[
        int, Meta(description="messages that are finished now, or that are sent again after a nack")
    ]
    refused: Annotated[int, Meta(description="messages that it does not change")]
    refused_messages: Annotated[
        list[RefusedMessage], Meta(description="the first hundred of them")
    ] = []
    epoch: Annotated[
        int,
        Meta(
            description="the last batch of the subscription so far: what a nack took back"
            " comes again in later ones"
        ),
    ] = 0


class ConsumerState(Struct, frozen=True):
    """A consumer that is present."""

    consumer: str
    kind: Annotated[str, Meta(description="`stream` or `poll`")]
    filters: list[str]
    share: Annotated[float, Meta(description="its part of all keys, from 0 to 1")]
    in_flight: Annotated[int, Meta(description="messages that it has")]
    ready: Annotated[int, Meta(description="keys with a message for it")]
    active: Annotated[bool, Meta(description="false: it stands by (of the mode `exclusive`)")]
    connected: Annotated[
        bool, Meta(description="false: its stream has ended, and it may come back")
    ]


class BlockedKey(Struct, frozen=True):
    """A key whose first message nobody gets."""

    key: Annotated[
        str | None,
        Meta(description="or the node that counts as one; null for a message with neither"),
    ]
    partition: int
    seq: Offset
    attempts: Annotated[int, Meta(description="deliveries that failed")]
    since_ms: Annotated[int, Meta(description="epoch milliseconds")]
    reason: str
    until_ms: Annotated[
        int | None,
        Meta(description="when it is sent again; null: when an operator asks for it"),
    ] = None
    waiting: Annotated[
        int | None,
        Meta(description="messages of the key that wait for it, as far as they are read"),
    ] = None


class BlockedKeys(Struct, frozen=True):
    """Keys that are blocked, those that are blocked longest first."""

    keys: list[BlockedKey]


class ResentMessage(Struct, frozen=True):
    """A finished message that is delivered once more."""

    partition: int
    seq: Offset
    key: str | None
    finished: Annotated[
        bool,
        Meta(description="whether it is finished again"),
    ] = False


class RepairedMessages(Struct, frozen=True):
    """What became of the blocked messages that match."""

    repaired: Annotated[int, Meta(description="messages that are sent again, or given up")]
    moving: Annotated[
        int,
        Meta(description="messages that are left alone: their dead letters are on their way"),
    ]


class MissedOffsets(Struct, frozen=True):
    """Offsets that are not delivered."""

    partition: int
    gap_from: Annotated[Offset, Meta(description="the first missing offset")]
    gap_to: Annotated[Offset, Meta(description="the last missing offset")]
    reason: Annotated[str, Meta(description="a reason of a diff's tombstone")]


class PartitionProgress(Struct, frozen=True):
    """How far the subscription has got in a partition."""

    partition: int
    floor: Annotated[Offset, Meta(description="this offset and all before it are finished")]
    head_seq: Annotated[Offset, Meta(description="the last committed offset; 0 for none")]
    lag: Annotated[int, Meta(description="records that are not finished")]


class SubscriptionState(SubscriptionCounts, frozen=True, kw_only=True):
    """A subscription as its owner sees it. Counts are since the daemon started."""

    subscription: str
    topic: str
    owner_shard: Annotated[int, Meta(description="the shard that decides")]
    held: Annotated[str, Meta(description="why nothing is sent now; otherwise empty")]
    blocked_letters: Annotated[
        str,
        Meta(description="why dead letters cannot be stored now; their keys wait, others go on"),
    ]
    partitions: list[PartitionProgress]
    consumers: list[ConsumerState]
    blocked: Annotated[list[BlockedKey], Meta(description="the first of the blocked keys")]
    gaps: Annotated[list[MissedOffsets], Meta(description="the last of the gaps")]


class KeyState(Struct, frozen=True):
    """A key: its consumer, and its first message that is not finished."""

    key: str
    state: Annotated[
        str,
        Meta(
            description="`ready`, `sent`, `resting`, `stuck` (blocked), `held` (no consumer's"
            " filter matches), or `idle`: nothing waits"
        ),
    ]
    owner: Annotated[
        str | None, Meta(description="the consumer that gets its messages; null: none does")
    ]
    partition: int | None = None
    seq: Annotated[Offset | None, Meta(description="its first message")] = None
    since_ms: Annotated[int | None, Meta(description="epoch milliseconds; of this state")] = None
    until_ms: Annotated[
        int | None, Meta(description="of the state `resting`: when it is sent again")
    ] = None
    attempts: Annotated[int, Meta(description="deliveries of the message that failed")] = 0
    consumer: Annotated[
        str | None, Meta(description="of the state `sent`: the consumer that has it")
    ] = None
    reason: Annotated[str, Meta(description="why it is in this state")] = ""
    waiting: Annotated[int, Meta(description="messages that wait for the first one")] = 0


class ConsumerLeft(Struct, frozen=True):
    """The consumer is gone."""

    consumer: str
    returned: Annotated[int, Meta(description="messages that it had and that others get now")]


class Sought(Struct, frozen=True):
    """Where the subscription goes on."""

    partitions: list[PartitionProgress]


class PushPaused(Struct, frozen=True):
    """What became of a receiver's wish to get no more."""

    paused: bool  # false: it was paused already, or is pushed elsewhere


class ConsumedMessage(DiffRecord, frozen=True, kw_only=True):
    """A message: a record of the topic, as it was sent to a consumer."""

    partition: int
    epoch: Annotated[int, Meta(description="the number of the batch that it came in")]
    attempt: Annotated[int, Meta(description="counts its deliveries, from 1")]


class Polled(Struct, frozen=True):
    """A batch of messages."""

    epoch: Annotated[int | None, Meta(description="its number; null if it has no messages")]
    messages: list[ConsumedMessage]
    gaps: Annotated[
        list[MissedOffsets], Meta(description="offsets that nobody was told of yet")
    ] = []


class PushHeader(Struct, frozen=True):
    """A header of a request or an answer."""

    name: str
    value: Annotated[str, Meta(description="`(hidden)` for an own header")]


class PushExchange(Struct, frozen=True):
    """A POST of a record that is in no topic, and what became of it."""

    endpoint: str
    address: Annotated[str, Meta(description="the address that was connected to; empty: none")]
    request_headers: list[PushHeader]
    request_body: Annotated[str, Meta(description="its first 16,384 characters")]
    request_bytes: int
    status: Annotated[int | None, Meta(description="of the answer; null: there is none")]
    failure: Annotated[
        str | None, Meta(description="why no answer counts, in a word; null if one does")
    ]
    message: Annotated[str, Meta(description="and in a sentence")]
    answer_headers: Annotated[list[PushHeader], Meta(description="32 at most")]
    answer_body: Annotated[str, Meta(description="its first 1,024 bytes")]
    took_ms: float
    waited_ms: Annotated[float, Meta(description="for its turn, as the rate allows")]
    outcome: Annotated[
        str,
        Meta(
            description="what the answer means: `success`, `receiver` (it failed), `record` (it"
            " refuses this one), `held` (it asks for a pause), `gone` (it wants no more)"
        ),
    ]
    meaning: Annotated[str, Meta(description="the same in a sentence")]
    retry_after_ms: Annotated[int | None, Meta(description="the pause that it asks for")]


class PushAttempt(Struct, frozen=True, gc=False):
    """A POST, as far as it is about one message."""

    partition: int
    seq: Offset
    attempt: Annotated[
        int, Meta(description="as the receiver was told: 1, and one more after each that counts")
    ]
    began_ms: Annotated[int, Meta(description="epoch milliseconds")]
    took_ms: float
    outcome: Annotated[
        str,
        Meta(description="`success`, `receiver`, `record`, `held` or `gone`, as of a test"),
    ]
    counted: Annotated[
        bool, Meta(description="whether it counts as a failed delivery of the message")
    ]
    status: Annotated[int | None, Meta(description="of the answer; null: there is none")]
    failure: Annotated[
        str | None, Meta(description="why no answer counts, in a word; null if one does")
    ]
    message: Annotated[str, Meta(description="what happened, in a sentence; empty: delivered")]


class PushAttempts(Struct, frozen=True):
    """Attempts, the last one first."""

    attempts: list[PushAttempt]
    kept: Annotated[
        int,
        Meta(
            description="how many are kept: 1,000 at most, 200 of them of messages that never"
            " failed, and fewer if a shard has more than 16 push subscriptions"
        ),
    ]
