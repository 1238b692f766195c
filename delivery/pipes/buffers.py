"""What the pipes of a shard may hold in memory. Pure.

``UnsentBytes``: what was written to connections and their peers have not taken. From half of its
limit on, streams wait and requests are refused; answers still come. Above the limit the connection
that holds the most is closed: its peer has stopped taking anything.

``Reservations``: room for the large frames that are being received. A frame's length is known from
its head; if there is no room for the rest, nothing more is read from that connection until there
is. Requests for room are granted in their order. A frame that alone is larger than the limit is
received when no other large one is.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Holding(Protocol):
    """What holds bytes: a connection, or what waits for one."""

    def abort(self) -> None:
        """Gives up what it holds."""


Holder = TypeVar("Holder", bound=Holding)


class LargeFrameReader(Protocol):
    """What receives a large frame."""

    def read_on(self) -> None:
        """There is room for the rest of it."""


Reader = TypeVar("Reader", bound=LargeFrameReader)

# 64 shards have 126 connections each, so half of it is reached when all of them hold 64 KiB, above
# which each of them tells its streams to wait (connection.py).
UNSENT_BYTES_MAX = 16 << 20
LARGE_FRAMES_BYTES_MAX = 8 << 20
# Smaller frames need no room. A socket's buffer has 208 KiB by default, and what was read of it is
# kept until its last frame is whole.
SMALL_FRAME_BYTES = 64 << 10


class UnsentBytes(Generic[Holder]):
    """How much each connection holds; those that hold nothing are not kept."""

    def __init__(self, limit_bytes: int = UNSENT_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._held: dict[Holder, int] = {}

    @property
    def is_half_full(self) -> bool:
        """Whether half of the limit is held."""
        return 2 * self.bytes > self.limit_bytes

    @property
    def is_over(self) -> bool:
        """Whether more is held than may be."""
        return self.bytes > self.limit_bytes

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """``holder`` has this much now."""
        self.bytes += size_bytes - self._held.pop(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes

    def largest(self) -> Holder:
        """The holder of the most. Something must be held."""
        return max(self._held, key=self._held.__getitem__)

    def check_invariants(self) -> None:
        """For tests."""
        assert self.bytes == sum(self._held.values())
        assert all(size > 0 for size in self._held.values())


class Reservations(Generic[Reader]):
    """Room for large frames, at most one for each reader."""

    def __init__(self, limit_bytes: int = LARGE_FRAMES_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self.granted_bytes = 0
        self._granted: dict[Reader, int] = {}
        self._waiting: dict[Reader, int] = {}

    def reserve(self, reader: Reader, size_bytes: int) -> bool:
        """Whether there is room now. If not, ``release`` of another reader will name this one."""
        if reader in self._granted:
            return True
        self._waiting[reader] = size_bytes
        return reader in self._grant()

    def release(self, reader: Reader) -> list[Reader]:
        """The frame is whole, or its connection is lost; the readers that have room now."""
        self._waiting.pop(reader, None)
        self.granted_bytes -= self._granted.pop(reader, 0)
        return self._grant()

    def _grant(self) -> list[Reader]:
        found: list[Reader] = []
        for reader, size in self._waiting.items():
            if self.granted_bytes and self.granted_bytes + size > self._limit_bytes:
                break
            self.granted_bytes += size
            self._granted[reader] = size
            found.append(reader)
        for reader in found:
            del self._waiting[reader]
        return found

    def check_invariants(self) -> None:
        """For tests."""
        assert self.granted_bytes == sum(self._granted.values())
        assert self.granted_bytes <= self._limit_bytes or len(self._granted) == 1
        assert not self._granted.keys() & self._waiting.keys()
        assert self._granted or not self._waiting


class PipeBuffers:
    """What all pipes of a shard share, as asker and as owner."""

    def __init__(self) -> None:
        self.unsent: UnsentBytes[Holding] = UnsentBytes()
        self.large_frames: Reservations[LargeFrameReader] = Reservations()
