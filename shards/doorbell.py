"""Doorbells: one eventfd per shard, inherited by all, so that any process can wake any loop.

Rings coalesce: a loop that was rung many times wakes once, and then looks at the shared words.
A bell carries no message. Rings are cheap (0.4 us) and never block: a full counter is a rung bell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence


class Doorbells:
    """The bells of all shards, and behind them one of the supervisor's owner thread.

    ``fds`` are eventfds; index = shard.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        self.fds = tuple(fds)

    @classmethod
    def create(cls, shards: int) -> Doorbells:
        """New bells, made by the supervisor before it starts the shards."""
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
            return  # the counter is full: it has been rung 2**64 - 2 times and is still to wake

    def ring_all(self, shards: Iterable[int]) -> None:
        """Wakes several shards' loops."""
        for shard in shards:
            self.ring(shard)

    def clear(self, shard: int) -> None:
        """Takes the rings of one's own bell; call it before looking at the words."""
        try:
            os.eventfd_read(self.fds[shard])
        except BlockingIOError:
            return  # rung by nobody since the last look

    def close(self) -> None:
        """Closes this process's descriptors."""
        for fd in self.fds:
            os.close(fd)
