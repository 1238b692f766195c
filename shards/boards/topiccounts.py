"""What each topic's producers were acknowledged, counted per shard in shared memory.

Topics are many and the series of a metric must be few, so the first TOPIC_SLOTS topics that any
shard acknowledges get a *slot*, for as long as the daemon runs. All others are counted together.
A slot is of a name: a topic that is deleted and created again continues its counts.

    free -> claimed under a lock of all processes (the name, then its length) -> never changes

Slots are claimed in order: a slot is free if its length is 0, and so are all after it. Each shard
has its own counts of each slot, which only it writes, with its heartbeat; they outlive its
restarts, but for what it counted after its last heartbeat. Nothing is counted twice or lost
otherwise: the sum over all places is what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shards import layout as at
from shards import rows
from shards.barrier import keep_order
from shards.segment import Segment

OTHER = 0  # the place of all topics without a slot; slot n has place n + 1
# Topics that wait for a slot, because another process holds the lock. It is held for microseconds,
# so more of them are simply counted as others.
WAITING_MAX = at.TOPIC_SLOTS


class TopicTally:
    """What one shard's producers of a topic were acknowledged, until now."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0


class TopicCount(NamedTuple):
    """A topic's counts over all shards; no name: those of all topics without a slot."""

    name: str | None
    records: int
    bytes: int


class TopicCounts:
    """One shard's counts; belongs to its loop. ``try_lock`` and ``unlock`` are of a lock that all
    processes share, and never wait."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        try_lock: Callable[[], bool],
        unlock: Callable[[], None],
    ) -> None:
        self._segment = segment
        self._words = segment.words
        self._first = segment.layout.topic_counts(shard)
        self._try_lock = try_lock
        self._unlock = unlock
        self._known = 0  # slots whose names are in ``_tallies``
        self._tallies: dict[str, TopicTally] = {}
        self._waiting: dict[str, TopicTally] = {}
        self._without: list[TopicTally] = []  # of topics that waited in vain: no slot was left
        self._other = self._placed(OTHER)
        self._in_place = [self._other]
        self._learn()

    def tally_of(self, name: str) -> TopicTally:
        """Where a topic's acknowledgments are to be counted."""
        found = self._tallies.get(name)
        if found is not None:
            return found
        if self._known == at.TOPIC_SLOTS or len(self._waiting) >= WAITING_MAX:
            return self._other
        self._tallies[name] = self._waiting[name] = found = TopicTally()
        self._claim()
        return found

    def store(self) -> None:
        """Stores what was counted. To be called with each heartbeat."""
        if self._waiting:
            self._claim()
        for tally in self._without:
            self._other.records += tally.records
            self._other.bytes += tally.bytes
            tally.records = tally.bytes = 0
        words, index = self._words, self._first
        for tally in self._in_place:
            words[index] = tally.records
            words[index + 1] = tally.bytes
            index += at.TOPIC_COUNT_WORDS

    def _claim(self) -> None:
        """Gives slots to the topics that wait for one, unless another process is doing so."""
        if not self._try_lock():
            return
        try:
            self._learn()
            for name in [*self._waiting]:  # those that have none yet
                if self._known < at.TOPIC_SLOTS:
                    write_name(self._segment, self._known, name)
                    self._learn()
                else:
                    self._without.append(self._waiting.pop(name))
        finally:
            self._unlock()

    def _learn(self) -> None:
        """Takes note of slots that were claimed, by whomever."""
        for name in names(self._segment)[self._known :]:
            self._known += 1
            # One that waits is counted in already, and its place is empty: a predecessor would have
            # left its name too.
            tally = self._waiting.pop(name, None) or self._placed(self._known)
            self._tallies[name] = tally
            self._in_place.append(tally)

    def _placed(self, place: int) -> TopicTally:
        """What a predecessor of this process left."""
        tally = TopicTally()
        index = self._first + place * at.TOPIC_COUNT_WORDS
        tally.records, tally.bytes = self._words[index], self._words[index + 1]
        return tally

    def check_invariants(self) -> None:
        """Raises AssertionError unless the head of the module holds; for tests."""
        found = names(self._segment)
        assert len(set(found)) == len(found), "a name has one slot"
        assert len(self._in_place) == self._known + 1 <= len(found) + 1
        assert not self._waiting.keys() & set(found[: self._known])
        for name, tally in zip(found, self._in_place[1:], strict=False):
            assert self._tallies[name] is tally


def write_name(segment: Segment, slot: int, name: str) -> None:
    """Claims a slot; the caller holds the lock."""
    row, encoded = segment.layout.topic_slot(slot), name.encode()
    if len(encoded) > at.M_TEXT_BYTES:
        raise ValueError(f"the name has {len(encoded)} bytes; a slot holds {at.M_TEXT_BYTES}")
    start = (row + at.M_TEXT) * at.WORD_BYTES
    segment.data[start : start + len(encoded)] = encoded
    keep_order()
    segment.words[row + at.M_LENGTH] = len(encoded)


def names(segment: Segment) -> list[str]:
    """The names of the slots that are claimed, in order."""
    first, last = segment.layout.topic_slot(0), segment.layout.topic_slot(at.TOPIC_SLOTS)
    found = []
    lengths = segment.words[first + at.M_LENGTH : last : at.TOPIC_SLOT_WORDS].tolist()
    keep_order()
    for slot, length in enumerate(lengths):
        if not length:
            break
        start = (first + slot * at.TOPIC_SLOT_WORDS + at.M_TEXT) * at.WORD_BYTES
        found.append(bytes(segment.data[start : start + length]).decode())
    return found


def counted(segment: Segment) -> list[TopicCount]:
    """The counts of all shards: each topic with a slot, and the others together, first."""
    layout = segment.layout
    found = [None, *names(segment)]
    starts = (layout.topic_counts(shard) for shard in range(layout.shards))
    total = rows.sum_of(segment, starts, len(found) * at.TOPIC_COUNT_WORDS)
    pairs = zip(total[::2], total[1::2], strict=True)
    return [
        TopicCount(name, records, size_bytes)
        for name, (records, size_bytes) in zip(found, pairs, strict=True)
    ]
