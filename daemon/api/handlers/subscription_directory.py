"""Which subscription a name stands for, as one shard knows it: a cache over the ledger.

Every change of subscriptions changes a shared word; a shard that finds it changed forgets all
names. The word may be late, never early: the owner of a deleted subscription refuses.
"""

from __future__ import annotations

from daemon.intake.topic_cache import TopicCache, TopicEntry
from daemon.schemas.errors import ApiError
from daemon.schemas.names import check_subscription_name
from delivery.ledger_thread import LedgerThread
from ledger.delivery import subscriptions
from ledger.types import SUBSCRIPTIONS_MAX
from shards import layout as at
from shards.segment import Segment

# As many as there can be, and as many again that were replaced under the same number of changes.
NAMES_MAX = 2 * SUBSCRIPTIONS_MAX


class SubscriptionDirectory:
    """Ids of subscriptions by the names of topics and subscriptions."""

    def __init__(self, segment: Segment, ledger: LedgerThread, topics: TopicCache) -> None:
        self._words = segment.words
        self._ledger = ledger
        self._topics = topics
        self._ids: dict[tuple[int, str], int] = {}
        self._version = 0

    async def find(self, topic_name: str, name: str) -> tuple[TopicEntry, int]:
        """A live topic, and the id of one of its subscriptions. Raises ApiError 400, 404."""
        entry = self._topics.known(topic_name)
        if entry is not None:
            self._follow()
            known = self._ids.get((entry.topic_id, name))
            if known is not None:
                return entry, known
        check_subscription_name(name)
        # Past the cache: this shard may learn late of a recreated topic.
        entry = await self._topics.entry_now(topic_name)
        version = self.version()
        found = await self._ledger.read(subscriptions.find, entry.topic_id, name)
        if found is None:
            raise unknown_subscription(topic_name, name)
        self._follow()
        if version == self._version:  # otherwise it may be deleted already
            if len(self._ids) >= NAMES_MAX:
                self._ids.clear()
            self._ids[entry.topic_id, name] = found.subscription_id
        return entry, found.subscription_id

    def version(self) -> int:
        """Changes with each change of subscriptions."""
        # Both only grow. A shard may die between a change and the change of the word.
        return int(self._words[at.G_DELIVERY] + self._words[at.G_DEATHS])

    def _follow(self) -> None:
        version = self.version()
        if version != self._version:
            self._ids.clear()
            self._version = version


def unknown_subscription(topic_name: str, name: str) -> ApiError:
    """404 ``unknown_subscription``."""
    return ApiError(
        404,
        "unknown_subscription",
        f"topic {topic_name!r} has no subscription {name!r}; create it with PUT"
        f" /v0/topics/{topic_name}/subscriptions/{name}",
        {"topic": topic_name, "subscription": name},
    )
