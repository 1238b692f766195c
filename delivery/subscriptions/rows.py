"""What an owner tells on the board of its subscriptions, so that any shard can report it.

A row is written at a heartbeat if it may have changed, few at a time; all are due once a second,
because ages grow. One that another subscription has written over is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from delivery.subscriptions.inspection import row_of
from delivery.subscriptions.running import RunningSubscription
from ledger.subscriptions import Subscription
from shards.subscriptionboard import SubscriptionBoard, SubscriptionRow

ROWS_NS = 1_000_000_000
ROWS_AT_ONCE = 64  # in a heartbeat, 13 us each; what is due longest comes first


class OwnedRows:
    """The rows of one shard's subscriptions."""

    def __init__(self, board: SubscriptionBoard, now_ns: Callable[[], int]) -> None:
        self._board = board
        self._now_ns = now_ns
        self.touched: dict[RunningSubscription, None] = {}  # may be out of date
        self._due_ns = 0

    def touch(self, running: RunningSubscription) -> None:
        """A row may be out of date."""
        self.touched[running] = None

    def write(self, running: Mapping[int, RunningSubscription]) -> None:
        """Writes what is due of those that run now."""
        now_ns = self._now_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + ROWS_NS
            self.touched.update(dict.fromkeys(running.values()))
        for each in list(islice(self.touched, ROWS_AT_ONCE)):
            del self.touched[each]
            place = each.view.subscription.slot, each.view.subscription.subscription_id
            row = row_of(each, now_ns)
            is_told = row == each.told and self._board.is_of(*place)
            if not is_told and place[1] in running:
                self._board.write(*place, row)
                each.told = row

    def tell(self, subscription: Subscription, row: SubscriptionRow) -> None:
        """Writes the row of one that does not run."""
        self._board.write(subscription.slot, subscription.subscription_id, row)

    def former(self, subscription: Subscription) -> SubscriptionRow | None:
        """What a former owner told."""
        return self._board.read(subscription.slot, subscription.subscription_id)

    def free(self, subscription: Subscription) -> None:
        """A subscription was deleted."""
        self._board.free(subscription.slot, subscription.subscription_id)
