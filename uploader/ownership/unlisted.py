"""Objects that no entry of the owner's log lists: which are taken, in which order, and how.

Pure: decisions from keys and footers. Vocabulary as in ``ledger/log/recovery.py``. This is known:

- An entry has the epoch floor and all commits up to one moment. So an object below its floor that
  is not in it was never committed and never will be: an *orphan*.
- The first entry of an incarnation has all commits of earlier incarnations. So an object of an
  earlier incarnation that is not in it is an orphan, whatever its epoch: a former owner that was
  stopped may have put it at any time since.
- Former versions leased the range of a lease below the floor again under a new id, so there may be
  two objects of the same ring ranges. Only the one with the higher epoch can have been committed.
- Leases that share a source were committed in the order of their ring ranges.
- An object's commit has a higher number than its ``commits_seen``, and its producers knew of no
  later commit. So requests that were answered before a request was sent come before it here too.

The decisions of the lost ledger are unknown and are made again: idempotency keys, producers,
expectations (``expected_seq``) and clients' cursors are judged in this order, expectations against
the head before the declared gap. Where a cursor must be is an expectation too. If an object is
unreadable, its batches may be what a producer's sequence numbers lack: then gaps in these are
accepted.
Only leases that were in flight together in different shards may be in another order here than
their commits were. Among these, an object whose expectation holds now goes first, so that what may
have been acknowledged is kept. An expectation becomes void only if no order could have met it, or
if several could only be met one at a time: then all but one.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import pairwise

import msgspec
from msgspec import Struct

from ledger.decide import CursorKey, PartitionKey
from ledger.log.recovery import TopicSeen
from ledger.types import Advance, Commit, CommitDraft, Condition, LeaseId
from uploader.l0 import Footer
from uploader.stores.base import ObjectHead

SourceStart = tuple[int, int, int]  # incarnation, shard, ring position
NEVER_HELD = -1  # an expectation that no head meets


class Unlisted(Struct, frozen=True):
    """An object that may be taken, with its footer."""

    head: ObjectHead
    footer: Footer

    @property
    def lease_id(self) -> LeaseId:
        return self.footer.lease_id

    @property
    def expects(self) -> bool:
        """Whether one of its requests has an expectation."""
        return any(
            one.expected_seq is not None or (one.advance is not None and not one.advance.is_ours)
            for one in self.footer.conditions
        )

    def starts(self) -> frozenset[SourceStart]:
        """Where the ranges of its sources begin."""
        incarnation = self.lease_id.incarnation
        runs = (run for extent in self.footer.extents for run in extent.runs)
        return frozenset((incarnation, run.shard, run.ring_start) for run in runs)

    def draft(self, conditions: Iterable[Condition]) -> CommitDraft:
        """Its commit, with ``conditions``."""
        return CommitDraft(
            lease_id=self.lease_id,
            key=self.head.key,
            locator=self.head.locator,
            size_bytes=self.head.size_bytes,
            created_ms=self.footer.created_ms,
            ranges=(),
            extents=tuple(extent.draft() for extent in self.footer.extents),
            conditions=tuple(conditions),
        )


def is_orphan(lease_id: LeaseId, epoch_floor: int, incarnation: int) -> bool:
    """Whether an object that the last entry does not list was never committed.

    ``epoch_floor`` and ``incarnation`` are those of that entry; both are 0 without a log.
    """
    return lease_id.epoch < epoch_floor or lease_id.incarnation < incarnation


def without_renamed(found: Iterable[Unlisted]) -> tuple[list[Unlisted], list[Unlisted]]:
    """(objects that may have been committed, objects whose range was leased again later)."""
    newest: dict[frozenset[SourceStart], Unlisted] = {}
    renamed: list[Unlisted] = []
    for item in sorted(found, key=_age):
        starts = item.starts()
        if starts in newest:
            renamed.append(newest[starts])
        newest[starts] = item
    return list(newest.values()), renamed


class RingOrder:
    """Unlisted objects in an order in which they may have been committed.

    ``commit_number`` is that of the ledger that takes them, ``counts`` the declared gaps by
    partition, ``heads`` the last offsets after these, and ``cursors`` the last setting and the
    position of cursors. ``exact``: no unlisted object is unreadable, so the gaps tell how many
    records there were. Leases of one source are in ring
    order, so the records of each connection keep their order. Ranges that contradict each other,
    as after a damaged footer, fall back to the order of keys.
    """

    def __init__(
        self,
        found: Iterable[Unlisted],
        commit_number: int = 0,
        counts: Mapping[PartitionKey, int] | None = None,
        heads: Mapping[PartitionKey, int] | None = None,
        cursors: Mapping[CursorKey, tuple[int, int]] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        self._items = sorted(found, key=_age)
        self._number = commit_number
        self._counts = counts or {}
        self._heads = dict(heads or {})
        self._cursors = dict(cursors or {})
        self._exact = exact
        self._met: dict[PartitionKey, int] = {}  # the highest expectation that was met
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        self._waits_for: Counter[int] = Counter()
        self._left = set(range(len(self._items)))
        self._early: list[tuple[int, int, int]] = []  # incarnation, commits_seen, index
        self._plain: list[tuple[Rank, int]] = []
        self._expecting: list[int] = []  # a few: at most one of each source
        at_source: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for index, item in enumerate(self._items):
            first: dict[tuple[int, int], int] = {}  # a source may have a run in each extent
            for incarnation, shard, start in item.starts():
                source = (incarnation, shard)
                first[source] = min(start, first.get(source, start))
            for source, start in first.items():
                at_source[source].append((start, index))
        for places in at_source.values():
            places.sort()
            for (_, before), (_, after) in pairwise(places):
                self._followers[before].append(after)
                self._waits_for[after] += 1
        self._leads = self._before_an_expectation()
        for index in range(len(self._items)):
            if not self._waits_for[index]:
                self._ready(index)

    def __iter__(self) -> Iterator[Unlisted]:
        while self._left:
            index = self._next()
            self._left.discard(index)
            yield self._items[index]
            self._number += 1
            for after in self._followers[index]:
                self._waits_for[after] -= 1
                if not self._waits_for[after] and after in self._left:
                    self._ready(after)

    def conditions(self, item: Unlisted) -> Iterator[Condition]:
        """Its conditions, with expectations converted to offsets after the gap."""
        for one in item.footer.conditions:
            condition = one.condition()
            seq = condition.expected_seq
            if seq is not None:
                key = (condition.topic_id, condition.parts[0].partition)
                seq = self._after_the_gap(key, seq)
                condition = msgspec.structs.replace(condition, expected_seq=seq)
            if condition.producer is not None and not self._exact:
                condition = msgspec.structs.replace(condition, accepts_gaps=True)
            asked = (seq, condition.idempotency_key, condition.advance, condition.producer)
            if asked != (None, None, None, None):
                yield condition

    def taken(self, commit: Commit, item: Unlisted) -> None:
        """The item that came last has become this commit."""
        for head in commit.heads:
            self._heads[head.topic_id, head.partition] = head.head_seq
        void = {(verdict.shard, verdict.position) for verdict in commit.verdicts}
        for one in item.footer.conditions:
            if one.advance is not None:
                self._learn(one.advance)
        for one in item.footer.conditions:
            if (one.shard, one.position) in void:
                continue
            if one.expected_seq is not None:
                key = (one.topic_id, one.parts[0].partition)
                self._met[key] = max(one.expected_seq, self._met.get(key, -1))
            if one.advance is not None:
                cursor = (one.advance.cursor_id, one.advance.partition)
                self._cursors[cursor] = (self._cursors.get(cursor, (0, 0))[0], one.advance.next)

    def _learn(self, advance: Advance) -> None:
        self._cursors[advance.cursor_id, advance.partition] = self._known(advance)

    def _known(self, advance: Advance) -> tuple[int, int]:
        """A cursor's last setting and its position, with what a request tells of it."""
        known = self._cursors.get((advance.cursor_id, advance.partition), (0, 0))
        return max(known, (advance.set_change, advance.set_seq), key=lambda each: each[0])

    def _after_the_gap(self, key: PartitionKey, seq: int) -> int | None:
        if self._exact:
            return seq + self._counts.get(key, 0)
        # The heads are unknown. But they only rise, so an expectation is met at most once.
        return NEVER_HELD if seq <= self._met.get(key, -1) else None

    def _ready(self, index: int) -> None:
        item = self._items[index]
        heapq.heappush(self._early, (item.lease_id.incarnation, item.footer.commits_seen, index))

    def _next(self) -> int:
        while self._early and self._early[0][1] <= self._number:
            self._admit(heapq.heappop(self._early)[2])
        if not self._plain and not self._expecting and self._early:
            self._admit(heapq.heappop(self._early)[2])  # commits in between are missing
        if self._expecting:
            first = min((self._rank(index), index) for index in self._expecting)
            if not self._plain or first < self._plain[0]:
                self._expecting.remove(first[1])
                return first[1]
        return heapq.heappop(self._plain)[1] if self._plain else min(self._left)

    def _admit(self, index: int) -> None:
        if self._items[index].expects:
            self._expecting.append(index)
        else:
            heapq.heappush(self._plain, (self._plain_rank(index), index))

    def _plain_rank(self, index: int) -> Rank:
        return Rank.LEADS if index in self._leads else Rank.PLAIN

    def _before_an_expectation(self) -> set[int]:
        """The objects that must come before one with an expectation."""
        before: defaultdict[int, list[int]] = defaultdict(list)
        for index, followers in self._followers.items():
            for after in followers:
                before[after].append(index)
        found: set[int] = set()
        left = [index for index, item in enumerate(self._items) if item.expects]
        while left:
            new = [index for index in before[left.pop()] if index not in found]
            found.update(new)
            left += new
        return found

    def _rank(self, index: int) -> Rank:
        """Its rank for the present heads, as if nothing before it in the object were void."""
        waits = False
        moved: dict[CursorKey, int] = {}
        for condition in self.conditions(self._items[index]):
            advance = condition.advance
            if advance is not None and not advance.is_ours:
                cursor = (advance.cursor_id, advance.partition)
                at = moved.get(cursor, self._known(advance)[1])
                if advance.expected == at:
                    moved[cursor] = advance.next
                elif advance.expected > at:
                    waits = True
                    continue
            if condition.expected_seq is None:
                continue
            part = condition.parts[0]
            head = self._heads.get((condition.topic_id, part.partition), 0) + part.record_index
            if condition.expected_seq == head:
                return Rank.HOLDS
            waits = waits or condition.expected_seq > head
        return Rank.WAITS if waits else self._plain_rank(index)


