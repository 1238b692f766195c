"""Doorbells: one eventfd per shard, inherited by all, so that any process can wake any loop.

Rings coalesce: a loop that was rung many times wakes once and then looks at the shared words. A
bell carries no message. Ringing is cheap (0.4 us) and never blocks: a full counter is a rung bell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence


class Doorbells:
    """The bells of all shards, followed by that of the supervisor's owner thread.

    ``fds`` are eventfds; the index is the shard.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        self.fds = tuple(fds)

    @classmethod
    def create(cls, shards: int) -> Doorbells:
        """New bells; the supervisor makes them before it starts the shards."""
        return cls([os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(shards + 1)])

    @property
    def owner(self) -> int:
        """The number of the owner thread's bell."""
        return len(self.fds) - 1

    def ring(self, shard: int) -> None:
        """Wakes a shard's loop."""
        try:
            os.eventfd_write(self.fds[shard], 1)
        except BlockingIOError:
            return  # the counter is full: 2**64 - 2 rings since the loop last woke

    def ring_all(self, shards: Iterable[int]) -> None:
        """Wakes several shards' loops."""
        for shard in shards:
            self.ring(shard)

    def clear(self, shard: int) -> None:
        """Clears the caller's own bell; call this before looking at the words."""
        try:
            os.eventfd_read(self.fds[shard])
        except BlockingIOError:
            return  # no ring since the last look

    def close(self) -> None:
        """Closes this process's descriptors."""
        for fd in self.fds:
            os.close(fd)
