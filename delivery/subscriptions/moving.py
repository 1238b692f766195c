"""Moves the dead letters of a shard's subscriptions away: finds their records, and hears of their
copies.

The decisions are in ``dead_letters.py``; here are the questions to the ledger, and what a void copy
means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial

from delivery.ledger_thread import LedgerThread
from delivery.reading.lake import Item
from delivery.routers.outbox import Outbox
from delivery.subscriptions.blocks import MISSING, Blocks, Wanted
from delivery.subscriptions.dead_letters import DeadLetters
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.window.batches import DeadLetter
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from ledger.delivery import progress
from ledger.errors import LedgerError
from ledger.types import Topic

log = logging.getLogger("headgate.subscriptions")


class DeadLetterMover:
    """``want`` loads a record, ``moved`` hears that a key may go on, ``reload`` that settings may
    be out of date; ``start`` runs a task."""

    def __init__(
        self,
        outbox: Outbox,
        blocks: Blocks,
        ledger: LedgerThread,
        want: Callable[[Wanted], None],
        moved: Callable[[RunningSubscription], None],
        reload: Callable[[int], None],
        start: Callable[[Coroutine[object, object, None]], object],
    ) -> None:
        self._outbox = outbox
        self._blocks = blocks
        self._ledger = ledger
        self._want = want
        self._moved = moved
        self._reload = reload
        self._start = start
        self._learning: set[int] = set()  # topics

    def letters(self, running: RunningSubscription) -> DeadLetters:
        """The dead letters of a subscription."""
        return DeadLetters(
            self._outbox, partial(self._find, running), partial(self._settled, running)
        )

    def send(self, running: RunningSubscription) -> None:
        """Sends what can be sent now."""
        dest = running.view.dead_letter
        must_learn = running.letters.send(running.view, running.window)
        if must_learn and dest is not None and dest.topic_id not in self._learning:
            self._learning.add(dest.topic_id)
            self._start(self._learn(running, dest))

    async def _learn(self, running: RunningSubscription, dest: Topic) -> None:
        try:
            await self._outbox.learn(dest)
        except LedgerError as error:
            log.warning("how full topic %s is cannot be read: %s", dest.name, error)
        else:
            self.send(running)
        finally:
            self._learning.discard(dest.topic_id)

    def _find(self, running: RunningSubscription, partition: int, offset: int) -> Item | None:
        """A record, if it is at hand; otherwise it will be."""
        key = (running.view.topic.topic_id, partition)
        found = self._blocks.find(key, offset)
        if found is MISSING:
            self._want(Wanted(key, offset))
            return None
        if found is None:  # retention was faster
            running.window.counts.evicted += running.window.moved(partition, offset)
        return found

    def _settled(
        self, running: RunningSubscription, window: SubscriptionWindow, letter: DeadLetter,
        stored: bool,
    ) -> None:  # fmt: skip
        """The commit of a copy is followed. Its meaning depends on the window that named it: after
        a seek, the message of the same place is another one."""
        if stored:
            running.dead_lettered += window.moved(letter.partition, letter.offset)
            self._moved(running)
        else:
            self._start(self._void(running, window, letter))

    async def _void(
        self, running: RunningSubscription, window: SubscriptionWindow, letter: DeadLetter
    ) -> None:
        """A former owner's copy was stored, or the topic or the subscription is gone."""
        is_resent = window.resent.is_open((letter.partition, letter.offset))
        subscription_id = running.view.subscription.subscription_id
        try:
            is_finished = await self._ledger.read(
                progress.is_finished, subscription_id, letter.partition, letter.offset
            )
        except LedgerError as error:  # then it is copied again, in vain if it was stored before
            log.warning(
                "whether offset %d of topic %s was moved for subscription %s cannot be read: %s",
                letter.offset, running.view.topic.name, running.view.subscription.name, error,
            )  # fmt: skip
            is_finished = False
        if is_finished and not is_resent:
            window.moved(letter.partition, letter.offset)
            self._moved(running)
        else:
            window.not_moved((letter.partition, letter.offset))
            self._reload(subscription_id)
