"""What all subscriptions of a shard may take together: for what is read ahead, for consumers, and
for what senders of push subscriptions have queued.

A subscription reads ahead until its consumers have enough, and one key with a million messages
makes that a million. What it takes is noted whenever it grows, and when it is served. Above the
limit only LITTLE_MESSAGES are read ahead for each subscription, and what is blocked. Keys
of blocked messages may be long, so there is a second limit: above that each has LITTLE_MESSAGES of
any kind within LITTLE_BYTES, or LEAST_MESSAGES however long their keys are. Messages that are sent
or blocked have a limit of their own, above which each subscription may have LITTLE_SENT of them. So
one cannot stop the others, and all of it adds up. Consumers are refused above their limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import BLOCKED_BYTES, SHORT_REASON
from delivery.subscriptions.window.look_ahead import MESSAGE_BYTES, SEGMENT_BYTES
from delivery.subscriptions.window.messages import QUEUE_BYTES, text_bytes
from delivery.subscriptions.window.unreliable import UnreliableWindow
from ledger.delivery.progress import ROW_OFFSETS

LOOK_AHEAD_BYTES_MAX = 64 << 20
BESIDES_BYTES_MAX = 16 << 20  # more, for the little in addition to what is blocked
SENT_BYTES_MAX = 96 << 20  # 100,000 messages: two subscriptions that have as many blocked as may be
ADMIT_LOT = 256  # messages that are admitted together
LITTLE_MESSAGES = 256  # with a key of 50 characters each they take 90 KB
LEAST_MESSAGES = 6
KEY_BYTES_MAX = text_bytes("\u00ff" * 1_024)
# The least, each with the longest key, and in another segment of which all else is finished.
LITTLE_BYTES = LEAST_MESSAGES * (
    QUEUE_BYTES + KEY_BYTES_MAX + SEGMENT_BYTES + MESSAGE_BYTES * ROW_OFFSETS
)
LOOSE_LOT_BYTES = 2 * SEGMENT_BYTES + MESSAGE_BYTES * LITTLE_MESSAGES
LARGEST_LOT_BYTES = LOOSE_LOT_BYTES + QUEUE_BYTES + KEY_BYTES_MAX  # of one key, or of none
LITTLE_SENT = 128
LITTLE_SENT_BYTES = LITTLE_SENT * BLOCKED_BYTES
MEMBERS_BYTES_MAX = 64 << 20  # 10,000 consumers without filters, as many as there may be streams
LITTLE_QUEUED_BYTES = 32 << 10
ANY_NUMBER = 1 << 62


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

    @property
    def is_over(self) -> bool:
        """Whether subscriptions may have nothing in addition to what is blocked."""
        return self.taken >= self.bytes_max + BESIDES_BYTES_MAX


class SentBudget(SharedBudget):
    """What the messages of a shard take that are sent or blocked."""

    def __init__(self) -> None:
        super().__init__(SENT_BYTES_MAX)


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


class Budgets:
    """The budgets of a shard for what subscriptions have at their owner."""

    def __init__(self) -> None:
        self.look_ahead = LookAheadBudget()
        self.sent = SentBudget()
        self.members = MembersBudget()

    def forget(self, subscription_id: int) -> None:
        """A subscription ends."""
        for each in (self.look_ahead, self.sent, self.members):
            each.forget(subscription_id)


class Share:
    """What one subscription may have of the memory for what is read ahead, sent and blocked."""

    def __init__(self, budgets: Budgets, subscription_id: int, window: SubscriptionWindow) -> None:
        self.window = window
        self._look_ahead, self._sent = budgets.look_ahead, budgets.sent
        self._subscription_id = subscription_id

    def note(self) -> None:
        """Tells the budgets what it takes now."""
        window = self.window
        self._look_ahead.note(self._subscription_id, window.memory_bytes)
        self._sent.note(self._subscription_id, window.sent_bytes)
        if isinstance(window, UnreliableWindow):
            window.waiting_max = LITTLE_MESSAGES if self.is_used_up else inf

    @property
    def is_used_up(self) -> bool:
        """Whether it may read ahead only a little."""
        return self._look_ahead.is_full

    def left_to_admit(self) -> int:
        """How many messages may be admitted together now, of those that take least."""
        window, budget = self.window, self._look_ahead
        if not budget.is_full or not window.is_reliable:
            return ADMIT_LOT
        if not budget.is_over:
            blocked = len(window.blocked)
            return min(ADMIT_LOT, LITTLE_MESSAGES - (window.unfinished - blocked))
        if window.memory_bytes + LARGEST_LOT_BYTES <= LITTLE_BYTES:
            return min(ADMIT_LOT, LITTLE_MESSAGES - window.unfinished)
        return LEAST_MESSAGES - window.unfinished

    def fitting(self, keys: Sequence[str | None]) -> Sequence[str | None]:
        """The first of these keys, one at least, for which there is memory whatever others take."""
        if not self._look_ahead.is_over or not self.window.is_reliable:
            return keys
        least = LEAST_MESSAGES - self.window.unfinished
        left = LITTLE_BYTES - LOOSE_LOT_BYTES - self.window.memory_bytes
        for count, key in enumerate(keys):
            left -= QUEUE_BYTES + text_bytes(key)
            if left < 0 and count >= least:
                return keys[:count]
        return keys

    def left_to_send(self, name: str | None = None) -> int:
        """How many messages may be sent in addition to those that are sent or blocked, to a
        consumer or to all, if memory is what limits them."""
        window = self.window
        if not self._sent.is_full or not window.is_reliable:
            return ANY_NUMBER
        left = LITTLE_SENT - window.held_count
        if name is not None:
            part = max(1, LITTLE_SENT // window.sharers)
            left = min(left, part - window.members.by_name[name].in_flight)
        return left

    def is_sent_out(self, names: Iterable[str]) -> bool:
        """Whether none of these consumers may be sent more, for lack of memory."""
        return self._sent.is_full and (
            self.left_to_send() <= 0 or max(map(self.left_to_send, names), default=1) <= 0
        )

    def kept_reason(self, reason: str) -> str:
        """What is kept of the reason of a failure."""
        return reason[:SHORT_REASON] if self._sent.is_full else reason
