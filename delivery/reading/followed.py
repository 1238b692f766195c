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
(streams, routers, subscriptions); of the others the least recently asked for is forgotten. A tail
has no hole, at most TAIL_MAX extents, and ends at the head. All tails together have at most
RUNS_MAX runs; beyond it, those of the oldest commits are dropped.

A commit may move thousands of partitions, most of which are read much later or from objects. So
each of them only notes the commit, and a reader makes its extents of what the commit left.

This module reads neither rings nor the ledger; its caller feeds it commits in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from ledger.types import Commit, ExtentRun, LeasedRange, PartitionHead

Key = tuple[int, int]  # topic id, partition

FOLLOWED_MAX = 50_000
PINNED_MAX = 40_000  # leaves room for 10,000 readers that poll
TAIL_MAX = 512  # the length of the commit log; rings rarely hold more commits
RUNS_MAX = 41_900  # one larger commit is kept alone
# A followed partition takes about 450 bytes, a run with its head and places about 430.
BYTES_MAX = 450 * FOLLOWED_MAX + 430 * RUNS_MAX
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
        # Commits, and which of their heads is ours; a deque would take 600 bytes more.
        self.tail: list[tuple[_Moved, int]] = []


class FollowedPartitions:
    """The followed partitions of one shard.

    ``recent`` returns commits in order without a gap, up to the last one that was applied.
    """

    def __init__(self, recent: Callable[[], Iterable[Commit]] = tuple) -> None:
        self._recent = recent
        self._followed: dict[Key, _Followed] = {}
        self._unpinned: OrderedDict[Key, None] = OrderedDict()  # the least recently used first
        self._commits: deque[_Moved] = deque()  # those of the tails, in the order of commits
        self._runs = 0  # of all of them

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
            at = _index_of(commit.heads, key)
            if at is not None:
                head = commit.heads[at]
                if head.head_seq > entry.head_seq:
                    self._keep(commit, [(at, head, entry)])
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

    def tail(self, key: Key, offset: int) -> Iterator[TailExtent]:
        """Tail extents, beginning with the one that holds ``offset``; none if none does."""
        entry = self._followed.get(key)
        if entry is None or not entry.tail or offset > entry.head_seq:
            return
        tail = entry.tail
        first = len(tail) - 1  # readers are near the end
        if first and _last_offset(tail[first - 1]) >= offset:
            first = bisect_left(tail, offset, hi=first, key=_last_offset)
        expected = offset
        for moved, at in tail[first:]:
            extent = moved.extent(at)
            if extent.first_offset > expected:
                return
            yield extent
            expected = extent.last_offset + 1

    def forget_tail(self, key: Key) -> None:
        """Drops the tail: the rings have overwritten it, so it is read from objects."""
        entry = self._followed.get(key)
        if entry is not None:
            entry.tail.clear()

    def apply(self, commit: Commit) -> list[Key]:
        """Applies a commit; returns the followed partitions whose head it moved."""
        followed = self._followed
        heads: Sequence[PartitionHead] = commit.heads
        if len(followed) * HEADS_PER_KEY < len(heads):
            found = [_index_of(heads, key) for key in followed]
            heads = [heads[at] for at in sorted([at for at in found if at is not None])]
        keys, moved = [], []
        for at, head in enumerate(heads):
            key = (head.topic_id, head.partition)
            entry = followed.get(key)
            if entry is not None and head.head_seq > entry.head_seq:
                keys.append(key)
                moved.append((at, head, entry))
        if moved:
            self._keep(commit, moved)
        return keys

    def check_invariants(self) -> None:
        """Raises AssertionError unless what the head of this module says is true."""
        pinned = {key for key, entry in self._followed.items() if entry.pins}
        assert len(self._followed) <= FOLLOWED_MAX, f"{len(self._followed)} are followed"
        assert len(pinned) <= PINNED_MAX, f"{len(pinned)} are pinned"
        assert pinned.isdisjoint(self._unpinned), "pinned and not pinned"
        assert pinned | set(self._unpinned) == set(self._followed), "followed, or forgotten"
        assert self._runs == sum(len(moved.runs) for moved in self._commits), "runs are counted"
        assert self._runs <= RUNS_MAX or len(self._commits) == 1, f"{self._runs} runs"
        kept = set(map(id, self._commits))
        for key, entry in self._followed.items():
            tail = [moved.extent(at) for moved, at in entry.tail]
            assert len(tail) <= TAIL_MAX, f"{key} has a tail of {len(tail)}"
            assert not tail or tail[-1].last_offset == entry.head_seq, f"{key} ends before its head"
            for before, after in pairwise(tail):
                assert after.first_offset == before.last_offset + 1, f"{key} has a hole"
            assert all(id(moved) in kept for moved, _ in entry.tail), f"{key} has uncounted extents"

    def _keep(self, commit: Commit, moved: list[tuple[int, PartitionHead, _Followed]]) -> None:
        """Adds a commit to the tails of partitions that it moved: which of its heads are whose. If
        these are few, the rest of it is not kept."""
        kept = _Moved(commit)
        if 2 * len(moved) < len(commit.heads):
            kept.restrict([head for _, head, _ in moved])
            moved = [(at, head, entry) for at, (_, head, entry) in enumerate(moved)]
        for at, head, entry in moved:
            entry.head_seq = head.head_seq
            entry.tail.append((kept, at))
            if len(entry.tail) > TAIL_MAX:
                del entry.tail[0]
        kept.entries = [entry for _, _, entry in moved]
        self._commits.append(kept)
        self._runs += len(kept.runs)
        while self._runs > RUNS_MAX and len(self._commits) > 1:
            oldest = self._commits.popleft()
            self._runs -= len(oldest.runs)
            for entry in oldest.entries:
                # Unless it was dropped already: the oldest of all is the first of its tail.
                if entry.tail and entry.tail[0][0] is oldest:
                    del entry.tail[0]


