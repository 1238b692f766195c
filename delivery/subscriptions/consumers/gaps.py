"""What a subscription does not deliver, because retention removed it first: told once.

found -> told to one consumer, in its stream or in the answer to its poll; and in the state

Retention evicts a little at a time, so what a subscription misses while nobody listens comes in
pieces; consumers are told of the whole: as few ranges as possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from delivery.schemas import Tombstone
from delivery.streams.formats import Format, Origin
from delivery.subscriptions.schemas import MissedOffsets
from ledger.types import Topic

GAPS_KEPT = 100  # the last ones; each is 60 bytes of an answer

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
        """The gaps that no consumer was told of yet, for a stream."""
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


def with_gap(gaps: Sequence[MissedOffsets], gap: MissedOffsets) -> list[MissedOffsets]:
    """These gaps and another one, joined with that which it continues."""
    for index in range(len(gaps) - 1, -1, -1):
        there = gaps[index]
        if (there.partition, there.reason) == (gap.partition, gap.reason):
            if there.gap_from <= gap.gap_from <= there.gap_to + 1:
                end = max(there.gap_to, gap.gap_to)
                joined = MissedOffsets(gap.partition, there.gap_from, end, gap.reason)
                return [*gaps[:index], joined, *gaps[index + 1 :]]
            break
    return [*gaps, gap][-GAPS_KEPT:]
