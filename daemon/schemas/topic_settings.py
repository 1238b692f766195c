"""The settings of a topic as clients send them."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, defstruct
from msgspec.structs import fields

from delivery.push.signatures import SIGNING_MAX
from ledger.types import HookSigning, TopicConfig


class HookChange(HookSigning, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How hooks must be signed from now on."""

    secrets: Annotated[
        list[str],
        Meta(
            min_length=1,
            max_length=SIGNING_MAX,
            description="what the sender may sign with; several during a change. Never shown",
        ),
    ]


TopicSettings = defstruct(
    "TopicSettings",
    [
        (each.name, (HookChange | None if each.name == "hook" else each.type) | UnsetType, UNSET)
        for each in fields(TopicConfig)
    ],
    namespace={"__doc__": "The settings to change; those that are not given stay as they are."},
    module=__name__,
    frozen=True,
    forbid_unknown_fields=True,
)
