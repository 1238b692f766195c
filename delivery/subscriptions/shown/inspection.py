"""What the owner of a subscription tells of it: its state, its figures, and what a key waits for.

Nothing here changes anything, or takes longer than the consumers and the blocked messages that it
shows; counts of what waits are kept by the window.

The *lag* is the records that are not finished. The *drainable* lag is those of them that consumers
could work on simultaneously, so it says how many consumers are worth having. It leaves out

* all but one message of each key: a key with a million messages keeps one consumer busy;
* messages that rest after a failed delivery or are stuck, with their keys: nobody gets them now;
* what no consumer that is present accepts: another one of the same kind would not either. Without
  any consumer everything counts, since the first one is worth having;
* everything, while nothing can be delivered: the store or the dispatch is held, or it is paused.

What is with consumers counts: they are needed for it. A window counts what it was told of.

Records that it was not told of yet, since the consumers have enough, count as what it was told of,
and at most as much: so the signal doubles until it is known how many keys there are. (An autoscaler
rarely does more than double either.)
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from msgspec import Struct

from delivery.standstill import Standstill
from delivery.subscriptions.consumers import Session
from delivery.subscriptions.pinned import NotServed
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.schemas import (
    BlockedKey,
    ConsumerState,
    KeyState,
    PartitionProgress,
    SubscriptionState,
)
from delivery.subscriptions.window.failures import Blocked
from delivery.subscriptions.window.messages import KeyQueue, QueueState
from ledger.delivery.subscriptions import SubscriptionView
from shards.boards.figures import SubscriptionCounts, values_of
from shards.boards.rowboard import RowPhase, SubscriptionRow

BLOCKED_SHOWN = 100
# Of blocked keys in one answer, and one key more: a key may be as long as a record.
KEY_CHARACTERS_SHOWN = 256 << 10

WallMs = Callable[[int], int]
"""The wall clock at a monotonic time."""


class OwnerClocks(Struct, frozen=True):
    """Monotonic nanoseconds, and milliseconds since the epoch."""

    now_ns: Callable[[], int]
    wall_ms: Callable[[], int]

    def wall_at(self, at_ns: int) -> int:
        """The wall clock at a monotonic time, in ms."""
        return self.wall_ms() - (self.now_ns() - at_ns) // 1_000_000


def state_of(
    running: RunningSubscription, shard: int, now_ns: int, wall_ms: WallMs
) -> SubscriptionState:
    """The whole state of a subscription."""
    view = running.view
    shares = running.window.members.shares()
    return SubscriptionState(
        subscription=view.subscription.name,
        topic=view.topic.name,
        owner_shard=shard,
        **_numbers(running, now_ns),
        held=running.why_held or _why_crowded(running),
        blocked_letters=running.why_letters_wait,
        partitions=progress_of(running),
        consumers=[
            _consumer(running, session, shares.get(name, 0.0))
            for name, session in running.consumers.by_name.items()
        ],
        blocked=blocked(running, BLOCKED_SHOWN, wall_ms),
        gaps=running.consumers.gaps.known,
    )


def _why_crowded(running: RunningSubscription) -> str:
    """Why nothing more is read ahead, if so: with the key that fills the look-ahead."""
    window = running.window
    if running.is_sent_out:
        return (
            "nothing more is sent: the subscriptions of this shard have used up the memory for"
            f" messages that are sent or blocked, and {window.held_count} of them are here;"
            " acknowledge, retry or skip some"
        )
    if not running.admission.is_crowded:
        return ""
    longest = running.window.longest_key()
    waiting = running.window.unfinished - running.window.in_flight
    found = "" if longest is None else f", {longest[1]} of them of the key {longest[0][:100]!r}"
    return (
        f"nothing more is read ahead: the subscriptions of this shard have used up their memory,"
        f" and {waiting} messages wait here{found}"
    )


def progress_of(running: RunningSubscription) -> list[PartitionProgress]:
    """How far it has got in each partition."""
    head = running.admission.head
    return [
        PartitionProgress(part, look_ahead.floor, head(part), running.lag_of(part))
        for part, look_ahead in sorted(running.window.look_aheads.items())
    ]


def row_of(
    running: RunningSubscription, stands: Standstill | None, oldest_ms: int, now_ns: int
) -> SubscriptionRow:
    """What any shard can report of it; ``stands``: what it stands still at; ``oldest_ms``: how
    long ago its oldest unfinished record was stored."""
    view, held = running.view, running.why_held
    phase, letters = RowPhase.RUNNING, running.why_letters_wait
    if view.subscription.config.paused:
        phase = RowPhase.PAUSED
    elif held:
        phase = RowPhase.HELD
    return SubscriptionRow(
        topic=view.topic.name,
        subscription=view.subscription.name,
        phase=phase,
        reason=held or (letters and f"blocked letters: {letters}"),
        stands="" if stands is None else stands.text,
        stands_since_ns=0 if stands is None else stands.since_ns,
        oldest_unfinished_ms=oldest_ms,
        is_pushed=view.subscription.config.push is not None,
        consumers=len(running.consumers),
        consumer_max=running.consumers.most_at_a_time(running.window.policy.member_max),
        **_numbers(running, now_ns),
    )


def _numbers(running: RunningSubscription, now_ns: int) -> dict[str, int]:
    """What both show: all fields of SubscriptionCounts."""
    window = running.window
    sent_ns = window.oldest_sent_ns()
    return {
        "lag": running.lag,
        "drainable_lag": drainable_lag(running),
        "in_flight": window.in_flight,
        "waiting": max(0, window.unfinished - window.in_flight),  # what is resent is not unfinished
        "blocked_keys": len(window.blocked.stuck),
        "oldest_unacknowledged_ms": 0 if sent_ns is None else (now_ns - sent_ns) // 1_000_000,
        **window.counts.counted(),
    }


def drainable_lag(running: RunningSubscription) -> int:
    """Records that more consumers, or more senders, would help with."""
    window, config = running.window, running.view.subscription.config
    if config.push is not None and (window.is_failing or not running.wants_senders):
        return 0
    unseen = 0
    if config.reliable:  # what nobody tracks does not wait for anybody
        unseen = sum(
            min(running.admission.unseen(partition), look_ahead.room)
            for partition, look_ahead in window.look_aheads.items()
        )
    is_held = bool(running.why_unsent) or config.paused
    found = drainable_part(window.drainable, window.unfinished, unseen, held=is_held)
    return min(1, found) if config.mode_facts.one_consumer else found


def drainable_part(drainable: int, unfinished: int, unseen: int, *, held: bool) -> int:
    """How many messages consumers could work on simultaneously.

    A window knows of ``unfinished`` messages and counts ``drainable`` ones; it could take in
    ``unseen`` more. ``held``: nothing is delivered now.
    """
    if held:
        return 0
    if not unseen:
        return drainable
    if not drainable:
        return 1  # it takes one consumer to find out
    return drainable + min(drainable, unseen * drainable // max(1, unfinished))


def consumers_wanted(drainable: int, consumers: int, consumer_max: int) -> int:
    """How much more consumers would help, 0 to 100: the part of the drainable lag that those which
    are present cannot hold, each at most ``consumer_max`` messages. Rounded up: 0 means none."""
    more = drainable - consumers * consumer_max
    return 0 if more <= 0 else -(-100 * more // drainable)


def _consumer(running: RunningSubscription, session: Session, share: float) -> ConsumerState:
    member = running.window.members.by_name[session.name]
    return ConsumerState(
        consumer=session.name,
        kind=session.kind,
        filters=list(session.filters),
        share=share,
        in_flight=member.in_flight,
        ready=len(member.ready),
        active=running.window.is_active(session.name),
        connected=session.is_connected,
    )


def blocked(running: RunningSubscription, limit: int, wall_ms: WallMs) -> list[BlockedKey]:
    """The messages that nobody gets now: stuck ones first, then those that rest. Fewer than
    ``limit`` if their keys are long."""
    window = running.window
    found: list[BlockedKey] = []
    characters = 0
    for each in islice(window.blocked, limit):
        found.append(shown_blocked(each, wall_ms))
        characters += len(found[-1].key or "")
        if characters > KEY_CHARACTERS_SHOWN:
            break
    return found


def shown_blocked(found: Blocked, wall_ms: WallMs) -> BlockedKey:
    """A blocked message."""
    message = found.message
    queue = message.queue
    return BlockedKey(
        key=None if queue is None else queue.key,
        partition=message.look_ahead.partition,
        seq=message.offset,
        attempts=found.attempts,
        since_ms=wall_ms(found.since_ns),
        until_ms=None if found.due_ns is None else wall_ms(found.due_ns),
        reason=found.why,
        waiting=None if queue is None else queue.waiting - 1,
    )


def key_of(running: RunningSubscription, key: str, wall_ms: WallMs) -> KeyState:
    """What a key waits for. Only what was admitted is known; the rest is idle."""
    window = running.window
    queue = window.queue_of(key)
    if queue is None:
        return KeyState(key, "idle", window.members.owner_of(key))
    place = (queue.look_ahead.partition, queue.head)
    found = window.blocked.get(place)
    sent = _sent(running, queue)
    return KeyState(
        key=key,
        state=queue.state.value,
        owner=window.members.owner_of(key),
        partition=place[0],
        seq=place[1],
        attempts=queue.attempts,
        since_ms=(
            wall_ms(found.since_ns)
            if found is not None
            else wall_ms(sent[1])
            if sent is not None
            else None
        ),
        until_ms=None if found is None or found.due_ns is None else wall_ms(found.due_ns),
        consumer=None if sent is None else sent[0],
        reason=found.why if found is not None else _why(queue, sent),
        waiting=queue.waiting - 1,
    )


def _sent(running: RunningSubscription, queue: KeyQueue) -> tuple[str, int] | None:
    """Who has the head of a queue, and since when."""
    if queue.state is not QueueState.SENT:
        return None
    place = (queue.look_ahead.partition, queue.head)
    for batch in running.window.batches.values():
        if batch.sent_ns is not None and batch.index(place) is not None:
            return batch.member.name, batch.sent_ns
    return None


def _why(queue: KeyQueue, sent: tuple[str, int] | None) -> str:
    if queue.state is QueueState.SENT:
        return (
            "its record is being read"
            if sent is None
            else f"consumer {sent[0]} has not acknowledged it yet"
        )
    if queue.state is QueueState.UNMATCHED:
        return "no consumer that is present accepts the key"
    return "it waits for its consumer to take it"


def unserved_row(found: NotServed) -> SubscriptionRow:
    """What any shard can report of a subscription that cannot be run now."""
    lagging = [each for each in stored_progress(found.view) if each.lag]
    first = f"{lagging[0].partition}:{lagging[0].floor + 1}" if lagging else ""
    return SubscriptionRow(
        topic=found.view.topic.name,
        subscription=found.view.subscription.name,
        phase=RowPhase.HELD,
        reason=found.why,
        stands=f"message {first} waits: {found.why}" if first else "",
        lag=sum(each.lag for each in lagging),
    )


def unserved_state(found: NotServed, shard: int) -> SubscriptionState:
    """Its state: nothing is known but what the ledger has."""
    row = unserved_row(found)
    return SubscriptionState(
        subscription=row.subscription,
        topic=row.topic,
        owner_shard=shard,
        held=row.reason,
        blocked_letters="",
        partitions=stored_progress(found.view),
        consumers=[],
        blocked=[],
        gaps=[],
        **values_of(SubscriptionCounts, row),
    )


def stored_progress(view: SubscriptionView) -> list[PartitionProgress]:
    """How far a subscription has got in each partition, as the ledger has it."""
    return [
        PartitionProgress(state.partition, floor, state.head_seq, max(0, state.head_seq - floor))
        for floor, state in view.partitions
    ]
