"""What all subscriptions of a shard may take together: for what is read ahead, for consumers, and
for what senders of push subscriptions have queued.

A subscription reads ahead until its consumers have enough, and one key with a million messages
makes that a million. What it takes is noted when it is served; above the limit nothing is read
ahead, but LITTLE_MESSAGES for each subscription, however many consumers it has and however long
their filters and keys are. So one cannot stop the others. Consumers are refused above their limit.
"""

from __future__ import annotations

LOOK_AHEAD_BYTES_MAX = 64 << 20
# Always there for each, besides what is blocked: with a key each they take 80 KB, and 30 in flight.
LITTLE_MESSAGES = 256
LITTLE_MESSAGES_BYTES = LITTLE_MESSAGES * 420
# Who takes this by itself gets none of it: 50,000 blocked messages, with keys of 64 characters.
LITTLE_BESIDES_BYTES = 50_000 * 900
MEMBERS_BYTES_MAX = 64 << 20  # 10,000 consumers without filters, as many as there may be streams
LITTLE_QUEUED_BYTES = 32 << 10


class SharedBudget:
    """``taken`` is the sum of what was noted last of each subscription."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self._noted: dict[int, int] = {}

    def note(self, subscription_id: int, taken: int) -> None:
        """What a subscription takes now."""
        self.taken += taken - self._noted.get(subscription_id, 0)
        self._noted[subscription_id] = taken

    def forget(self, subscription_id: int) -> None:
        """A subscription ends."""
        self.taken -= self._noted.pop(subscription_id, 0)

    @property
    def is_full(self) -> bool:
        """Whether nobody may take more, but the little that is always there."""
        return self.taken >= self.bytes_max


class LookAheadBudget(SharedBudget):
    """What the windows of a shard take."""

    def __init__(self, bytes_max: int = LOOK_AHEAD_BYTES_MAX) -> None:
        super().__init__(bytes_max)


class MembersBudget(SharedBudget):
    """What the consumers of a shard's subscriptions take, with their filters."""

    def __init__(self, bytes_max: int = MEMBERS_BYTES_MAX) -> None:
        super().__init__(bytes_max)

    def allows(self, more_bytes: int) -> bool:
        """Whether there is room for this much more."""
        return self.taken + more_bytes <= self.bytes_max


class QueuedBudget(SharedBudget):
    """What the senders of a shard have queued."""

    def allows(self, subscription_id: int) -> bool:
        """Whether a sender may take more."""
        return not self.is_full or self._noted.get(subscription_id, 0) < LITTLE_QUEUED_BYTES
