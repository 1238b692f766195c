"""How much the look-ahead of all subscriptions of a shard may take; and what its senders of push
subscriptions have queued, by the same rule.

A subscription reads ahead until its consumers have enough, and one key with a million messages
makes that a million. What it takes is noted when it is served; above the limit nothing is read
ahead, but a little for each subscription, so that one cannot stop the others.
"""

from __future__ import annotations

LOOK_AHEAD_BYTES_MAX = 64 << 20
# Always there for each: a lot of 256 messages with a key each takes 80 KB more at most.
LITTLE_BYTES = 32 << 10


class LookAheadBudget:
    """What the windows of a shard take. ``taken`` is the sum of what was noted last of each."""

    def __init__(self, bytes_max: int = LOOK_AHEAD_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.little_bytes = LITTLE_BYTES
        self.taken = 0
        self._noted: dict[int, int] = {}

    def note(self, subscription_id: int, taken: int) -> None:
        """What a subscription takes now."""
        self.taken += taken - self._noted.get(subscription_id, 0)
        self._noted[subscription_id] = taken

    def forget(self, subscription_id: int) -> None:
        """A subscription ends."""
        self.taken -= self._noted.pop(subscription_id, 0)

    def allows(self, subscription_id: int) -> bool:
        """Whether a subscription may read further ahead."""
        if self.taken < self.bytes_max:
            return True
        return self._noted.get(subscription_id, 0) < self.little_bytes
