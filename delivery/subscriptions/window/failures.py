"""Messages whose deliveries failed: what the policy of a subscription says of them, and where they
are until it is over.

A message *rests*::

    add -> take_due, when it is over
        -> take, because something else became of it

One whose failures do not count has as many of them as it takes, and rests longer after each: their
number is kept here until it is finished. These are as many as may be in flight, about: what has
failed goes before what is new.

A message that is *stuck*, because too many deliveries failed, may have a dead letter::

    add: it waits -> move_away: its copy is on its way -> forget, when the message is finished
                                                       -> arrived in vain: it may be added again
                  -> forget: a retry, a skip, an eviction or another poison policy has taken it

While a copy is on its way nothing else may become of its message, except that retention removes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Set
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from delivery.subscriptions.window.messages import Place, SentMessage, text_bytes
from ledger.delivery.subscription_rules import Poison, Unmatched

NEVER_NS = 1 << 62

_S = 1_000_000_000
# Nobody knows whether what is blocked ever goes on, so it is limited apart from what is in flight.
BLOCKED_MAX = 50_000  # x BLOCKED_BYTES = 50 MB
# As measured, of a dead letter with a short reason; of all that is sent, since it may get there.
BLOCKED_BYTES = 1_000
SHORT_REASON = 40  # characters; a reason that takes no more than these may take counts nothing
SHORT_REASON_BYTES = text_bytes("\u00ff" * SHORT_REASON)


class WindowPolicy(Struct, frozen=True):
    """What is allowed, and what happens to a message whose deliveries fail."""

    in_flight_max: int = 10_000
    member_max: int = 1_000
    ack_timeout_ns: int = 30 * _S
    redeliveries_max: int = 5
    backoff_min_ns: int = 1 * _S
    backoff_max_ns: int = 60 * _S
    poison: Poison = "block"
    run_max: int = 1  # messages of a key that one member may have
    unmatched: Unmatched = "hold"

    def rest_ns(self, failures: int, asked_ns: int = 0) -> int:
        """How long a message rests after that many failures, from 1, whether they count or not:
        doubling from the minimum, or what the consumer asked for if that is longer, never over the
        maximum."""
        doubled = self.backoff_min_ns << min(failures - 1, 40)
        return min(max(min(doubled, self.backoff_max_ns), asked_ns), self.backoff_max_ns)


class DeadLetter(NamedTuple):
    """A message that the poison policy moves away; it stays where it is until ``moved``."""

    partition: int
    offset: int
    attempts: int
    why: str


class Blocked(NamedTuple):
    """A message that nobody gets until ``due_ns``, or, without it, until something is done.

    ``number`` tells it from an earlier one of the same message. ``is_counted``: the delivery
    counted as failed.
    """

    message: SentMessage
    attempts: int
    why: str
    since_ns: int
    due_ns: int | None
    number: int
    is_counted: bool = True

    @property
    def reason_bytes(self) -> int:
        """What a long reason takes more than a short one."""
        return max(0, text_bytes(self.why) - SHORT_REASON_BYTES)


class BlockedMessages:
    """The messages of one window that are blocked: they rest, or they are stuck. ``uncounted`` of
    them rest only because the way to a receiver failed."""

    def __init__(self) -> None:
        self.resting: dict[Place, Blocked] = {}
        self.stuck: dict[Place, Blocked] = {}
        self.uncounted = 0
        self.reasons_bytes = 0  # of long ones
        self._heap: list[tuple[int, int, Place]] = []  # of rests; not all of them hold any more
        self._uncounted_failures: dict[Place, int] = {}

    def __len__(self) -> int:
        return len(self.stuck) + len(self.resting)

    def __iter__(self) -> Iterator[Blocked]:
        """Stuck ones first."""
        return chain(self.stuck.values(), self.resting.values())

    def get(self, place: Place) -> Blocked | None:
        """A message, if it is blocked."""
        return self.stuck.get(place) or self.resting.get(place)

    @property
    def why_held(self) -> str:
        """Why nobody gets messages while this many are blocked; otherwise empty."""
        if len(self) < BLOCKED_MAX:
            return ""
        return (
            f"{len(self)} messages are blocked after failed deliveries, the limit is {BLOCKED_MAX};"
            " retry or skip some, or set poison to drop or dead_letter"
        )

    def add(self, blocked: Blocked) -> None:
        """A message rests until ``due_ns``, or is stuck without it."""
        place = blocked.message.place
        self.take(place)
        self.reasons_bytes += blocked.reason_bytes
        if blocked.due_ns is None:
            self.stuck[place] = blocked
            return
        self.resting[place] = blocked
        self.uncounted += not blocked.is_counted
        heapq.heappush(self._heap, (blocked.due_ns, blocked.number, place))

    def take(self, place: Place) -> Blocked | None:
        """A message is not blocked any more; None if it was not."""
        blocked = self.stuck.pop(place, None)
        if blocked is None:
            blocked = self.resting.pop(place, None)
            if blocked is None:
                return None
            self.uncounted -= not blocked.is_counted
        self.reasons_bytes -= blocked.reason_bytes
        return blocked

    def take_due(self, now_ns: int) -> Iterator[Blocked]:
        """Takes the messages whose rest is over."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, number, place = heapq.heappop(self._heap)
            found = self.resting.get(place)
            if found is not None and found.number == number:
                self.take(place)
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

    def check_invariants(self, sent: Set[Place]) -> None:
        """Raises AssertionError unless all parts agree, and with what is sent."""
        assert self.reasons_bytes == sum(each.reason_bytes for each in self)
        assert self.uncounted == sum(not each.is_counted for each in self.resting.values())
        assert not self.stuck.keys() & self.resting.keys()
        assert all(each.due_ns is None for each in self.stuck.values())
        entries = {(number, place) for _, number, place in self._heap}
        for place, each in self.resting.items():
            assert each.due_ns is not None and (each.number, place) in entries
        for each in self:
            place = each.message.place
            assert place not in sent and not each.message.look_ahead.is_done(place[1])


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
