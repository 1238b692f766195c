"""Messages that wait in no key's queue: in the order of their offsets, look-ahead by look-ahead.

Look-aheads take turns: each ``pick`` begins with another one, so that a backlog in one partition
does not keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from delivery.subscriptions.window.batches import SentMessage, new_message
from delivery.subscriptions.window.look_ahead import LookAhead


def _no_limit(look_ahead: LookAhead) -> int | None:
    return None


class LooseMessages:
    """The loose messages of all look-aheads; ``count`` of them are with nobody, ``taken`` are
    sent or blocked."""

    def __init__(self) -> None:
        self.count = 0
        self.taken = 0
        self.attempts: dict[tuple[LookAhead, int], int] = {}  # of those whose delivery failed
        self._look_aheads: dict[LookAhead, None] = {}
        self._to_share = 0  # what waited when something came last

    def add(self, look_ahead: LookAhead, count: int) -> None:
        """Admits the next offsets of a look-ahead."""
        look_ahead.add_loose(count)
        self.count += count
        self._to_share = self.count
        self._look_aheads[look_ahead] = None

    def part_of(self, members: int) -> int:
        """What one of several members gets of what waits. Parts of what came are equal: parts of
        what is left would get smaller and smaller."""
        return -(-self._to_share // members)

    def pick(
        self, left: int, before: Callable[[LookAhead], int | None] = _no_limit
    ) -> list[SentMessage | None]:
        """Takes up to ``left`` messages, of each look-ahead those below ``before``."""
        messages: list[SentMessage | None] = []
        attempts = self.attempts
        for look_ahead in list(self._look_aheads):
            if len(messages) == left:
                break
            limit = before(look_ahead)
            for offset in look_ahead.take_loose(left - len(messages), limit):
                failed = attempts.get((look_ahead, offset), 0) if attempts else 0
                messages.append(new_message(SentMessage, (look_ahead, offset, None, failed)))
            del self._look_aheads[look_ahead]
            if look_ahead.next_loose():
                self._look_aheads[look_ahead] = None  # the others come first now
        self.count -= len(messages)
        self.taken += len(messages)
        return messages

    def again(self, look_ahead: LookAhead, offset: int) -> None:
        """A message that was taken waits again."""
        look_ahead.give_back(offset)
        self.count += 1
        self.taken -= 1
        self._to_share = self.count
        self._look_aheads[look_ahead] = None

    def finished(self, look_ahead: LookAhead, offset: int) -> None:
        """A message that was taken has been finished."""
        if self.attempts:
            self.attempts.pop((look_ahead, offset), None)
        self.taken -= 1

    def evict(self, look_ahead: LookAhead) -> int:
        """Finishes what waits below ``gone_before``; returns how many."""
        count = look_ahead.finish_loose()
        self.count -= count
        for failed in [*self.attempts]:
            if failed[0] is look_ahead and look_ahead.is_done(failed[1]):
                del self.attempts[failed]
        return count

    def check_invariants(self, look_aheads: list[LookAhead]) -> None:
        """Raises AssertionError unless count and look-aheads are right."""
        assert self.count == sum(look_ahead.loose_count() for look_ahead in look_aheads)
        assert all(
            look_ahead in self._look_aheads
            for look_ahead in look_aheads
            if look_ahead.loose_count()
        )
        assert not any(look_ahead.is_done(offset) for look_ahead, offset in self.attempts)
