"""Dead letters: copies of the messages that the poison policy moves away.

    the window names a message -> its record is found -> a frame in the ring, with an advance that
    *settles* the message -> its commit is followed: the message is finished, in the same
    transaction that stored the copy -> ``moved``

The letters that wait are the window's, so none outlives what it is for: a retry, a skip, an
eviction, another poison policy or a seek takes it away. A copy that finds no room, or whose topic
takes nothing now, is tried again; until then the message stays where it is, and its subscription
tells why (``why_letters_unsent``). A copy that is void was stored before by a former owner, whose
frame was committed late; or its topic or subscription is gone. A message that was sent once more
(``resent.py``) has nothing to settle: it gets another letter, and after the death of its owner
perhaps two.

The copy keeps data, key, tag, node and time. Its ``meta`` names the origin, and has the record's
own ``meta`` in a field ``meta``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import islice

import msgspec

from delivery.ledger_thread import LedgerThread
from delivery.reading.blocks import MISSING, Blocks, Wanted
from delivery.reading.lake import Item
from delivery.routers.frames import parts_of
from delivery.routers.outbox import DestinationFull, FrameTooLong, Outbox, RingShareUsed
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import DeadLetter
from ledger.delivery import progress
from ledger.delivery.subscriptions import SubscriptionView
from ledger.errors import LedgerError
from ledger.types import Advance, Topic
from shards.frame import Part
from uploader.l0.records import Record

log = logging.getLogger("headgate.subscriptions")

_encoder = msgspec.json.Encoder()

LETTERS_AT_ONCE = 256  # 10 ms; the rest at the next heartbeat
UNSENT_MAX = 32  # letters that find no record or no room, each time; 20 us each


class DeadLetters:
    """Those of one shard. ``want`` loads a record, ``moved`` hears that a key may go on, ``reload``
    that settings may be out of date; ``start`` runs a task."""

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

    def send(self, running: RunningSubscription) -> None:
        """Sends what can be sent now. To be called regularly while some wait."""
        dest = running.view.dead_letter
        running.window.dead_letters.is_new = False
        running.why_letters_unsent = ""
        if not running.window.dead_letters.waiting:
            return
        if dest is None or dest.deleted_ms is not None:
            running.why_letters_unsent = (
                "its topic of dead letters,"
                f" {running.view.subscription.config.dead_letter_topic}, was deleted; create it"
                " again, or name another one"
            )
        elif self._outbox.knows(dest):
            self._send(running, dest)
        elif dest.topic_id not in self._learning:
            self._learning.add(dest.topic_id)
            self._start(self._learn(running, dest))

    def _send(self, running: RunningSubscription, dest: Topic) -> None:
        letters = running.window.dead_letters
        unsent = 0
        full: set[int] = set()  # partitions
        for place, letter in list(islice(letters.waiting.items(), LETTERS_AT_ONCE)):
            item = self._find(running, *place)
            if item is not None:
                copy = (*item[:2], _copy_of(item[2], letter, running.view))
                parts = parts_of([copy], dest.topic_id, dest.config.partitions, place[0])
                try:
                    is_sent = parts[0].partition not in full
                    if is_sent:
                        self._append(running, letter, dest, parts)
                except RingShareUsed:
                    break
                except (DestinationFull, FrameTooLong) as error:
                    is_sent = False
                    if not running.why_letters_unsent:
                        running.why_letters_unsent = f"dead letters cannot be stored: {error}"
                    if isinstance(error, DestinationFull):
                        full.add(parts[0].partition)
                if is_sent:
                    continue
                letters.put_last(place)
            unsent += 1
            if unsent == UNSENT_MAX:
                break

    def _append(
        self, running: RunningSubscription, letter: DeadLetter, dest: Topic, parts: Sequence[Part]
    ) -> None:
        window, place = running.window, (letter.partition, letter.offset)
        advance = None
        if not window.resent.is_open(place):  # which is finished already
            cursor_id = running.view.subscription.cursor_id
            advance = Advance(cursor_id, *place, letter.offset, True)
        settled = partial(self._settled, running, window, letter)
        self._outbox.append(dest, parts, advance, settled)
        window.dead_letters.move_away(place)

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
            window.counts.dead_lettered += window.moved(letter.partition, letter.offset)
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


def _copy_of(record: Record, letter: DeadLetter, view: SubscriptionView) -> Record:
    origin = {
        "topic": view.topic.name,
        "topic_id": view.topic.topic_id,
        "partition": letter.partition,
        "seq": letter.offset,
        "subscription": view.subscription.name,
        "attempts": letter.attempts,
        "reason": letter.why,
    }
    meta: dict[str, object] = {"headgate": origin}
    if record.meta is not None:
        meta["meta"] = msgspec.Raw(record.meta.encode())
    return msgspec.structs.replace(record, meta=_encoder.encode(meta).decode())
