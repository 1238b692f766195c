"""What is counted by name, per shard in shared memory: what the producers of each topic were
acknowledged, and the traffic of each token.

Names are many and the series of a metric must be few, so the first ones that any shard counts get a
*slot*, for as long as the daemon runs. All others are counted together. A topic that is deleted and
created again, and a token that is made anew, continues its counts.

    free -> claimed under a lock of all processes (the name, then its length) -> never changes

Slots are claimed in order: a slot is free if its length is 0, and so are all after it. Each shard
has its own counts of each slot, which only it writes, with its heartbeat; they outlive its
restarts, except what it counted after its last heartbeat. Nothing is counted twice or lost
otherwise: the sum over all places is what was counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from shards import layout as at
from shards import rows
from shards.barrier import keep_order
from shards.layout import Layout
from shards.segment import Segment

OTHER = 0  # the place of all names without a slot; slot n has place n + 1


class TopicTally:
    """What one shard's producers of a topic were acknowledged, until now."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0


class TokenTally:
    """The traffic of the bearers of a token on one shard, until now."""

    __slots__ = ("bytes_in", "bytes_out", "refused", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.refused = 0


Tally = TypeVar("Tally")


class NameKind(Struct, Generic[Tally], frozen=True):
    """What is counted by names of one kind, and where. ``words``: the counts in their order;
    ``first``: the first of its slots."""

    tally: Callable[[], Tally]
    words: tuple[str, ...]
    first: int
    slots: int
    counts: Callable[[Layout, int], int]

    def read(self, tally: Tally) -> list[int]:
        """The counts in their order."""
        return [getattr(tally, name) for name in self.words]

    def write(self, tally: Tally, counts: list[int]) -> None:
        """Sets the counts."""
        for name, count in zip(self.words, counts, strict=True):
            setattr(tally, name, count)


TOPICS: NameKind[TopicTally] = NameKind(
    TopicTally, ("records", "bytes"), 0, at.TOPIC_SLOTS, Layout.topic_counts
)
TOKENS: NameKind[TokenTally] = NameKind(
    TokenTally, ("requests", "bytes_in", "bytes_out", "refused"), at.TOPIC_SLOTS, at.TOKEN_SLOTS,
    Layout.token_counts,
)  # fmt: skip


class NameCounts(Generic[Tally]):
    """One shard's counts of the names of one kind; belongs to its loop. ``try_lock`` and ``unlock``
    are of a lock that all processes share, and never wait."""

    def __init__(
        self,
        kind: NameKind[Tally],
        segment: Segment,
        shard: int,
        try_lock: Callable[[], bool],
        unlock: Callable[[], None],
    ) -> None:
        self._kind = kind
        self._segment = segment
        self._words = segment.words
        self._first = kind.counts(segment.layout, shard)
        self._try_lock = try_lock
        self._unlock = unlock
        # Names that wait for a slot, because another process holds the lock. It is held for
        # microseconds, so more of them are simply counted as others.
        self._waiting_max = kind.slots
        self._known = 0  # slots whose names are in ``_tallies``
        self._tallies: dict[str, Tally] = {}
        self._waiting: dict[str, Tally] = {}
        self._without: list[Tally] = []  # of names that waited in vain: no slot was left
        self._other = self._placed(OTHER)
        self._in_place = [self._other]
        self._learn()

    def tally_of(self, name: str) -> Tally:
        """Where what is to be counted of a name is added."""
        found = self._tallies.get(name)
        if found is not None:
            return found
        if self._known == self._kind.slots or len(self._waiting) >= self._waiting_max:
            return self._other
        self._tallies[name] = self._waiting[name] = found = self._kind.tally()
        self._claim()
        return found

    def store(self) -> None:
        """Stores what was counted. To be called with each heartbeat."""
        if self._waiting:
            self._claim()
        kind = self._kind
        for tally in self._without:
            both = zip(kind.read(self._other), kind.read(tally), strict=True)
            kind.write(self._other, [other + own for other, own in both])
            kind.write(tally, [0] * len(kind.words))
        words, index = self._words, self._first
        for tally in self._in_place:
            for count in kind.read(tally):
                words[index] = count
                index += 1

    def _claim(self) -> None:
        """Gives slots to the names that wait for one, unless another process is doing so."""
        if not self._try_lock():
            return
        try:
            self._learn()
            for name in [*self._waiting]:  # those that have none yet
                if self._known < self._kind.slots:
                    write_name(self._kind, self._segment, self._known, name)
                    self._learn()
                else:
                    self._without.append(self._waiting.pop(name))
        finally:
            self._unlock()

    def _learn(self) -> None:
        """Takes note of slots that were claimed, by whomever."""
        for name in names(self._kind, self._segment)[self._known :]:
            self._known += 1
            # One that waits is counted in already, and its place is empty: a predecessor would have
            # left its name too.
            tally = self._waiting.pop(name, None) or self._placed(self._known)
            self._tallies[name] = tally
            self._in_place.append(tally)

    def _placed(self, place: int) -> Tally:
        """What a predecessor of this process left."""
        kind, size = self._kind, len(self._kind.words)
        index = self._first + place * size
        tally = kind.tally()
        kind.write(tally, self._words[index : index + size].tolist())
        return tally

    def check_invariants(self) -> None:
        """Raises AssertionError unless the head of the module holds; for tests."""
        found = names(self._kind, self._segment)
        assert len(set(found)) == len(found), "a name has one slot"
        assert len(self._in_place) == self._known + 1 <= len(found) + 1
        assert not self._waiting.keys() & set(found[: self._known])
        for name, tally in zip(found, self._in_place[1:], strict=False):
            assert self._tallies[name] is tally


def write_name(kind: NameKind[Tally], segment: Segment, slot: int, name: str) -> None:
    """Claims a slot; the caller holds the lock."""
    row, encoded = segment.layout.name_slot(kind.first + slot), name.encode()
    if len(encoded) > at.M_TEXT_BYTES:
        raise ValueError(f"the name has {len(encoded)} bytes; a slot holds {at.M_TEXT_BYTES}")
    start = (row + at.M_TEXT) * at.WORD_BYTES
    segment.data[start : start + len(encoded)] = encoded
    keep_order()
    segment.words[row + at.M_LENGTH] = len(encoded)


def names(kind: NameKind[Tally], segment: Segment) -> list[str]:
    """The names of the slots that are claimed, in order."""
    first = segment.layout.name_slot(kind.first)
    last = segment.layout.name_slot(kind.first + kind.slots)
    found = []
    lengths = segment.words[first + at.M_LENGTH : last : at.NAME_SLOT_WORDS].tolist()
    keep_order()
    for slot, length in enumerate(lengths):
        if not length:
            break
        start = (first + slot * at.NAME_SLOT_WORDS + at.M_TEXT) * at.WORD_BYTES
        found.append(bytes(segment.data[start : start + length]).decode())
    return found


def counted(kind: NameKind[Tally], segment: Segment) -> list[tuple[str | None, Tally]]:
    """The counts of all shards: first those of all names without a slot together, then each name
    with its own."""
    layout, size = segment.layout, len(kind.words)
    found = [None, *names(kind, segment)]
    starts = (kind.counts(layout, shard) for shard in range(layout.shards))
    total = rows.sum_of(segment, starts, len(found) * size)
    tallies = []
    for place, name in enumerate(found):
        tally = kind.tally()
        kind.write(tally, total[place * size : (place + 1) * size])
        tallies.append((name, tally))
    return tallies
