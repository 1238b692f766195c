"""Objects that no entry of the owner's log lists: which are taken, in which order, as what.

Pure: keys and footers in, decisions out. Vocabulary as in ``ledger/recovery.py``. What is known:

- An entry carries the epoch floor and all commits up to one moment. So what is below its floor
  and not in it was never committed, and never will be: an *orphan*.
- The first entry of an incarnation carries all commits of those before it, and no object of it
  is older. So what is of a lower incarnation and not in it is an orphan, whatever its epoch: a
  former owner that was stopped may have put it at any time since.
- A lease that met a raised floor was renamed: two objects of the same ring ranges. Only the one
  of the higher epoch can have been committed.
- Leases that share a source were committed in the order of their ring ranges.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from ledger.recovery import TopicSeen
from ledger.types import CommitDraft, LeaseId
from uploader.l0 import Footer
from uploader.stores.base import ObjectHead

SourceStart = tuple[int, int, int]  # incarnation, shard, ring position


class Unlisted(Struct, frozen=True):
    """An object that is taken, and what it says of itself."""

    head: ObjectHead
    footer: Footer

    @property
    def lease_id(self) -> LeaseId:
        return self.footer.lease_id

    def starts(self) -> frozenset[SourceStart]:
        """Where the ranges of its sources begin."""
        incarnation = self.lease_id.incarnation
        runs = (run for extent in self.footer.extents for run in extent.runs)
        return frozenset((incarnation, run.shard, run.ring_start) for run in runs)

    def draft(self) -> CommitDraft:
        """Its commit. Expectations met their heads once and are not judged again."""
        conditions = (condition.condition() for condition in self.footer.conditions)
        return CommitDraft(
            lease_id=self.lease_id,
            key=self.head.key,
            locator=self.head.locator,
            size_bytes=self.head.size_bytes,
            created_ms=self.footer.created_ms,
            sources=(),
            extents=tuple(extent.draft() for extent in self.footer.extents),
            conditions=tuple(
                msgspec.structs.replace(condition, expected_seq=None)
                for condition in conditions
                if condition.idempotency_key is not None
            ),
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


def in_ring_order(found: Sequence[Unlisted]) -> list[Unlisted]:
    """The order of keys, but for leases of one source: those stand as its ring had them.

    So each connection's records keep their order. Ranges that contradict each other (a damaged
    footer) fall back to the order of keys.
    """
    items = sorted(found, key=_age)
    at_source: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for index, item in enumerate(items):
        for incarnation, shard, start in item.starts():
            at_source[incarnation, shard].append((start, index))
    behind: defaultdict[int, list[int]] = defaultdict(list)
    waits_for: Counter[int] = Counter()
    for places in at_source.values():
        places.sort()
        for (_, before), (_, after) in pairwise(places):
            behind[before].append(after)
            waits_for[after] += 1
    ready = [index for index in range(len(items)) if not waits_for[index]]
    ordered: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(index)
        for after in behind[index]:
            waits_for[after] -= 1
            if not waits_for[after]:
                heapq.heappush(ready, after)
    left = sorted(set(range(len(items))) - set(ordered))
    return [items[index] for index in [*ordered, *left]]


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
    """Records whose producer may have sent them again and not said so."""
    count = 0
    for item in found:
        count += sum(extent.record_count for extent in item.footer.extents)
        for condition in item.footer.conditions:
            if condition.idempotency_key is not None:
                count -= sum(part.record_count for part in condition.parts)
    return count


def _age(item: Unlisted) -> tuple[int, int, int, int, int]:
    lease = item.lease_id
    return (lease.epoch, lease.incarnation, item.footer.created_ms, lease.shard, lease.counter)
