"""What clients ask about subscriptions, and what the ledger knows of them.

What owners answer with is in ``delivery/subscriptions/schemas.py``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field
from msgspec.structs import fields

from daemon.schemas.names import CONSUMER_CHARACTERS_MAX
from daemon.schemas.push import PushActivity, PushChanges, PushSenderActivity, ShownConfig
from delivery.filters import PATTERN_CHARACTERS_MAX
from delivery.subscriptions.schemas import (
    PartitionProgress,
    SubscriptionState,
)
from ledger.delivery.start_offsets import SubscriptionStart
from ledger.delivery.subscription_rules import SubscriptionRules
from ledger.types import INTEGER_MAX
from shards.boards.figures import SubscriptionCounts

FILTERS_MAX = 64  # of a consumer; each is matched with each new key
POLL_MESSAGES_MAX = 10_000
POLL_WAIT_MS_MAX = 30_000
NAMED_MESSAGES_MAX = 10_000  # of an acknowledgment: more come in another one, or as a batch
NAMED_BATCHES_MAX = 1_000
KEYS_MAX = 1_000
NACK_DELAY_MS_MAX = 86_400_000
REASON_CHARACTERS_MAX = 255
RESEND_ID_CHARACTERS_MAX = 100

SubscriptionActivity = Literal["running", "paused", "held", "stopped"]
_Sequence = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
_Partition = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
_Name = Annotated[
    str,
    Meta(description=f"the consumer's name, 1 to {CONSUMER_CHARACTERS_MAX} printable characters"),
]

SubscriptionSettings = defstruct(
    "SubscriptionSettings",
    [
        *(
            (each.name, each.type | UnsetType, UNSET)
            for each in fields(SubscriptionRules)
            if each.name != "paused_because"
        ),
        (
            "push",
            Annotated[
                PushChanges | None,
                Meta(
                    description="the daemon itself sends to a receiver; within it, too, only what"
                    " is given changes. null: it does not"
                ),
            ]
            | UnsetType,
            UNSET,
        ),
        (
            "start",
            Annotated[
                SubscriptionStart,
                Meta(
                    description="where a new subscription begins: `earliest` (if not given),"
                    " `latest`, after an offset (of a topic with several partitions, a list with"
                    " one for each), or at a time; without effect on one that exists"
                ),
            ]
            | UnsetType,
            UNSET,
        ),
    ],
    namespace={"__doc__": "The settings to change; those that are not given stay as they are."},
    module=__name__,
    frozen=True,
    forbid_unknown_fields=True,
)


class SubscriptionSummary(SubscriptionCounts, frozen=True, kw_only=True):
    """A subscription. Numbers are a tenth of a second late; counts are since the daemon
    started."""

    subscription: str
    subscription_id: Annotated[int, Meta(description="never used twice; a new one has another")]
    topic: str
    topic_id: int
    config: ShownConfig
    created_ms: Annotated[int, Meta(description="epoch milliseconds")]
    state: Annotated[
        SubscriptionActivity,
        Meta(
            description="`paused` by request; `held` while nothing can be sent; `stopped` if it"
            " cannot go on"
        ),
    ]
    reason: Annotated[
        str,
        Meta(description="why it is held or stopped, or why dead letters wait; otherwise empty"),
    ]
    consumers: Annotated[int, Meta(description="how many are present")]
    partitions: list[PartitionProgress]
    push: Annotated[
        PushActivity | None, Meta(description="what its senders do; null: it has none")
    ] = None


class SubscriptionStatus(SubscriptionState, frozen=True, kw_only=True):
    """A subscription: what the ledger knows, and what its owner sees. Counts are since the daemon
    started."""

    subscription_id: Annotated[int, Meta(description="never used twice; a new one has another")]
    topic_id: int
    config: ShownConfig
    created_ms: Annotated[int, Meta(description="epoch milliseconds")]
    push: Annotated[
        PushActivity | None, Meta(description="what its senders do; null: it has none")
    ] = None
    push_senders: Annotated[
        list[PushSenderActivity], Meta(description="each of them, by shard")
    ] = field(default_factory=list)


class SubscriptionsQuery(Struct, frozen=True):
    """Which subscriptions to list."""

    after: Annotated[str, Meta(description="`next_after` of the previous page")] = ""
    limit: Annotated[int, Meta(ge=1, le=1_000, description="subscriptions in the page")] = 100


class SubscriptionPage(Struct, frozen=True):
    """Subscriptions of a topic in the order of their names."""

    subscriptions: list[SubscriptionSummary]
    next_after: Annotated[str | None, Meta(description="asks for the next page; null: no more")]


class EverySubscriptionQuery(Struct, frozen=True):
    """Which subscriptions to list."""

    after: Annotated[
        int, Meta(ge=0, le=INTEGER_MAX, description="`next_after` of the previous page")
    ] = 0
    limit: Annotated[int, Meta(ge=1, le=1_000, description="subscriptions in the page")] = 100


class EverySubscription(Struct, frozen=True):
    """Subscriptions of all topics in the order of their ids."""

    subscriptions: list[SubscriptionSummary]
    next_after: Annotated[int | None, Meta(description="asks for the next page; null: no more")]


class SubscriptionDeleted(Struct, frozen=True):
    """The subscription is deleted; its name can be used again."""

    topic: str
    subscription: str
    deleted: bool = True


class ConsumeQuery(Struct, frozen=True):
    """Who consumes, and what. With ``max`` the answer is a batch in JSON, without it a stream."""

    consumer: _Name
    filter: Annotated[
        list[str],
        Meta(
            description="keep messages whose key matches this pattern; several, in repeated"
            f" parameters or with commas, at most {FILTERS_MAX}: one of them. `\\,` is a comma"
        ),
    ] = []
    max: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=POLL_MESSAGES_MAX,
                description="answer with at most this many messages; a batch has 256 at most",
            ),
        ]
        | None
    ) = None
    wait_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=POLL_WAIT_MS_MAX,
            description="with `max`: how long to wait for a first message",
        ),
    ] = 0


class ConsumeHeaders(Struct, frozen=True, rename={"accept": "Accept"}):
    """The headers that a consumer's stream heeds."""

    accept: Annotated[
        str,
        Meta(
            description="`application/x-ndjson` (the default), `text/event-stream` or"
            " `application/msgpack`; without effect if `max` is given"
        ),
    ] = ""


