"""What streams keep in memory because their clients have not taken it: one budget per shard.

    hold (a write was not taken whole) -> moved (the client took something)* -> release (it has
    taken all, or is gone)

The transport keeps the whole of what was written until the socket has taken the last byte of it.
Streams that were given the same bytes object keep it together, so it counts once. Who is over the
budget is decided by how long a client has taken nothing (``stalled``).

Rules (``check_invariants``): ``bytes`` is the sum of the sizes of the distinct objects that are
held; whoever holds nothing is not kept.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Unsent(Generic[Holder]):
    """Who holds which bytes objects; the one that has moved least recently comes first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self._held: dict[Holder, list[bytes]] = {}
        self._holders: dict[int, int] = {}  # how many there are of an object, by its id

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_over(self) -> bool:
        """Whether more is held than may be."""
        return self.bytes > self.limit_bytes

    @property
    def stalled(self) -> Holder | None:
        """The holder that has taken nothing for the longest time."""
        return next(iter(self._held), None)

    def hold(self, holder: Holder, data: bytes) -> None:
        """``data`` was written and is not taken whole."""
        self._held.setdefault(holder, []).append(data)
        count = self._holders.get(id(data), 0)
        self._holders[id(data)] = count + 1
        if not count:
            self.bytes += len(data)

    def moved(self, holder: Holder) -> None:
        """The client has taken something."""
        held = self._held.pop(holder, None)
        if held is not None:
            self._held[holder] = held

    def release(self, holder: Holder) -> None:
        """The client has taken everything, or will take nothing any more."""
        for data in self._held.pop(holder, ()):
            count = self._holders[id(data)] - 1
            if count:
                self._holders[id(data)] = count
            else:
                del self._holders[id(data)]
                self.bytes -= len(data)

    def check_invariants(self) -> None:
        """For tests."""
        distinct = {id(data): len(data) for held in self._held.values() for data in held}
        assert sum(distinct.values()) == self.bytes
        assert distinct.keys() == self._holders.keys()
        assert sum(map(len, self._held.values())) == sum(self._holders.values())
        assert all(self._held.values())
