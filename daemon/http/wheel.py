"""A coarse timer wheel: every member is checked once per revolution.

A timer per request would cost more than parsing one. A connection is put into a slot when it is
accepted and stays there; each tick of the process's one timer checks one slot. The member itself
decides what is due; the wheel reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Member = TypeVar("Member")


class Wheel(Generic[Member]):
    """Members, spread evenly over ``slots``."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a wheel needs at least one slot, got {slots}")
        self._slots: list[dict[Member, None]] = [{} for _ in range(slots)]
        self._place: dict[Member, int] = {}
        self._next_place = 0
        self._next_turn = 0

    def __len__(self) -> int:
        return len(self._place)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._place))

    def add(self, member: Member) -> None:
        """Puts a new member into a slot. Raises ValueError if it is there already."""
        if member in self._place:
            raise ValueError("the member is on the wheel already")
        place = self._next_place
        self._next_place = (place + 1) % len(self._slots)
        self._place[member] = place
        self._slots[place][member] = None

    def remove(self, member: Member) -> None:
        """Takes a member off, if it is there."""
        place = self._place.pop(member, None)
        if place is not None:
            del self._slots[place][member]

    def turn(self) -> list[Member]:
        """The members of the next slot; a copy, since a check may remove them."""
        slot = self._slots[self._next_turn]
        self._next_turn = (self._next_turn + 1) % len(self._slots)
        return list(slot)
