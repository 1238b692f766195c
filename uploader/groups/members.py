"""The published requests of a group's members, as a puller reads them; the oldest are remembered.

A puller looks at its group often and at each member every time, but most often only its bytes have
changed. So each header is read once. What is remembered is true for every puller of a process: a
request does not change before it is pulled, except that it may become void (``forget``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from shards.ring import Arrival, RequestAt
from uploader.groups.pull import Pending
from uploader.groups.upload_turn import NEVER


class RequestSource(Protocol):
    """Where a member's requests are read: its ring, or a model of it."""

    @property
    def head(self) -> int:
        """The end of what is published."""

    def arrivals(self, start: int, end: int) -> Iterator[Arrival]:
        """When the requests in [start, end) arrived, in order."""

    def requests(self, start: int, end: int) -> Iterator[RequestAt]:
        """The requests in [start, end), in order."""


class OldestPending(NamedTuple):
    """When a member's oldest pending requests arrived, those that wait apart; NEVER without one.
    Known as far as its ring was read from ``start``."""

    start: int
    read_to: int
    arrival_ns: int
    waits_ns: int


_NOTHING_READ = OldestPending(-1, -1, NEVER, NEVER)


class MemberRequests:
    """The requests of all shards. ``oldest`` is what is known: see ``oldest_of``."""

    def __init__(self, sources: Sequence[RequestSource]) -> None:
        self._sources = sources
        self.oldest = [_NOTHING_READ] * len(sources)

    def oldest_of(self, member: int, start: int, end: int) -> OldestPending:
        """The oldest requests in [start, end). A caller may take ``oldest`` instead if that begins
        at ``start`` and has an ``arrival_ns``: it would be the same."""
        known = self.oldest[member]
        if known.start != start:
            known = OldestPending(start, start, NEVER, NEVER)
        _, read_to, arrival_ns, waits_ns = known
        for arrival in self._sources[member].arrivals(known.read_to, end):
            read_to = arrival.end
            if not arrival.waits:
                arrival_ns = arrival.arrival_ns
                break
            waits_ns = min(waits_ns, arrival.arrival_ns)
        self.oldest[member] = known = OldestPending(start, read_to, arrival_ns, waits_ns)
        return known

    def forget(self) -> None:
        """What was known may have become void."""
        self.oldest[:] = [_NOTHING_READ] * len(self.oldest)

    def pending(self, member: int, start: int) -> Pending:
        """All requests from ``start`` on."""
        source = self._sources[member]
        return Pending(member, start, source.requests(start, source.head))
