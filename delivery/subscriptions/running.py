"""One subscription at its owner: admits what is new, sends what may be sent, hears the outcomes.

    a commit -> ``Subscriptions.committed`` -> a turn: ``serve`` -> batches are taken from the
    window, their records found, written -> nothing is left for a consumer that could be sent
    something -> more is admitted -> ...

What may be sent to whom is decided by the window, what is admitted in ``admission.py``; a session
says whether its consumer can take something. A batch whose records are not at hand is *parked*
until they are loaded.

Reads that must wait are begun here and awaited by the caller (``runtime.py``), which also owns the
tasks, the ledger and the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from delivery.reading.blocks import LOAD_RECORDS, MISSING, NEAR_RECORDS, Blocks, Wanted
from delivery.reading.followed import Key
from delivery.reading.readable import readable_of
from delivery.schemas import Tombstone
from delivery.subscriptions.admission import RecordAdmission
from delivery.subscriptions.budget import Budgets, Share
from delivery.subscriptions.consumers import Consumers, Session
from delivery.subscriptions.handing import Sent
from delivery.subscriptions.journaled import JournaledProgress, TrackedProgress
from delivery.subscriptions.requests import Acknowledge, MessageRef, Nack
from delivery.subscriptions.schemas import Acknowledged, RefusedMessage
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.messages import Batch, Outcome, Place
from delivery.subscriptions.window.windows import policy_of
from ledger.delivery.progress import SubscriptionProgress
from ledger.delivery.subscriptions import Subscription, SubscriptionView

WRITE_BYTES = 64 << 10  # of a batch, unless it is POSTed as one; a larger record is alone
WRITE_COST_BYTES = 4 << 10
MESSAGE_BYTES = 100  # of a message without its data
ADMITTED_COST_BYTES = 40  # of a message: it takes as long as encoding this
HELD_NS = 1_000_000_000  # after a read that failed
REFUSED_NAMED = 100


class OwnerTools(NamedTuple):
    """What an owner gives to each of its subscriptions. ``head`` gives a partition's last committed
    offset, ``knows_growth`` says whether a topic has not grown since their views were read; a turn
    follows ``wake``."""

    blocks: Blocks
    budgets: Budgets
    progress: JournaledProgress
    head: Callable[[Key], int | None]
    knows_growth: Callable[[int], bool]
    now_ns: Callable[[], int]
    wake: Callable[[RunningSubscription], None]
    wants_senders: Callable[[Subscription], bool]


class RunningSubscription:
    """A subscription of this shard, of which ``known`` is finished."""

    def __init__(
        self,
        view: SubscriptionView,
        window: SubscriptionWindow,
        known: SubscriptionProgress,
        tools: OwnerTools,
    ) -> None:
        self.view = view
        self.window = window
        self._tools = tools
        self.consumers = Consumers(
            view, window, tools.budgets.members, tools.now_ns, partial(tools.wake, self)
        )
        self.why_letters_unsent = ""  # why dead letters could not be stored, if so
        self.tracked = self._track(window, known)
        self.held = ""  # why nothing is sent, if so
        self.held_until_ns = 0
        self.unserved = ""  # why partitions that were added are not delivered, if so
        self.sender_held = ""  # why its own senders send nothing, if so: of a push subscription
        self.unreadable = ""  # why the last records could not be read, until some are
        self._parked: dict[Session, None] = {}  # with a batch that waits for records
        self.is_loading = False  # records are being loaded that may be sent then
        self.is_sent_out = False  # the budget for what is sent or blocked is used up
        self._blocks = tools.blocks
        self.share = Share(tools.budgets, view.subscription.subscription_id, window)
        self._now_ns = tools.now_ns
        self.admission = RecordAdmission(
            view, window, tools.blocks, self.share, tools.head, tools.knows_growth
        )

    def follow(self, view: SubscriptionView) -> None:
        """Takes settings that may have changed, and partitions that were added, whose look-aheads
        are open already."""
        self.view = view
        self.consumers.follow(view)
        self.window.set_policy(policy_of(view.subscription.config))
        self.admission.follow(view, self.window)

    def restart(
        self,
        view: SubscriptionView,
        window: SubscriptionWindow,
        known: SubscriptionProgress | None = None,
    ) -> None:
        """Goes on with another window: what consumers have is not theirs any more. With what is
        ``known`` to be finished, it is of another generation."""
        if known is None:
            self._tools.progress.exchange(self.tracked, window)
        else:
            self.tracked = self._track(window, known)
        window.counts = self.window.counts
        self.window = self.share.window = window
        self.consumers.move_to(window, view)
        self.follow(view)

    def _track(self, window: SubscriptionWindow, known: SubscriptionProgress) -> TrackedProgress:
        return self._tools.progress.track(self.view.subscription.subscription_id, known, window)

    # Work

    @property
    def lag(self) -> int:
        """Records of the topic that are not finished."""
        return sum(self.lag_of(partition) for partition in self.window.look_aheads)

    def lag_of(self, partition: int) -> int:
        """Records of a partition that are not finished."""
        return self.admission.unseen(partition) + self.window.look_aheads[partition].unfinished

    @property
    def why_held(self) -> str:
        """Why nothing is sent; otherwise empty."""
        window = self.window
        why = self.why_unsent or self.unserved
        if why or not self.why_letters_wait or window.drainable:
            return why
        is_all_seen = not any(map(self.admission.unseen, window.look_aheads))
        return self.why_letters_wait if is_all_seen else ""

    @property
    def why_unsent(self) -> str:
        """Why no message can be sent now; otherwise empty."""
        return self.held or self.sender_held or self.unreadable or self.window.blocked.why_held

    @property
    def why_letters_wait(self) -> str:
        """Why dead letters cannot be stored now, while other keys may go on; otherwise empty."""
        return self.why_letters_unsent if self.window.dead_letters.waiting else ""

    @property
    def wants_senders(self) -> bool:
        """Whether more senders would help, if it is pushed."""
        return self._tools.wants_senders(self.view.subscription)

    def serve(self, budget_bytes: int, wanted: list[Wanted]) -> tuple[int, bool]:
        """Sends what may be sent, within a budget; returns what it cost, and whether more is left.
        ``wanted`` gets what must be loaded before the rest can be sent."""
        config = self.view.subscription.config
        if config.paused:
            return 0, False
        if self.held and self._now_ns() < self.held_until_ns:
            return 0, False
        self.held = ""
        if not config.reliable and not len(self.consumers):
            self.admission.pass_unheard()
            return 0, False
        cost = 0
        while cost < budget_bytes:
            settled = self.window.settle()
            cost += settled * ADMITTED_COST_BYTES
            spent, is_hungry = self._send_round(wanted)
            if not config.reliable:
                is_hungry = True  # what nobody can take is dropped, not kept
            cost += spent
            if spent or settled:
                continue
            if not is_hungry and self.window.is_reliable:
                return cost, False
            admitted = self.admission.admit(len(self.consumers), wanted)
            if not admitted:
                return cost, False
            cost += admitted * ADMITTED_COST_BYTES
        return cost, True

    def _send_round(self, wanted: list[Wanted]) -> tuple[int, bool]:
        """Sends each session that there is something for a batch; returns what it cost, and whether
        one that does not wait for records could be sent more than there is."""
        cost = 0
        window, consumers = self.window, self.consumers
        for session in list(self._parked):
            if session.parked is None:  # it was given back meanwhile
                del self._parked[session]
            else:
                cost += self._send_next(session, wanted)
        for name in window.takers():
            cost += self._send_next(consumers.by_name[name], wanted)
        in_turn = consumers.in_turn()
        for session in in_turn:
            if not window.has_loose:
                break
            cost += self._send_next(session, wanted)
        self.is_sent_out = self.share.is_sent_out(each.name for each in in_turn)
        if cost or window.is_full or self.is_sent_out:
            return cost, False
        return 0, any(
            each.parked is None
            and consumers.room(each)
            and min(window.room(each.name), self.share.left_to_send(each.name)) > 0
            for each in in_turn
        )

    def _send_next(self, session: Session, wanted: list[Wanted]) -> int:
        """Sends a session its next batch, if there is one and it has room."""
        room = self.consumers.room(session)
        if not room:
            return 0
        if session.is_sender:  # what it can POST together
            room = max(room, self.window.policy.run_max)
        batch = session.parked
        if batch is None:
            room = min(room, self.share.left_to_send(session.name))
            batch = self.window.take(session.name, room, self._now_ns()) if room > 0 else None
            if batch is None:
                return 0
            self.share.note()
        return self._send(session, batch, wanted)

    def _send(self, session: Session, batch: Batch, wanted: list[Wanted]) -> int:
        """Sends as much of a batch as can be found; gives the rest back. Returns what it cost."""
        sent: list[Sent] = []
        gone: list[Place] = []
        back: list[Place] = []
        size, size_max = 0, WRITE_BYTES
        push = self.view.subscription.config.push
        if push is not None and push.format == "batch":
            size_max = max(size_max, push.batch_bytes_max)
        held, block = None, None  # the last message's
        for message in batch.messages:
            if message is None:
                continue
            if back or size >= size_max:
                back.append(message.place)
                continue
            look_ahead, offset, _, attempts = message
            if block is None or look_ahead is not held or not block.low <= offset < block.end:
                held = look_ahead
                block = self._blocks.block(self._key(look_ahead.partition), offset)
            if block is None:
                if not sent and not gone:
                    session.parked = batch
                    self._parked[session] = None
                    # With order per key it was loaded before, and is long ago.
                    is_near = self.view.subscription.config.mode_facts.is_keyed
                    records = NEAR_RECORDS if is_near else LOAD_RECORDS
                    wanted.append(Wanted(self._key(look_ahead.partition), offset, records))
                    return 0
                back.append(message.place)
                continue
            if not block.records:
                gone.append(message.place)
                continue
            at = offset - block.low
            record = block.records[at]
            sent.append((look_ahead.partition, attempts + 1, (offset, block.times[at], record)))
            size += len(record.data) + len(record.key or "") + MESSAGE_BYTES
            if record.meta or record.tag or record.node:
                size += len(record.meta or "") + len(record.tag or "") + len(record.node or "")
        session.parked = None
        if back:
            self.window.give_back(batch.epoch, back)
        if gone:
            self.window.missing(batch.epoch, gone)
        if not sent:
            return WRITE_COST_BYTES
        self.unreadable = ""
        self.consumers.write(session, batch, sent)
        self.window.sent(batch.epoch, session.written_ns)
        return size + WRITE_COST_BYTES

    def key_at_hand(self, place: Place) -> str | None:
        """The key of a message whose record is in memory; None: it has none, or is elsewhere."""
        partition, offset = place
        item = self._blocks.find(self._key(partition), offset) if offset else None
        if item is None or item is MISSING:
            return None
        return self.view.subscription.config.key_of(item[2])

    def _key(self, partition: int) -> Key:
        return self.view.topic.topic_id, partition

    def hold(self, why: str) -> None:
        """Sends nothing for a while."""
        self.held = self.unreadable = why
        self.held_until_ns = self._now_ns() + HELD_NS

    def enter(self) -> None:
        """Passes over what retention has removed so far, also where the rings still hold it: a
        former owner may have given it up, and have sent what follows it."""
        for partition, (_, state) in enumerate(self.view.partitions):
            floor = self.window.look_aheads[partition].floor
            if floor + 1 < state.earliest_seq:
                _, tombstone = readable_of((state, [])).enter(floor)
                self.evicted(partition, state.earliest_seq, tombstone)

    def evicted(self, partition: int, earliest_seq: int, tombstone: Tombstone | None) -> None:
        """The first record that can be read is this. What is told of those before it is told once,
        to one consumer and in the state."""
        look_ahead = self.window.look_aheads[partition]
        self.window.evict(partition, earliest_seq)
        self.admission.pass_to(partition, earliest_seq)
        if tombstone is None or tombstone.gap_to < look_ahead.floor:
            return
        self.consumers.gaps.add(partition, tombstone)

    def missing(self, partition: int, first: int, following: int) -> None:
        """No record can be read from an offset to before another one. Messages of it that were
        admitted are finished when they would be sent."""
        if first <= self.window.look_aheads[partition].end + 1:
            self.admission.pass_to(partition, following)

    # Outcomes

    def acknowledge(self, asked: Acknowledge) -> Acknowledged:
        """Finishes messages."""
        self.consumers.heard(asked.consumer)
        window, name, now_ns = self.window, asked.consumer, self._now_ns()
        return self._acknowledged(
            [(epoch, window.ack(name, epoch, now_ns, places))
             for epoch, places in _by_epoch(asked.messages)]
            + [(each.epoch, window.ack(name, each.epoch, now_ns, but=each.but))
               for each in asked.batches]
        )  # fmt: skip

    def nack(self, asked: Nack) -> Acknowledged:
        """Deliveries failed: the messages rest and are sent again, or the policy deals with
        them."""
        self.consumers.heard(asked.consumer)
        window, name, now_ns = self.window, asked.consumer, self._now_ns()
        delay_ns = asked.delay_ms * 1_000_000
        why = self.share.kept_reason(asked.reason) or "refused by the consumer"
        rest = (delay_ns, why, asked.is_counted)
        return self._acknowledged(
            [(epoch, window.nack(name, epoch, now_ns, places, (), *rest))
             for epoch, places in _by_epoch(asked.messages)]
            + [(each.epoch, window.nack(name, each.epoch, now_ns, None, each.but, *rest))
               for each in asked.batches]
        )  # fmt: skip

    def _acknowledged(self, outcomes: Iterable[tuple[int, Outcome]]) -> Acknowledged:
        accepted = refused = 0
        named: list[RefusedMessage] = []
        for epoch, outcome in outcomes:
            accepted += outcome.accepted
            refused += outcome.refused
            for place, reason in outcome.refusals[: REFUSED_NAMED - len(named)]:
                partition, seq = place or (None, None)
                named.append(RefusedMessage(partition, seq, epoch, reason))
        self.window.counts.refused += refused
        self.admission.acknowledged(accepted)
        return Acknowledged(accepted, refused, named, self.window.epoch)

    # Time

    def tick(self) -> bool:
        """To be called regularly; returns whether there may be something to send."""
        now_ns = self._now_ns()
        self.share.note()
        is_over = bool(self.held) and now_ns >= self.held_until_ns
        is_changed = self.admission.tick() or self.is_sent_out or is_over
        is_changed = self.consumers.tick(now_ns, may_end_polls=not self.is_loading) or is_changed
        due_ns = self.window.next_due_ns()
        if due_ns is not None and due_ns <= now_ns:
            for name in self.window.tick(now_ns):
                self.consumers.gone(name)
            is_changed = True
        return is_changed


def _by_epoch(messages: Iterable[MessageRef]) -> list[tuple[int, list[tuple[int, int]]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for partition, seq, epoch in messages:
        found.setdefault(epoch, []).append((partition, seq))
    return list(found.items())
