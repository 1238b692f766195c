"""The finished messages of a window that are sent once more, because an operator asks for it.

Each gets a look-ahead of its own, next to that of its partition, whose floor it does not move: at
the end of its key's queue, so the order of the key and the lock on it hold. It is acknowledged and
fails like any other; its dead letter is another one, stored without a settlement, since it is
finished already. Retention removes it like any other, too: then it is *evicted*, unless a consumer
that had it has dealt with it since.

Nothing of it is durable: after a seek, another mode or the death of the owner it is as finished as
before. Whoever wants it to be delivered in spite of that gives it an *id*, and repeats the request
until the answer says that it is finished: that is remembered while there is room.
"""

from __future__ import annotations

from typing import NamedTuple

from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.messages import Place, text_bytes

RESENT_MAX = 1_000  # of a subscription, unfinished
REMEMBERED_MAX = 1_000  # that are finished again and have an id
RESENT_BYTES = 2_000  # as measured, without key and id


class Resent(NamedTuple):
    """A message, by what it was asked for."""

    look_ahead: LookAhead
    key: str | None

    @property
    def is_finished(self) -> bool:
        """Whether it is finished again."""
        return self.look_ahead.is_done(self.look_ahead.end)

    @property
    def is_evicted(self) -> bool:
        """Whether it is finished because retention removed it, not because it was dealt with."""
        return self.is_finished and self.look_ahead.gone_before > self.look_ahead.end


class ResentMessages:
    """The messages of one window that are sent once more."""

    def __init__(self) -> None:
        self._last: dict[Place, Resent] = {}
        self._named: dict[tuple[Place, str], Resent] = {}
        self.bytes = 0  # what they take

    def is_open(self, place: Place) -> bool:
        """Whether a message is sent once more and not finished yet."""
        found = self._last.get(place)
        return found is not None and not found.is_finished

    def look_aheads(self, partition: int | None = None) -> list[LookAhead]:
        """The look-aheads of those that are not finished, of one partition or all."""
        return [
            each.look_ahead for place, each in self._last.items()
            if partition in (None, place[0]) and not each.is_finished
        ]  # fmt: skip

    def dealt_with(self, look_ahead: LookAhead) -> None:
        """A message is about to be finished by a decision, even if retention removed it since."""
        look_ahead.gone_before = 0

    def named(self, place: Place, resend_id: str) -> Resent | None:
        """What was asked for with this id; None if that is not known."""
        return self._named.get((place, resend_id)) if resend_id else None

    def count(self) -> int:
        """How many are not finished; forgets the others."""
        if len(self._last) >= RESENT_MAX:
            self._last = {at: each for at, each in self._last.items() if not each.is_finished}
            self.bytes = self._counted()
        return len(self._last)

    def add(self, place: Place, key: str | None = None, resend_id: str = "") -> LookAhead:
        """A look-ahead for one message more."""
        partition, seq = place
        resent = self._last[place] = Resent(LookAhead(partition, seq - 1), key)
        if resend_id:
            self._named[place, resend_id] = resent
        if len(self._named) > RESENT_MAX + REMEMBERED_MAX:
            oldest = next(name for name, each in self._named.items() if each.is_finished)
            del self._named[oldest]
            self.bytes = self._counted()
        else:
            self.bytes += _bytes(resent, resend_id)
        return resent.look_ahead

    def _counted(self) -> int:
        by_look_ahead = {id(each.look_ahead): _bytes(each, "") for each in self._last.values()}
        by_look_ahead |= {
            id(each.look_ahead): _bytes(each, name[1]) for name, each in self._named.items()
        }
        return sum(by_look_ahead.values())


def _bytes(resent: Resent, resend_id: str) -> int:
    return RESENT_BYTES + text_bytes(resent.key) + text_bytes(resend_id)
