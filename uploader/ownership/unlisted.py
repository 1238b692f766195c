"""Objects that no entry of the owner's log lists: which are taken, in which order, as what.

Pure: keys and footers in, decisions out. Vocabulary as in ``ledger/log/recovery.py``. What is
known:

- An entry carries the epoch floor and all commits up to one moment. So what is below its floor
  and not in it was never committed, and never will be: an *orphan*.
- The first entry of an incarnation carries all commits of those before it, and no object of it
  is older. So what is of a lower incarnation and not in it is an orphan, whatever its epoch: a
  former owner that was stopped may have put it at any time since.
- A lease that met a raised floor was renamed: two objects of the same ring ranges. Only the one
  of the higher epoch can have been committed.
- Leases that share a source were committed in the order of their ring ranges.
- An object's commit has a higher number than ``commits_seen``, and whoever sent a request of it
  knew of no commit above. So what was answered before a request was sent comes before it here too.

What the lost ledger decided is not known and is decided again: idempotency keys and expectations
(``expected_seq``) are judged in this order, expectations against the head before the declared gap.
Only leases that were in flight together, through different shards, may stand here in another order
than they were committed in. There an object whose expectation holds now goes first, so that what
may have been acknowledged is kept: void are expectations that no order of those could have met,
and all but one of those that only one could have met.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import pairwise

import msgspec
from msgspec import Struct

from ledger.decide import PartitionKey
from ledger.log.recovery import TopicSeen
from ledger.types import Commit, CommitDraft, Condition, LeaseId
from uploader.l0 import Footer
from uploader.stores.base import ObjectHead

SourceStart = tuple[int, int, int]  # incarnation, shard, ring position
NEVER_HELD = -1  # an expectation that no head meets


class Unlisted(Struct, frozen=True):
    """An object that is taken, and what it says of itself."""

    head: ObjectHead
    footer: Footer

    @property
    def lease_id(self) -> LeaseId:
        return self.footer.lease_id

    @property
    def expects(self) -> bool:
        """Whether a request of it has an expectation."""
        return any(one.expected_seq is not None for one in self.footer.conditions)

    def starts(self) -> frozenset[SourceStart]:
        """Where the ranges of its sources begin."""
        incarnation = self.lease_id.incarnation
        runs = (run for extent in self.footer.extents for run in extent.runs)
        return frozenset((incarnation, run.shard, run.ring_start) for run in runs)

    def draft(self, conditions: Iterable[Condition]) -> CommitDraft:
        """Its commit under ``conditions``."""
        return CommitDraft(
            lease_id=self.lease_id,
            key=self.head.key,
            locator=self.head.locator,
            size_bytes=self.head.size_bytes,
            created_ms=self.footer.created_ms,
            sources=(),
            extents=tuple(extent.draft() for extent in self.footer.extents),
            conditions=tuple(conditions),
        )


def is_orphan(lease_id: LeaseId, epoch_floor: int, incarnation: int) -> bool:
    """Whether an object that the last entry does not list was never committed.

    ``epoch_floor`` as of that entry, ``incarnation`` whose it is; both 0 without a log.
    """
    return lease_id.epoch < epoch_floor or lease_id.incarnation < incarnation


def without_renamed(found: Iterable[Unlisted]) -> tuple[list[Unlisted], list[Unlisted]]:
    """(those that may have been committed, those whose lease was renamed since)."""
    newest: dict[frozenset[SourceStart], Unlisted] = {}
    renamed: list[Unlisted] = []
    for item in sorted(found, key=_age):
        starts = item.starts()
        if starts in newest:
            renamed.append(newest[starts])
        newest[starts] = item
    return list(newest.values()), renamed


class RingOrder:
    """Unlisted objects one after the other, as their commits may have come.

    ``commit_number`` is of the ledger that takes them, ``counts`` the declared gaps by partition
    and ``heads`` the last offsets after these. ``exact``: no unlisted object is unreadable, so
    the gaps say how many records there were. Leases of one source stand as its ring had them, so
    each connection's records keep their order; ranges that contradict each other (a damaged
    footer) fall back to the order of keys.
    """

    def __init__(
        self,
        found: Iterable[Unlisted],
        commit_number: int = 0,
        counts: Mapping[PartitionKey, int] | None = None,
        heads: Mapping[PartitionKey, int] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        self._items = sorted(found, key=_age)
        self._number = commit_number
        self._counts = counts or {}
        self._heads = dict(heads or {})
        self._exact = exact
        self._met: dict[PartitionKey, int] = {}  # the highest expectation that was stored
        self._behind: defaultdict[int, list[int]] = defaultdict(list)
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
                self._behind[before].append(after)
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
            for after in self._behind[index]:
                self._waits_for[after] -= 1
                if not self._waits_for[after] and after in self._left:
                    self._ready(after)

    def conditions(self, item: Unlisted) -> Iterator[Condition]:
        """Its conditions, with expectations in the offsets after the gap."""
        for one in item.footer.conditions:
            condition = one.condition()
            seq = condition.expected_seq
            if seq is not None:
                key = (condition.topic_id, condition.parts[0].partition)
                seq = self._behind_the_gap(key, seq)
                condition = msgspec.structs.replace(condition, expected_seq=seq)
            if seq is not None or condition.idempotency_key is not None:
                yield condition

    def taken(self, commit: Commit, item: Unlisted) -> None:
        """The item that came last became this commit."""
        for head in commit.heads:
            self._heads[head.topic_id, head.partition] = head.head_seq
        void = {(verdict.shard, verdict.position) for verdict in commit.verdicts}
        for one in item.footer.conditions:
            if one.expected_seq is not None and (one.shard, one.position) not in void:
                key = (one.topic_id, one.parts[0].partition)
                self._met[key] = max(one.expected_seq, self._met.get(key, -1))

    def _behind_the_gap(self, key: PartitionKey, seq: int) -> int | None:
        if self._exact:
            return seq + self._counts.get(key, 0)
        # Where heads were is not known. What is: they rise, so one that was met is met once.
        return NEVER_HELD if seq <= self._met.get(key, -1) else None

    def _ready(self, index: int) -> None:
        item = self._items[index]
        heapq.heappush(self._early, (item.lease_id.incarnation, item.footer.commits_seen, index))

    def _next(self) -> int:
        while self._early and self._early[0][1] <= self._number:
            self._admit(heapq.heappop(self._early)[2])
        if not self._plain and not self._expecting and self._early:
            self._admit(heapq.heappop(self._early)[2])  # commits are missing between
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
        """Those that must come before one with an expectation."""
        before: defaultdict[int, list[int]] = defaultdict(list)
        for index, behind in self._behind.items():
            for after in behind:
                before[after].append(index)
        found: set[int] = set()
        left = [index for index, item in enumerate(self._items) if item.expects]
        while left:
            new = [index for index in before[left.pop()] if index not in found]
            found.update(new)
            left += new
        return found

    def _rank(self, index: int) -> Rank:
        """By the heads of now, as if nothing before it in the object were void."""
        waits = False
        for condition in self.conditions(self._items[index]):
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

    HOLDS = 0  # an expectation of it
    LEADS = 1  # it has none that can still hold, and one in a later object waits for it
    PLAIN = 2
    WAITS = 3  # an expectation for a head that may still come


def topics_of(found: Iterable[Unlisted]) -> list[TopicSeen]:
    """The topics that footers name, each with as many partitions as are seen."""
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
    """How many offsets could have been given to unlisted records."""
    counts: Counter[tuple[int, int]] = Counter()
    for item in found:
        for extent in item.footer.extents:
            counts[extent.topic_id, extent.partition] += extent.record_count
    return dict(counts)


def records_without_key(found: Iterable[Unlisted]) -> int:
    """Records whose producer may have sent them again, and neither a key nor an expectation says
    so."""
    count = 0
    for item in found:
        count += sum(extent.record_count for extent in item.footer.extents)
        for condition in item.footer.conditions:
            if condition.idempotency_key is not None or condition.expected_seq is not None:
                count -= sum(part.record_count for part in condition.parts)
    return count


def _age(item: Unlisted) -> tuple[int, int, int, int, int]:
    lease = item.lease_id
    return (lease.epoch, lease.incarnation, item.footer.created_ms, lease.shard, lease.counter)
