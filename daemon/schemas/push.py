"""The settings of a push subscription as clients send them and see them: never a secret."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct
from msgspec.structs import fields

from daemon.schemas.status import PushCounters
from delivery.push.attempts import ATTEMPTS_MAX
from delivery.push.secrets import HEADERS_MAX
from delivery.push.signatures import SIGNING_MAX
from ledger.delivery.push_settings import PushTarget
from ledger.delivery.subscription_rules import SubscriptionRules
from ledger.types import INTEGER_MAX

TEST_BYTES_MAX = 64 << 10
_MADE = ("headers", "signed", "secrets_count")  # of what a request says otherwise

PushChanges = defstruct(
    "PushChanges",
    [
        *(
            (each.name, each.type | UnsetType, UNSET)
            for each in fields(PushTarget)
            if each.name not in _MADE
        ),
        (
            "headers",
            Annotated[
                dict[str, str | None],
                Meta(
                    max_length=2 * HEADERS_MAX,
                    description="own headers, by name; null removes one, the others stay."
                    " Their values are never shown",
                ),
            ]
            | UnsetType,
            UNSET,
        ),
        (
            "secrets",
            Annotated[
                list[str],
                Meta(
                    max_length=SIGNING_MAX,
                    description="`whsec_...`, the newest first: all of them sign each POST;"
                    " an empty list ends that. Never shown",
                ),
            ]
            | UnsetType,
            UNSET,
        ),
    ],
    namespace={"__doc__": "What to change; what is not given stays as it is, or has its default."},
    module=__name__,
    frozen=True,
    forbid_unknown_fields=True,
)


class PushActivity(PushCounters, frozen=True, kw_only=True):
    """What the senders of a subscription do together, about a tenth of a second ago."""

    mode: Annotated[
        str,
        Meta(
            description="of the slowest sender: `normal`, or `slow` or `heartbeat` if the"
            " receiver fails"
        ),
    ]
    held_until_ms: Annotated[
        int | None,
        Meta(description="the receiver asked for a pause until then; epoch milliseconds"),
    ]
    outcomes: Annotated[dict[str, int], Meta(description="how attempts ended, where not 0")]


class PushSenderActivity(Struct, frozen=True, kw_only=True):
    """What one sender does. Times are epoch milliseconds."""

    shard: int
    mode: Annotated[str, Meta(description="`normal`, `slow` or `heartbeat`")]
    granted: Annotated[float, Meta(description="its share of `rate_max`")]
    rate: Annotated[float, Meta(description="attempts a second that are in force")]
    ceiling: Annotated[
        float | None, Meta(description="what the receiver is thought to take; null: nothing failed")
    ]
    use: Annotated[float, Meta(description="the part of its share that it used, 0 to 1")]
    changed_ms: Annotated[int | None, Meta(description="when mode or rate changed last")]
    next_attempt_ms: Annotated[
        int | None, Meta(description="when the next attempt may begin; null: none may")
    ]
    held_until_ms: Annotated[int | None, Meta(description="the receiver asked for a pause")]
    in_flight: int
    attempts: int
    records: int
    failures: int
    p50_ms: float | None
    p99_ms: float | None


class PushTestRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The record of a test."""

    data: Annotated[
        Raw | UnsetType,
        Meta(
            description=f"any JSON value of at most {TEST_BYTES_MAX} bytes; by default one that"
            " says that it is a test"
        ),
    ] = UNSET
    key: Annotated[str, Meta(max_length=1_024, description="of the record")] | None = None


class AttemptsQuery(Struct, frozen=True):
    """Which attempts to list."""

    partition: (
        Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="of messages in it")] | None
    ) = None
    seq: (
        Annotated[int, Meta(ge=1, le=INTEGER_MAX, description="of messages with this offset")]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX, description="attempts in the answer")] = 100


class ShownConfig(SubscriptionRules, frozen=True, forbid_unknown_fields=True):
    """The settings of a subscription."""

    push: (
        Annotated[PushTarget, Meta(description="the daemon itself sends to this receiver")] | None
    ) = None


class PushResumed(Struct, frozen=True):
    """Senders go on: in normal mode, and without a pause that the receiver asked for."""

    was_paused: Annotated[bool, Meta(description="false: the subscription was not paused")]
