"""The settings of a subscription that its window needs."""

from __future__ import annotations

from msgspec import Struct

from ledger.delivery.subscription_rules import Poison, Unmatched
from ledger.delivery.subscriptions import SubscriptionConfig

NEVER_NS = 1 << 62

_S = 1_000_000_000


class WindowPolicy(Struct, frozen=True):
    """What is allowed, and what happens to a message whose deliveries fail."""

    in_flight_max: int = 10_000
    member_max: int = 1_000
    ack_timeout_ns: int = 30 * _S
    redeliveries_max: int = 5
    backoff_min_ns: int = 1 * _S
    backoff_max_ns: int = 60 * _S
    poison: Poison = "block"
    run_max: int = 1  # messages of a key that one member may have
    unmatched: Unmatched = "hold"

    def rest_ns(self, failures: int, asked_ns: int = 0) -> int:
        """How long a message rests after that many failures, from 1, whether they count or not:
        doubling from the minimum, or what the consumer asked for if that is longer, never over the
        maximum."""
        doubled = self.backoff_min_ns << min(failures - 1, 40)
        return min(max(min(doubled, self.backoff_max_ns), asked_ns), self.backoff_max_ns)


def policy_of(config: SubscriptionConfig) -> WindowPolicy:
    """What the window needs of the settings."""
    low_ms, high_ms = config.backoff_ms
    in_flight_max, ack_timeout_ns = config.window_max, config.ack_timeout_ms * 1_000_000
    run_max = 1
    if config.push is not None:
        # Messages rest while a receiver fails. So their number, which BLOCKED_BYTES is for each, is
        # what the senders may have; they are there as long as their streams, and wait for the rate.
        in_flight_max = min(in_flight_max, config.push.senders * config.consumer_max)
        ack_timeout_ns = NEVER_NS
        run_max = config.push.batch_max if config.push.format == "batch" else 1
    return WindowPolicy(
        in_flight_max=in_flight_max,
        member_max=config.consumer_max,
        ack_timeout_ns=ack_timeout_ns,
        redeliveries_max=config.redeliveries_max,
        backoff_min_ns=low_ms * 1_000_000,
        backoff_max_ns=high_ms * 1_000_000,
        poison=config.poison,
        unmatched=config.unmatched,
        run_max=run_max,
    )
