"""What a subscription has sent and what came of it: the part that all its modes have in common.

    pick (by mode) -> take (a batch) -> sent -> ack     -> finished
                                             -> nack    -> rests, or is stuck -> again
                                             -> time out, the member leaves   -> again

* A message is finished only by an acknowledgment, by an operator, by a poison policy that drops or
  moves it, or because retention removed it. A member that leaves gives its messages back, and a
  batch that could not be sent is given back: that counts as no failed delivery.
* A *batch* is what one ``take`` gave, under a number of its own, the *epoch*. An acknowledgment
  names the epoch, so one that comes after the message was given to another member changes nothing.
* A message is *blocked* while it rests after a failed delivery, and while it is stuck: too many
  failed, and an operator or a dead letter has to take it away.

The subclass for the mode decides which messages a member gets and what waits for what.

The owner admits messages in the order of their offsets, takes batches for consumers that can be
written to, reads their payloads, and says what came of it. It goes around these consumers until
``take`` gives None for each: one ``take`` gives a consumer its part, not everything that waits. It
admits messages only while a consumer has room for them; or all there are, if the window is not
reliable, which then drops what no consumer has room for. After any call it looks at ``take_news``,
to make durable what is finished before it answers, and at ``dead_letters``, to send those that are
new. ``tick`` is due at ``next_due_ns``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from delivery.subscriptions.window.failures import (
    BLOCKED_BYTES,
    Blocked,
    BlockedMessages,
    WaitingLetters,
    WindowPolicy,
)
from delivery.subscriptions.window.look_ahead import LookAhead, Tally
from delivery.subscriptions.window.members import Members
from delivery.subscriptions.window.messages import (
    REFUSALS_MAX,
    Batch,
    KeyQueue,
    LooseMessages,
    Member,
    Outcome,
    Place,
    RefusedPlace,
    SentMessage,
    WindowCounts,
)
from delivery.subscriptions.window.resent import ResentMessages


class SubscriptionWindow(ABC):
    """One subscription's messages and members, without its mode."""

    is_reliable = True

    def __init__(self, policy: WindowPolicy, epoch: int = 0) -> None:
        self.policy = policy
        self.epoch = epoch  # of the last batch
        self.members = Members()
        self.look_aheads: dict[int, LookAhead] = {}
        self.resent = ResentMessages()
        self.loose = LooseMessages()
        self.in_flight = 0
        self.batches: dict[int, Batch] = {}
        self.blocked = BlockedMessages()
        self.dead_letters = WaitingLetters()
        self.counts = WindowCounts()
        self.growths = 0  # of the topic, that came before what is admitted now
        self._tally = Tally()
        self._numbers = count(1)
        self._unanswered: OrderedDict[int, Batch] = OrderedDict()  # sent, oldest first
        self._news: dict[int, list[int]] = {}

    # What there is

    @property
    def is_failing(self) -> bool:
        """Whether messages rest because the way to their receiver failed."""
        return self.blocked.uncounted > 0

    @property
    def unfinished(self) -> int:
        """Messages that were admitted and are not finished."""
        return self._tally.unfinished

    @property
    def drainable(self) -> int:
        """Messages that consumers could deal with now, simultaneously (``shown/inspection.py``)."""
        return self.loose.count + self.in_flight

    @property
    def memory_bytes(self) -> int:
        """What the messages take, except what they take because they are sent or blocked."""
        return self._tally.bytes + self.resent.bytes

    @property
    def held_count(self) -> int:
        """Messages that are sent or blocked."""
        return self.in_flight + len(self.blocked)

    @property
    def sent_bytes(self) -> int:
        """What messages take because they are sent or blocked."""
        return self.held_count * BLOCKED_BYTES + self.blocked.reasons_bytes

    def oldest_sent_ns(self) -> int | None:
        """When the oldest batch was sent that has an open message."""
        return next((batch.sent_ns for batch in self._unanswered.values()), None)

    def is_active(self, name: str) -> bool:
        """Whether a member may get messages; of an exclusive subscription one may."""
        return name in self.members.by_name

    @property
    def sharers(self) -> int:
        """How many members share the messages."""
        return len(self.members.by_name)

    def longest_key(self) -> tuple[str, int] | None:
        """The key with most messages, and how many; searches all keys."""
        return None

    def queue_of(self, key: str) -> KeyQueue | None:
        """The messages of a key that wait for each other; None if there are none."""
        return None

    # What a mode decides

    @abstractmethod
    def _pick(self, member: Member, left: int) -> list[SentMessage | None]:
        """Up to ``left`` messages for a member; they are with it from now on."""

    @abstractmethod
    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        """Messages of a look-ahead that were sent or blocked are finished."""

    @abstractmethod
    def _again(self, message: SentMessage) -> None:
        """A message that was sent or blocked may be sent now."""

    def _block(self, message: SentMessage, attempts: int, *, stuck: bool) -> None:
        """A message that was sent is blocked, and what waits for it."""
        return

    def _take_back_after(self, message: SentMessage) -> None:
        """A message that was sent has failed: those that must not be dealt with before it come
        back, whatever becomes of it."""
        return

    def _evicted(self) -> None:
        """Retention removed messages; those that wait in their keys' queues are left to find."""
        return

    def _members_changed(self, gone: Member | None) -> None:
        """Who owns what has to be found again, if anybody owns something."""
        return

    # Messages come in

    def open(self, partition: int, floor: int) -> LookAhead:
        """Begins a partition after ``floor``."""
        look_ahead = self.look_aheads[partition] = LookAhead(partition, floor, self._tally)
        return look_ahead

    @abstractmethod
    def admit(self, partition: int, keys: Sequence[str | None]) -> None:
        """The next messages of a partition, by their keys. The caller looks at ``room`` before."""

    def admit_loose(self, partition: int, count: int) -> None:
        """The next messages of a partition, none of which has a key."""
        look_ahead = self.look_aheads[partition]
        if not look_ahead.has_finished:
            self.loose.add(look_ahead, count)
            return
        for offset in range(look_ahead.end + 1, look_ahead.end + count + 1):
            if look_ahead.was_finished(offset):
                look_ahead.add_done(1)
            else:
                self.loose.add(look_ahead, 1)

    def admit_again(self, look_ahead: LookAhead, key: str | None) -> None:
        """One message more, of a look-ahead of its own (``resent.py``)."""
        self.loose.add(look_ahead, 1)

    def pass_over(self, partition: int, count: int) -> None:
        """The next offsets of a partition hold nothing: voids, or evicted."""
        self.look_aheads[partition].add_done(count)

    def evict(self, partition: int, before: int) -> None:
        """Retention removed what is below ``before``. It is finished, in lots, and counted; what is
        with a consumer can still be acknowledged, but not be sent again."""
        resent = self.resent.look_aheads(partition)
        gone = {each for each in (self.look_aheads[partition], *resent) if each.evict(before)}
        if not gone:
            return
        self.blocked.evict(partition, before)
        self.counts.evicted += sum(map(self.loose.evict, gone))
        for message in [each.message for each in self.blocked]:
            if message.look_ahead in gone and message.offset < message.look_ahead.gone_before:
                self._unblock(message.place)
                self._evict_one(message)
        self._evicted()

    def _evict_one(self, message: SentMessage) -> None:
        self.counts.evicted += 1
        self.blocked.finished((message,))
        self._finish(message.look_ahead, (message,))

    # Members

    def join(self, name: str, patterns: Sequence[str] = ()) -> None:
        """A consumer is present; one of this name must not be. Raises ValueError at the limit."""
        self.members.join(name, patterns)
        self._members_changed(None)

    def leave(self, name: str) -> None:
        """A consumer is gone: what it has goes to others, without a failed delivery."""
        member = self.members.leave(name)
        self._members_changed(member)
        self._give_all_back(member)

    def returned(self, name: str) -> None:
        """A consumer that was away is there again: what it had is sent to it once more, without a
        failed delivery, in new batches."""
        self._give_all_back(self.members.by_name[name])

    def _give_all_back(self, member: Member) -> None:
        for epoch in sorted(member.batches, reverse=True):
            self._withdraw(self.batches[epoch])

    # Messages go out

    def room(self, name: str) -> int:
        """How many more messages a member may have."""
        return min(self.policy.member_max - self.members.by_name[name].in_flight, self._room)

    @property
    def _room(self) -> int:
        if self.blocked.why_held:
            return 0
        return self.policy.in_flight_max - self.in_flight - self.blocked.uncounted

    def settle(self) -> int:
        """Finds owners of some keys, after a change of members: how many, 0 if all have one."""
        return 0

    @property
    def is_full(self) -> bool:
        """Whether no member may have more, whatever it has."""
        return self._room <= 0

    def takers(self) -> list[str]:
        """The members that there are messages for which nobody else gets."""
        return []

    @property
    def has_loose(self) -> bool:
        """Whether there are messages for any member with room."""
        return self.loose.count > 0

    def take(self, name: str, count: int, now_ns: int) -> Batch | None:
        """The next batch of a member; None if there is nothing for it now."""
        left = min(count, self.room(name))
        if left <= 0:
            return None
        member = self.members.by_name[name]
        messages = self._pick(member, left)
        if not messages:
            return None
        self.epoch += 1
        batch = self.batches[self.epoch] = Batch(self.epoch, member, messages)
        member.batches.add(batch.epoch)
        member.in_flight += len(messages)
        self.in_flight += len(messages)
        return batch

    def sent(self, epoch: int, now_ns: int) -> None:
        """A batch was written to its consumer: from now on it has ``ack_timeout_ns``."""
        batch = self.batches.get(epoch)
        if batch is not None and batch.sent_ns is None:
            batch.sent_ns = now_ns
            self._unanswered[epoch] = batch
            self.counts.delivered += batch.open

    def give_back(self, epoch: int, messages: Iterable[Place] | None = None) -> None:
        """A batch, or some of its messages, could not be read or written: they are ready again,
        without a failed delivery. A batch that is gone is ignored."""
        batch = self.batches.get(epoch)
        if batch is None:
            return
        if messages is None:
            self._withdraw(batch)
            return
        for index in sorted(batch.indexes(messages)[0], reverse=True):
            self._once_more(batch, index)

    def missing(self, epoch: int, messages: Iterable[Place]) -> None:
        """Messages of a batch turned out to be removed by retention: they are finished."""
        batch = self.batches.get(epoch)
        if batch is not None:
            for index in batch.indexes(messages)[0]:
                self._evict_one(self._take_out(batch, index))

    def _withdraw(self, batch: Batch) -> None:
        for index in range(len(batch.messages) - 1, -1, -1):
            if batch.messages[index] is not None:
                self._once_more(batch, index)

    def _once_more(self, batch: Batch, index: int) -> None:
        message = self._take_out(batch, index)
        if message.offset < message.look_ahead.gone_before:
            self._evict_one(message)
            return
        self.counts.redelivered += batch.sent_ns is not None
        self._again(message)

    def _take_out(self, batch: Batch, index: int) -> SentMessage:
        """A message is not with the member any more."""
        message = batch.messages[index]
        assert message is not None
        batch.messages[index] = None
        batch.open -= 1
        batch.member.in_flight -= 1
        self.in_flight -= 1
        if not batch.open:
            self._close(batch)
        return message

    def _take_all(self, batch: Batch, indexes: Sequence[int]) -> list[SentMessage]:
        """As ``_take_out``, for many."""
        messages, count = batch.messages, len(indexes)
        taken = [message for index in indexes if (message := messages[index]) is not None]
        assert len(taken) == count
        if count == len(messages):
            messages[:] = [None] * count
        else:
            for index in indexes:
                messages[index] = None
        batch.open -= count
        batch.member.in_flight -= count
        self.in_flight -= count
        if not batch.open:
            self._close(batch)
        return taken

    def _close(self, batch: Batch) -> None:
        del self.batches[batch.epoch]
        batch.member.batches.discard(batch.epoch)
        self._unanswered.pop(batch.epoch, None)

    # Outcomes

    def ack(
        self, name: str, epoch: int, now_ns: int, messages: Iterable[Place] | None = None,
        but: Iterable[Place] = (),
    ) -> Outcome:  # fmt: skip
        """Finishes messages of a batch, by partition and offset; None: all of it but ``but``.
        Refuses those that are not this member's in this batch, or not any more."""
        batch = self._batch(name, epoch, now_ns)
        if batch is None:
            return self._refused(None if messages is None else list(messages))
        indexes, unknown = batch.indexes(messages, but)
        self._done(self._take_all(batch, indexes))
        self.counts.acknowledged += len(indexes)
        return self._outcome(len(indexes), unknown)

    def nack(
        self, name: str, epoch: int, now_ns: int, messages: Iterable[Place] | None = None,
        but: Iterable[Place] = (), delay_ns: int = 0, why: str = "refused by the consumer",
        is_counted: bool = True,
    ) -> Outcome:  # fmt: skip
        """Deliveries failed; the rest as ``ack``. If it is not counted, only the way to a receiver
        has failed: no poison policy applies, and a message comes again as often as it takes."""
        batch = self._batch(name, epoch, now_ns)
        if batch is None:
            return self._refused(None if messages is None else list(messages))
        indexes, unknown = batch.indexes(messages, but)
        self._fail_all(batch, sorted(indexes), now_ns, delay_ns, why, is_counted)
        return self._outcome(len(indexes), unknown)

    def _batch(self, name: str, epoch: int, now_ns: int) -> Batch | None:
        batch = self.batches.get(epoch)
        if batch is None or batch.member.name != name:
            return None
        batch.member.heard_ns = now_ns
        return batch

    def _refused(self, named: list[Place] | None) -> Outcome:
        if named is not None:
            return self._outcome(0, named)
        return Outcome(0, 1, (RefusedPlace(None, "epoch"),))

    def _outcome(self, accepted: int, unknown: list[Place]) -> Outcome:
        refusals = tuple(
            RefusedPlace(place, "finished" if self.is_finished(*place) else "epoch")
            for place in unknown[:REFUSALS_MAX]
        )
        return Outcome(accepted, len(unknown), refusals)

    def is_finished(self, partition: int, offset: int) -> bool:
        """Whether a message is known to be finished."""
        look_ahead = self.look_aheads.get(partition)
        return look_ahead is not None and look_ahead.is_finished(offset)

    def _done(self, messages: Sequence[SentMessage]) -> None:
        """Messages are finished by a decision: the owner makes that durable."""
        look_aheads: dict[LookAhead, list[SentMessage]] = {}
        look_ahead, mine = None, []
        self.blocked.finished(messages)
        for message in messages:
            if message[0] is not look_ahead:
                mine = look_aheads.setdefault(look_ahead := message[0], [])
            mine.append(message)
        for look_ahead, mine in look_aheads.items():
            if look_ahead is self.look_aheads.get(look_ahead.partition):
                news = self._news.setdefault(look_ahead.partition, [])
                news.extend([message[1] for message in mine])
            else:
                self.resent.dealt_with(look_ahead)
            self._finish(look_ahead, mine)

    def take_news(self) -> dict[int, list[int]]:
        """The offsets, by partition, that were finished since the last call: by acknowledgments,
        by operators, by the poison policy, and because no consumer accepts them. What
        retention removed is not among them: a successor learns from the ledger what that is."""
        news, self._news = self._news, {}
        return news

    # Failures

    def _fail_all(
        self, batch: Batch, indexes: Iterable[int], now_ns: int, delay_ns: int, why: str,
        is_counted: bool = True,
    ) -> None:  # fmt: skip
        for index in indexes:
            if batch.messages[index] is None:  # it was taken back with one before it
                continue
            message = self._take_out(batch, index)
            self._take_back_after(message)
            if message.offset < message.look_ahead.gone_before:
                self._evict_one(message)
            else:
                self._fail(message, now_ns, delay_ns, why, is_counted)

    def _fail(
        self, message: SentMessage, now_ns: int, delay_ns: int, why: str, is_counted: bool
    ) -> None:
        place, policy = message.place, self.policy
        attempts = message.attempts + is_counted
        failures = self.blocked.failed(place, attempts, is_counted=is_counted)
        if is_counted and message.queue is None:
            self.loose.attempts[message.look_ahead, message.offset] = attempts
        if not is_counted or attempts <= policy.redeliveries_max:
            due_ns = now_ns + policy.rest_ns(failures, delay_ns)
            self.counts.redelivered += 1
            self._block(message, attempts, stuck=False)
            if due_ns <= now_ns:
                self._again(message)
                return
            number = next(self._numbers)
            self.blocked.add(Blocked(message, attempts, why, now_ns, due_ns, number, is_counted))
        elif policy.poison == "drop":
            self.counts.dropped += 1
            self._done((message,))
        else:
            self._block(message, attempts, stuck=True)
            self._stick(Blocked(message, attempts, why, now_ns, None, next(self._numbers)))

    def _stick(self, blocked: Blocked) -> None:
        self.blocked.add(blocked)
        if self.policy.poison == "dead_letter":
            self.dead_letters.add(blocked)

    def not_moved(self, place: Place) -> None:
        """The copy of a message was not stored: it is judged again, by the policy as it is now."""
        self.dead_letters.forget(place)
        found = self.blocked.stuck.get(place)
        if found is not None:
            self._judge(place, found)

    def _unblock(self, place: Place) -> Blocked | None:
        self.dead_letters.forget(place)
        return self.blocked.take(place)

    # Time

    def tick(self, now_ns: int) -> list[str]:
        """What is due: rests that are over, batches without an answer. Returns the members that
        were taken for gone. One that has answered nothing from when a batch was sent until it timed
        out has not failed to deal with its messages: it never saw them."""
        gone: list[str] = []
        for batch in self._timed_out(now_ns):
            assert batch.sent_ns is not None
            if batch.member.heard_ns < batch.sent_ns:
                gone.append(batch.member.name)
                self.leave(batch.member.name)
            else:
                everything = range(len(batch.messages))
                self._fail_all(batch, everything, now_ns, 0, "not acknowledged in time")
        for blocked in self.blocked.take_due(now_ns):
            self._again(blocked.message)
        return gone

    def _timed_out(self, now_ns: int) -> Iterator[Batch]:
        while self._unanswered:
            batch = next(iter(self._unanswered.values()))
            assert batch.sent_ns is not None
            if batch.sent_ns + self.policy.ack_timeout_ns > now_ns:
                return
            yield batch  # it is closed then

    def next_due_ns(self) -> int | None:
        """When ``tick`` has something to do; 0: now."""
        rest_ns, sent_ns = self.blocked.next_due_ns(), self.oldest_sent_ns()
        due = [] if rest_ns is None else [rest_ns]
        if sent_ns is not None:
            due.append(sent_ns + self.policy.ack_timeout_ns)
        return min(due, default=None)

    # Operators

    def set_policy(self, policy: WindowPolicy) -> None:
        """Changes the settings. Timeouts and limits hold for what is in flight, too; messages that
        are stuck are judged again, except dead letters whose copies are on their way. The receiver
        may be another one: rests begin anew."""
        self.policy = policy
        self.blocked.forgive()
        self.dead_letters.waiting.clear()
        for place, blocked in list(self.blocked.stuck.items()):
            if place not in self.dead_letters.moving:
                self._judge(place, blocked)

    def _judge(self, place: Place, blocked: Blocked) -> None:
        if blocked.attempts <= self.policy.redeliveries_max:
            self.blocked.take(place)
            self._again(blocked.message)
        elif self.policy.poison == "drop":
            self.blocked.take(place)
            self.counts.dropped += 1
            self._done((blocked.message,))
        else:
            self._stick(blocked)

    def retry(self, partition: int, offset: int) -> bool:
        """Sends a blocked message again, as if it had never failed; False if it is not blocked, or
        its copy is on its way."""
        place = partition, offset
        found = None if place in self.dead_letters.moving else self._unblock(place)
        if found is None:
            return False
        self.blocked.forgive(place)
        if found.message.queue is None:
            self.loose.attempts.pop((found.message.look_ahead, offset), None)
        else:
            found.message.queue.attempts = 0
        self._again(found.message)
        return True

    def moved(self, partition: int, offset: int) -> bool:
        """A blocked message was stored as a dead letter, or an operator gives it up; False if it
        is not blocked."""
        found = self._unblock((partition, offset))
        if found is None:
            return False
        self._done((found.message,))
        return True

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        sent: set[Place] = set()
        for epoch, batch in self.batches.items():
            assert epoch == batch.epoch <= self.epoch and epoch in batch.member.batches
            assert self.members.by_name[batch.member.name] is batch.member
            assert (batch.sent_ns is not None) == (epoch in self._unanswered)
            left = [message for message in batch.messages if message is not None]
            assert batch.open == len(left) > 0
            for message in left:
                assert message.place not in sent
                assert message.look_ahead.is_done(message.offset) is not self.is_reliable
                sent.add(message.place)
        assert self._unanswered.keys() <= self.batches.keys()
        assert self.in_flight == len(sent)
        for member in self.members.by_name.values():
            assert member.in_flight == sum(self.batches[epoch].open for epoch in member.batches)
        self.blocked.check_invariants(sent)
        is_moved = self.policy.poison == "dead_letter"
        self.dead_letters.check_invariants(self.blocked.stuck.keys(), are_moved=is_moved)
        for look_ahead in self.look_aheads.values():
            look_ahead.check_invariants()
        assert self.unfinished == sum(each.unfinished for each in self.look_aheads.values())
        self.loose.check_invariants([*self.look_aheads.values(), *self.resent.look_aheads()])
