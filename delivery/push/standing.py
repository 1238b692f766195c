"""What a message that a sender has waits for, by the sender's row. Pure."""

from __future__ import annotations

from delivery.push.limiter import Mode
from delivery.standstill import UNKNOWN, Why
from shards.boards.pushboard import PushSenderRow


def why_not_posted(row: PushSenderRow | None, attempts_since_ns: int, now_ns: int) -> Why | None:
    """``attempts_since_ns``: since when the number of the sender's attempts has not changed. None:
    it is POSTed now, or the rate does not allow more yet."""
    if row is None or not row.is_present:
        return Why("waits for its sender, which is not there")
    if row.state.mode != Mode.NORMAL:
        return Why(
            f"waits for its receiver, which fails ({Mode(row.state.mode).name.lower()} mode)"
        )
    if row.held_until_ns > now_ns:
        return Why("waits because its receiver asked for a pause")
    if not row.granted:
        return Why("waits for its sender to be granted a rate", attempts_since_ns)
    if row.in_flight or row.next_ns > now_ns:
        return None
    return Why(UNKNOWN, attempts_since_ns)
