"""What one shard knows of the newest commits: heads, and where the tail lies in the rings.

A partition is *followed* once a reader has asked for it. For each followed partition, a commit
updates the head and adds a *tail extent*: which ring ranges hold which offsets. Partitions that
nobody reads cost nothing.

    follow(key)  ->  commits update it  ->  head_loaded(key, from the ledger)  ->  forgotten
    pin(key)     ->  the same, and it is not forgotten until the last unpin(key)

The recent commits give a new reader the tail that the rings still hold. Heads only grow, so if
commits arrive while a head is loaded, the larger one counts. The key is followed before the ledger
is read, so no commit falls between the two.

Invariants: at most FOLLOWED_MAX partitions are followed. At most PINNED_MAX of them are pinned
(streams, routers); of the others the least recently asked for is forgotten. A tail has no hole, at
most TAIL_MAX extents, and ends at the head. All tails together have at most EXTENTS_MAX; beyond it,
those of the oldest commits are dropped.

This module reads neither rings nor the ledger; its caller feeds it commits in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from ledger.types import Commit, ExtentRun, LeasedRange, PartitionHead

Key = tuple[int, int]  # topic id, partition

FOLLOWED_MAX = 50_000
PINNED_MAX = 40_000  # leaves room for 10,000 readers that poll
TAIL_MAX = 512  # the length of the commit log; rings rarely hold more commits
EXTENTS_MAX = 32_768
# A followed partition takes about 450 bytes, an extent with its run about 550.
BYTES_MAX = 450 * FOLLOWED_MAX + 550 * EXTENTS_MAX
# With this many heads per followed partition, looking them up is cheaper than passing over all.
HEADS_PER_KEY = 16


class TooManyPinned(Exception):
    """PINNED_MAX partitions are pinned."""

    def __init__(self, key: Key) -> None:
        super().__init__(
            f"partition {key[1]} of topic id {key[0]} cannot be watched through this shard: it"
            f" already keeps the tails of {PINNED_MAX} partitions for streams, routers and"
            " subscriptions; end or delete some, or use more shards"
        )


class TailExtent(NamedTuple):
    """Offsets [first_offset, last_offset] of one commit, and the ring ranges that hold them."""

    first_offset: int
    last_offset: int
    commit_number: int
    runs: tuple[ExtentRun, ...]
    ranges: dict[int, LeasedRange]
    void_positions: frozenset[tuple[int, int]]  # (shard, position) of void requests


class _Followed:
    __slots__ = ("head_seq", "loaded", "pins", "tail")

    def __init__(self) -> None:
        self.head_seq = 0
        self.loaded = False
        self.pins = 0
        self.tail: list[TailExtent] = []  # a deque would take 600 bytes more


class FollowedPartitions:
    """The followed partitions of one shard.

    ``recent`` returns commits in order without a gap, up to the last one that was applied.
    """

    def __init__(self, recent: Callable[[], Iterable[Commit]] = tuple) -> None:
        self._recent = recent
        self._followed: dict[Key, _Followed] = {}
        self._unpinned: OrderedDict[Key, None] = OrderedDict()  # the least recently used first
        self._extents: deque[tuple[_Followed, TailExtent]] = deque()  # in the order of commits

    def follow(self, key: Key) -> None:
        """Begins to keep a partition's head and tail."""
        if key in self._followed:
            if key in self._unpinned:
                self._unpinned.move_to_end(key)
            return
        entry = self._followed[key] = _Followed()
        self._unpinned[key] = None
        if len(self._followed) > FOLLOWED_MAX:
            forgotten, _ = self._unpinned.popitem(last=False)
            del self._followed[forgotten]
        for commit in self._recent():
            head = _head_of(commit, key)
            if head is not None:
                if head.head_seq > entry.head_seq:
                    self._add(entry, key, head.head_seq, commit.runs, _Shared(commit))
                entry.loaded = True

    def pin(self, key: Key) -> None:
        """Follows a partition until ``unpin`` is called as often. Raises TooManyPinned."""
        entry = self._followed.get(key)
        if entry is None or not entry.pins:
            if len(self._followed) - len(self._unpinned) >= PINNED_MAX:
                raise TooManyPinned(key)
            self.follow(key)
            entry = self._followed[key]
            del self._unpinned[key]
        entry.pins += 1

    def can_pin(self, keys: Iterable[Key]) -> bool:
        """Whether all of them could be pinned now."""
        followed = self._followed
        new = sum((entry := followed.get(key)) is None or not entry.pins for key in keys)
        return len(followed) - len(self._unpinned) + new <= PINNED_MAX

    def unpin(self, key: Key) -> None:
        """Takes one pin back."""
        entry = self._followed[key]
        if not entry.pins:
            raise ValueError(f"partition {key[1]} of topic id {key[0]} is not pinned")
        entry.pins -= 1
        if not entry.pins:
            self._unpinned[key] = None

    def head_loaded(self, key: Key, head_seq: int) -> None:
        """Takes the ledger's head of a partition, which was followed before the ledger was read.

        Only the first one counts: whoever follows the partition since then is at that head, and
        hears of later ones from ``apply``, which skips what a second one would have brought.
        """
        entry = self._followed.get(key)
        if entry is not None and not entry.loaded:
            if head_seq > entry.head_seq:
                # The commits in between arrive later and are skipped then. A tail that ends before
                # the head would end an answer there, so it is dropped.
                entry.head_seq = head_seq
                entry.tail.clear()
            entry.loaded = True

    def head(self, key: Key) -> int | None:
        """The last committed offset, None while it is unknown."""
        entry = self._followed.get(key)
        return entry.head_seq if entry is not None and entry.loaded else None

    def tail(self, key: Key, offset: int) -> list[TailExtent]:
        """Tail extents, beginning with the one that holds ``offset``; empty if none does."""
        entry = self._followed.get(key)
        if entry is None or not entry.tail or entry.tail[0].first_offset > offset:
            return []
        found: list[TailExtent] = []
        for extent in reversed(entry.tail):  # readers are near the end
            if extent.last_offset < offset:
                break
            found.append(extent)
        found.reverse()
        return found

    def forget_tail(self, key: Key) -> None:
        """Drops the tail: the rings have overwritten it, so it is read from objects."""
        entry = self._followed.get(key)
        if entry is not None:
            entry.tail.clear()

    def apply(self, commit: Commit) -> list[Key]:
        """Applies a commit; returns the followed partitions whose head it moved."""
        moved: list[Key] = []
        shared = None
        runs = commit.runs
        for key, entry, head_seq in self._heads(commit):
            if head_seq > entry.head_seq:
                if shared is None:
                    shared = _Shared(commit)
                self._add(entry, key, head_seq, runs, shared)
                moved.append(key)
        return moved

    def check_invariants(self) -> None:
        """Raises AssertionError unless what the head of this module says is true."""
        pinned = {key for key, entry in self._followed.items() if entry.pins}
        assert len(self._followed) <= FOLLOWED_MAX, f"{len(self._followed)} are followed"
        assert len(pinned) <= PINNED_MAX, f"{len(pinned)} are pinned"
        assert pinned.isdisjoint(self._unpinned), "pinned and not pinned"
        assert pinned | set(self._unpinned) == set(self._followed), "followed, or forgotten"
        assert len(self._extents) <= EXTENTS_MAX, f"{len(self._extents)} extents"
        kept = {id(extent) for _, extent in self._extents}
        for key, entry in self._followed.items():
            tail = entry.tail
            assert len(tail) <= TAIL_MAX, f"{key} has a tail of {len(tail)}"
            assert not tail or tail[-1].last_offset == entry.head_seq, f"{key} ends before its head"
            for before, after in pairwise(tail):
                assert after.first_offset == before.last_offset + 1, f"{key} has a hole"
            assert all(id(extent) in kept for extent in tail), f"{key} has uncounted extents"

    def _heads(self, commit: Commit) -> Iterator[tuple[Key, _Followed, int]]:
        """The followed partitions of a commit, in its order or in none, and their heads."""
        followed = self._followed
        if len(followed) * HEADS_PER_KEY < len(commit.heads):
            for key, entry in followed.items():
                head = _head_of(commit, key)
                if head is not None:
                    yield key, entry, head.head_seq
        else:
            for head in commit.heads:
                key = (head.topic_id, head.partition)
                known = followed.get(key)
                if known is not None:
                    yield key, known, head.head_seq

    def _add(
        self,
        entry: _Followed,
        key: Key,
        head_seq: int,
        runs: tuple[ExtentRun, ...],
        shared: _Shared,
    ) -> None:
        """Adds the extent of a commit that moved the head."""
        mine = shared.runs_of(key, runs)
        extent = TailExtent(
            first_offset=min([r.first_offset for r in mine], default=head_seq + 1),
            last_offset=head_seq,
            commit_number=shared.number,
            runs=mine,
            ranges=shared.ranges,
            void_positions=shared.void_positions,
        )
        tail = entry.tail
        if tail and extent.first_offset != tail[-1].last_offset + 1:
            tail.clear()
        if len(tail) >= TAIL_MAX:
            del tail[0]
        tail.append(extent)
        entry.head_seq = head_seq
        self._extents.append((entry, extent))
        if len(self._extents) > EXTENTS_MAX:
            other, oldest = self._extents.popleft()
            # Unless it was dropped already: the oldest of all is the first of its tail.
            if other.tail and other.tail[0] is oldest:
                del other.tail[0]


class _Shared:
    """What the extents of one commit share, and how far its runs were looked through."""

    __slots__ = ("_next", "number", "ranges", "void_positions")

    def __init__(self, commit: Commit) -> None:
        self.number = commit.number
        self.ranges = {leased.shard: leased for leased in commit.ranges}
        self.void_positions = frozenset([(v.shard, v.position) for v in commit.verdicts])
        self._next = 0

    def runs_of(self, key: Key, runs: tuple[ExtentRun, ...]) -> tuple[ExtentRun, ...]:
        """The runs of a partition, which are next to each other; the next one's often follow."""
        at = self._next
        if at >= len(runs) or _place(runs[at]) != key:
            at = bisect_left(runs, key, key=_place)
        mine: list[ExtentRun] = []
        while at < len(runs) and _place(runs[at]) == key:
            if runs[at].first_offset:
                mine.append(runs[at])
            at += 1
        self._next = at
        return tuple(mine)


def _place(of: ExtentRun | PartitionHead) -> Key:
    return of.topic_id, of.partition


def _head_of(commit: Commit, key: Key) -> PartitionHead | None:
    heads = commit.heads
    at = bisect_left(heads, key, key=_place)
    return heads[at] if at < len(heads) and _place(heads[at]) == key else None
