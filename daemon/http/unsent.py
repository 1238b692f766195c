"""What is kept in memory because clients have not taken it, or have not sent the rest of it: a
budget per shard for streams, one for answers, and one for what was received and cannot be used.

    hold (a write was not taken whole) -> moved (the client took something)* -> release (it has
    taken all, or is gone)

The transport keeps the whole of what was written until the socket has taken the last byte of it.
Holders that were given the same bytes object keep it together, so it counts once. Over the budget,
the clients that took nothing for longest are closed (``shed``).

Rules (``check_invariants``): ``bytes`` is the sum of the sizes of the distinct objects that are
held; a connection that holds nothing is not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Holder = TypeVar("Holder", bound=Hashable)


class Unsent(Generic[Holder]):
    """Which connections hold which bytes objects; the one that has moved least recently comes
    first."""

    def __init__(self, limit_bytes: int, what: str) -> None:
        self.limit_bytes = limit_bytes
        self._what = what  # the holders, for the log
        self._shed = 0
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

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._held

    @property
    def is_half_full(self) -> bool:
        """Whether half of the budget is held."""
        return 2 * self.bytes > self.limit_bytes

    def shed(self) -> list[Holder]:
        """Releases holders until the rest is within the budget; the caller must end them."""
        found: list[Holder] = []
        while self.is_over:
            stalled = self.stalled
            assert stalled is not None  # something is held
            self.release(stalled)
            found.append(stalled)
            self._shed += 1
            if not self._shed & (self._shed - 1):  # the log must not grow as fast
                log.warning(
                    "closed %d %s, because what is held for them is over its limit of %d bytes",
                    self._shed, self._what, self.limit_bytes,
                )  # fmt: skip
        return found

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

    def took(self, holder: Holder, data: bytes) -> None:
        """The client has taken ``data``, or it is held in another form from now on; nothing happens
        if it is not held."""
        held = self._held.get(holder, [])
        for index, each in enumerate(held):
            if each is data:
                del held[index]
                self._let_go(data)
                break
        if not held:
            self._held.pop(holder, None)

    def release(self, holder: Holder) -> None:
        """The client has taken everything, or will take nothing any more."""
        for data in self._held.pop(holder, ()):
            self._let_go(data)

    def _let_go(self, data: bytes) -> None:
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
