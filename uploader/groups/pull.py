"""What one pull takes, and how it is cut into leases: decisions only.

A *lease* becomes one object. A pull takes less than ``(free slots + 1/2) x target`` bytes, which
rounds to as many objects as there are free slots (docs/decisions/0003), and at least one request.
It fills leases of equal size, so that a large pull leaves no small remainder: with a target of
4 MiB, 6 MiB - 1 become one object and 6 MiB two of 3 MiB. A request is never split over leases.

Inputs are the published requests of the group's members, as iterators. A pull reads what it takes
and one more request of each member, however much is pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ledger.types import LeasedRange
from shards.ring import RequestAt

EXTENTS_MAX = 1_000  # bounds a footer (about 100 KiB) and a ledger transaction


class Pending(NamedTuple):
    """A member's published requests in order; ``start`` is where its pulled range ends."""

    shard: int
    start: int
    requests: Iterable[RequestAt]


class PulledRange(NamedTuple):
    """What a pull takes from a member: at least one request."""

    shard: int
    start: int
    requests: Sequence[RequestAt]


class LeaseRequests(NamedTuple):
    """What one lease takes: the ring ranges, and their requests in pull order."""

    ranges: tuple[LeasedRange, ...]
    requests: tuple[tuple[int, RequestAt], ...]


def object_count(pulled_bytes: int, target_bytes: int, slots: int) -> int:
    """The number of objects of equal size that come nearest to the target, at most ``slots``."""
    return max(1, min(slots, (2 * pulled_bytes + target_bytes) // (2 * target_bytes)))


class _Walk:
    """A member's requests as far as they were read: those that are taken, and the next one."""

    def __init__(self, member: Pending) -> None:
        self.shard = member.shard
        self.start = self.end = member.start
        self.taken: list[RequestAt] = []
        self._rest = iter(member.requests)
        self.ahead = next(self._rest, None)

    def take(self, stop: int) -> int:
        """Takes the requests that end at or before ``stop``; returns their bytes."""
        before = self.end
        ahead, rest, taken = self.ahead, self._rest, self.taken
        while ahead is not None and ahead.end <= stop:
            taken.append(ahead)
            self.end = ahead.end
            ahead = next(rest, None)
        self.ahead = ahead
        return self.end - before


def bounded(pending: Iterable[Pending], bytes_max: int) -> list[PulledRange]:
    """Takes at most ``bytes_max`` of what is pending, but at least one request.

    The first request of the first member is always taken. Since turns rotate, smaller requests
    never hold back a request that exceeds its share or the bound. Then each member gets an equal
    share, so that a flood at one member does not hold back the others. The rest of the shares goes
    to the members in order.
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
    return [PulledRange(walk.shard, walk.start, walk.taken) for walk in walks if walk.taken]


def _one_lease(taken: Sequence[PulledRange]) -> LeaseRequests:
    """Less than one and a half objects, including pads, become one."""
    ranges = [LeasedRange(m.shard, m.start, m.requests[-1].end) for m in taken]
    requests = [(member.shard, request) for member in taken for request in member.requests]
    return LeaseRequests(tuple(ranges), tuple(requests))


def cut(
    pending: Sequence[Pending],
    slots: int,
    target_bytes: int,
    extents_max: int = EXTENTS_MAX,
) -> list[LeaseRequests]:
    """The leases of one pull, at most ``slots``, in pull order.

    Requests that would need one more lease, because of ``extents_max``, stay pending: a lease has
    at most one and a half targets and a request.
    """
    if not slots:
        return []
    taken = bounded(pending, slots * target_bytes + (target_bytes - 1) // 2)
    # No more batches than allowed extents: the usual case, in which extents need no count.
    batches = sum([len(r.batches) for member in taken for r in member.requests])
    countable = batches > extents_max
    spanned = sum([member.requests[-1].end - member.start for member in taken])
    if not countable and 2 * spanned < 3 * target_bytes:
        return [_one_lease(taken)] if taken else [LeaseRequests((), ())]
    total = sum([r.end - r.position for member in taken for r in member.requests])
    count = object_count(total, target_bytes, slots)
    leases: list[LeaseRequests] = []
    ranges: list[LeasedRange] = []
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
                    ranges.append(LeasedRange(member.shard, start, end))
                leases.append(LeaseRequests(tuple(ranges), tuple(requests)))
                if len(leases) == slots:
                    return leases
                if full:  # of extents, not of bytes: the rest is divided anew
                    shared_out = len(leases)
                    total = min(total - passed, (slots - shared_out) * target_bytes)
                    count = object_count(total, target_bytes, slots - shared_out)
                    passed = 0
                ranges, requests, keys = [], [], set()
                start = end
            requests.append((member.shard, request))
            if countable:
                keys |= new_keys
            passed += request.end - request.position
            end = request.end
        if end > start:
            ranges.append(LeasedRange(member.shard, start, end))
    leases.append(LeaseRequests(tuple(ranges), tuple(requests)))
    return leases
