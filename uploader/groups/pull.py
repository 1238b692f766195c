"""What one pull takes, and how it is cut into leases: decisions only.

A *lease* becomes one object. A pull takes less than ``(free slots + 1/2) x target`` bytes, what
rounds to that many objects (docs/decisions/0008), at least one request, and fills leases of equal
size, so that a large pull has no small tail: with a target of 4 MiB, 6 MiB - 1 is one object and
6 MiB are two of 3 MiB. A request is never split over leases.

Inputs are the published requests of the group's members, as iterators. They are walked only as far
as the pull goes: what a pull looks at is what it takes and one request more of each member, however
much is pending and whoever has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ledger.types import SourceRange
from shards.ring import RequestAt

EXTENTS_MAX = 1_000  # bounds a footer (about 100 KiB) and a ledger transaction


class Pending(NamedTuple):
    """A member's published requests in order; ``start`` is where its pulled range ends."""

    shard: int
    start: int
    requests: Iterable[RequestAt]


class Taken(NamedTuple):
    """What a pull takes of a member: one request at least."""

    shard: int
    start: int
    requests: Sequence[RequestAt]


class LeaseRequests(NamedTuple):
    """What one lease takes: the ring ranges, and their requests in pull order."""

    sources: tuple[SourceRange, ...]
    requests: tuple[tuple[int, RequestAt], ...]


def object_count(pulled_bytes: int, target_bytes: int, slots: int) -> int:
    """Objects of equal size, each as near to the target as can be, at most ``slots``."""
    return max(1, min(slots, (2 * pulled_bytes + target_bytes) // (2 * target_bytes)))


class _Walk:
    """A member's requests as far as they were looked at: those that are taken, and the next."""

    def __init__(self, member: Pending) -> None:
        self.shard = member.shard
        self.start = self.end = member.start
        self.taken: list[RequestAt] = []
        self._rest = iter(member.requests)
        self.ahead = next(self._rest, None)

    def take(self, stop: int) -> int:
        """Takes the requests that end at ``stop`` or before; returns their bytes."""
        before = self.end
        ahead, rest, taken = self.ahead, self._rest, self.taken
        while ahead is not None and ahead.end <= stop:
            taken.append(ahead)
            self.end = ahead.end
            ahead = next(rest, None)
        self.ahead = ahead
        return self.end - before


def bounded(pending: Iterable[Pending], bytes_max: int) -> list[Taken]:
    """Cuts what is pending to ``bytes_max``, but to one request at least.

    The first request of the first member is always taken: as turns go round, a request that is
    over its share, or over the bound, is not kept back for ever by smaller ones. Then each member
    gets an equal share, so that one member's flood does not keep the others' requests back; what
    shares are left over goes to the members in order.
    """
    walks = [walk for walk in map(_Walk, pending) if walk.ahead is not None]
    if not walks:
        return []
    share = bytes_max // len(walks)
    first = walks[0]
    assert first.ahead is not None
    left = bytes_max - first.take(first.ahead.end)
    for walk in walks:
        left -= walk.take(min(walk.end + left, walk.start + share))
    for walk in walks:
        left -= walk.take(walk.end + left)
    return [Taken(walk.shard, walk.start, walk.taken) for walk in walks if walk.taken]


def _one_lease(taken: Sequence[Taken]) -> LeaseRequests:
    """What is less than one and a half objects, pads included, is one."""
    sources = [SourceRange(m.shard, m.start, m.requests[-1].end) for m in taken]
    requests = [(member.shard, request) for member in taken for request in member.requests]
    return LeaseRequests(tuple(sources), tuple(requests))


def cut(
    pending: Sequence[Pending],
    slots: int,
    target_bytes: int,
    extents_max: int = EXTENTS_MAX,
) -> list[LeaseRequests]:
    """The leases of one pull, at most ``slots``, in pull order.

    Requests that would need one lease more (because of ``extents_max``) stay pending: no lease
    has more than one and a half targets and a request.
    """
    if not slots:
        return []
    taken = bounded(pending, slots * target_bytes + (target_bytes - 1) // 2)
    # Fewer batches than extents allowed cannot be too many extents: the usual case, not counted.
    batches = sum([len(r.batches) for member in taken for r in member.requests])
    countable = batches > extents_max
    spanned = sum([member.requests[-1].end - member.start for member in taken])
    if not countable and 2 * spanned < 3 * target_bytes:
        return [_one_lease(taken)] if taken else [LeaseRequests((), ())]
    total = sum([r.end - r.position for member in taken for r in member.requests])
    count = object_count(total, target_bytes, slots)
    leases: list[LeaseRequests] = []
    sources: list[SourceRange] = []
    requests: list[tuple[int, RequestAt]] = []
    keys: set[tuple[int, int]] = set()
    passed = shared_out = 0
    for member in taken:
        start = end = member.start
        for request in member.requests:
            full = False
            if countable:
                new_keys = {(batch.topic_id, batch.partition) for batch in request.batches}
                full = (
                    len(keys) + len(new_keys) > extents_max and len(keys | new_keys) > extents_max
                )
            if requests and (full or passed * count >= total * (len(leases) - shared_out + 1)):
                if end > start:
                    sources.append(SourceRange(member.shard, start, end))
                leases.append(LeaseRequests(tuple(sources), tuple(requests)))
                if len(leases) == slots:
                    return leases
                if full:  # of extents, not of bytes: what follows is shared out anew
                    shared_out = len(leases)
                    total = min(total - passed, (slots - shared_out) * target_bytes)
                    count = object_count(total, target_bytes, slots - shared_out)
                    passed = 0
                sources, requests, keys = [], [], set()
                start = end
            requests.append((member.shard, request))
            if countable:
                keys |= new_keys
            passed += request.end - request.position
            end = request.end
        if end > start:
            sources.append(SourceRange(member.shard, start, end))
    leases.append(LeaseRequests(tuple(sources), tuple(requests)))
    return leases
