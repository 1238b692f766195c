"""The credit of a stream: how much its owner may write before its client has taken some. Pure.

    open with WINDOW_BYTES -> the owner writes: ``spend`` -> the shard that has the client passes it
    on: ``passed`` -> once the client has taken it, and it is a quarter of the window: ``due`` is
    given back -> the owner: ``give``

The owner may overdraw its credit by one write, and then waits until half of the window is back.
What is passed on and not given back is less than a quarter while the client takes everything, so
the half comes back whenever the client has taken everything.

Rules (``check_invariants``): an owner that may write has credit; credit, what is on its way, and
what was passed on and is owed are the window together.
"""

from __future__ import annotations

# A batch of the largest usual size, so that a client that takes nothing costs its shard what it
# would cost the owner's. One stream still has 85 MiB/s between two busy cores; with twice as much,
# 113.
WINDOW_BYTES = 64 << 10
GIVEN_BACK_BYTES = WINDOW_BYTES // 4
ENOUGH_BYTES = WINDOW_BYTES // 2


class OwnersCredit:
    """What a stream's owner knows of it."""

    __slots__ = ("bytes", "may_write")

    def __init__(self, first_bytes: int) -> None:
        self.bytes = first_bytes
        self.may_write = first_bytes > 0

    def spend(self, size_bytes: int) -> None:
        """A write."""
        self.bytes -= size_bytes
        if self.bytes <= 0:
            self.may_write = False

    def give(self, size_bytes: int) -> bool:
        """Credit came back; whether the owner may write again and could not before."""
        self.bytes += size_bytes
        if self.may_write or self.bytes < ENOUGH_BYTES:
            return False
        self.may_write = True
        return True

    def check_invariants(self) -> None:
        """For tests."""
        assert not self.may_write or self.bytes > 0
        assert self.may_write or self.bytes < ENOUGH_BYTES


class OwedCredit:
    """What the shard that has the client owes the owner."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def begin(self, *, writable: bool) -> int:
        """The credit to open the stream with: none while the client takes nothing."""
        self.bytes = 0 if writable else WINDOW_BYTES
        return WINDOW_BYTES - self.bytes

    def passed(self, size_bytes: int) -> None:
        """A write of the owner was passed on."""
        self.bytes += size_bytes

    def due(self) -> int:
        """What is given back now that the client has taken everything; 0 if it can wait."""
        if self.bytes < GIVEN_BACK_BYTES:
            return 0
        given, self.bytes = self.bytes, 0
        return given
