"""A wheel of ticks: members are due at the tick that each was put in for.

    place(member, tick) -> remove(member, tick), or handed out by ``advance`` when the tick is over

Each operation costs the same for one member as for 100,000: a slot per tick, and more slots than a
member can be ahead. Each member is in one slot at most, which its owner remembers.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Member = TypeVar("Member")

# An entry crosses into another band within 10 s, which are 200 ticks.
SLOTS = 256


class TickWheel(Generic[Member]):
    """Members by the tick at which they are due. The wheel stands at ``tick``."""

    def __init__(self) -> None:
        self.tick = 0
        self._slots: list[dict[Member, None]] = [{} for _ in range(SLOTS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def place(self, member: Member, tick: int) -> None:
        """Puts a member in that is nowhere on the wheel."""
        if not self.tick < tick < self.tick + SLOTS:
            raise ValueError(
                f"tick {tick} is not within the {SLOTS - 1} ticks after {self.tick}"
            )  # fmt: skip
        self._slots[tick % SLOTS][member] = None
        self._count += 1

    def remove(self, member: Member, tick: int) -> None:
        """Takes a member out of the slot that it was placed in."""
        del self._slots[tick % SLOTS][member]
        self._count -= 1

    def holds(self, member: Member, tick: int) -> bool:
        """Whether a member is in the slot of a tick."""
        return member in self._slots[tick % SLOTS]

    def advance(self, tick: int, due: deque[Member]) -> None:
        """Turns the wheel to a tick; adds the members that are due by then to ``due``."""
        before = len(due)
        if self._count:
            # After SLOTS ticks every slot was passed.
            for passed in range(max(self.tick + 1, tick - SLOTS + 1), tick + 1):
                slot = self._slots[passed % SLOTS]
                if slot:
                    due.extend(slot)
                    slot.clear()
        self._count -= len(due) - before
        self.tick = max(self.tick, tick)
