"""The last attempts to POST messages of push subscriptions, as their owner has heard of them.

Senders tell the owner of each attempt once, so what they tell while it is being restarted is not
here, and the history is lost with its process. Nothing is decided by it.

An attempt that was delivered, of a message that had not failed, is one of many alike: a fifth of
the room of a subscription is for those, so that they do not drive out what has failed.

Bounds: ATTEMPTS_MAX of a subscription, and SHARD_ATTEMPTS_MAX of all of a shard, in equal parts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import chain

from delivery.subscriptions.requests import ListAttempts, OwnerRefused
from delivery.subscriptions.schemas import PushAttempt, PushAttempts
from delivery.subscriptions.window.messages import Place
from ledger.delivery.subscriptions import Subscription

ATTEMPTS_MAX = 1_000
SHARD_ATTEMPTS_MAX = 16_384
ATTEMPT_BYTES = 700  # with the longest message
MESSAGE_CHARACTERS_MAX = 300
DELIVERED_PART = 5


class _History:
    """The attempts of one subscription, oldest first."""

    def __init__(self) -> None:
        self.delivered: deque[PushAttempt] = deque()
        self.failed: deque[PushAttempt] = deque()  # with what became of those messages then
        self._failing: Counter[Place] = Counter()

    def add(self, attempt: PushAttempt) -> None:
        place = attempt.partition, attempt.seq
        if attempt.outcome == "success" and place not in self._failing:
            self.delivered.append(attempt)
        else:
            self.failed.append(attempt)
            self._failing[place] += 1

    def cut(self, attempts_max: int) -> None:
        delivered_max = attempts_max // DELIVERED_PART
        while len(self.delivered) > delivered_max:
            self.delivered.popleft()
        while len(self.failed) > attempts_max - delivered_max:
            gone = self.failed.popleft()
            place = gone.partition, gone.seq
            self._failing[place] -= 1
            if not self._failing[place]:
                del self._failing[place]


class AttemptHistories:
    """The attempts of one shard's subscriptions."""

    def __init__(self) -> None:
        self._of: dict[int, _History] = {}

    def note(self, subscription_id: int, attempts: Iterable[PushAttempt]) -> None:
        """A sender has made these."""
        history = self._of.get(subscription_id)
        if history is None:
            history = self._of[subscription_id] = _History()
            for each in self._of.values():
                each.cut(self._attempts_max)
        for attempt in attempts:
            history.add(attempt)
        history.cut(self._attempts_max)

    @property
    def _attempts_max(self) -> int:
        return min(ATTEMPTS_MAX, SHARD_ATTEMPTS_MAX // len(self._of))

    def forget(self, subscription_id: int) -> None:
        """It was deleted."""
        self._of.pop(subscription_id, None)

    def listed(self, subscription: Subscription, request: ListAttempts) -> PushAttempts:
        """Those that are asked for. Raises OwnerRefused."""
        if subscription.config.push is None:
            raise OwnerRefused(
                409, "not_pushed", f"subscription {subscription.name!r} is not pushed, so there are"
                " no attempts",
            )  # fmt: skip
        known = self.of(subscription.subscription_id)
        wanted = [
            each
            for each in known
            if request.partition in (None, each.partition) and request.seq in (None, each.seq)
        ]
        return PushAttempts(wanted[: request.limit], len(known))

    def of(self, subscription_id: int) -> list[PushAttempt]:
        """All that are known, the last one first."""
        history = self._of.get(subscription_id)
        if history is None:
            return []
        known = chain(reversed(history.delivered), reversed(history.failed))
        return sorted(known, key=lambda each: each.began_ms, reverse=True)
