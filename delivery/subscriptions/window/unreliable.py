"""What a subscription that is not reliable sends to whom: now, or never.

    admit -> waits for its consumer, a few at most -> take -> written, or not: it is finished anyway
          -> dropped and counted, if the consumer is full or there is none (unmatched)

A message is finished when it is admitted, so the floor is always at the end: nothing is tracked,
sent again, or blocked, and acknowledgments change nothing. Up to ``member_max`` messages wait for
one consumer, and ``waiting_max`` for all. By key each consumer gets its own, else the next that has
room; of an exclusive subscription the one that joined first gets all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf

from delivery.subscriptions.window.batches import (
    REFUSALS_MAX,
    Batch,
    Outcome,
    Place,
    RefusedPlace,
    SentMessage,
)
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.members import Member
from delivery.subscriptions.window.policy import WindowPolicy

WAITING_BYTES = 120


class UnreliableWindow(SubscriptionWindow):
    """One subscription's members, and the few messages that wait for them. ``batches`` are taken
    and not written yet; ``in_flight`` is always 0, and nothing is ever ``stuck`` or ``resting``."""

    is_reliable = False

    def __init__(self, policy: WindowPolicy, epoch: int = 0, mode: str = "key_shared") -> None:
        super().__init__(policy, epoch)
        self._mode = mode
        self._waiting: dict[Member, deque[SentMessage]] = {}
        self._for_any: deque[SentMessage] = deque()
        self.waiting_max: float = inf  # the owner's: what memory there is
        self._kept = 0  # messages that wait or are taken

    @property
    def drainable(self) -> int:
        """What waits for consumers that have room."""
        return len(self._for_any)

    @property
    def memory_bytes(self) -> int:
        """What the messages take that wait, or are not written yet."""
        return self._kept * WAITING_BYTES

    def is_active(self, name: str) -> bool:
        """Whether a member may get messages; of an exclusive subscription the first one."""
        members = self.members.by_name
        return name in members and (self._mode != "exclusive" or name == next(iter(members)))

    # Messages come in

    def admit_again(self, look_ahead: LookAhead, key: str | None) -> None:
        """Nothing is sent once more."""

    def admit(self, partition: int, keys: Sequence[str | None]) -> None:
        """The next messages of a partition, by their keys."""
        look_ahead, limit, members = (
            self.look_aheads[partition],
            self.policy.member_max,
            self.members,
        )
        if self._mode != "key_shared":
            self.admit_loose(partition, len(keys))
            return
        for offset, key in enumerate(keys, look_ahead.end + 1):
            if key is None:
                self._offer(SentMessage(look_ahead, offset, None, 0))
                continue
            owner = members.owner_of(key)
            if owner is None:
                self.counts.unmatched += 1
            elif self._kept < self.waiting_max and (
                len(waiting := self._waiting[members.by_name[owner]]) < limit
            ):
                waiting.append(SentMessage(look_ahead, offset, None, 0))
                self._kept += 1
            else:
                self.counts.dropped += 1
        look_ahead.add_done(len(keys))

    def admit_loose(self, partition: int, count: int) -> None:
        """The next messages of a partition, none of which has a key."""
        look_ahead = self.look_aheads[partition]
        for offset in range(look_ahead.end + 1, look_ahead.end + count + 1):
            self._offer(SentMessage(look_ahead, offset, None, 0))
        look_ahead.add_done(count)

    @property
    def _takers(self) -> int:
        """How many members share what belongs to none of them."""
        takers = self.members.without_patterns
        return min(1, takers) if self._mode == "exclusive" else takers

    def _offer(self, message: SentMessage) -> None:
        if not self._takers:
            self.counts.unmatched += 1
        elif self._kept < self.waiting_max and (
            len(self._for_any) < self._takers * self.policy.member_max
        ):
            self._for_any.append(message)
            self._kept += 1
        else:
            self.counts.dropped += 1

    def evict(self, partition: int, before: int) -> None:
        """Nothing is tracked: whoever reads a message that is gone calls ``missing``."""

    # Members

    def join(self, name: str, patterns: Sequence[str] = ()) -> None:
        """A consumer is present; one of this name must not be. Raises ValueError at the limit."""
        kept = patterns if self._mode == "key_shared" else ()
        self._waiting[self.members.join(name, kept)] = deque()

    def leave(self, name: str) -> None:
        """A consumer is gone: what waits for it is dropped."""
        member = self.members.leave(name)
        waited = len(self._waiting.pop(member))
        self.counts.dropped += waited
        self._kept -= waited
        for epoch in list(member.batches):
            self.give_back(epoch)
        if not self.members.without_patterns:
            self.counts.dropped += len(self._for_any)
            self._kept -= len(self._for_any)
            self._for_any.clear()

    def returned(self, name: str) -> None:
        """A consumer that was away is there again; what it had is lost."""

    # Messages go out

    def room(self, name: str) -> int:
        """How many more messages a member may have: what it can be sent."""
        return self.policy.member_max

    def takers(self) -> list[str]:
        """The members that messages wait for."""
        found = [member.name for member, waiting in self._waiting.items() if waiting]
        if self._mode == "exclusive" and self._for_any:
            found += [*islice(self.members.by_name, 1)]
        return found

    @property
    def has_loose(self) -> bool:
        """Whether there are messages for any member that has room."""
        return self._mode != "exclusive" and bool(self._for_any)

    def take(self, name: str, count: int, now_ns: int) -> Batch | None:
        """The next batch of a member; None if there is nothing for it now."""
        member = self.members.by_name[name]
        messages = self._pick(member, count)
        if not messages:
            return None
        self.epoch += 1
        batch = self.batches[self.epoch] = Batch(self.epoch, member, messages)
        member.batches.add(self.epoch)
        return batch

    def _pick(self, member: Member, left: int) -> list[SentMessage | None]:
        mine = self._waiting[member]
        messages: list[SentMessage | None] = []
        while mine and len(messages) < left:
            messages.append(mine.popleft())
        if self._for_any and not member.patterns and self.is_active(member.name):
            part = min(-(-len(self._for_any) // self._takers), left - len(messages))
            messages += [self._for_any.popleft() for _ in range(part)]
        return messages

    def _written(self, epoch: int) -> int:
        batch = self.batches.pop(epoch, None)
        if batch is None:
            return 0
        batch.member.batches.discard(epoch)
        self._kept -= batch.open
        return batch.open

    def sent(self, epoch: int, now_ns: int) -> None:
        """A batch was written to its consumer."""
        self.counts.delivered += self._written(epoch)

    def give_back(self, epoch: int, messages: Iterable[Place] | None = None) -> None:
        """A batch could not be written: it is dropped. Some of its messages were not: they are
        next."""
        if messages is None:
            self.counts.dropped += self._written(epoch)
            return
        batch = self.batches.get(epoch)
        if batch is None:
            return
        taken = self._pull_out(epoch, messages)
        self._waiting[batch.member].extendleft(reversed(taken))

    def missing(self, epoch: int, messages: Iterable[Place]) -> None:
        """Messages of a batch turned out to be removed by retention."""
        gone = len(self._pull_out(epoch, messages))
        self.counts.evicted += gone
        self._kept -= gone

    def _pull_out(self, epoch: int, messages: Iterable[Place]) -> list[SentMessage]:
        batch = self.batches.get(epoch)
        if batch is None:
            return []
        taken = []
        for index in sorted({i for each in messages if (i := batch.index(each)) is not None}):
            message = batch.messages[index]
            if message is not None:
                taken.append(message)
                batch.messages[index] = None
        batch.open -= len(taken)
        if not batch.open:
            self._written(epoch)
        return taken

    # What comes of it: nothing

    def ack(
        self, name: str, epoch: int, now_ns: int, messages: Iterable[Place] | None = None,
        but: Iterable[Place] = (),
    ) -> Outcome:  # fmt: skip
        """Everything is finished already."""
        if messages is None:
            return Outcome(0, 1, (RefusedPlace(None, "finished"),))
        named = list(messages)
        refusals = tuple(
            RefusedPlace(each, "finished" if self.is_finished(*each) else "epoch")
            for each in named[:REFUSALS_MAX]
        )
        return Outcome(0, len(named), refusals)

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
        self.counts.dropped += len(named) - len(unknown)
        refused = self.ack(name, epoch, now_ns, unknown)
        return refused._replace(accepted=len(named) - len(unknown))

    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        return  # it was finished when it was admitted

    def _again(self, message: SentMessage) -> None:
        return  # nothing is sent again

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        assert all(look_ahead.floor == look_ahead.end for look_ahead in self.look_aheads.values())
        assert self._waiting.keys() == set(self.members.by_name.values())
        assert self.members.without_patterns or not self._for_any
        waiting = len(self._for_any) + sum(map(len, self._waiting.values()))
        assert self._kept == waiting + sum(batch.open for batch in self.batches.values())
        for epoch, batch in self.batches.items():
            assert epoch == batch.epoch <= self.epoch and epoch in batch.member.batches
            assert batch.open == sum(message is not None for message in batch.messages) > 0
