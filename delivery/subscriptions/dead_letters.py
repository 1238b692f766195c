"""Dead letters: copies of the messages that the policy of failures moves away.

    the window names a message -> its record is found -> a frame in the ring, with an advance that
    *settles* the message -> its commit is followed: the message is finished, in the same
    transaction that stored the copy -> ``moved``

A copy that finds no room, or whose topic takes nothing now, is tried again; until then the message
stays where it is, and ``reason`` says why. A copy that is void was stored before by a former owner,
whose frame was committed late; or its topic or subscription is gone.

The copy keeps data, key, tag, node and time. Its ``meta`` names the origin, and has the record's
own ``meta`` in a field ``meta``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from delivery.lake_reader import Item
from delivery.routers.frames import parts_of
from delivery.routers.outbox import DestinationFull, FrameTooLong, Outbox, RingShareUsed
from delivery.subscriptions.batches import DeadLetter
from ledger.subscriptions import SubscriptionView
from ledger.types import Advance
from uploader.l0.records import Record

_encoder = msgspec.json.Encoder()


class DeadLetters:
    """The dead letters of one subscription. ``find`` gives a record, None if it must be loaded
    first (it is asked for again), and raises LookupError if it is gone; ``settled`` hears whether a
    copy was stored."""

    def __init__(
        self,
        outbox: Outbox,
        find: Callable[[int, int], Item | None],
        settled: Callable[[DeadLetter, bool], None],
    ) -> None:
        self.reason = ""
        self._outbox = outbox
        self._find = find
        self._settled = settled
        self._waiting: list[DeadLetter] = []
        self._on_their_way = 0

    def __len__(self) -> int:
        """How many are not stored yet."""
        return len(self._waiting) + self._on_their_way

    def add(self, letters: list[DeadLetter]) -> None:
        """These are to be moved away."""
        self._waiting += letters

    def send(self, view: SubscriptionView) -> bool:
        """Sends what can be sent now; returns whether the outbox has to learn of the destination
        first. To be called regularly while some wait."""
        self.reason = ""
        dest = view.dead_letter
        if not self._waiting:
            return False
        if dest is None or dest.deleted_ms is not None:
            self.reason = (
                f"its topic of dead letters, {view.subscription.config.dead_letter_topic}, was"
                f" deleted; name another one"
            )
            return False
        if not self._outbox.knows(dest):
            return True
        waiting, self._waiting = self._waiting, []
        for at, letter in enumerate(waiting):
            item = self._find(letter.partition, letter.offset)
            if item is None:
                self._waiting.append(letter)
                continue
            offset, ts_ms, record = item
            copy = (offset, ts_ms, _copy_of(record, letter, view))
            parts = parts_of([copy], dest.topic_id, dest.config.partitions, letter.partition)
            cursor_id = view.subscription.cursor_id
            advance = Advance(cursor_id, letter.partition, offset, offset, True)
            try:
                self._outbox.append(dest, parts, advance, partial(self._done, letter))
            except RingShareUsed:
                self._waiting += waiting[at:]
                break
            except (DestinationFull, FrameTooLong) as error:
                self.reason = f"a dead letter cannot be stored: {error}"
                self._waiting += waiting[at:]
                break
            self._on_their_way += 1
        return False

    def _done(self, letter: DeadLetter, stored: bool) -> None:
        self._on_their_way -= 1
        self._settled(letter, stored)


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
