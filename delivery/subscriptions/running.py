"""One subscription at its owner: admits what is new, sends what may be sent, hears the outcomes.

    a commit -> ``wake`` -> a turn: ``serve`` -> batches are taken from the window, their records
    found, written -> nothing is left for a consumer that could be sent something -> more is
    admitted -> ...

What may be sent to whom is decided by the window; a session says whether its consumer can take
something. A batch whose records are not at hand is *parked* until they are loaded. Nothing is
admitted that no consumer waits for: the look-ahead grows only while the keys in it are busy.

Reads that must wait are begun here and awaited by the caller (``runtime.py``), which also owns the
tasks, the ledger and the journal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from delivery.filters import filter_of
from delivery.reading.followed import Key
from delivery.reading.readable import readable_of
from delivery.schemas import Tombstone
from delivery.streams.wire import chunk
from delivery.subscriptions.admitting import admit
from delivery.subscriptions.blocks import LOAD_RECORDS, MISSING, NEAR_RECORDS, Blocks, Wanted
from delivery.subscriptions.budget import Budgets, Share
from delivery.subscriptions.consumers import encoding
from delivery.subscriptions.consumers.encoding import Sent
from delivery.subscriptions.consumers.gaps import Gaps
from delivery.subscriptions.consumers.handing import PushedBatch, PushedMessage, hand
from delivery.subscriptions.consumers.presence import Consumers
from delivery.subscriptions.consumers.sessions import Session
from delivery.subscriptions.dead_letters import DeadLetters
from delivery.subscriptions.drainable import drainable_lag
from delivery.subscriptions.journaled import JournaledProgress, TrackedProgress
from delivery.subscriptions.requests import Acknowledge, MessageRef, Nack
from delivery.subscriptions.schemas import Acknowledged, RefusedMessage
from delivery.subscriptions.window.batches import Batch, Outcome, Place
from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.policy import policy_of
from ledger.delivery.progress import SubscriptionProgress
from ledger.delivery.subscriptions import (
    PartitionGrowth,
    Subscription,
    SubscriptionView,
)
from ledger.types import INTEGER_MAX
from shards.boards.rowboard import SubscriptionRow

WRITE_BYTES = 64 << 10  # of a batch, unless it is POSTed as one; a larger record is alone
WRITE_COST_BYTES = 4 << 10
MESSAGE_BYTES = 100  # of a message without its data
ADMITTED_COST_BYTES = 40  # of a message: it takes as long as encoding this
ADMIT_EACH = 128  # messages for each consumer, of ADMIT_CONSUMERS_MAX: 1 ms of admitting
ADMIT_CONSUMERS_MAX = 16
# Of a partition in a row: about what was loaded of it together, which is forgotten soon.
ADMIT_TURN = 2_048
# Unfinished messages after which others are far: about as many as the blocks can hold. While more
# than BUSY_MESSAGES are in flight, no more are admitted than FAR_EACH between two heartbeats, and
# one for each that is acknowledged: there is enough to do, and far ones must be read once more.
FAR_MESSAGES = 16_384
FAR_EACH = 8_192
BUSY_MESSAGES = 1_024
LOADS_EACH = 2  # partitions of which records are loaded simultaneously, to be admitted
MISSES_MAX = 16  # partitions that are looked at while no more can be loaded
HELD_NS = 1_000_000_000  # after a read that failed
REFUSED_NAMED = 100


class OwnerTools(NamedTuple):
    """What an owner gives to each of its subscriptions. ``head`` gives a partition's last committed
    offset, ``letters`` sends what the policy moves away; a turn follows ``wake``."""

    blocks: Blocks
    budgets: Budgets
    progress: JournaledProgress
    head: Callable[[Key], int | None]
    now_ns: Callable[[], int]
    letters: Callable[[RunningSubscription], DeadLetters]
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
        self.gaps = Gaps(view.topic)
        self.consumers = Consumers(
            view, window, self.gaps, tools.budgets.members, tools.now_ns, partial(tools.wake, self)
        )
        self.dead_lettered = 0
        self.refused = 0  # messages that acknowledgments named in vain
        self.letters = tools.letters(self)
        self.tracked = self._track(window, known)
        self.held = ""  # why nothing is sent, if so
        self.held_until_ns = 0
        self.unserved = ""  # why partitions that were added are not delivered, if so
        self.sender_held = ""  # why its own senders send nothing, if so: of a push subscription
        self.unreadable = ""  # why the last records could not be read, until some are
        self._parked: dict[Session, None] = {}  # with a batch that waits for records
        self.is_loading = False  # records are being loaded that may be sent then
        self.is_crowded = False  # the budget for what is read ahead is used up
        self.is_sent_out = False  # and that for what is sent or blocked
        self._blocks = tools.blocks
        self.share = Share(tools.budgets, view.subscription.subscription_id, window)
        self._head = tools.head
        self._now_ns = tools.now_ns
        self.loading: set[int] = set()  # partitions of which records to be admitted are loaded
        self._turn_left = ADMIT_TURN
        self._far_left = FAR_EACH
        self._is_paced = False  # what is far is left for later
        self._unread: OrderedDict[int, None]  # partitions that may have more to admit, in turn
        self._growth: list[tuple[PartitionGrowth, list[int]]]  # with the older ones that lag
        self._filter = filter_of(view.subscription.config.filter)
        self._look_at_all()

    def _look_at_all(self) -> None:
        self._unread = OrderedDict.fromkeys(sorted(self.window.look_aheads))
        self._growth = [(each, [*range(len(each.heads))]) for each in self.view.growth]

    def count_on(self, row: SubscriptionRow) -> None:
        """Goes on from what a former owner counted."""
        counts = self.window.counts
        counts.delivered, counts.acknowledged = row.delivered, row.acknowledged
        counts.redelivered, self.refused = row.redelivered, row.refused
        counts.dropped, counts.skipped = row.dropped, row.skipped
        counts.evicted, counts.filtered = row.evicted, row.filtered
        counts.unmatched, self.dead_lettered = row.unmatched, row.dead_lettered

    def follow(self, view: SubscriptionView) -> None:
        """Takes settings that may have changed, and partitions that were added, whose look-aheads
        are open already."""
        self.view = view
        self.consumers.follow(view)
        self._filter = filter_of(view.subscription.config.filter)
        self.window.set_policy(policy_of(view.subscription.config))
        self._look_at_all()

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
        return self._unseen(partition) + self.window.look_aheads[partition].unfinished

    def _unseen(self, partition: int) -> int:
        """Records that were not admitted yet and that a former process did not finish."""
        look_ahead = self.window.look_aheads[partition]
        return max(0, self.head(partition) - look_ahead.end - look_ahead.finished_ahead)

    @property
    def why_held(self) -> str:
        """Why nothing is sent; otherwise empty."""
        window = self.window
        why = self.held or self.sender_held or self.unreadable or window.why_held or self.unserved
        if why or not self.why_letters_wait or window.drainable:
            return why
        is_all_seen = not any(self._unseen(partition) for partition in window.look_aheads)
        return self.why_letters_wait if is_all_seen else ""

    @property
    def why_letters_wait(self) -> str:
        """Why dead letters cannot be stored now, while other keys may go on; otherwise empty."""
        return self.letters.reason if self.window.dead_letters.waiting else ""

    @property
    def drainable_lag(self) -> int:
        """Records that more consumers, or more senders, would help with."""
        window, config = self.window, self.view.subscription.config
        if config.push is not None and (
            window.is_failing or not self._tools.wants_senders(self.view.subscription)
        ):
            return 0
        unseen = 0
        if config.reliable:  # what nobody tracks does not wait for anybody
            unseen = sum(
                min(self._unseen(each.partition), each.room) for each in window.look_aheads.values()
            )
        why = self.held or self.sender_held or self.unreadable or window.why_held
        is_held = bool(why) or config.paused
        found = drainable_lag(window.drainable, window.unfinished, unseen, held=is_held)
        return min(1, found) if config.mode_facts.one_consumer else found

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
            self._pass_unheard()
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
            admitted = self._admit_for_all(wanted)
            if not admitted:
                return cost, False
            cost += admitted * ADMITTED_COST_BYTES
        return cost, True

    def _pass_unheard(self) -> None:
        """Without a consumer, what is not tracked is for nobody: the next one gets what is new."""
        window = self.window
        for partition in self._unread:
            count = self.head(partition) - window.look_aheads[partition].end
            if count > 0:
                window.pass_over(partition, count)
                window.counts.unmatched += count
        self._unread.clear()

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
        session.written_ns = self._now_ns()
        self.window.sent(batch.epoch, session.written_ns)
        if session.is_sender and session.outlet is not None:
            self.gaps.untold.clear()  # nobody reads them there; they are in the state
            is_resent = self.window.resent.is_open
            told = [
                PushedMessage(part, batch.epoch, attempt, *item, is_resent((part, item[0])))
                for part, attempt, item in sent
            ]
            hand(session.outlet, PushedBatch(told))
        elif session.outlet is not None and session.format is not None:
            gaps = self.gaps.told(session.format)
            session.outlet.write(chunk(gaps + encoding.encoded(session.format, batch.epoch, sent)))
        elif session.poll is not None:
            self.consumers.answer(session, encoding.polled(batch.epoch, sent, self.gaps.take()))
            session.answered = batch.epoch, batch.open
        return size + WRITE_COST_BYTES

    def _admit_for_all(self, wanted: list[Wanted]) -> int:
        """Takes in as much as gives each consumer a batch that is worth a write; returns how many
        records."""
        enough = min(len(self.consumers), ADMIT_CONSUMERS_MAX) * ADMIT_EACH
        total = 0
        while total < enough:
            admitted = self._admit(wanted)
            if not admitted:
                break
            total += admitted
        return total

    def _admit(self, wanted: list[Wanted]) -> int:
        """Takes the next records into the window; returns how many, 0 if none are at hand. One that
        is compared with much counts as several."""
        window = self.window
        config = self.view.subscription.config
        self.share.note()
        self.is_crowded = self.share.left_to_admit() <= 0
        if self.is_crowded:
            return 0
        is_busy = window.in_flight > BUSY_MESSAGES and window.unfinished > FAR_MESSAGES
        self._is_paced = is_busy and config.mode_facts.is_keyed and self._far_left <= 0
        if self._is_paced:
            return 0
        unread, misses = self._unread, 0
        for _ in range(len(unread)):
            partition = next(iter(unread))
            is_loading = len(self.loading) >= LOADS_EACH
            admitted = self._admit_of(partition, wanted)
            self.share.note()
            self._turn_left -= admitted or ADMIT_TURN
            self._far_left -= admitted
            if self._turn_left <= 0:
                self._turn_left = ADMIT_TURN
                if partition in unread:
                    unread.move_to_end(partition)
            if admitted:
                return admitted
            misses += is_loading
            if misses > MISSES_MAX:
                break
        return 0

    def _admit_of(self, partition: int, wanted: list[Wanted]) -> int:
        """As ``_admit``, of one partition."""
        window, key = self.window, self._key(partition)
        look_ahead = window.look_aheads[partition]
        left = self.head(partition) - look_ahead.end
        if left <= 0:
            del self._unread[partition]  # until its head moves
            return 0
        left = min(left, self._admitted_max(partition) - look_ahead.end)
        if partition in self.loading or left <= 0:
            return 0
        if look_ahead.has_finished and look_ahead.finished_next:
            window.pass_over(partition, min(left, look_ahead.finished_next))
            return 1
        count = min(left, look_ahead.room, self.share.left_to_admit())
        if count <= 0:
            return 0
        config = self.view.subscription.config
        mode = config.mode_facts
        goes_in_order = mode.order == "partition" and config.reliable
        if goes_in_order and look_ahead.loose_behind >= ADMIT_TURN:
            return 0  # what is known of it waits, too
        passing = self._filter
        if passing is not None:
            count = min(count, passing.lot)
        elif not mode.is_keyed:
            window.admit_loose(partition, count)
            return count
        is_far = window.unfinished > FAR_MESSAGES
        known = self._blocks.known(key, look_ahead.end + 1, count, is_far=is_far)
        if known.gone:
            self._pass_to(partition, look_ahead.end + 1 + min(left, known.gone))
            return 1
        if known.records:
            return admit(window, self.share, config, passing, partition, known.records)
        if len(self.loading) < LOADS_EACH:
            self.loading.add(partition)
            wanted.append(Wanted(key, look_ahead.end + 1, LOAD_RECORDS))
        return 0

    def _admitted_max(self, partition: int) -> int:
        """Up to which offset a partition may be admitted. What came after partitions were added
        waits for all that came before, since a key may have moved, also to an older partition."""
        look_aheads = self.window.look_aheads
        is_keyed = self.view.subscription.config.mode_facts.is_keyed
        for each in [*self._growth]:
            growth, lagging = each
            while lagging and look_aheads[lagging[-1]].end >= growth.heads[lagging[-1]]:
                lagging.pop()
            if not lagging:
                self._growth.remove(each)
            elif partition >= growth.first_partition:
                return 0
            elif is_keyed:
                return growth.heads[partition]
        return INTEGER_MAX

    def committed(self, partition: int) -> None:
        """The head of a partition has moved."""
        if partition in self.window.look_aheads:
            self._unread[partition] = None

    def key_at_hand(self, place: Place) -> str | None:
        """The key of a message whose record is in memory; None: it has none, or is elsewhere."""
        partition, offset = place
        item = self._blocks.find(self._key(partition), offset) if offset else None
        if item is None or item is MISSING:
            return None
        return self.view.subscription.config.key_of(item[2])

    def _key(self, partition: int) -> Key:
        return self.view.topic.topic_id, partition

    def head(self, partition: int) -> int:
        """The last committed offset of a partition; 0 before it is known."""
        return self._head(self._key(partition)) or 0

    def is_active(self, name: str) -> bool:
        """Whether a consumer may be sent anything; of an exclusive subscription one is."""
        return self.window.is_active(name)

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
        self._pass_to(partition, earliest_seq)
        if tombstone is None or tombstone.gap_to < look_ahead.floor:
            return
        self.gaps.add(partition, tombstone)

    def missing(self, partition: int, first: int, following: int) -> None:
        """No record can be read from an offset to before another one. Messages of it that were
        admitted are finished when they would be sent."""
        if first <= self.window.look_aheads[partition].end + 1:
            self._pass_to(partition, following)

    def _pass_to(self, partition: int, offset: int) -> None:
        """What was not admitted before an offset is gone."""
        count = offset - self.window.look_aheads[partition].end - 1
        if count > 0:
            self.window.counts.evicted += count
            self.window.pass_over(partition, count)

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
        self.refused += refused
        self._far_left = min(FAR_EACH, self._far_left + accepted)
        return Acknowledged(accepted, refused, named, self.window.epoch)

    # Time

    def tick(self) -> bool:
        """To be called regularly; returns whether there may be something to send."""
        now_ns = self._now_ns()
        self._far_left = FAR_EACH
        self.share.note()
        is_crowded = self.is_crowded or self.is_sent_out
        is_changed = (
            is_crowded or self._is_paced or (bool(self.held) and now_ns >= self.held_until_ns)
        )
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
