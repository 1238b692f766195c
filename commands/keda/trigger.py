"""What a ScaledObject asks of the scaler, and the answers; pure.

Vocabulary: a *trigger* is KEDA's word for one reason to scale, with its *metadata*: names and texts
from the ScaledObject. Ours names a subscription; its metric is the drainable lag. KEDA divides the
metric by the target to get the number of consumers, and runs none while the trigger is not active.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from daemon.schemas.api import Scaling, SubscriptionScaling

METRIC = "headgate-drainable-lag"
TARGET_MAX = 1_000_000_000
_OWN = ("topic", "subscription", "lagPerConsumer", "activationLag")
_OF_KEDA = (
    "scalerAddress", "enableTLS", "unsafeSsl", "tlsCertFile", "caCert", "tlsClientCert",
    "tlsClientKey",
)  # fmt: skip


class TriggerRefused(Exception):
    """The metadata of a trigger cannot be used; the message says what to change."""


class SubscriptionGone(Exception):
    """The daemon has no such subscription."""

    def __init__(self, topic: str, subscription: str) -> None:
        super().__init__(
            f"topic {topic!r} has no subscription {subscription!r}; `headgate subscriptions ls`"
            " lists those that exist"
        )


class Trigger(Struct, frozen=True):
    """A subscription to scale for. ``lag_per_consumer`` is what one consumer is to have, None for
    as much as the subscription lets it have; the trigger is active above ``activation_lag``."""

    topic: str
    subscription: str
    lag_per_consumer: int | None = None
    activation_lag: int = 0

    def row(self, scaling: Scaling) -> SubscriptionScaling:
        """The subscription. Raises SubscriptionGone."""
        for row in scaling.subscriptions:
            if (row.topic, row.subscription) == (self.topic, self.subscription):
                return row
        raise SubscriptionGone(self.topic, self.subscription)

    def is_active(self, row: SubscriptionScaling) -> bool:
        """Whether consumers are to run at all."""
        return row.drainable_lag > self.activation_lag

    def target(self, row: SubscriptionScaling) -> int:
        """The drainable lag for which one consumer is enough."""
        return self.lag_per_consumer or row.consumer_max


def trigger_of(metadata: Mapping[str, str]) -> Trigger:
    """The trigger with this metadata. Raises TriggerRefused."""
    unknown = sorted(set(metadata) - {*_OWN, *_OF_KEDA})
    if unknown:
        raise TriggerRefused(
            f"the trigger's metadata has {', '.join(map(repr, unknown))}, which the scaler does not"
            f" know; it knows {', '.join(_OWN)}"
        )
    for name in ("topic", "subscription"):
        if not metadata.get(name):
            raise TriggerRefused(f"the trigger's metadata has no {name!r}; name one")
    per_consumer = metadata.get("lagPerConsumer")
    return Trigger(
        metadata["topic"],
        metadata["subscription"],
        None if per_consumer is None else _number("lagPerConsumer", per_consumer, 1),
        _number("activationLag", metadata.get("activationLag", "0"), 0),
    )


def _number(name: str, text: str, least: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if not least <= number <= TARGET_MAX:
        raise TriggerRefused(
            f"the trigger's {name} must be an integer from {least} to {TARGET_MAX:,}, got {text!r}"
        )
    return number
