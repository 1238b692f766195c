"""The partitions that a shard's subscriptions follow, and which of these there is no room for.

    pin -> the heads are known -> what is finished is read, after the heads, so that nothing falls
    in between -> it runs -> pin again, when its topic grows -> unpin
    pin -> there is no room (``reading/followed.py``) -> unserved -> looked at again, in its turn

Consumers of an *unserved* subscription are refused with the reason, and its state tells it, until
there is room: one of them is looked at with each heartbeat.
"""

from __future__ import annotations

import msgspec

from delivery.reading.followed import Key, TooManyPinned
from delivery.reading.partition import PartitionReader
from delivery.subscriptions.requests import OwnerRefused
from ledger.delivery.subscriptions import SubscriptionView


class NotServed(OwnerRefused):
    """Asked of a subscription that cannot be run now."""

    def __init__(self, view: SubscriptionView, why: str) -> None:
        super().__init__(503, "too_many_partitions", why)
        self.view = view
        self.why = why


class PinnedPartitions:
    """Those of one shard's subscriptions."""

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        self._pinned: dict[int, int] = {}  # partitions, by subscription
        self._unserved: dict[int, NotServed] = {}  # by subscription, the next one to look at first

    async def pin(self, view: SubscriptionView) -> NotServed | None:
        """Follows all partitions of the topic, until ``unpin``. Returns why there is no room for
        those that are new; then none of them is followed. Raises LedgerError."""
        subscription_id, topic_id = view.subscription.subscription_id, view.topic.topic_id
        self._unserved.pop(subscription_id, None)
        pinned = self._pinned.get(subscription_id, 0)
        new: list[Key] = []
        try:
            for partition in range(pinned, len(view.partitions)):
                self._reader.followed.pin((topic_id, partition))
                new.append((topic_id, partition))
        except TooManyPinned as error:
            for key in new:
                self._reader.followed.unpin(key)
            found = self._unserved[subscription_id] = NotServed(view, str(error))
            return found
        self._pinned[subscription_id] = pinned + len(new)
        for key in _keys_of(view):  # not only of the new ones: a read may have failed
            await self._reader.head(key)
        return None

    def pinned(self, view: SubscriptionView) -> SubscriptionView:
        """What a view has of the partitions that are followed, and all growth: keys have moved
        among these, too."""
        count = self._pinned.get(view.subscription.subscription_id, 0)
        return msgspec.structs.replace(view, partitions=view.partitions[:count])

    def unpin(self, view: SubscriptionView) -> None:
        """Follows them no more."""
        self._unserved.pop(view.subscription.subscription_id, None)
        for partition in range(self._pinned.pop(view.subscription.subscription_id, 0)):
            self._reader.followed.unpin((view.topic.topic_id, partition))

    def check(self, subscription_id: int) -> None:
        """Raises NotServed."""
        there = self._unserved.get(subscription_id)
        if there is not None:
            raise NotServed(there.view, there.why)

    def one_with_room(self) -> list[int]:
        """The id of an unserved one that may be tried again, if the next one may."""
        for subscription_id, there in self._unserved.items():
            self._unserved[subscription_id] = self._unserved.pop(subscription_id)
            has_room = self._reader.followed.can_pin(_keys_of(there.view))
            return [subscription_id] if has_room else []
        return []


def _keys_of(view: SubscriptionView) -> list[Key]:
    topic_id = view.topic.topic_id
    return [(topic_id, partition) for partition in range(len(view.partitions))]