class Rank(IntEnum):
    """Which of several objects goes first."""

    HOLDS = 0  # one of its expectations holds
    LEADS = 1  # none of its own can hold, and one in a later object waits for it
    PLAIN = 2
    WAITS = 3  # it expects a head that may still come


def topics_of(found: Iterable[Unlisted]) -> list[TopicSeen]:
    """The topics that footers name, each with the number of partitions that appear."""
    seen: dict[int, TopicSeen] = {}
    for item in found:
        for extent in item.footer.extents:
            before = seen.get(extent.topic_id)
            partitions = extent.partition + 1
            created_ms = item.footer.created_ms
            if before is not None:
                partitions = max(partitions, before.partitions)
                created_ms = min(created_ms, before.created_ms)
            seen[extent.topic_id] = TopicSeen(
                extent.topic_id, extent.topic_name, partitions, created_ms
            )
    return list(seen.values())


def records_by_partition(found: Iterable[Unlisted]) -> dict[tuple[int, int], int]:
    """How many offsets may have been assigned to unlisted records."""
    counts: Counter[tuple[int, int]] = Counter()
    for item in found:
        for extent in item.footer.extents:
            counts[extent.topic_id, extent.partition] += extent.record_count
    return dict(counts)


def cursors_of(found: Iterable[Unlisted]) -> set[CursorKey]:
    """The cursors of clients that requests advance."""
    return {
        (one.advance.cursor_id, one.advance.partition)
        for item in found
        for one in item.footer.conditions
        if one.advance is not None and not one.advance.is_ours
    }


def records_without_key(found: Iterable[Unlisted]) -> int:
    """The number of records that may be doubled: their producers may have sent them again, and
    have no key, expectation or cursor that would tell."""
    count = 0
    for item in found:
        count += sum(extent.record_count for extent in item.footer.extents)
        for condition in item.footer.conditions:
            told = (condition.idempotency_key, condition.expected_seq, condition.advance)
            if told != (None, None, None) or condition.producer is not None:
                count -= sum(part.record_count for part in condition.parts)
    return count


def _age(item: Unlisted) -> tuple[int, int, int, int, int]:
    lease = item.lease_id
    return (lease.epoch, lease.incarnation, item.footer.created_ms, lease.shard, lease.counter)
