"""Messages that wait in no key's queue: in the order of their offsets, lane by lane.

Lanes take turns: each ``pick`` begins with another one, so that a backlog in one partition does not
keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from delivery.subscriptions.window.batches import SentMessage, new_message
from delivery.subscriptions.window.look_ahead import LookAhead


def _no_limit(lane: LookAhead) -> int | None:
    return None


class LooseMessages:
    """The loose messages of all lanes; ``count`` of them are with nobody, ``taken`` are
    sent or blocked."""

    def __init__(self) -> None:
        self.count = 0
        self.taken = 0
        self.attempts: dict[tuple[LookAhead, int], int] = {}  # of those whose delivery failed
        self._lanes: dict[LookAhead, None] = {}
        self._to_share = 0  # what waited when something came last

    def add(self, lane: LookAhead, count: int) -> None:
        """Admits the next offsets of a lane."""
        lane.add_loose(count)
        self.count += count
        self._to_share = self.count
        self._lanes[lane] = None

    def part_of(self, members: int) -> int:
        """What one of several members gets of what waits. Parts of what came are equal: parts of
        what is left would get smaller and smaller."""
        return -(-self._to_share // members)

    def pick(
        self, left: int, before: Callable[[LookAhead], int | None] = _no_limit
    ) -> list[SentMessage | None]:
        """Takes up to ``left`` messages, of each lane those below ``before``."""
        messages: list[SentMessage | None] = []
        attempts = self.attempts
        for lane in list(self._lanes):
            if len(messages) == left:
                break
            limit = before(lane)
            for offset in lane.take_loose(left - len(messages), limit):
                failed = attempts.get((lane, offset), 0) if attempts else 0
                messages.append(new_message(SentMessage, (lane, offset, None, failed)))
            del self._lanes[lane]
            if lane.next_loose():
                self._lanes[lane] = None  # the others come first now
        self.count -= len(messages)
        self.taken += len(messages)
        return messages

    def again(self, lane: LookAhead, offset: int) -> None:
        """A message that was taken waits again."""
        lane.give_back(offset)
        self.count += 1
        self.taken -= 1
        self._to_share = self.count
        self._lanes[lane] = None

    def finished(self, lane: LookAhead, offset: int) -> None:
        """A message that was taken has been finished."""
        if self.attempts:
            self.attempts.pop((lane, offset), None)
        self.taken -= 1

    def evict(self, lane: LookAhead) -> int:
        """Finishes what waits below ``gone_before``; returns how many."""
        count = lane.finish_loose()
        self.count -= count
        for failed in [*self.attempts]:
            if failed[0] is lane and lane.is_done(failed[1]):
                del self.attempts[failed]
        return count

    def check_invariants(self, lanes: list[LookAhead]) -> None:
        """Raises AssertionError unless count and lanes are right."""
        assert self.count == sum(lane.loose_count() for lane in lanes)
        assert all(lane in self._lanes for lane in lanes if lane.loose_count())
        assert not any(lane.is_done(offset) for lane, offset in self.attempts)
