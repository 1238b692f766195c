"""What a key-shared subscription may send to whom: order per key, in parallel across keys.

    admit -> ready for the member that owns the key -> take (``deliveries.py`` has the rest)

A pure machine: events and ``now`` in, batches and dead letters out. It keeps offsets, never
payloads; whoever sends a batch reads its messages.

* At most one message of a key is with a consumer, whatever joins, leaves, fails or stalls, and
  messages of a key are sent first in their order. The lock on a key is its queue's state.
* Messages that come back keep their place at the head of their keys.
* Messages without a key have no order: members without patterns get equal parts of them.
* What waits costs 5 bytes (``look_ahead.py``); only what is in flight is limited by a count. A key
  with a million messages takes one place in flight.

If the subscription is pushed, a sender may have several messages of a key, the next ones in their
order (``run_max``), so that one POST can carry them. A sender deals with them in their order.

* All messages of a key that are *out* are with one member. The key is SENT as long as there are.
* When one of them comes back, or fails, those after it come back too.
* A failure of a message that is not the first of its key counts for nothing: it comes back. (Ours
  never say so: what precedes a message that failed has been acknowledged before.)

No call takes longer than what it is told of: after a join, a leave or an eviction, ready keys find
their owners again in lots of MOVES_AT_ONCE, and so do all that are compared with many patterns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.messages import (
    READY,
    SENT,
    KeyQueue,
    Member,
    QueueEvent,
    QueueState,
    SentMessage,
    new_message,
)

MOVES_AT_ONCE = 500  # about 1 ms; a key that is compared with many patterns counts as several
MATCHED_NOW = 4  # a key that counts for more waits for ``settle``


class KeySharedWindow(SubscriptionWindow):
    """One key-shared subscription's messages and members."""

    def __init__(self, policy: WindowPolicy, epoch: int = 0) -> None:
        super().__init__(policy, epoch)
        self.keys: dict[str, KeyQueue] = {}
        self._keys_bytes = 0
        self._unmatched: deque[KeyQueue] = deque()
        self._moving: deque[deque[KeyQueue]] = deque()
        self._woken: dict[Member, None] = {}  # members with ready keys, and perhaps some without

    # What there is

    @property
    def drainable(self) -> int:
        """One message of each key that a consumer accepts and that is not blocked, and all that
        have no key. Without any consumer the first one could deal with all of them."""
        blocked = len(self.blocked)
        found = len(self.keys) + self.loose.taken - blocked
        if not self.members.by_name:
            return found + self.loose.count
        found -= len(self._unmatched)
        return found + self.loose.count if self.members.without_patterns else found

    @property
    def memory_bytes(self) -> int:
        """What the messages and their keys take."""
        return super().memory_bytes + self._keys_bytes

    def longest_key(self) -> tuple[str, int] | None:
        """The key with most messages, and how many; searches all keys."""
        found = max(self.keys.values(), key=lambda queue: queue.waiting, default=None)
        return None if found is None else (found.key, found.waiting)

    def queue_of(self, key: str) -> KeyQueue | None:
        """The messages of a key that wait for each other; None if there are none."""
        return self.keys.get(key)

    # Messages come in

    def admit(self, partition: int, keys: Sequence[str | None]) -> None:
        """The next messages of a partition, by their keys. The caller looks at ``room`` before."""
        look_ahead = self.look_aheads[partition]
        if look_ahead.has_finished or None in keys:
            for key in keys:
                if look_ahead.was_finished(look_ahead.end + 1):
                    look_ahead.add_done(1)
                elif key is None:
                    self.loose.add(look_ahead, 1)
                else:
                    self._admit_keyed(look_ahead, (key,))
        else:
            self._admit_keyed(look_ahead, keys)

    def admit_again(self, look_ahead: LookAhead, key: str | None) -> None:
        """One message more, of a look-ahead of its own: the last one of its key."""
        if key is None:
            super().admit_again(look_ahead, key)
        else:
            self._admit_keyed(look_ahead, (key,))

    def _admit_keyed(self, look_ahead: LookAhead, keys: Sequence[str | None]) -> None:
        queues, members, woken = self.keys, self.members, self._woken
        for offset, key in enumerate(keys, look_ahead.add_keyed(len(keys))):
            assert key is not None
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = KeyQueue(key, look_ahead, offset, self.growths)
                self._keys_bytes += queue.bytes
                is_costly = members.matching_of(key) > MATCHED_NOW
                member = None if is_costly else members.owner(queue)
                if member is None:
                    self._make_ready(queue)
                else:
                    member.ready.append(queue)
                    woken[member] = None
            elif queue.look_ahead is look_ahead and not queue.others:
                look_ahead.link(queue.tail, offset)
                queue.tail = offset
                queue.waiting += 1
            else:
                queue.append(look_ahead, offset, self.growths)

    def _forget(self, queue: KeyQueue) -> None:
        """All messages of a key are finished."""
        del self.keys[queue.key]
        self._keys_bytes -= queue.bytes

    def _evicted(self) -> None:
        """Keys whose heads are gone are found with all others, in lots."""
        self._move_all()

    # Members

    def _members_changed(self, gone: Member | None) -> None:
        self._move_all()
        if gone is not None:
            self._move(gone.ready)

    def _move_all(self) -> None:
        """All ready and held keys look for their owners again."""
        for member in self.members.by_name.values():
            if member.ready:
                self._move(member.ready)
                member.ready = deque()
        self._woken.clear()
        self._move_unmatched()

    def _move_unmatched(self) -> None:
        self._move(self._unmatched)
        self._unmatched = deque()

    def _move(self, queues: deque[KeyQueue]) -> None:
        if queues:
            self._moving.append(queues)

    def _move_one(self, queue: KeyQueue) -> None:
        if self._moving:
            self._moving[-1].append(queue)
        else:
            self._moving.append(deque((queue,)))

    def settle(self) -> int:
        """Finds owners of some keys; returns how many, where one that is compared with many
        patterns counts as several; 0 if all have one."""
        moving, count = self._moving, 0
        while moving and count < MOVES_AT_ONCE:
            queue = moving[0].popleft()
            if not moving[0]:
                moving.popleft()
            count += 1 + self.members.matching(queue)
            self._place(queue)
        return count

    def _make_ready(self, queue: KeyQueue, *, first: bool = False) -> None:
        if self.members.matching(queue) > MATCHED_NOW:
            queue.change(QueueEvent.FREED)
            self._move_one(queue)
        else:
            self._place(queue, first=first)

    def _place(self, queue: KeyQueue, *, first: bool = False) -> None:
        queue.change(QueueEvent.FREED)
        if queue.head < queue.look_ahead.gone_before:
            self.counts.evicted += 1
            self._pass(queue)
            return
        member = self.members.owner(queue)
        if member is not None:
            (member.ready.appendleft if first else member.ready.append)(queue)
            self._woken[member] = None
        elif not self.members.by_name or self.policy.unmatched == "hold":
            queue.change(QueueEvent.UNOWNED)
            self._unmatched.append(queue)
        else:
            self.counts.unmatched += 1
            self._news.setdefault(queue.look_ahead.partition, []).append(queue.head)
            self._pass(queue)

    def _pass(self, queue: KeyQueue) -> None:
        """Finishes the head that nobody gets. One at a time: a key may have a million."""
        self.blocked.forgive((queue.look_ahead.partition, queue.head))
        self._passed_over(queue, more=queue.advance(queue.look_ahead.finish_all((queue.head,))[0]))

    def _passed_over(self, queue: KeyQueue, *, more: bool) -> None:
        if more:
            self._move_one(queue)
        else:
            self._forget(queue)

    # What is sent, and what comes of it

    def takers(self) -> list[str]:
        """As in all modes: members with ready keys."""
        return [member.name for member in self._woken]

    def _pick(self, member: Member, left: int) -> list[SentMessage | None]:
        ready = member.ready
        messages: list[SentMessage | None] = []
        self._pick_keys(member, left, messages)
        if not ready:
            self._woken.pop(member, None)
        if self.loose.count and left > len(messages) and not member.patterns:
            part = self.loose.part_of(self.members.without_patterns)
            messages += self.loose.pick(min(left - len(messages), part))
        return messages

    def _pick_keys(self, member: Member, left: int, messages: list[SentMessage | None]) -> None:
        """Adds messages of the member's ready keys."""
        ready = member.ready
        for _ in range(min(left - len(messages), len(ready))):
            queue = ready.popleft()
            queue.state = SENT
            found = queue.look_ahead, queue.head, queue, queue.attempts
            messages.append(new_message(SentMessage, found))

    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        version, gone_before = self.members.version, look_ahead.gone_before
        finished = look_ahead.finish_all([message[1] for message in messages])
        for (_, offset, queue, _), following in zip(messages, finished, strict=True):
            if queue is None:
                self.loose.finished(look_ahead, offset)
            elif following > gone_before and queue.version == version and queue.owner is not None:
                queue.head = following  # as below, without the calls
                queue.attempts = 0
                queue.waiting -= 1
                queue.state = READY
                queue.owner.ready.append(queue)
                self._woken[queue.owner] = None
            elif queue.waiting > 1 and queue.advance(following):
                self._make_ready(queue)
            else:
                self._forget(queue)

    def _again(self, message: SentMessage) -> None:
        if message.queue is None:
            self.loose.again(message.look_ahead, message.offset)
        else:
            self._make_ready(message.queue, first=True)

    def _block(self, message: SentMessage, attempts: int, *, stuck: bool) -> None:
        if message.queue is not None:
            message.queue.attempts = attempts
            message.queue.change(QueueEvent.GIVEN_UP if stuck else QueueEvent.FAILED)

    # Time and operators

    def tick(self, now_ns: int) -> list[str]:
        """As in all modes; keys find their owners."""
        self.settle()
        return super().tick(now_ns)

    def next_due_ns(self) -> int | None:
        """When ``tick`` has something to do; 0: now."""
        return 0 if self._moving else super().next_due_ns()

    def set_policy(self, policy: WindowPolicy) -> None:
        """As in all modes; held keys are judged again."""
        super().set_policy(policy)
        self._move_unmatched()

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        super().check_invariants()
        for batch in self.batches.values():
            for message in batch.messages:
                if message is not None and message.queue is not None:
                    self._check_sent(message)
        waiting = [queue for m in self.members.by_name.values() for queue in m.ready]
        assert all(queue.state is QueueState.READY for queue in waiting)
        assert all(queue.state is QueueState.UNMATCHED for queue in self._unmatched)
        assert all(self._moving), "no lot is empty"
        with_ready = {member for member in self.members.by_name.values() if member.ready}
        assert with_ready <= self._woken.keys() <= set(self.members.by_name.values())
        waiting += [*chain.from_iterable(self._moving), *self._unmatched]
        everywhere = set(waiting)
        assert len(waiting) == len(everywhere), "a queue waits in one place"
        resting = {blocked.message.queue for blocked in self.blocked.resting.values()}
        stuck = {blocked.message.queue for blocked in self.blocked.stuck.values()}
        assert self._keys_bytes == sum(queue.bytes for queue in self.keys.values())
        for key, queue in self.keys.items():
            assert queue.key == key and not queue.look_ahead.is_done(queue.head)
            ready = queue.state in (QueueState.READY, QueueState.UNMATCHED)
            assert ready == (queue in everywhere), queue.state
            assert (queue.state is QueueState.RESTING) == (queue in resting)
            assert (queue.state is QueueState.STUCK) == (queue in stuck)

    def _check_sent(self, message: SentMessage) -> None:
        assert message.queue is not None and message.queue.state is QueueState.SENT
        assert (message.queue.look_ahead, message.queue.head) == message[:2]


