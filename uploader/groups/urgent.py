"""Requests that cannot wait for a whole window, because their time is short.

A budget may make windows of seconds (``daemon/governor/costs/put_budget.py``), a quarter of the
daemon's ``ack_timeout_ms`` at most. A request with less time than that, by its own
``ack_timeout_ms`` or because it waited for its admission, is *urgent*: its group is due after a
quarter of its time, and the whole group with it.

A shard has two words for all its urgent requests: when the first of them is due, and the ring
position at which the last of them ends. They count until everything up to that position is pulled.
A request whose predecessors were more urgent may so be pulled earlier than it must, never later.
Only the shard writes them; the members of its group read them.
"""

from __future__ import annotations

from shards import layout as at
from shards.segment import Segment

TIMEOUT_SHARE = 4  # a quarter of a request's time is for waiting, as with windows
# The window may grow while a request waits, by a part of itself.
WINDOW_MAY_GROW = 2


class UrgentRequests:
    """The words of one shard."""

    def __init__(self, segment: Segment, shard: int) -> None:
        self._words = segment.words
        self._base = segment.layout.shard(shard)

    def published(self, arrival_ns: int, timeout_ns: int, end: int) -> bool:
        """A request that ends at ``end`` was published; whether it is urgent."""
        words, base = self._words, self._base
        if timeout_ns >= TIMEOUT_SHARE * WINDOW_MAY_GROW * words[at.G_WINDOW_NS]:
            return False
        due_ns = max(1, arrival_ns + timeout_ns // TIMEOUT_SHARE)
        if words[base + at.S_URGENT_END] > words[base + at.S_PULLED]:
            due_ns = min(due_ns, words[base + at.S_URGENT_NS])
        words[base + at.S_URGENT_NS] = due_ns
        words[base + at.S_URGENT_END] = end
        return True
