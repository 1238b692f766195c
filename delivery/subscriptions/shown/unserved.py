"""Subscriptions that their owner cannot run, because it follows as many partitions as it may.

Consumers are refused with the reason, and the state tells it, until there is room: one of them is
looked at with each heartbeat, each in its turn.
"""

from __future__ import annotations

from collections.abc import Callable

from delivery.subscriptions.requests import OwnerRefused
from delivery.subscriptions.schemas import (
    PartitionProgress,
    SubscriptionState,
)
from ledger.delivery.subscriptions import SubscriptionView
from shards.boards.figures import SubscriptionCounts, values_of
from shards.boards.rowboard import RowPhase, SubscriptionRow


class NotServed(OwnerRefused):
    """Asked of a subscription that cannot be run now."""

    def __init__(self, view: SubscriptionView, why: str) -> None:
        super().__init__(503, "too_many_partitions", why)
        self.view = view
        self.why = why


class Unserved:
    """The unserved subscriptions of one shard, by id, the next one to look at first."""

    def __init__(self, can_pin: Callable[[SubscriptionView], bool]) -> None:
        self._can_pin = can_pin
        self._by_id: dict[int, NotServed] = {}

    def add(self, view: SubscriptionView, why: str) -> NotServed:
        """There was no room for this one."""
        found = self._by_id[view.subscription.subscription_id] = NotServed(view, why)
        return found

    def forget(self, subscription_id: int) -> None:
        """It is served, or deleted."""
        self._by_id.pop(subscription_id, None)

    def check(self, subscription_id: int) -> None:
        """Raises NotServed."""
        there = self._by_id.get(subscription_id)
        if there is not None:
            raise NotServed(there.view, there.why)

    def one_with_room(self) -> list[int]:
        """The id of one that may be tried again, if the next one may."""
        for subscription_id, there in self._by_id.items():
            self._by_id[subscription_id] = self._by_id.pop(subscription_id)
            return [subscription_id] if self._can_pin(there.view) else []
        return []


def row_of(found: NotServed) -> SubscriptionRow:
    """What any shard can report of it."""
    lagging = [each for each in stored_progress(found.view) if each.lag]
    first = f"{lagging[0].partition}:{lagging[0].floor + 1}" if lagging else ""
    return SubscriptionRow(
        topic=found.view.topic.name,
        subscription=found.view.subscription.name,
        phase=RowPhase.HELD,
        reason=found.why,
        stands=f"message {first} waits: {found.why}" if first else "",
        lag=sum(each.lag for each in lagging),
    )


def state_of(found: NotServed, shard: int) -> SubscriptionState:
    """Its state: nothing is known but what the ledger has."""
    row = row_of(found)
    return SubscriptionState(
        subscription=row.subscription,
        topic=row.topic,
        owner_shard=shard,
        held=row.reason,
        blocked_letters="",
        partitions=stored_progress(found.view),
        consumers=[],
        blocked=[],
        gaps=[],
        **values_of(SubscriptionCounts, row),
    )


def stored_progress(view: SubscriptionView) -> list[PartitionProgress]:
    """How far a subscription has got in each partition, as the ledger has it."""
    return [
        PartitionProgress(state.partition, floor, state.head_seq, max(0, state.head_seq - floor))
        for floor, state in view.partitions
    ]