class MessagePlace(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a batch that is named elsewhere."""

    partition: _Partition
    seq: _Sequence


class NamedMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message, as it was sent."""

    partition: _Partition
    seq: _Sequence
    epoch: Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="that it came with")]


class _NamedMessages(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What acknowledgments of both kinds say."""

    consumer: _Name
    messages: Annotated[
        list[NamedMessage], Meta(max_length=NAMED_MESSAGES_MAX, description="one by one")
    ] = []
    batch: (
        Annotated[
            int, Meta(ge=0, le=INTEGER_MAX, description="an `epoch`: all messages of this batch")
        ]
        | None
    ) = None
    batches: Annotated[
        list[Annotated[int, Meta(ge=0, le=INTEGER_MAX)]],
        Meta(max_length=NAMED_BATCHES_MAX, description="the same for several batches"),
    ] = []
    but: Annotated[
        list[MessagePlace],
        Meta(max_length=NAMED_MESSAGES_MAX, description="messages of these batches to leave out"),
    ] = field(default=[], name="except")


class AckRequest(_NamedMessages, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Messages that the consumer has dealt with. They are never sent again."""


class NackRequest(_NamedMessages, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Messages that the consumer could not deal with. They are sent again, to any consumer."""

    delay_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=NACK_DELAY_MS_MAX,
            description="not before; at least what `backoff_ms` says, and at most its second value",
        ),
    ] = 0
    reason: Annotated[
        str,
        Meta(max_length=REASON_CHARACTERS_MAX, description="shown for a key that gets blocked"),
    ] = ""


class LeaveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A consumer that goes: what it has goes to others immediately."""

    consumer: _Name


class KeysQuery(Struct, frozen=True):
    """How many blocked keys to list."""

    limit: Annotated[int, Meta(ge=1, le=KEYS_MAX, description="keys in the answer")] = 100


_Pattern = Annotated[str, Meta(max_length=PATTERN_CHARACTERS_MAX)]


class BlockedCondition(Struct, frozen=True, forbid_unknown_fields=True):
    """Blocked messages that match all that is given; without anything, all of them."""

    key: (
        Annotated[
            _Pattern,
            Meta(
                description="a pattern with `*` and `?`; no message without a key, or a node that"
                " counts as one"
            ),
        ]
        | None
    ) = None
    partition: _Partition | None = None
    reason: Annotated[_Pattern, Meta(description="a pattern of the `reason`")] | None = None
    resting: Annotated[bool, Meta(description="true: also those that rest")] = False


class BlockedMessageRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A blocked message: that of ``key``, or the one at ``partition`` and ``seq``."""

    key: str | None = None
    partition: _Partition | None = None
    seq: _Sequence | None = None


class ResendRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A message that is finished."""

    partition: _Partition
    seq: _Sequence
    id: Annotated[
        str,
        Meta(
            max_length=RESEND_ID_CHARACTERS_MAX,
            description="names this resend: a repeated request only asks whether the message"
            " is finished. After the death of the owner, a seek or another mode it"
            " sends the message again",
        ),
    ] = ""
    topic_id: Annotated[
        int | None, Meta(description="the id of the topic that the offset is of")
    ] = None


class RepairRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to do with which blocked messages."""

    action: Annotated[
        Literal["retry", "skip"], Meta(description="send them again, or give them up")
    ]
    where: BlockedCondition


class SeekRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to go on. What consumers have is forgotten; their acknowledgments are refused."""

    to: Annotated[
        SubscriptionStart,
        Meta(
            description="before the first record, after the last one, after an offset (a list"
            " with one for each partition), or at a time"
        ),
    ]