class _Moved:
    """What a commit left for the tails of the partitions that it moved."""

    __slots__ = (
        "_next_run", "_places", "_ranges", "_verdicts", "entries", "heads", "number", "runs",
    )  # fmt: skip

    def __init__(self, commit: Commit) -> None:
        self.number = commit.number
        self.heads: Sequence[PartitionHead] = commit.heads
        self.runs = commit.runs
        self._next_run = 0  # after those that were looked for last
        self._ranges, self._verdicts = commit.ranges, commit.verdicts
        self._places: tuple[dict[int, LeasedRange], frozenset[tuple[int, int]]] | None = None
        self.entries: Sequence[_Followed] = ()

    def restrict(self, heads: Sequence[PartitionHead]) -> None:
        """Forgets what is not of these partitions, which are in order."""
        self.runs = tuple(chain.from_iterable([self._runs_of(_place(head)) for head in heads]))
        self.heads, self._next_run = heads, 0

    def extent(self, at: int) -> TailExtent:
        """What readers know of the partition of a head."""
        if self._places is None:
            self._places = (
                {leased.shard: leased for leased in self._ranges},
                frozenset([(void.shard, void.position) for void in self._verdicts]),
            )
        head = self.heads[at]
        if len(self.runs) == len(self.heads):  # each has one
            runs = self.runs[at : at + 1]
        else:
            runs = self._runs_of(_place(head))
        firsts = [run.first_offset for run in runs]
        if 0 in firsts:
            runs = tuple([run for run in runs if run.first_offset])
            firsts = [run.first_offset for run in runs]
        first = min(firsts, default=head.head_seq + 1)
        return TailExtent(first, head.head_seq, self.number, runs, *self._places)

    def _runs_of(self, key: Key) -> tuple[ExtentRun, ...]:
        runs = self.runs
        first = self._next_run
        if first >= len(runs) or _place(runs[first]) != key:
            first = bisect_left(runs, key, key=_place)
        after = first
        while after < len(runs) and _place(runs[after]) == key:
            after += 1
        self._next_run = after
        return runs[first:after]


def _last_offset(item: tuple[_Moved, int]) -> int:
    moved, at = item
    return moved.heads[at].head_seq


def _place(of: ExtentRun | PartitionHead) -> Key:
    return of.topic_id, of.partition


def _index_of(heads: Sequence[PartitionHead], key: Key) -> int | None:
    at = bisect_left(heads, key, key=_place)
    return at if at < len(heads) and _place(heads[at]) == key else None
