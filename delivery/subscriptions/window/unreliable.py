"""What a subscription that is not reliable may send to whom: now, or never.

    admit -> waits for its consumer, a few at most -> take -> sent: it is closed (``deliveries.py``)
          -> dropped and counted, if the consumer is full or there is none (unmatched)

A message is finished for good when it is admitted, and for its consumer when it is sent. So the
floor is always at the end: nothing is sent again or blocked, and acknowledgments change nothing.
Up to ``member_max`` messages wait for one consumer, and ``waiting_max`` for all. By key each
consumer gets its own, else the next that has room; of an exclusive subscription the one that joined
first gets all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.messages import (
    Batch,
    Member,
    Outcome,
    Place,
    RefusedPlace,
    SentMessage,
    new_message,
)
from ledger.delivery.subscription_rules import ModeFacts

WAITING_BYTES = 120


class UnreliableWindow(SubscriptionWindow):
    """One subscription's members, and the few messages that wait for them. ``batches`` are taken
    and not written yet; nothing is ever ``blocked``."""

    is_reliable = False
    held_count = 0  # no message that is sent can be blocked, so it takes no memory for that

    def __init__(self, policy: WindowPolicy, epoch: int, mode: ModeFacts) -> None:
        super().__init__(policy, epoch)
        self._mode = mode
        self._waiting: dict[Member, deque[SentMessage]] = {}
        self._for_any: deque[SentMessage] = deque()
        self.waiting_max: float = inf  # the owner's: what memory there is
        self._waits = 0

    @property
    def drainable(self) -> int:
        """What waits for consumers that have room."""
        return len(self._for_any)

    @property
    def memory_bytes(self) -> int:
        """What the messages take that wait, or are not written yet."""
        return (self._waits + self.in_flight) * WAITING_BYTES

    def is_active(self, name: str) -> bool:
        """Whether a member may get messages; of an exclusive subscription the first one."""
        members = self.members.by_name
        return name in members and (not self._mode.one_consumer or name == next(iter(members)))

    # Messages come in

    def admit_again(self, look_ahead: LookAhead, key: str | None) -> None:
        """Nothing is sent once more."""

    def admit(self, partition: int, keys: Sequence[str | None]) -> None:
        """The next messages of a partition, by their keys."""
        if not self._mode.is_keyed:
            self.admit_loose(partition, len(keys))
            return
        look_ahead, members = self.look_aheads[partition], self.members
        by_name, limit, waiting = members.by_name, self.policy.member_max, self._waiting
        for offset, key in enumerate(keys, look_ahead.end + 1):
            owner = None if key is None else members.owner_of(key)
            if owner is not None:
                self._offer(waiting[by_name[owner]], limit, (look_ahead, offset, None, 0))
            elif key is None:
                self._offer_any(look_ahead, offset)
            else:
                self.counts.unmatched += 1
        look_ahead.add_done(len(keys))

    def admit_loose(self, partition: int, count: int) -> None:
        """The next messages of a partition, none of which has a key."""
        look_ahead = self.look_aheads[partition]
        for offset in range(look_ahead.end + 1, look_ahead.end + count + 1):
            self._offer_any(look_ahead, offset)
        look_ahead.add_done(count)

    @property
    def _takers(self) -> int:
        """How many members share what belongs to none of them."""
        takers = self.members.without_patterns
        return min(1, takers) if self._mode.one_consumer else takers

    def _offer_any(self, look_ahead: LookAhead, offset: int) -> None:
        takers = self._takers
        if takers:
            most = takers * self.policy.member_max
            self._offer(self._for_any, most, (look_ahead, offset, None, 0))
        else:
            self.counts.unmatched += 1

    def _offer(
        self, waiting: deque[SentMessage], most: int, found: tuple[LookAhead, int, None, int]
    ) -> None:
        if len(waiting) < most and self._waits + self.in_flight < self.waiting_max:
            waiting.append(new_message(SentMessage, found))
            self._waits += 1
        else:
            self.counts.dropped += 1

    # Members

    def join(self, name: str, patterns: Sequence[str] = ()) -> None:
        """A consumer is present; one of this name must not be. Raises ValueError at the limit."""
        super().join(name, patterns if self._mode.is_keyed else ())
        self._waiting[self.members.by_name[name]] = deque()

    def _members_changed(self, gone: Member | None) -> None:
        if gone is not None:
            self._drop(self._waiting.pop(gone))
            if not self.members.without_patterns:
                self._drop(self._for_any)

    def _drop(self, waiting: deque[SentMessage]) -> None:
        self.counts.dropped += len(waiting)
        self._waits -= len(waiting)
        waiting.clear()

    # Messages go out

    def room(self, name: str) -> int:
        """How many more messages a member may have: all that wait, since it answers nothing."""
        return self._waits

    def takers(self) -> list[str]:
        """The members that messages wait for."""
        found = [member.name for member, waiting in self._waiting.items() if waiting]
        if self._mode.one_consumer and self._for_any:
            found += [*islice(self.members.by_name, 1)]
        return found

    @property
    def has_loose(self) -> bool:
        """Whether there are messages for any member that has room."""
        return bool(self._for_any) and not self._mode.one_consumer

    def _pick(self, member: Member, left: int) -> list[SentMessage | None]:
        mine = self._waiting[member]
        messages: list[SentMessage | None] = []
        while mine and len(messages) < left:
            messages.append(mine.popleft())
        if self._for_any and not member.patterns and self.is_active(member.name):
            part = min(-(-len(self._for_any) // self._takers), left - len(messages))
            messages += [self._for_any.popleft() for _ in range(part)]
        self._waits -= len(messages)
        return messages

    def sent(self, epoch: int, now_ns: int) -> None:
        """A batch was written to its consumer, and that is the end of it."""
        super().sent(epoch, now_ns)
        batch = self.batches.get(epoch)
        if batch is not None:
            self._take_all(batch, batch.indexes(None)[0])

    def _withdraw(self, batch: Batch) -> None:
        """It could not be written: it is dropped."""
        self.counts.dropped += batch.open
        self._take_all(batch, batch.indexes(None)[0])

    def _once_more(self, batch: Batch, index: int) -> None:
        """What did not fit into a write comes next."""
        self._waiting[batch.member].appendleft(self._take_out(batch, index))
        self._waits += 1

    # What comes of it: nothing

    def _batch(self, name: str, epoch: int, now_ns: int) -> Batch | None:
        return None

    def _refused(self, named: list[Place] | None) -> Outcome:
        """Everything is finished already."""
        if named is None:
            return Outcome(0, 1, (RefusedPlace(None, "finished"),))
        return self._outcome(0, named)

    def nack(
        self, name: str, epoch: int, now_ns: int, messages: Iterable[Place] | None = None,
        but: Iterable[Place] = (), delay_ns: int = 0, why: str = "", is_counted: bool = True,
    ) -> Outcome:  # fmt: skip
        """Everything is finished already. What a sender could not bring to its receiver, by an
        uncounted nack that names messages, is dropped."""
        if is_counted or messages is None:
            return self.ack(name, epoch, now_ns, messages, but)
        named = list(messages)
        unknown = [each for each in named if not self.is_finished(*each)]
        dropped = len(named) - len(unknown)
        self.counts.dropped += dropped
        return self._refused(unknown)._replace(accepted=dropped)

    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        return  # it was finished when it was admitted

    def _again(self, message: SentMessage) -> None:
        return  # nothing is sent again

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        super().check_invariants()
        assert all(look_ahead.floor == look_ahead.end for look_ahead in self.look_aheads.values())
        assert not self._unanswered and not self.blocked
        assert self._waiting.keys() == set(self.members.by_name.values())
        assert self.members.without_patterns or not self._for_any
        assert self._waits == len(self._for_any) + sum(map(len, self._waiting.values()))
