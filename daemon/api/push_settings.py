"""What a request makes of the push settings of a subscription, and what is shown of them. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from daemon.api.push_schemas import ShownConfig
from ledger.push_settings import PushSettings, PushTarget
from ledger.subscription_errors import SubscriptionRefused
from ledger.subscriptions import SubscriptionConfig


def given_fields(asked: Struct) -> dict[str, Any]:
    """The fields of a request that are given."""
    return {
        name: value
        for name in asked.__struct_fields__
        if (value := getattr(asked, name)) is not UNSET
    }


def changed_push(name: str, present: PushSettings | None, asked: Struct) -> PushSettings:
    """The push settings of subscription ``name`` when what is asked is changed in them. Raises
    SubscriptionRefused."""
    given = given_fields(asked)
    if present is not None:
        return msgspec.structs.replace(present, **given)
    if "endpoint" not in given:
        raise SubscriptionRefused(name, "push.endpoint", "is missing; give the receiver's URL")
    return PushSettings(**given)


def shown_config(config: SubscriptionConfig) -> ShownConfig:
    """The settings as clients see them."""
    values = {each: getattr(config, each) for each in ShownConfig.__struct_fields__}
    if config.push is not None:
        shown = {each: getattr(config.push, each) for each in PushTarget.__struct_fields__}
        values["push"] = PushTarget(**shown)
    return ShownConfig(**values)
