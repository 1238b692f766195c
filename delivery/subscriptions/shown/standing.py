"""What the first unfinished message of a subscription waits for: its part of the invariant of
``delivery/standstill.py``. It only reads.

What a consumer has is not held: its time-out ends that. What one of the daemon's own senders has is
judged by what the sender does. Nothing stands still while no consumer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from delivery.standstill import UNKNOWN, FirstUnfinished, Fronts, Since, Standstill, Why
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.window.messages import Batch, Place, QueueState
from ledger.delivery.subscriptions import Subscription
from shards.boards.pushboard import Mode, PushSenderRow, sender_number

SenderRows = Callable[[Subscription], Sequence[PushSenderRow]]
KEY_CHARACTERS = 100


class SubscriptionStanding:
    """Looks at one subscription. ``sender_rows`` gives the rows of a push subscription's senders;
    sender N is at shard (id + N) mod ``shards``."""

    def __init__(self, running: RunningSubscription, shards: int, sender_rows: SenderRows) -> None:
        self._running = running
        self._shards = shards
        self._sender_rows = sender_rows
        self._fronts = Fronts()
        self._present = Since()
        self._sent = Since()
        self._room = Since()
        self._attempts: dict[str, Since] = {}  # by the names of senders
        self._senders: dict[str, PushSenderRow] = {}
        self._now_ns = 0
        self.first: dict[int, int] = {}  # the first unfinished offset of partitions that have one

    def look(self, now_ns: int) -> Standstill | None:
        """To be called about once a second."""
        running, self._now_ns = self._running, now_ns
        config, look_aheads = running.view.subscription.config, running.window.look_aheads
        first = {
            part: look_ahead.floor + 1
            for part, look_ahead in look_aheads.items()
            if running.lag_of(part)
        }
        self.first = first
        is_pushed = config.push is not None
        present_ns = self._present.look(is_pushed or len(running.consumers) > 0, now_ns)
        self._sent.look(running.window.counts.delivered, now_ns)
        if config.paused or not (is_pushed or len(running.consumers)):
            self._fronts.clear()
            return None
        self._room.look(bool(first) and self._has_room(), now_ns)
        if is_pushed:
            self._look_at_senders(now_ns)
        found = self._fronts.look(first, now_ns, self._why)
        return found and Standstill(max(found.since_ns, present_ns), f"message {found.text}")

    def _has_room(self) -> bool:
        window = self._running.window
        sessions = self._running.consumers.by_name.values()
        return any(each.room() and window.room(each.name) > 0 for each in sessions)

    def _look_at_senders(self, now_ns: int) -> None:
        subscription = self._running.view.subscription
        self._senders = {
            f"push/{sender_number(subscription.subscription_id, row.shard, self._shards)}": row
            for row in self._sender_rows(subscription)
        }
        self._attempts = {name: self._attempts.get(name) or Since() for name in self._senders}
        for name, since in self._attempts.items():
            since.look(self._senders[name].attempts, now_ns)

    def _why(self, front: FirstUnfinished) -> Why | None:
        place = front.partition, front.offset
        found = self._reason(place)
        if found is None:
            return None
        key = self._running.key_at_hand(place)
        named = "" if key is None else f"of the key {key[:KEY_CHARACTERS]!r} "
        return found._replace(text=f"{named}{found.text}")

    def _reason(self, place: Place) -> Why | None:
        running, window = self._running, self._running.window
        look_ahead = window.look_aheads[place[0]]
        if (stuck := window.blocked.stuck.get(place)) is not None:
            waits = running.why_letters_wait
            after = f"is blocked after {stuck.attempts} failed deliveries: {stuck.why}"
            return Why(f"{after}; {waits}" if waits else after)
        if (rest := window.blocked.resting.get(place)) is not None:
            after = f" after {rest.attempts} failed deliveries" if rest.is_counted else ""
            return Why(f"rests{after}: {rest.why}")
        batch = _batch_of(window.batches.values(), place)
        is_pushed = running.view.subscription.config.push is not None
        if batch is not None and batch.sent_ns is not None and not is_pushed:
            return None
        if held := running.why_unsent:
            return Why(f"waits: {held}")
        if is_pushed and not len(running.consumers):
            return Why("waits for a sender, and none is connected")
        if batch is not None:
            if batch.sent_ns is None:
                return Why("is being read")
            name = batch.member.name
            attempts = self._attempts.get(name)
            since_ns = attempts.since_ns if attempts else 0
            return why_not_posted(self._senders.get(name), since_ns, self._now_ns)
        if place[1] > look_ahead.end:
            if running.admission.is_crowded:
                return Why("waits: the subscriptions of this shard have used up their memory")
            if look_ahead.room <= 0:
                return Why("waits: too much after it, or before it, is not finished")
        return self._why_unsent(place)

    def _why_unsent(self, place: Place) -> Why | None:
        """A message that nobody has, and that nothing known keeps from being sent."""
        running, window = self._running, self._running.window
        key = running.key_at_hand(place)
        queue = None if key is None else window.queue_of(key)
        if queue is not None:
            if queue.state is QueueState.UNMATCHED:
                return Why("waits: no consumer that is present accepts its key")
            head = queue.look_ahead.partition, queue.head
            if head != place:
                return self._why_resent(head)
            if queue.owner is not None and not window.room(queue.owner.name):
                return None
        if running.is_sent_out:
            return Why("waits: messages that are sent or blocked have used up their memory")
        if not self._has_room():
            return None
        return Why(UNKNOWN, max(self._sent.since_ns, self._room.since_ns))

    def _why_resent(self, head: Place) -> Why | None:
        """What a message waits for whose key has another one before it: nothing that stands still,
        or one that is a front itself or has one; but no front has what is sent once more."""
        window = self._running.window
        blocked = window.blocked.get(head)
        if blocked is None or blocked.message.look_ahead is window.look_aheads[head[0]]:
            return None
        return Why(
            f"waits for {head[0]}:{head[1]}, which was sent once more and is blocked after"
            f" {blocked.attempts} failed deliveries: {blocked.why}"
        )


def _batch_of(batches: Iterable[Batch], place: Place) -> Batch | None:
    """The batch that a message is in. A front is rarely far from the first of the oldest one, and
    an index of each batch would be kept."""
    partition, offset = place
    for batch in batches:
        for message in batch.messages:
            if message is not None and message[1] == offset and message[0].partition == partition:
                return batch
    return None


def why_not_posted(row: PushSenderRow | None, attempts_since_ns: int, now_ns: int) -> Why | None:
    """What a message that a sender has waits for, by the sender's row. ``attempts_since_ns``: since
    when the number of the sender's attempts has not changed. None: it is POSTed now, or the rate
    does not allow more yet."""
    if row is None or not row.is_present:
        return Why("waits for its sender, which is not there")
    if row.state.mode != Mode.NORMAL:
        return Why(
            f"waits for its receiver, which fails ({Mode(row.state.mode).name.lower()} mode)"
        )
    if row.held_until_ns > now_ns:
        return Why("waits because its receiver asked for a pause")
    if not row.granted:
        return Why("waits for its sender to be granted a rate", attempts_since_ns)
    if row.in_flight or row.next_ns > now_ns:
        return None
    return Why(UNKNOWN, attempts_since_ns)
