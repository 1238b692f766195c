"""Where a router puts its frames: what the routers of a shard need of the shard's ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ledger.types import Advance, Topic
from shards.frame import Part


class RingShareUsed(Exception):
    """The frame does not fit now; a part of the ring is kept for producers."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"the frame needs {needed_bytes} bytes")
        self.needed_bytes = needed_bytes


class DestinationFull(Exception):
    """A cap of the destination refuses the frame; the message says which."""


class FrameTooLong(Exception):
    """The frame is longer than any may be; one of fewer records may fit."""


class Outbox(Protocol):
    """The ring of this shard, as routers may use it."""

    def room_bytes(self) -> int:
        """Bytes that routers may append now; 0 for none."""
        ...

    def knows(self, dest: Topic) -> bool:
        """Whether it is known how full the destination is, or does not matter."""
        ...

    async def learn(self, dest: Topic) -> None:
        """Makes ``knows`` true for a while. Raises LedgerError."""
        ...

    def append(
        self,
        dest: Topic,
        parts: Sequence[Part],
        advance: Advance | None,
        settled: Callable[[bool], None],
    ) -> None:
        """Publishes a frame; ``settled`` is told once whether it was stored. Without an advance
        nothing keeps it from being stored twice.

        Raises RingShareUsed, DestinationFull and FrameTooLong; then nothing was published.
        """
        ...
