"""What a key-shared subscription that is pushed may send: runs of a key's messages, to one sender.

As ``key_shared.py``, except that a sender may have several messages of a key, the next ones in
their order (``run_max``), so that one POST can carry them. A sender deals with them in their order.

* All messages of a key that are *out* are with one member. The key is SENT as long as there are.
* When one of them comes back, or fails, those after it come back too.
* A failure of a message that is not the first of its key counts for nothing: it comes back. (Ours
  never say so: what precedes a message that failed has been acknowledged before.)
"""

from __future__ import annotations

from collections.abc import Sequence

from delivery.subscriptions.window.batches import SentMessage, new_message
from delivery.subscriptions.window.key_shared import DeliveryWindow
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.members import TAKEN, KeyQueue, Member, QueueState
from delivery.subscriptions.window.policy import WindowPolicy


class KeyRunsWindow(DeliveryWindow):
    """One pushed key-shared subscription's messages and members."""

    def __init__(self, policy: WindowPolicy, epoch: int = 0) -> None:
        super().__init__(policy, epoch)
        # By key, the offsets that are out, in their order, each with the number of its batch.
        self._out: dict[KeyQueue, dict[int, int]] = {}

    def _pick_keys(self, member: Member, left: int, messages: list[SentMessage | None]) -> None:
        ready, run_max, epoch = member.ready, self.policy.run_max, self.epoch + 1
        while left > len(messages) and ready:
            queue = ready.popleft()
            queue.state = TAKEN
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
