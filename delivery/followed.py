"""What one shard knows of the newest commits: heads, and where the tail lies in the rings.

A partition is *followed* once a reader has asked for it. For each followed partition, a commit
updates the head and adds a *tail extent*: which ring ranges hold which offsets. Partitions that
nobody reads cost nothing.

    follow(key, recent commits)  ->  commits update it  ->  head_loaded(key, from the ledger)

The recent commits give a new reader the tail that the rings still hold. Heads only grow, so if
commits arrive while a head is loaded, the larger one counts. The key is followed before the ledger
is read, so no commit falls between the two.

Bounds: FOLLOWED_MAX partitions (the least recently used is forgotten), TAIL_MAX extents each. This
module reads neither rings nor the ledger; its caller feeds it commits in order.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ledger.types import Commit, OffsetRun, SourceRange

Key = tuple[int, int]  # topic id, partition

FOLLOWED_MAX = 50_000  # about 200 bytes each: 10 MB
TAIL_MAX = 512  # the length of the commit log; rings rarely hold more commits


class TailExtent(NamedTuple):
    """Offsets [first_offset, last_offset] of one commit, and the ring ranges that hold them."""

    first_offset: int
    last_offset: int
    commit_number: int
    runs: tuple[OffsetRun, ...]
    sources: dict[int, SourceRange]
    void_positions: frozenset[tuple[int, int]]  # (shard, position) of void requests


class _Followed:
    __slots__ = ("head_seq", "loaded", "tail")

    def __init__(self) -> None:
        self.head_seq = 0
        self.loaded = False
        self.tail: deque[TailExtent] = deque(maxlen=TAIL_MAX)

    def add(self, commit: Commit, key: Key, head_seq: int) -> None:
        """Applies a commit that moved the head."""
        if head_seq <= self.head_seq:
            return
        extent = _tail_extent(commit, key, head_seq)
        if self.tail and extent.first_offset != self.tail[-1].last_offset + 1:
            self.tail.clear()
        self.tail.append(extent)
        self.head_seq = head_seq


class FollowedPartitions:
    """The followed partitions of one shard."""

    def __init__(self) -> None:
        self._followed: OrderedDict[Key, _Followed] = OrderedDict()

    def follow(self, key: Key, recent: Callable[[], Iterable[Commit]]) -> None:
        """Begins to keep a partition's head and tail.

        ``recent`` returns commits in order without a gap, up to the last one that was applied.
        """
        if key in self._followed:
            self._followed.move_to_end(key)
            return
        entry = self._followed[key] = _Followed()
        if len(self._followed) > FOLLOWED_MAX:
            self._followed.popitem(last=False)
        for commit in recent():
            for head in commit.heads:
                if (head.topic_id, head.partition) == key:
                    entry.add(commit, key, head.head_seq)
                    entry.loaded = True

    def head_loaded(self, key: Key, head_seq: int) -> None:
        """Takes the ledger's head of a partition, which was followed before the ledger was read."""
        entry = self._followed.get(key)
        if entry is not None:
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
        return [extent for extent in entry.tail if extent.last_offset >= offset]

    def forget_tail(self, key: Key) -> None:
        """Drops the tail: the rings have overwritten it, so it is read from objects."""
        entry = self._followed.get(key)
        if entry is not None:
            entry.tail.clear()

    def apply(self, commit: Commit) -> list[Key]:
        """Applies a commit; returns the followed partitions whose head it moved."""
        moved: list[Key] = []
        followed = self._followed
        for topic_id, partition, head_seq in (
            (h.topic_id, h.partition, h.head_seq) for h in commit.heads
        ):
            key = (topic_id, partition)
            entry = followed.get(key)
            if entry is not None and head_seq > entry.head_seq:
                entry.add(commit, key, head_seq)
                moved.append(key)
        return moved


def _tail_extent(commit: Commit, key: Key, head_seq: int) -> TailExtent:
    runs = tuple(r for r in commit.runs if (r.topic_id, r.partition) == key and r.first_offset)
    return TailExtent(
        first_offset=min((r.first_offset for r in runs), default=head_seq + 1),
        last_offset=head_seq,
        commit_number=commit.number,
        runs=runs,
        sources={source.shard: source for source in commit.sources},
        void_positions=frozenset((v.shard, v.position) for v in commit.verdicts),
    )
