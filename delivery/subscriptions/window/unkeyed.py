"""What a subscription without order per key may send to whom: shared, or exclusive.

    admit -> loose -> take (``deliveries.py`` has the rest)

*Shared*: any message to any consumer, in no order. Consumers get equal parts of what waits, as far
as they have room: each ``take`` gives at most the part of one. A message that failed rests alone;
nothing waits for it.

*Exclusive*: everything in the order of offsets, to one consumer.

The *active* member is the one that joined first; the others stand by and take over in the order in
which they joined. It may have many messages, but their order holds through failures: when a message
fails, all later ones of its partition come back, and none is sent before it is dealt with. So a
consumer may see a message again that follows one that it refused, but never out of order.

Invariant: no message of a partition that is with the active member follows a blocked one.

If the subscription is pushed, messages go ``in_runs``: the active member, a sender, gets the next
messages of a partition, a *run*, and nothing more of it before all of them are dealt with or have
come back. So whatever a sender has of a partition is of one batch, and what it says of that batch
passes no other one on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.messages import Batch, Member, SentMessage


class SharedWindow(SubscriptionWindow):
    """One shared subscription's messages and members."""

    def admit(self, partition: int, keys: Sequence[str | None]) -> None:
        """The next messages of a partition; their keys mean nothing."""
        self.admit_loose(partition, len(keys))

    def join(self, name: str, patterns: Sequence[str] = ()) -> None:
        """A consumer is present; patterns that it had in another mode mean nothing."""
        super().join(name)

    def _pick(self, member: Member, left: int) -> list[SentMessage | None]:
        return self.loose.pick(min(left, self.loose.part_of(len(self.members.by_name))))

    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        offsets = [message[1] for message in messages]
        look_ahead.finish_all(offsets)
        for offset in offsets:
            self.loose.finished(look_ahead, offset)

    def _again(self, message: SentMessage) -> None:
        self.loose.again(message.look_ahead, message.offset)


class ExclusiveWindow(SharedWindow):
    """One exclusive subscription's messages and members."""

    def __init__(self, policy: WindowPolicy, epoch: int = 0, *, in_runs: bool = False) -> None:
        super().__init__(policy, epoch)
        self._in_runs = in_runs
        self._blocks: dict[LookAhead, set[int]] = {}  # offsets that are blocked
        self._out: Counter[LookAhead] = Counter()  # of runs: messages with the active member

    @property
    def drainable(self) -> int:
        """There is work for one consumer at most, and none after a blocked message."""
        if self.in_flight:
            return 1
        for look_ahead in self.look_aheads.values():
            first, blocked = look_ahead.next_loose(), self._first_blocked(look_ahead)
            if first and (blocked is None or first < blocked):
                return 1
        return 0

    def is_active(self, name: str) -> bool:
        """Whether a member gets the messages: the one that joined first."""
        return name == next(iter(self.members.by_name), None)

    @property
    def sharers(self) -> int:
        """One member gets the messages, if there is any."""
        return min(1, super().sharers)

    def room(self, name: str) -> int:
        """How many more messages a member may have: none, if it stands by."""
        return super().room(name) if self.is_active(name) else 0

    def _first_blocked(self, look_ahead: LookAhead) -> int | None:
        blocks = self._blocks.get(look_ahead)
        return min(blocks) if blocks else None

    @property
    def has_loose(self) -> bool:
        """There is one member that gets everything."""
        return False

    def takers(self) -> list[str]:
        """As in all modes: the active member."""
        return [*islice(self.members.by_name, 1)] if self.loose.count else []

    def _pick(self, member: Member, left: int) -> list[SentMessage | None]:
        messages = self.loose.pick(left, self._before)
        if self._in_runs:
            self._out.update(message.look_ahead for message in messages if message is not None)
        return messages

    def _before(self, look_ahead: LookAhead) -> int | None:
        """Only messages below this one may be sent; None: all may."""
        return look_ahead.floor if self._out[look_ahead] else self._first_blocked(look_ahead)

    def _came_back(self, messages: Sequence[SentMessage]) -> None:
        """Messages are not with the active member any more."""
        self._out.subtract(message.look_ahead for message in messages)

    def _take_out(self, batch: Batch, index: int) -> SentMessage:
        message = super()._take_out(batch, index)
        if self._in_runs:
            self._came_back((message,))
        return message

    def _take_all(self, batch: Batch, indexes: Sequence[int]) -> list[SentMessage]:
        messages = super()._take_all(batch, indexes)
        if self._in_runs:
            self._came_back(messages)
        return messages

    def _block(self, message: SentMessage, attempts: int, *, stuck: bool) -> None:
        self._blocks.setdefault(message.look_ahead, set()).add(message.offset)

    def _take_back_after(self, message: SentMessage) -> None:
        look_ahead = message.look_ahead
        for epoch in sorted(self.batches, reverse=True):
            batch = self.batches[epoch]
            for index in range(len(batch.messages) - 1, -1, -1):
                other = batch.messages[index]
                if (
                    other is not None
                    and other.look_ahead is look_ahead
                    and other.offset > message.offset
                ):
                    self._once_more(batch, index)

    def _pass(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        blocks = self._blocks.get(look_ahead)
        if blocks is not None:
            blocks.difference_update(message.offset for message in messages)
            if not blocks:
                del self._blocks[look_ahead]

    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        self._pass(look_ahead, messages)
        super()._finish(look_ahead, messages)

    def _again(self, message: SentMessage) -> None:
        self._pass(message.look_ahead, (message,))
        super()._again(message)

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        super().check_invariants()
        blocked = {
            (look_ahead.partition, offset)
            for look_ahead, offsets in self._blocks.items()
            for offset in offsets
        }
        assert blocked == {each.message.place for each in self.blocked}
        assert all(self._blocks.values())
        out = [
            (message.look_ahead, batch.epoch)
            for batch in self.batches.values() for message in batch.messages if message is not None
        ]  # fmt: skip
        if self._in_runs:
            assert +self._out == Counter(look_ahead for look_ahead, _ in out)
            assert len(set(out)) == len(+self._out), "a run is of one batch"
        for batch in self.batches.values():
            assert self.is_active(batch.member.name)
            for message in batch.messages:
                if message is not None:
                    first = self._first_blocked(message.look_ahead)
                    assert first is None or message.offset < first
