"""What a subscription may send to whom: order per key, in parallel across keys, nothing lost.

    admit -> ready for the member that owns the key -> take (a batch) -> ack     -> finished
                                                                     -> nack    -> rests, is ready
                                                                     -> time out, the member leaves

A pure machine: events and ``now`` in, batches and dead letters out. It keeps offsets, never
payloads; whoever sends a batch reads its messages.

* At most one message of a key is with a consumer, whatever joins, leaves, fails or stalls, and
  messages of a key are sent first in their order. The lock on a key is its queue's state.
* Nothing is finished but by an acknowledgment, or by a policy that drops or moves it. A member that
  leaves, and a time-out, give messages back; they keep their place at the head of their keys.
* A *batch* is what one ``take`` gave, under a number of its own, the *epoch*. An acknowledgment
  names the epoch, so one that comes after the message was given to another member changes nothing.
* Messages without a key have no order: any member without patterns gets them.
* What waits costs 5 bytes (``look_ahead.py``); only what is in flight is limited by a count. A key
  with a million messages takes one place in flight.

No call takes longer than what it is told of: after a join or a leave, ready keys find their new
owners in lots of MOVES_AT_ONCE.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from delivery.subscriptions.key_queue import KeyQueue, QueueState
from delivery.subscriptions.look_ahead import LookAhead
from delivery.subscriptions.members import Consumer, Members

MOVES_AT_ONCE = 2_000
_S = 1_000_000_000


class WindowPolicy(Struct, frozen=True):
    """The settings of a subscription that the window needs."""

    in_flight_max: int = 10_000
    member_max: int = 1_000
    ack_timeout_ns: int = 30 * _S
    redeliveries_max: int = 5
    backoff_min_ns: int = 1 * _S
    backoff_max_ns: int = 60 * _S
    poison: Literal["block", "drop", "dead_letter"] = "block"
    unmatched: Literal["hold", "skip"] = "hold"

    def rest_ns(self, attempts: int, asked_ns: int = 0) -> int:
        """How long a message rests after its failed delivery number ``attempts``, from 1: doubling
        from the minimum, or what the consumer asked for if that is longer, never over the maximum.
        """
        doubled = self.backoff_min_ns << min(attempts - 1, 40)
        return min(max(min(doubled, self.backoff_max_ns), asked_ns), self.backoff_max_ns)


class SentMessage(NamedTuple):
    """A message in a batch; ``attempts`` deliveries of it failed before. ``queue`` is None for one
    that has no key."""

    lane: LookAhead
    offset: int
    queue: KeyQueue | None
    attempts: int


class Batch:
    """What a member was given. A message that is dealt with is None."""

    __slots__ = ("epoch", "member", "sent_ns", "due_ns", "messages", "open", "_places")

    def __init__(
        self,
        epoch: int,
        member: Consumer,
        sent_ns: int,
        due_ns: int,
        messages: list[SentMessage | None],
    ) -> None:
        self.epoch = epoch
        self.member = member
        self.sent_ns = sent_ns
        self.due_ns = due_ns
        self.messages = messages
        self.open = len(messages)
        self._places: dict[tuple[int, int], int] | None = None

    def place(self, partition: int, offset: int) -> int | None:
        """Where a message is in the batch; None if it is not, or not any more."""
        if self._places is None:  # whoever acknowledges whole batches needs no index
            self._places = {
                (message.lane.partition, message.offset): index
                for index, message in enumerate(self.messages)
                if message is not None
            }
        found = self._places.get((partition, offset))
        return None if found is None or self.messages[found] is None else found


class DeadLetter(NamedTuple):
    """A message that the policy moves away; it stays where it is until ``moved`` is called."""

    partition: int
    offset: int
    attempts: int
    why: str


class Stuck(NamedTuple):
    """A message that nobody gets until something is done about it."""

    message: SentMessage
    why: str
    since_ns: int


class DeliveryWindow:
    """One subscription's messages and members."""

    def __init__(self, policy: WindowPolicy, epoch: int = 0) -> None:
        self.policy = policy
        self.members = Members()
        self.lanes: dict[int, LookAhead] = {}
        self.keys: dict[str, KeyQueue] = {}
        self.in_flight = 0
        self.batches: dict[int, Batch] = {}
        self.stuck: dict[tuple[int, int], Stuck] = {}
        self.dead_letters: list[DeadLetter] = []
        self.dropped = 0
        self._epoch = epoch
        self._held: dict[KeyQueue, None] = {}
        self._moving: deque[KeyQueue] = deque()
        self._resting: list[tuple[int, int, SentMessage]] = []
        self._rests = 0
        self._timeouts: deque[Batch] = deque()
        self._loose_attempts: dict[tuple[int, int], int] = {}

    # Messages come in

    def open(self, partition: int, floor: int) -> LookAhead:
        """Begins a partition after ``floor``."""
        lane = self.lanes[partition] = LookAhead(partition, floor)
        return lane

    def admit(self, partition: int, keys: Sequence[str | None]) -> None:
        """The next messages of a partition, by their keys. The caller looks at ``room`` before."""
        lane = self.lanes[partition]
        if lane.has_finished or None in keys:
            for key in keys:
                if lane.was_finished(lane.end + 1):
                    lane.add_done(1)
                elif key is None:
                    lane.add_loose(1)
                else:
                    self._admit_keyed(lane, (key,))
        else:
            self._admit_keyed(lane, keys)

    def _admit_keyed(self, lane: LookAhead, keys: Sequence[str | None]) -> None:
        queues = self.keys
        for offset, key in enumerate(keys, lane.add_keyed(len(keys))):
            assert key is not None
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = KeyQueue(key, lane, offset)
                self._make_ready(queue)
            elif queue.lane is lane:
                lane.link(queue.tail, offset)
                queue.tail = offset
            else:
                queue.append(lane, offset)

    def admit_loose(self, partition: int, count: int) -> None:
        """The next messages of a partition, none of which has an order."""
        lane = self.lanes[partition]
        if not lane.has_finished:
            lane.add_loose(count)
            return
        for offset in range(lane.end + 1, lane.end + count + 1):
            (lane.add_done if lane.was_finished(offset) else lane.add_loose)(1)

    def pass_over(self, partition: int, count: int) -> None:
        """The next offsets of a partition hold nothing: voids, or evicted."""
        self.lanes[partition].add_done(count)

    # Members

    def join(self, name: str, patterns: Sequence[str] = ()) -> None:
        """A consumer is present; one of this name must not be. Raises ValueError at the limit."""
        self.members.join(name, patterns)
        self._move_all()

    def leave(self, name: str) -> None:
        """A consumer is gone: what it has goes to others, without a failed delivery."""
        member = self.members.leave(name)
        self._move_all()
        self._moving.extend(member.ready)
        for epoch in sorted(member.batches, reverse=True):
            batch = self.batches.pop(epoch)
            for message in reversed(batch.messages):
                if message is not None:
                    self.in_flight -= 1
                    self._again(message)

    def _move_all(self) -> None:
        """All ready and held keys look for their owners again."""
        for member in self.members.by_name.values():
            self._moving.extend(member.ready)
            member.ready.clear()
        self._moving.extend(self._held)
        self._held.clear()

    def _settle(self) -> None:
        for _ in range(min(MOVES_AT_ONCE, len(self._moving))):
            queue = self._moving.popleft()
            if queue.state in (QueueState.READY, QueueState.HELD):
                self._make_ready(queue)

    def _make_ready(self, queue: KeyQueue, *, first: bool = False) -> None:
        member = self.members.owner(queue)
        if member is None:
            self._unmatched(queue)
            return
        queue.state = QueueState.READY
        (member.ready.appendleft if first else member.ready.append)(queue)

    def _unmatched(self, queue: KeyQueue) -> None:
        queue.state = QueueState.HELD
        if not self.members.by_name or self.policy.unmatched == "hold":
            self._held[queue] = None
            return
        self.dropped += 1
        if self._advance(queue):
            self._moving.append(queue)  # one at a time: a key may have a million

    # Messages go out

    def take(self, name: str, count: int, now_ns: int) -> Batch | None:
        """The next batch of a member; None if there is nothing for it now."""
        if self._moving:
            self._settle()
        member, policy = self.members.by_name[name], self.policy
        left = min(
            count, policy.member_max - member.in_flight, policy.in_flight_max - self.in_flight
        )
        messages: list[SentMessage | None] = []
        ready = member.ready
        while left > len(messages) and ready:
            queue = ready.popleft()
            if queue.state is QueueState.READY:
                queue.state = QueueState.SENT
                messages.append(SentMessage(queue.lane, queue.head, queue, queue.attempts))
        if left > len(messages) and not member.patterns:
            self._take_loose(messages, left)
        if not messages:
            return None
        self._epoch += 1
        due_ns = now_ns + policy.ack_timeout_ns
        batch = Batch(self._epoch, member, now_ns, due_ns, messages)
        self.batches[batch.epoch] = batch
        member.batches.add(batch.epoch)
        member.in_flight += len(messages)
        self.in_flight += len(messages)
        self._timeouts.append(batch)
        return batch

    def _take_loose(self, messages: list[SentMessage | None], left: int) -> None:
        attempts = self._loose_attempts
        for lane in self.lanes.values():
            while left > len(messages) and (offset := lane.next_loose()):
                lane.take(offset)
                failed = attempts.get((lane.partition, offset), 0) if attempts else 0
                messages.append(SentMessage(lane, offset, None, failed))

    # Outcomes

    def ack(
        self, name: str, epoch: int, messages: Iterable[tuple[int, int]] | None = None,
        but: Iterable[tuple[int, int]] = (), now_ns: int = 0,
    ) -> tuple[int, int]:  # fmt: skip
        """Finishes messages of a batch, by partition and offset; None: all of it but ``but``.

        Returns how many were finished, and how many were refused, because the batch is not this
        member's, or not any more.
        """
        batch = self._batch(name, epoch, now_ns)
        if batch is None:
            return 0, 1 if messages is None else len(list(messages))
        places, refused = self._places(batch, messages, but)
        for place in places:
            self._close(batch, place)
        return len(places), refused

    def nack(
        self, name: str, epoch: int, messages: Iterable[tuple[int, int]] | None, now_ns: int,
        delay_ns: int = 0, why: str = "refused by the consumer",
    ) -> tuple[int, int]:  # fmt: skip
        """Deliveries failed; the rest as ``ack``."""
        batch = self._batch(name, epoch, now_ns)
        if batch is None:
            return 0, 1 if messages is None else len(list(messages))
        places, refused = self._places(batch, messages, ())
        for place in places:
            message = self._take_out(batch, place)
            self._fail(message, now_ns, delay_ns, why)
        return len(places), refused

    def _batch(self, name: str, epoch: int, now_ns: int) -> Batch | None:
        batch = self.batches.get(epoch)
        if batch is None or batch.member.name != name:
            return None
        batch.member.heard_ns = now_ns
        return batch

    def _places(
        self, batch: Batch, named: Iterable[tuple[int, int]] | None, but: Iterable[tuple[int, int]]
    ) -> tuple[list[int], int]:
        if named is None:
            left_out = {batch.place(*each) for each in but}
            found = [
                place for place, message in enumerate(batch.messages)
                if message is not None and place not in left_out
            ]  # fmt: skip
            return found, 0
        places = [batch.place(*each) for each in named]
        known = list(dict.fromkeys(place for place in places if place is not None))
        return known, len(places) - len(known)

    def _take_out(self, batch: Batch, place: int) -> SentMessage:
        """A message is not with the member any more."""
        message = batch.messages[place]
        assert message is not None
        batch.messages[place] = None
        batch.open -= 1
        batch.member.in_flight -= 1
        self.in_flight -= 1
        if not batch.open:
            del self.batches[batch.epoch]
            batch.member.batches.discard(batch.epoch)
        return message

    def _close(self, batch: Batch, place: int) -> None:
        self._finish(self._take_out(batch, place))

    def _finish(self, message: SentMessage) -> None:
        """A message is dealt with; the next one of its key is ready."""
        queue = message.queue
        if queue is None:
            self._loose_attempts.pop((message.lane.partition, message.offset), None)
            message.lane.finish(message.offset)
        elif self._advance(queue):
            self._make_ready(queue)

    def _advance(self, queue: KeyQueue) -> bool:
        if queue.advance():
            return True
        queue.state = QueueState.GONE
        del self.keys[queue.key]
        return False

    def _again(self, message: SentMessage) -> None:
        """A message may be sent again now."""
        if message.queue is None:
            message.lane.give_back(message.offset)
        else:
            self._make_ready(message.queue, first=True)

    def _fail(self, message: SentMessage, now_ns: int, delay_ns: int, why: str) -> None:
        attempts, queue = message.attempts + 1, message.queue
        place = (message.lane.partition, message.offset)
        if queue is None:
            self._loose_attempts[place] = attempts
        else:
            queue.attempts, queue.why, queue.since_ns = attempts, why, now_ns
        if attempts <= self.policy.redeliveries_max:
            if queue is not None:
                queue.state = QueueState.RESTING
            self._rests += 1
            due_ns = now_ns + self.policy.rest_ns(attempts, delay_ns)
            heapq.heappush(self._resting, (due_ns, self._rests, message))
        elif self.policy.poison == "drop":
            self.dropped += 1
            self._finish(message)
        else:
            if queue is not None:
                queue.state = QueueState.STUCK
            self.stuck[place] = Stuck(message, why, now_ns)
            if self.policy.poison == "dead_letter":
                self.dead_letters.append(DeadLetter(*place, attempts, why))

    # Time

    def tick(self, now_ns: int) -> list[str]:
        """What is due: rests that are over, batches without an answer.

        Returns the members that were taken for gone. One that has answered nothing since a batch
        was sent, until it timed out, has not failed to deal with its messages: it never saw them.
        """
        self._settle()
        gone: list[str] = []
        while self._timeouts and (self._timeouts[0].due_ns <= now_ns or not self._timeouts[0].open):
            batch = self._timeouts.popleft()
            if batch.epoch not in self.batches:
                continue
            if batch.member.heard_ns < batch.sent_ns:
                gone.append(batch.member.name)
                self.leave(batch.member.name)
                continue
            for place, message in enumerate(batch.messages):
                if message is not None:
                    self._fail(self._take_out(batch, place), now_ns, 0, "not acknowledged in time")
        while self._resting and self._resting[0][0] <= now_ns:
            message = heapq.heappop(self._resting)[2]
            queue = message.queue
            if queue is None or (
                queue.state is QueueState.RESTING and queue.head == message.offset
            ):
                self._again(message)
        return gone

    def next_due_ns(self) -> int | None:
        """When ``tick`` has something to do; 0: now."""
        if self._moving:
            return 0
        due = [self._timeouts[0].due_ns] if self._timeouts else []
        due += [self._resting[0][0]] if self._resting else []
        return min(due, default=None)

    # Operators

    def retry(self, partition: int, offset: int) -> bool:
        """Sends a stuck message again, as if it had never failed; False if it is not stuck."""
        found = self.stuck.pop((partition, offset), None)
        if found is None:
            return False
        if found.message.queue is None:
            self._loose_attempts.pop((partition, offset), None)
        else:
            found.message.queue.attempts = 0
        self._again(found.message)
        return True

    def moved(self, partition: int, offset: int) -> bool:
        """A stuck message was stored as a dead letter, or an operator gives it up; False if it is
        not stuck."""
        found = self.stuck.pop((partition, offset), None)
        if found is None:
            return False
        self._finish(found.message)
        return True

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        sent: set[tuple[int, int]] = set()
        for epoch, batch in self.batches.items():
            assert epoch == batch.epoch and epoch in batch.member.batches
            assert self.members.by_name[batch.member.name] is batch.member
            left = [message for message in batch.messages if message is not None]
            assert batch.open == len(left) > 0
            for message in left:
                place = (message.lane.partition, message.offset)
                assert place not in sent and not message.lane.is_done(message.offset)
                sent.add(place)
                if message.queue is not None:
                    assert message.queue.state is QueueState.SENT
                    assert (message.queue.lane, message.queue.head) == message[:2]
        assert self.in_flight == len(sent) <= self.policy.in_flight_max
        for member in self.members.by_name.values():
            mine = sum(self.batches[epoch].open for epoch in member.batches)
            assert member.in_flight == mine <= self.policy.member_max
        waiting = [queue for m in self.members.by_name.values() for queue in m.ready]
        waiting += [*self._moving, *self._held]
        waiting = [queue for queue in waiting if queue.state is not QueueState.GONE]
        assert len(waiting) == len(set(waiting)), "a queue waits in one place"
        resting = {message.queue for *_, message in self._resting}
        for key, queue in self.keys.items():
            assert queue.key == key and not queue.lane.is_done(queue.head)
            ready = queue.state in (QueueState.READY, QueueState.HELD)
            assert ready == (queue in waiting), queue.state
            assert (queue.state is QueueState.RESTING) == (queue in resting)
            assert (queue.state is QueueState.STUCK) == (
                (queue.lane.partition, queue.head) in self.stuck
            )
        for lane in self.lanes.values():
            lane.check_invariants()
