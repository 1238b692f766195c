"""What clients say of a push subscription, and what they are shown of it: never a secret."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, defstruct
from msgspec.structs import fields

from ledger.push_settings import PushTarget
from ledger.subscription_rules import SubscriptionRules

_MADE = ("headers", "signed", "secrets_count")  # of what a request says otherwise

PushChanges = defstruct(
    "PushChanges",
    [
        (each.name, each.type | UnsetType, UNSET)
        for each in fields(PushTarget)
        if each.name not in _MADE
    ],
    namespace={"__doc__": "What to change; what is not given stays as it is, or has its default."},
    module=__name__,
    frozen=True,
    forbid_unknown_fields=True,
)


class ShownConfig(SubscriptionRules, frozen=True, forbid_unknown_fields=True):
    """The settings of a subscription."""

    push: (
        Annotated[PushTarget, Meta(description="the daemon itself sends to this receiver")] | None
    ) = None
