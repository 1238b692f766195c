"""Messages that rest after a failed delivery, until a time.

add -> take_due, when it is over
    -> pop, because something else became of it
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from delivery.subscriptions.batches import Blocked, Place


class Rests:
    """Those of one subscription; ``uncounted`` of them rest only because the way to a receiver
    failed."""

    def __init__(self) -> None:
        self.by_place: dict[Place, Blocked] = {}
        self.uncounted = 0
        self._heap: list[tuple[int, int, Place]] = []  # not all of them hold any more

    def add(self, blocked: Blocked) -> None:
        """A message rests until ``due_ns``."""
        assert blocked.due_ns is not None
        place = blocked.message.place
        self.by_place[place] = blocked
        self.uncounted += not blocked.is_counted
        heapq.heappush(self._heap, (blocked.due_ns, blocked.number, place))

    def pop(self, place: Place) -> Blocked | None:
        """A message rests no more; None if it did not."""
        blocked = self.by_place.pop(place, None)
        if blocked is not None:
            self.uncounted -= not blocked.is_counted
        return blocked

    def take_due(self, now_ns: int) -> Iterator[Blocked]:
        """Those whose rest is over."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, number, place = heapq.heappop(self._heap)
            found = self.by_place.get(place)
            if found is not None and found.number == number:
                self.pop(place)
                yield found

    def next_due_ns(self) -> int | None:
        """When the first rest may be over."""
        return self._heap[0][0] if self._heap else None

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        entries = {(number, place) for _, number, place in self._heap}
        assert all((each.number, place) in entries for place, each in self.by_place.items())
        assert self.uncounted == sum(not each.is_counted for each in self.by_place.values())
