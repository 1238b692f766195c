"""What one pull takes, and how it is cut into leases: decisions only.

A *lease* becomes one object. A pull takes at most ``free slots x target`` bytes, at least one
request, and fills leases of equal size, so that a large pull has no small tail: with a target of
4 MiB, 6 MiB - 1 is one object and 6 MiB are two of 3 MiB. A request is never split over leases.

Inputs are the published requests of the group's members; nothing here touches a ring.
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
    requests: Sequence[RequestAt]


class LeaseRequests(NamedTuple):
    """What one lease takes: the ring ranges, and their requests in pull order."""

    sources: tuple[SourceRange, ...]
    requests: tuple[tuple[int, RequestAt], ...]


def object_count(pulled_bytes: int, target_bytes: int, slots: int) -> int:
    """Objects of equal size, each as near to the target as can be, at most ``slots``."""
    return max(1, min(slots, (2 * pulled_bytes + target_bytes) // (2 * target_bytes)))


def bounded(pending: Iterable[Pending], bytes_max: int) -> list[Pending]:
    """Cuts what is pending to ``bytes_max``, but to one request at least.

    Each member first gets an equal share, so that one member's flood does not keep the others'
    requests back; what shares are left over goes to the members in order.
    """
    members = list(pending)
    share = bytes_max // max(1, len(members))
    taken = [0] * len(members)
    left = bytes_max
    for allowance in (share, bytes_max):
        for index, member in enumerate(members):
            budget = min(left, allowance)
            while taken[index] < len(member.requests):
                request = member.requests[taken[index]]
                size = request.end - request.position
                if size > budget:
                    break
                budget -= size
                left -= size
                taken[index] += 1
    if not any(taken):
        for index, member in enumerate(members):
            if member.requests:
                taken[index] = 1
                break
    return [
        Pending(member.shard, member.start, member.requests[:count])
        for member, count in zip(members, taken, strict=True)
        if count
    ]


def cut(
    pending: Sequence[Pending],
    slots: int,
    target_bytes: int,
    extents_max: int = EXTENTS_MAX,
) -> list[LeaseRequests]:
    """The leases of one pull, at most ``slots``, in pull order.

    Requests that would need one lease more (because of ``extents_max``) stay pending.
    """
    if not slots:
        return []
    taken = bounded(pending, slots * target_bytes)
    total = sum(r.end - r.position for member in taken for r in member.requests)
    count = object_count(total, target_bytes, slots)
    leases: list[LeaseRequests] = []
    sources: list[SourceRange] = []
    requests: list[tuple[int, RequestAt]] = []
    keys: set[tuple[int, int]] = set()
    passed = 0
    for member in taken:
        start = end = member.start
        for request in member.requests:
            new_keys = {(batch.topic_id, batch.partition) for batch in request.batches}
            full = (
                len(keys | new_keys) > extents_max
                if len(new_keys) > 1
                else (len(keys) >= extents_max and not new_keys <= keys)
            )
            if requests and (full or passed * count >= total * (len(leases) + 1)):
                if end > start:
                    sources.append(SourceRange(member.shard, start, end))
                leases.append(LeaseRequests(tuple(sources), tuple(requests)))
                if len(leases) == slots:
                    return leases
                sources, requests, keys = [], [], set()
                start = end
            requests.append((member.shard, request))
            keys |= new_keys
            passed += request.end - request.position
            end = request.end
        if end > start:
            sources.append(SourceRange(member.shard, start, end))
    leases.append(LeaseRequests(tuple(sources), tuple(requests)))
    return leases
