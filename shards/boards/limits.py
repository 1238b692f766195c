"""What is used of limits, counted over all shards in shared memory.

A *rate* is an amount per second, and a second's worth at any moment (its *burst*). What is used is
counted as time: one unit of a rate of 100 per second uses 10 ms. With S(t), what all shards have
used until t, the *room* at t is the least of

    burst + (t - s) - (S(t) - S(s))      over all s <= t

(the virtual scheduling algorithm, GCRA, ITU-T I.371, for many writers). Each shard keeps the least
``burst + S(s) - s`` of those moments at which it looked, its *base*: the room is the least base,
plus t, less S(t). So what one shard has seen counts for all, and each word has one writer.

    take -> the shard has claimed enough before -> taken
         -> it looks: there is room -> it claims what it needs, and a little more for the next ones
         -> there is none -> refused, with the time until there is

What is claimed counts as used, so no two shards use the same room; if several look at the very same
moment, what they use too much is a debt that is paid before anything else is taken. The claims of
all shards together are at most CLAIM_NS. What is larger than the burst is taken when the burst is
there, and is a debt too, so the rate holds for any sizes. There is no tick: a limit that nobody
uses costs nothing.

A *count* is of what there is now: each shard has its own, and clears it when it starts. Counts are
compared before they are raised, so several shards may exceed a limit by one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shards import layout as at
from shards.clock import monotonic_ns
from shards.segment import Segment

SECOND_NS = 1_000_000_000
CLAIM_NS = 20_000_000  # 2 % of a burst may lie unused in the claims of shards
_WORD = 1 << 64
_HALF = 1 << 63


def room_ns(burst_ns: int, now_ns: int, used_ns: int, bases: Iterable[int]) -> int:
    """How much may be used now; below 0, it is a debt. Words count modulo 2^64, and a base that is
    0 was never written."""
    room = burst_ns
    for base in bases:
        if base:
            left = (base + now_ns - used_ns) % _WORD
            room = min(room, left - _WORD if left >= _HALF else left)
    return room


class SharedRate:
    """One rate of one slot, as one shard uses it."""

    __slots__ = (
        "_base", "_bases", "_burst_ns", "_claim_ns", "_left_ns", "_now_ns", "_own", "_shares",
        "_unit_ns", "_used", "_words",
    )  # fmt: skip

    def __init__(
        self, segment: Segment, shard: int, slot: int, index: int, per_second: float,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:  # fmt: skip
        layout = segment.layout
        first, stop = layout.limit(slot, 0), layout.limit(slot + 1, 0)
        self._words = segment.sparse
        self._used = slice(first + at.X_USED + index, stop, at.LIMIT_WORDS)
        self._bases = slice(first + at.X_BASES + index, stop, at.LIMIT_WORDS)
        self._own = layout.limit(slot, shard) + at.X_USED + index
        self._base = layout.limit(slot, shard) + at.X_BASES + index
        self._unit_ns = SECOND_NS / per_second
        self._burst_ns = max(SECOND_NS, round(self._unit_ns))
        self._shares = 2 * layout.shards
        self._claim_ns = CLAIM_NS // layout.shards
        self._now_ns = now_ns
        self._left_ns = 0.0  # of what was claimed

    def take(self, units: float) -> int:
        """Uses this amount, and returns 0; or how many ns it takes until that can be used."""
        left_ns = self._left_ns - units * self._unit_ns
        if left_ns >= 0:
            self._left_ns = left_ns
            return 0
        needed_ns = int(-left_ns) + 1
        room = self._look()
        missing_ns = min(needed_ns, self._burst_ns) - room
        if missing_ns > 0:
            return missing_ns
        more_ns = max(0, min((room - needed_ns) // self._shares, self._claim_ns))
        self._use(needed_ns + more_ns)
        self._left_ns = left_ns + needed_ns + more_ns
        return 0

    def charge(self, units: float) -> int:
        """Uses what cannot be refused any more. Returns for how many ns there is a debt."""
        left_ns = self._left_ns - units * self._unit_ns
        if left_ns >= 0:
            self._left_ns = left_ns
            return 0
        needed_ns = int(-left_ns) + 1
        room = self._look()
        self._left_ns = left_ns + needed_ns
        self._use(needed_ns)
        return max(0, needed_ns - room)

    def debt_ns(self) -> int:
        """For how many ns nothing should be used: more was charged than there was room for."""
        return max(0, -self._look())

    def give_back(self, units: float) -> None:
        """What was taken and is not used after all. More than a claim is for all shards."""
        self._left_ns += units * self._unit_ns
        if self._left_ns > self._claim_ns:
            all_ns = int(self._left_ns)
            self._left_ns -= all_ns
            self._use(-all_ns)

    def _look(self) -> int:
        words, now_ns = self._words, self._now_ns()
        used_ns = sum(words[self._used].tolist())
        room = room_ns(self._burst_ns, now_ns, used_ns, words[self._bases].tolist())
        words[self._base] = (room + used_ns - now_ns) % _WORD or 1
        return room

    def _use(self, count_ns: int) -> None:
        self._words[self._own] = (self._words[self._own] + count_ns) % _WORD


class SharedCount:
    """One count of one slot, as one shard raises and lowers it."""

    __slots__ = ("_all", "_own", "_words")

    def __init__(self, segment: Segment, shard: int, slot: int, index: int) -> None:
        layout = segment.layout
        first, stop = layout.limit(slot, 0), layout.limit(slot + 1, 0)
        self._words = segment.sparse
        self._all = slice(first + at.X_COUNTS + index, stop, at.LIMIT_WORDS)
        self._own = layout.limit(slot, shard) + at.X_COUNTS + index

    def clear(self) -> None:
        """What a predecessor of this process left is gone."""
        self._words[self._own] = 0

    def add(self, change: int) -> None:
        """There is one more, or one less."""
        self._words[self._own] += change

    def total(self) -> int:
        """Over all shards."""
        return sum(self._words[self._all].tolist())
