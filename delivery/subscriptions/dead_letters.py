"""Dead letters: copies of the messages that the poison policy moves away.

    the window names a message -> its record is found -> a frame in the ring, with an advance that
    *settles* the message -> its commit is followed: the message is finished, in the same
    transaction that stored the copy -> ``moved``

The letters that wait are the window's, so none outlives what it is for: a retry, a skip, an
eviction, another poison policy or a seek takes it away. A copy that finds no room, or whose topic
takes nothing now, is tried again; until then the message stays where it is, and ``reason`` says
why. A copy that is void was stored before by a former owner, whose frame was committed late; or its
topic or subscription is gone. A message that was sent once more (``resent.py``) has nothing to
settle: it gets another letter, and after the death of its owner perhaps two.

The copy keeps data, key, tag, node and time. Its ``meta`` names the origin, and has the record's
own ``meta`` in a field ``meta``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import msgspec

from delivery.reading.lake import Item
from delivery.routers.frames import parts_of
from delivery.routers.outbox import DestinationFull, FrameTooLong, Outbox, RingShareUsed
from delivery.subscriptions.window.batches import DeadLetter
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from ledger.delivery.subscriptions import SubscriptionView
from ledger.types import Advance, Topic
from shards.frame import Part
from uploader.l0.records import Record

_encoder = msgspec.json.Encoder()


LETTERS_AT_ONCE = 256  # 10 ms; the rest at the next heartbeat
UNSENT_MAX = 32  # letters that find no record or no room, each time; 20 us each


class DeadLetters:
    """The dead letters of one subscription. ``find`` gives a record, None if it must be loaded
    first (it is asked for again) or is gone; ``settled`` hears whether a copy was stored, with the
    window that named it."""

    def __init__(
        self,
        outbox: Outbox,
        find: Callable[[int, int], Item | None],
        settled: Callable[[SubscriptionWindow, DeadLetter, bool], None],
    ) -> None:
        self.reason = ""
        self._outbox = outbox
        self._find = find
        self._settled = settled

    def send(self, view: SubscriptionView, window: SubscriptionWindow) -> bool:
        """Sends what can be sent now; returns whether the outbox has to learn of the destination
        first. To be called regularly while some wait."""
        self.reason = ""
        window.dead_letters.is_new = False
        dest = view.dead_letter
        if not window.dead_letters.waiting:
            return False
        if dest is None or dest.deleted_ms is not None:
            self.reason = (
                f"its topic of dead letters, {view.subscription.config.dead_letter_topic}, was"
                f" deleted; create it again, or name another one"
            )
            return False
        if not self._outbox.knows(dest):
            return True
        unsent = 0
        full: set[int] = set()  # partitions
        for place, letter in list(islice(window.dead_letters.waiting.items(), LETTERS_AT_ONCE)):
            item = self._find(*place)
            if item is not None:
                copy = (*item[:2], _copy_of(item[2], letter, view))
                parts = parts_of([copy], dest.topic_id, dest.config.partitions, place[0])
                try:
                    is_sent = parts[0].partition not in full
                    if is_sent:
                        self._append(view, window, letter, dest, parts)
                except RingShareUsed:
                    break
                except (DestinationFull, FrameTooLong) as error:
                    is_sent = False
                    self.reason = self.reason or f"dead letters cannot be stored: {error}"
                    if isinstance(error, DestinationFull):
                        full.add(parts[0].partition)
                if is_sent:
                    continue
                window.dead_letters.put_last(place)
            unsent += 1
            if unsent == UNSENT_MAX:
                break
        return False

    def _append(
        self, view: SubscriptionView, window: SubscriptionWindow, letter: DeadLetter, dest: Topic,
        parts: Sequence[Part],
    ) -> None:  # fmt: skip
        offset = letter.offset
        advance = None
        if not window.resent.is_open((letter.partition, offset)):  # which is finished already
            advance = Advance(view.subscription.cursor_id, letter.partition, offset, offset, True)
        settled = partial(self._settled, window, letter)
        self._outbox.append(dest, parts, advance, settled)
        window.dead_letters.move_away((letter.partition, offset))


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
