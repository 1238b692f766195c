"""Messages that nobody gets after a failed delivery: until a time, or until they are moved away.

A message *rests*::

    add -> take_due, when it is over
        -> pop, because something else became of it

One whose failures do not count has as many of them as it takes, and rests longer after each: their
number is kept here until it is finished. These are as many as may be in flight, about: what has
failed goes before what is new.

A message that is *stuck* may have a dead letter::

    add: it waits -> move_away: its copy is on its way -> forget, when the message is finished
                                                       -> arrived in vain: it may be added again
                  -> forget: a retry, a skip, an eviction or another poison policy has taken it

While a copy is on its way nothing else may become of its message, except that retention removes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Set

from delivery.subscriptions.window.batches import Blocked, DeadLetter, Place, SentMessage

# Nobody knows whether what is blocked ever goes on, so it is limited apart from what is in flight.
BLOCKED_MAX = 50_000  # x BLOCKED_BYTES (deliveries.py) = 50 MB


class Rests:
    """The messages of one window that rest; ``uncounted`` of them rest only because the way to a
    receiver failed."""

    def __init__(self) -> None:
        self.by_place: dict[Place, Blocked] = {}
        self.uncounted = 0
        self.reasons_bytes = 0  # of long ones
        self._heap: list[tuple[int, int, Place]] = []  # not all of them hold any more
        self._uncounted_failures: dict[Place, int] = {}

    def add(self, blocked: Blocked) -> None:
        """A message rests until ``due_ns``."""
        assert blocked.due_ns is not None
        place = blocked.message.place
        self.by_place[place] = blocked
        self.uncounted += not blocked.is_counted
        self.reasons_bytes += blocked.reason_bytes
        heapq.heappush(self._heap, (blocked.due_ns, blocked.number, place))

    def pop(self, place: Place) -> Blocked | None:
        """A message rests no more; None if it did not."""
        blocked = self.by_place.pop(place, None)
        if blocked is not None:
            self.uncounted -= not blocked.is_counted
            self.reasons_bytes -= blocked.reason_bytes
        return blocked

    def take_due(self, now_ns: int) -> Iterator[Blocked]:
        """Takes the messages whose rest is over."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, number, place = heapq.heappop(self._heap)
            found = self.by_place.get(place)
            if found is not None and found.number == number:
                self.pop(place)
                yield found

    def next_due_ns(self) -> int | None:
        """When the first rest may be over."""
        return self._heap[0][0] if self._heap else None

    def failed(self, place: Place, attempts: int, *, is_counted: bool) -> int:
        """A message has failed once more. Returns how often it has: the ``attempts`` that
        count, and the failures that do not."""
        uncounted = self._uncounted_failures.get(place, 0)
        if not is_counted:
            uncounted = self._uncounted_failures[place] = uncounted + 1
        return attempts + uncounted

    def forgive(self, place: Place | None = None) -> None:
        """A message rests as if it had never failed uncounted; without a place, all do."""
        if place is None:
            self._uncounted_failures.clear()
        elif self._uncounted_failures:
            self._uncounted_failures.pop(place, None)

    def finished(self, messages: Iterable[SentMessage]) -> None:
        """Messages are finished."""
        if self._uncounted_failures:
            for message in messages:
                self._uncounted_failures.pop(message.place, None)

    def evict(self, partition: int, before: int) -> None:
        """Retention removed what is below ``before``."""
        for place in [*self._uncounted_failures]:
            if place[0] == partition and place[1] < before:
                del self._uncounted_failures[place]

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        entries = {(number, place) for _, number, place in self._heap}
        assert all((each.number, place) in entries for place, each in self.by_place.items())
        assert self.uncounted == sum(not each.is_counted for each in self.by_place.values())
        assert self.reasons_bytes == sum(each.reason_bytes for each in self.by_place.values())


class StuckMessages(dict[Place, Blocked]):
    """The stuck messages of one window; only these methods change them."""

    reasons_bytes = 0  # of long ones

    def put(self, blocked: Blocked) -> None:
        """A message is stuck."""
        place = blocked.message.place
        self.take(place)
        self[place] = blocked
        self.reasons_bytes += blocked.reason_bytes

    def take(self, place: Place) -> Blocked | None:
        """A message is not stuck any more; None if it was not."""
        blocked = self.pop(place, None)
        if blocked is not None:
            self.reasons_bytes -= blocked.reason_bytes
        return blocked

    def check_invariants(self, rests: Rests, sent: Set[Place]) -> None:
        """Raises AssertionError unless all parts agree."""
        assert self.reasons_bytes == sum(each.reason_bytes for each in self.values())
        assert not self.keys() & rests.by_place.keys()
        assert all(each.due_ns is None for each in self.values())
        assert not any(each.due_ns is None for each in rests.by_place.values())
        for place, blocked in [*self.items(), *rests.by_place.items()]:
            assert place not in sent and not blocked.message.look_ahead.is_done(place[1])


class WaitingLetters:
    """The letters of one window, the next one to send first; ``is_new``: some came since the owner
    sent what it could."""

    def __init__(self) -> None:
        self.waiting: dict[Place, DeadLetter] = {}
        self.moving: set[Place] = set()
        self.is_new = False

    def add(self, blocked: Blocked) -> None:
        """A message is to be moved away."""
        place = blocked.message.place
        self.waiting[place] = DeadLetter(*place, blocked.attempts, blocked.why)
        self.is_new = True

    def put_last(self, place: Place) -> None:
        """A letter finds no room now; others come first."""
        self.waiting[place] = self.waiting.pop(place)

    def move_away(self, place: Place) -> None:
        """The copy of a letter is on its way."""
        del self.waiting[place]
        self.moving.add(place)

    def forget(self, place: Place) -> None:
        """Something has become of a message."""
        self.moving.discard(place)
        self.waiting.pop(place, None)

    def check_invariants(self, stuck: Set[Place], *, are_moved: bool) -> None:
        """Raises AssertionError unless no letter outlives what it is for, and none is missing."""
        assert self.moving <= stuck
        expected = stuck - self.moving if are_moved else set()
        assert self.waiting.keys() == expected


def why_held(blocked: int) -> str:
    """Why nobody gets messages of a window with this many that are blocked; otherwise empty."""
    if blocked < BLOCKED_MAX:
        return ""
    return (
        f"{blocked} messages are blocked after failed deliveries, the limit is {BLOCKED_MAX};"
        " retry or skip some, or set poison to drop or dead_letter"
    )
