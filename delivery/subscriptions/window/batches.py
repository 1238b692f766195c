"""What a window hands out, and what comes of it.

Lifecycle of a batch::

    take -> reading -> sent -> closed: each message was acknowledged, refused, or given back
                   -> given back, or its member left

A batch has its timeout from ``sent`` on only: reading its messages may take long, and that is not
the consumer's failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from delivery.subscriptions.window.waiting import Member, Place, SentMessage

REFUSALS_MAX = 100  # named in one outcome


class Batch:
    """What a member was given. A message that is dealt with is None."""

    __slots__ = ("epoch", "member", "sent_ns", "messages", "open", "_places")

    def __init__(self, epoch: int, member: Member, messages: list[SentMessage | None]) -> None:
        self.epoch = epoch
        self.member = member
        self.sent_ns: int | None = None
        self.messages = messages
        self.open = len(messages)
        self._places: dict[Place, int] | None = None

    def index(self, place: Place) -> int | None:
        """Where a message is in the batch; None if it is not, or not any more."""
        if self._places is None:  # whoever acknowledges whole batches needs no index
            self._places = {
                (message[0].partition, message[1]): index
                for index, message in enumerate(self.messages)
                if message is not None
            }
        found = self._places.get(place)
        return None if found is None or self.messages[found] is None else found

    def indexes(
        self, named: Iterable[Place] | None, but: Iterable[Place] = ()
    ) -> tuple[Sequence[int], list[Place]]:
        """Where messages are, and those that are not in it; None: all that are, but ``but``."""
        if named is None and not but and self.open == len(self.messages):
            return range(self.open), []
        if named is None:
            left_out = {self.index(each) for each in but}
            return [
                index for index, message in enumerate(self.messages)
                if message is not None and index not in left_out
            ], []  # fmt: skip
        found: dict[int, None] = {}
        unknown = []
        for each in named:
            index = self.index(each)
            if index is None or index in found:
                unknown.append(each)
            else:
                found[index] = None
        return list(found), unknown


class RefusedPlace(NamedTuple):
    """A message that an acknowledgment names in vain; ``place`` is None for a whole batch.

    ``finished``: nothing is left to do, as when an acknowledgment is repeated. ``epoch``: it was
    not sent to this consumer in this batch, or was given to another one since.
    """

    place: Place | None
    reason: str


class Outcome(NamedTuple):
    """What came of an acknowledgment. ``refusals`` names the first REFUSALS_MAX of ``refused``."""

    accepted: int
    refused: int = 0
    refusals: tuple[RefusedPlace, ...] = ()


class WindowCounts:
    """What a window has counted since it was made.

    ``redelivered``: sent messages that came back to be sent again. ``refused``: named in vain by
    an acknowledgment, because they are finished or not with this consumer. ``dropped``: finished by
    the policy of failures, or, of a subscription that is not reliable, because their consumer was
    full or gone. ``skipped``: finished by an operator. ``unmatched``: finished because no consumer
    accepts them. ``evicted``: finished because retention removed them. ``filtered``: records that
    the filter of the subscription left out.
    """

    __slots__ = (
        "delivered", "acknowledged", "redelivered", "refused", "dropped", "skipped", "evicted",
        "unmatched", "filtered",
    )  # fmt: skip

    def __init__(self) -> None:
        self.delivered = self.acknowledged = self.redelivered = self.refused = 0
        self.dropped = self.skipped = self.evicted = self.unmatched = self.filtered = 0
