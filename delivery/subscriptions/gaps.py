"""What a subscription does not deliver, because retention removed it first: told once.

found -> told to one consumer, in its stream or in the answer to its poll; and in the state
"""

from __future__ import annotations

import msgspec

from delivery.schemas import Tombstone
from delivery.streams.formats import Format, Origin
from delivery.subscriptions.missed import with_gap
from delivery.subscriptions.schemas import MissedOffsets
from ledger.types import Topic

_encoder = msgspec.json.Encoder()


class Gaps:
    """The last gaps of one subscription; ``untold`` are those that no consumer knows of."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.known: list[MissedOffsets] = []
        self.untold: list[MissedOffsets] = []

    def add(self, partition: int, tombstone: Tombstone) -> None:
        """A gap was found."""
        gap = MissedOffsets(partition, tombstone.gap_from, tombstone.gap_to, tombstone.reason)
        known = with_gap(self.known, gap)
        if known != self.known:
            self.known, self.untold = known, with_gap(self.untold, gap)

    def told(self, format_: Format) -> bytes:
        """What nobody was told of yet, for a stream."""
        found = b""
        for gap in self.untold:
            origin = Origin(self._topic.name, self._topic.topic_id, gap.partition)
            found += format_.tombstone(origin, gap.gap_from, gap.gap_to, gap.reason)
        self.untold = []
        return found

    def take(self) -> bytes:
        """The same for a poll: the JSON of a list."""
        untold, self.untold = self.untold, []
        return _encoder.encode(untold)
