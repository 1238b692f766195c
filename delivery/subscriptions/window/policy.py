"""The settings of a subscription that its window needs."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

_S = 1_000_000_000


class WindowPolicy(Struct, frozen=True):
    """What is allowed, and what happens to a message whose deliveries fail."""

    in_flight_max: int = 10_000
    member_max: int = 1_000
    ack_timeout_ns: int = 30 * _S
    redeliveries_max: int = 5
    backoff_min_ns: int = 1 * _S
    backoff_max_ns: int = 60 * _S
    poison: Literal["block", "drop", "dead_letter"] = "block"
    run_max: int = 1  # messages of a key that one member may have
    unmatched: Literal["hold", "skip"] = "hold"

    def rest_ns(self, failures: int, asked_ns: int = 0) -> int:
        """How long a message rests after that many failures, from 1, whether they count or not:
        doubling from the minimum, or what the consumer asked for if that is longer, never over the
        maximum."""
        doubled = self.backoff_min_ns << min(failures - 1, 40)
        return min(max(min(doubled, self.backoff_max_ns), asked_ns), self.backoff_max_ns)
