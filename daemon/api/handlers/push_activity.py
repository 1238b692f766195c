"""What the senders of one push subscription do, from the words that they write: any shard can tell.

A subscription that its owner has not offered yet, a moment after it was created, has nothing to
tell. About 35 us for each subscription in a list and 8 us for each further sender; 20 us
for each sender of one that is shown.
"""

from __future__ import annotations

from daemon.schemas.push import PushActivity, PushSenderActivity
from daemon.schemas.status import PushCounters
from delivery.push.rates.pacer import NEVER_NS
from ledger.delivery.subscriptions import Subscription
from shards.boards.figures import values_of
from shards.boards.pushboard import LimiterMode, PushBoard, PushSenderRow, latency_ms
from shards.boards.pushtotals import total_of
from shards.clock import monotonic_ns, wall_ns
from shards.segment import Segment


class PushActivities:
    """The activities of all push subscriptions."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._board = PushBoard(segment)

    def of(self, subscription: Subscription) -> PushActivity | None:
        """All senders together; None: nobody sends."""
        offer = self._board.offer_of(subscription.slot, subscription.subscription_id)
        if subscription.config.push is None or offer is None:
            return None
        total = total_of(self._segment, offer)
        return PushActivity(
            mode=LimiterMode(total.mode).name.lower(),
            held_until_ms=_wall_ms(total.held_until_ns, monotonic_ns(), _ahead_ns()),
            outcomes=total.by_outcome,
            **values_of(PushCounters, total),
        )

    def senders_of(self, subscription: Subscription) -> list[PushSenderActivity]:
        """Each sender that is present, by shard."""
        if subscription.config.push is None:
            return []
        rows = self._board.senders(subscription.slot, subscription.subscription_id)
        now_ns, ahead_ns, is_paused = monotonic_ns(), _ahead_ns(), subscription.config.paused
        return [
            _sender(row, now_ns, ahead_ns, is_paused=is_paused) for row in rows if row.is_present
        ]


def _sender(
    row: PushSenderRow, now_ns: int, ahead_ns: int, *, is_paused: bool
) -> PushSenderActivity:
    mode = LimiterMode(row.state.mode)
    may = row.granted and not is_paused and row.next_ns < NEVER_NS
    next_ns = max(row.next_ns, now_ns) if may else None
    return PushSenderActivity(
        shard=row.shard,
        mode=mode.name.lower(),
        granted=row.granted,
        rate=min(row.granted, row.state.rate),
        ceiling=row.state.ceiling,
        use=max(0.0, row.use),
        changed_ms=_wall_ms(row.changed_ns, 0, ahead_ns),
        next_attempt_ms=None if next_ns is None else _wall_ms(next_ns, 0, ahead_ns),
        held_until_ms=_wall_ms(row.held_until_ns, now_ns, ahead_ns),
        in_flight=row.in_flight,
        attempts=row.attempts,
        records=row.records,
        failures=row.failures,
        p50_ms=latency_ms(row.latencies, 0.5),
        p99_ms=latency_ms(row.latencies, 0.99),
    )


def _ahead_ns() -> int:
    """How far the wall clock is ahead of the monotonic one. Read once for what is told together."""
    return wall_ns() - monotonic_ns()


def _wall_ms(at_ns: int, after_ns: int, ahead_ns: int) -> int | None:
    """A time of the monotonic clock by the wall clock; None if it is not after another one."""
    return None if at_ns <= after_ns else (at_ns + ahead_ns) // 1_000_000