class KeyRunsWindow(KeySharedWindow):
    """One pushed key-shared subscription's messages and members."""

    def __init__(self, policy: WindowPolicy, epoch: int = 0) -> None:
        super().__init__(policy, epoch)
        # By key, the offsets that are out, in their order, each with the number of its batch.
        self._out: dict[KeyQueue, dict[int, int]] = {}

    def _pick_keys(self, member: Member, left: int, messages: list[SentMessage | None]) -> None:
        ready, run_max, epoch = member.ready, self.policy.run_max, self.epoch + 1
        while left > len(messages) and ready:
            queue = ready.popleft()
            queue.state = SENT
            look_ahead, offset, attempts = queue.look_ahead, queue.head, queue.attempts
            run = self._out[queue] = {}
            while offset and len(run) < run_max and len(messages) < left:
                run[offset] = epoch
                messages.append(new_message(SentMessage, (look_ahead, offset, queue, attempts)))
                attempts = 0
                offset = look_ahead.following(offset)

    def _came_back(self, message: SentMessage) -> None:
        """A message is not with its member any more."""
        assert message.queue is not None
        run = self._out.get(message.queue)
        if run is not None:
            run.pop(message.offset, None)
            if not run:
                del self._out[message.queue]

    def _finish(self, look_ahead: LookAhead, messages: Sequence[SentMessage]) -> None:
        finished: dict[KeyQueue, set[int]] = {}
        for message in messages:
            if message.queue is not None:
                finished.setdefault(message.queue, set()).add(message.offset)
                self._came_back(message)
        # Before they are finished, which forgets what follows what.
        passed = [(queue, len(each), _unlink(queue, each)) for queue, each in finished.items()]
        look_ahead.finish_all([message.offset for message in messages])
        for message in messages:
            if message.queue is None:
                self.loose.finished(look_ahead, message.offset)
        for queue, count, head in passed:
            if head == queue.head:
                queue.waiting -= count
            elif not queue.skip(count, head):
                self._forget(queue)
                continue
            if queue not in self._out:
                self._make_ready(queue)

    def _take_back_after(self, message: SentMessage) -> None:
        run = None if message.queue is None else self._out.get(message.queue)
        for offset in sorted(run or (), reverse=True):
            if offset <= message.offset or run is None:
                return
            batch = self.batches[run[offset]]
            index = batch.index((message.look_ahead.partition, offset))
            assert index is not None
            self._once_more(batch, index)

    def _again(self, message: SentMessage) -> None:
        if message.queue is None:
            super()._again(message)
            return
        self._take_back_after(message)
        self._came_back(message)
        if message.queue not in self._out:
            self._make_ready(message.queue, first=True)

    def _block(self, message: SentMessage, attempts: int, *, stuck: bool) -> None:
        if message.queue is not None:
            self._came_back(message)
        super()._block(message, attempts, stuck=stuck)

    def _fail(
        self, message: SentMessage, now_ns: int, delay_ns: int, why: str, is_counted: bool
    ) -> None:
        if message.queue is None or message.queue.head == message.offset:
            super()._fail(message, now_ns, delay_ns, why, is_counted)
        else:
            self._again(message)

    def _check_sent(self, message: SentMessage) -> None:
        assert message.queue is not None and message.queue.state is QueueState.SENT
        assert message.queue.look_ahead is message.look_ahead
        assert message.offset in self._out[message.queue]

    def check_invariants(self) -> None:
        """Raises AssertionError unless all parts agree."""
        super().check_invariants()
        out = {}
        for epoch, batch in self.batches.items():
            for message in batch.messages:
                if message is not None and message.queue is not None:
                    out[message.place] = epoch, message.queue
        known = {
            (queue.look_ahead.partition, offset): (epoch, queue)
            for queue, run in self._out.items() for offset, epoch in run.items()
        }  # fmt: skip
        assert out == known
        for queue, run in self._out.items():
            assert run and list(run) == sorted(run) and queue.state is QueueState.SENT
            assert len({self.batches[epoch].member for epoch in run.values()}) == 1
            offset = queue.head
            for place in run:
                assert offset == place, "nothing between them is left out"
                offset = queue.look_ahead.following(offset)


def _unlink(queue: KeyQueue, finished: set[int]) -> int:
    """Takes messages that will be finished, all among the first ones of a key, out of its queue;
    returns the new head in its partition, 0 if there is none."""
    look_ahead, offset, before, head = queue.look_ahead, queue.head, 0, 0
    left = len(finished)
    while left:
        following = look_ahead.following(offset)
        if offset in finished:
            left -= 1
            if before:
                look_ahead.link(before, following)
                queue.tail = queue.tail if following else before
        else:
            head, before = head or offset, offset
        offset = following
    return head or offset
