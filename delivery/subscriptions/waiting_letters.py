"""The dead letters of what is stuck in a window.

    add: it waits -> move_away: its copy is on its way -> forget, when the message is finished
                                                       -> arrived in vain: it may be added again
                  -> forget: a retry, a skip, an eviction or another policy has taken the message

While a copy is on its way nothing else may become of its message, except that retention removes it.
"""

from __future__ import annotations

from collections.abc import Set

from delivery.subscriptions.batches import Blocked, DeadLetter, Place


class WaitingLetters:
    """Those of one window, the next one to send first; ``is_new``: some came since the owner sent
    what it could."""

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
