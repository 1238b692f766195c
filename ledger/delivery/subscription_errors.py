"""What a subscription cannot be; kinds as in ``ledger/errors.py``."""

from __future__ import annotations

from ledger.errors import LedgerError


class SubscriptionMissing(LedgerError):
    """The topic has no live subscription of this name."""

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(f"topic {topic!r} has no subscription {name!r}")
        self.topic = topic
        self.name = name


class SubscriptionsFull(LedgerError):
    """There are as many subscriptions as there may be."""

    def __init__(self, maximum: int) -> None:
        super().__init__(f"there are {maximum} subscriptions, which is the limit; delete some")
        self.maximum = maximum


class SubscriptionRefused(LedgerError):
    """Settings, or a place to go on at, that a subscription cannot have."""

    def __init__(self, name: str, field: str, problem: str) -> None:
        super().__init__(f"{field} of subscription {name!r} {problem}")
        self.name = name
        self.field = field


class DeadLetterCycle(LedgerError):
    """A topic of dead letters from which records come back to the subscription's topic."""

    def __init__(self, name: str, path: list[str]) -> None:
        super().__init__(
            f"dead_letter_topic of subscription {name!r} would close a cycle: {' -> '.join(path)};"
            f" records would go around forever. Paused routers count; use another topic, or delete"
            f" a router on the path"
        )
        self.name = name
        self.path = path
