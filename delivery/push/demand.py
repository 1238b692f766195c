"""Whether more senders would help a push subscription: what its drainable lag depends on.

They would not while the receiver fails or asks for a pause, or takes no more, or if all that the
settings allow is used. Then its lag does not ask for more of anything. They would if senders have
less under way than they may send, because each has as many connections as it may use and waits for
answers. What a sender uses is known after its first update interval, and that its receiver answers
when it took something; until then nothing asks.
"""

from __future__ import annotations

from collections.abc import Iterable

from delivery.push.limiter import BUSY
from shards.boards.pushboard import Mode, PushSenderRow


def wants_more(rows: Iterable[PushSenderRow], now_ns: int) -> bool:
    """Whether a sender of a subscription may send more than it can."""
    return any(
        row.is_present
        and row.state.mode == Mode.NORMAL
        and row.held_until_ns <= now_ns
        and row.records > 0
        and 0 <= row.use * row.granted < BUSY * row.state.rate
        for row in rows
    )
