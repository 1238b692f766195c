"""How a subscription begins to run at its owner, and begins again.

    pinned: its partitions are followed, with their heads -> what is finished is read, after the
    heads, so that nothing falls in between -> a window with a look-ahead for each partition

A seek, another mode or filter, other keys and the growth of the topic give it another window, or
more look-aheads; consumers stay, and what they had is not theirs any more.
"""

from __future__ import annotations

import msgspec

from delivery.ledger_thread import LedgerThread
from delivery.reading.followed import Key, TooManyPinned
from delivery.reading.partition import PartitionReader
from delivery.subscriptions.journaled import first_epoch
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.policy import policy_of
from delivery.subscriptions.window.windows import window_for
from ledger.delivery import progress
from ledger.delivery.progress import SubscriptionProgress
from ledger.delivery.subscriptions import SubscriptionConfig, SubscriptionView


class Starting:
    """What a shard's subscriptions begin from. ``incarnation`` is that of the daemon."""

    def __init__(self, reader: PartitionReader, ledger: LedgerThread, incarnation: int) -> None:
        self._reader = reader
        self._ledger = ledger
        self._incarnation = incarnation
        self._pinned: dict[int, int] = {}  # partitions, by subscription

    async def pin(self, view: SubscriptionView) -> None:
        """Follows all partitions of the topic, until ``unpin``. Raises TooManyPinned, then none of
        those that are new is followed, and LedgerError."""
        subscription_id, topic_id = view.subscription.subscription_id, view.topic.topic_id
        pinned = self._pinned.get(subscription_id, 0)
        new: list[Key] = []
        try:
            for partition in range(pinned, len(view.partitions)):
                self._reader.followed.pin((topic_id, partition))
                new.append((topic_id, partition))
        except TooManyPinned:
            for key in new:
                self._reader.followed.unpin(key)
            raise
        self._pinned[subscription_id] = pinned + len(new)
        for key in _keys_of(view):  # not only of the new ones: a read may have failed
            await self._reader.head(key)

    def pinned(self, view: SubscriptionView) -> SubscriptionView:
        """What a view has of the partitions that are followed."""
        count = self._pinned.get(view.subscription.subscription_id, 0)
        growth = [each for each in view.growth if each.first_partition < count]
        return msgspec.structs.replace(view, partitions=view.partitions[:count], growth=growth)

    def can_pin(self, view: SubscriptionView) -> bool:
        """Whether ``pin`` would find room now."""
        return self._reader.followed.can_pin(_keys_of(view))

    def unpin(self, view: SubscriptionView) -> None:
        """Follows them no more."""
        for partition in range(self._pinned.pop(view.subscription.subscription_id, 0)):
            self._reader.followed.unpin((view.topic.topic_id, partition))

    async def known(self, view: SubscriptionView) -> SubscriptionProgress | None:
        """What is finished; None: it was deleted. Raises LedgerError."""
        return await self._ledger.read(progress.state_of, view.subscription.subscription_id)

    def window(
        self, view: SubscriptionView, known: SubscriptionProgress, epoch: int = 0
    ) -> SubscriptionWindow:
        """A window that goes on after what is finished. The batches of the same owner have numbers
        up to ``epoch``; without one, it is another owner's."""
        config = view.subscription.config
        after = epoch or first_epoch(known.epoch, self._incarnation)
        window = _window(config, after)
        for partition, (_, state) in enumerate(view.partitions):
            floor = known.floors.get(partition, 0)
            if not config.reliable:  # what came while nobody could listen is not for anybody
                head = self._reader.followed.head((view.topic.topic_id, partition))
                floor = head or state.head_seq
            window.open(partition, floor)
        if config.reliable:
            for partition, row, bits in known.rows:
                window.look_aheads[partition].restore(row, bits)
        return window


def _keys_of(view: SubscriptionView) -> list[Key]:
    topic_id = view.topic.topic_id
    return [(topic_id, partition) for partition in range(len(view.partitions))]


def moved_over(view: SubscriptionView, former: SubscriptionWindow) -> SubscriptionWindow:
    """A window of another kind or filter, which goes on where the former one is; no members."""
    config = view.subscription.config
    window = _window(config, former.epoch)
    for partition, look_ahead in former.look_aheads.items():
        opened = window.open(partition, look_ahead.floor)
        opened.take_over(look_ahead)
    return window


def kind_of(config: SubscriptionConfig) -> tuple[object, ...]:
    """What decides which window a subscription has, and by which keys."""
    return config.mode, config.takes_nodes, config.reliable, config.push is not None


def _window(config: SubscriptionConfig, epoch: int) -> SubscriptionWindow:
    return window_for(
        config.mode,
        policy_of(config),
        epoch,
        reliable=config.reliable,
        is_pushed=config.push is not None,
    )
