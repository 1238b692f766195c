"""What clients say of a push subscription, and what they are shown of it: never a secret."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct
from msgspec.structs import fields

from delivery.push.secrets import HEADERS_MAX, SIGNING_MAX
from ledger.push_settings import PushTarget
from ledger.subscription_rules import SubscriptionRules

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
                    description="own headers to send, by name; null removes one, and those that are"
                    " not named stay. Nothing ever shows their values again",
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
                    description="`whsec_...`, the newest first: each POST is signed with all of"
                    " them; an empty list ends signing. Nothing ever shows them again",
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


class ShownConfig(SubscriptionRules, frozen=True, forbid_unknown_fields=True):
    """The settings of a subscription."""

    push: (
        Annotated[PushTarget, Meta(description="the daemon itself sends to this receiver")] | None
    ) = None
