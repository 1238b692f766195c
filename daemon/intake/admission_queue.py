"""Requests that wait for admission instead of being refused (``disable_backpressure``). Pure.

    added, because there was no room -> first, when all before it have left -> taken out, as soon as
    it fits; or removed: its connection is lost, its deadline has passed, or all are refused

First in, first out. What the first one needs is *reserved* for it: while it waits, nobody else gets
that room, so requests that need less cannot keep it waiting. What is free beyond that goes to any
request, and ``admission.py`` keeps a share for those that do not wait.

Rules (``check_invariants``): at most ``count_max`` requests, for which at most ``bytes_max``
received bytes are held; ``reserved_bytes`` is what the first one needs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import final

from daemon.http.request import Request


@final
class QueuedRequest:
    """A request that waits from ``since_ns`` until ``until_ns``. ``held_bytes``: what its
    connection had received of it, and after it."""

    __slots__ = ("held_bytes", "needed_bytes", "request", "since_ns", "timeout_ms", "until_ns")

    def __init__(
        self, request: Request, needed_bytes: int, held_bytes: int, since_ns: int, timeout_ms: int
    ) -> None:
        self.request = request
        self.needed_bytes = needed_bytes
        self.held_bytes = held_bytes
        self.since_ns = since_ns
        self.timeout_ms = timeout_ms
        self.until_ns = since_ns + timeout_ms * 1_000_000


class AdmissionQueue:
    """The waiting requests of one shard."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.reserved_bytes = 0
        self._waiting: OrderedDict[QueuedRequest, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def has_place(self, held_bytes: int) -> bool:
        """Whether one more may wait."""
        return (
            len(self._waiting) < self.count_max and self.held_bytes + held_bytes <= self.bytes_max
        )

    def add(self, queued: QueuedRequest) -> None:
        """Takes a request for which there is a place."""
        self._waiting[queued] = None
        self.held_bytes += queued.held_bytes
        if len(self._waiting) == 1:
            self.reserved_bytes = queued.needed_bytes

    def take(self, unpromised_bytes: int) -> QueuedRequest | None:
        """Takes out the first one if it fits in what is free and promised to nobody."""
        if not self._waiting or self.reserved_bytes > unpromised_bytes:
            return None
        first = next(iter(self._waiting))
        self.remove(first)
        return first

    def take_overdue(self, now_ns: int) -> list[QueuedRequest]:
        """Takes out those whose time is over."""
        overdue = [queued for queued in self._waiting if now_ns >= queued.until_ns]
        for queued in overdue:
            self.remove(queued)
        return overdue

    def take_all(self) -> list[QueuedRequest]:
        """Takes out all."""
        everyone = list(self._waiting)
        self._waiting.clear()
        self.held_bytes = self.reserved_bytes = 0
        return everyone

    def remove(self, queued: QueuedRequest) -> None:
        """Takes out one that waits; nothing happens if it does not."""
        if queued in self._waiting:
            del self._waiting[queued]
            self.held_bytes -= queued.held_bytes
            first = next(iter(self._waiting), None)
            self.reserved_bytes = 0 if first is None else first.needed_bytes

    def check_invariants(self) -> None:
        """For tests."""
        assert len(self) <= self.count_max
        assert self.held_bytes == sum(queued.held_bytes for queued in self._waiting)
        assert self.held_bytes <= self.bytes_max
        first = next(iter(self._waiting), None)
        assert self.reserved_bytes == (0 if first is None else first.needed_bytes)
