"""The senders of a shard: begins, changes and ends them as the settings say.

    settings change -> ``look`` reads what has changed -> senders begin, follow, or end
    the daemon ends -> ``close``: nothing new is sent -> ``ended``: what is under way is done

Sender ``n`` of subscription ``i`` runs at shard ``(i + n) mod shards``. Sender 0 is at the owner of
the subscription, which also tells the balancer what is to be shared (the offer).

Bounds: a subscription has one sender in a shard at most; each has QUEUE_BYTES (sender.py) and one
write of its owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from delivery.changes import ChangesFound, FollowedChanges
from delivery.ledger_thread import LedgerThread
from delivery.push.attempts import AttemptHistories
from delivery.push.events import EventSource
from delivery.push.exchange import exchange
from delivery.push.posts.addresses import AllowList
from delivery.push.posts.answers import AnswerOutcome
from delivery.push.rates.limiter import BUSY
from delivery.push.secrets import Hiding, PushSecrets, SecretsFile, SecretsFileError, missing
from delivery.push.sender import PushSender, SenderJob, SenderTools
from delivery.subscriptions.requests import (
    ListAttempts,
    NoteAttempts,
    OwnerRefused,
    SenderRequest,
    TryPush,
)
from delivery.subscriptions.schemas import PushExchange
from delivery.tasks import Tasks
from delivery.tokens import NoTokens, TokensInForce
from ledger.delivery import push_rates, subscriptions
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.subscriptions import Subscription
from ledger.log import backup
from ledger.tx import ReadTx
from ledger.types import Topic
from shards.boards.pushboard import Mode, PushBoard, PushSenderRow, SenderWords, sender_number
from shards.boards.pushrules import PushRules
from shards.segment import Segment

log = logging.getLogger("headgate.push")

LACKS_NS = 5_000_000_000  # between two looks for secrets that were not there
DRAIN_S = 3.0  # at a stop, for POSTs that are under way
LEFT_S = 0.02  # between two looks at whether senders elsewhere have left


class SenderSettings(NamedTuple):
    """What the sender of a subscription follows."""

    subscription: Subscription
    topic: Topic
    learned: dict[int, LearnedRate]  # by the number of the sender
    history: str


class PushSenders:
    """The senders of one shard. ``version`` changes with subscriptions."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        ledger: LedgerThread,
        version: Callable[[], int],
        secrets: SecretsFile,
        tools: SenderTools,
        tokens: TokensInForce | None = None,
    ) -> None:
        self._tokens = tokens or NoTokens()
        self._tokens_seen = self._tokens.version
        self._segment = segment
        self._shard = shard
        self._shards = segment.layout.shards
        self._ledger = ledger
        self._secrets = secrets
        self._tools = tools
        self._board = PushBoard(segment)
        self._rules = PushRules(segment)
        self._rules_seen = 0
        self._senders: dict[int, PushSender] = {}
        self._attempts = AttemptHistories()  # of the subscriptions of this shard
        self._ending: set[int] = set()
        # Why subscriptions, by id, are not sent: their owner tells it.
        self.held_pushed: dict[int, str] = {}
        self._lacking: set[int] = set()  # have senders that lack secrets, or wait for a token
        self._lacks_due_ns = 0
        self._tasks = Tasks(tools.failed)
        self._changes = FollowedChanges(
            "push subscriptions", version, self._read, self._take, self._tasks
        )
        self._closed = False
        self._pressure = (False, False)

    def __len__(self) -> int:
        return len(self._senders)

    @property
    def heard(self) -> int:
        """The number of the last change that is known here."""
        return self._changes.heard

    @property
    def allow(self) -> AllowList:
        """Whom push may call; it follows reloads."""
        return self._tools.client.allow

    def held(self, subscription_id: int) -> str:
        """Why the sender of a subscription sends nothing; empty if it may send."""
        sender = self._senders.get(subscription_id)
        return "" if sender is None else sender.held

    def wants_more(self, subscription: Subscription) -> bool:
        """Whether more senders would help a subscription of this shard."""
        return wants_more(self.rows(subscription), self._tools.now_ns())

    def rows(self, subscription: Subscription) -> list[PushSenderRow]:
        """What the senders of a subscription of this shard do, also those that have left."""
        return self._board.senders(subscription.slot, subscription.subscription_id)

    def set_pressure(self, *, is_coalescing: bool, is_deferring: bool) -> None:
        """The daemon has too much to do, or not any more."""
        self._pressure = is_coalescing, is_deferring
        for sender in self._senders.values():
            sender.set_pressure(*self._pressure)

    def look(self) -> None:
        """To be called regularly: notices changes of settings, and what time brings."""
        if self._closed:
            return
        number = self._rules.number
        if number != self._rules_seen and (lists := self._rules.read(number)) is not None:
            self._rules_seen = number
            self._tools.client.set_rules(*lists)
        if self._lacking and self._tools.now_ns() >= self._lacks_due_ns:
            self._lacks_due_ns = self._tools.now_ns() + LACKS_NS
            self._changes.stale |= self._lacking
        if self._tokens.version != self._tokens_seen:
            self._tokens_seen = self._tokens.version
            self._changes.stale |= {
                subscription_id
                for subscription_id, sender in self._senders.items()
                if self._tokens.why_gone(sender.job.push.token) != sender.job.barred
            }
        self._changes.look()
        for sender in self._senders.values():
            if sender.number == 0:
                self._offer(sender.job.subscription, is_pushed=True)
            sender.look()

    def topic_changed(self, topic: Topic) -> None:
        """A topic was deleted, and its subscriptions with it; or it has other settings."""
        self._changes.stale.update(
            subscription_id
            for subscription_id, sender in self._senders.items()
            if sender.job.source.topic_id == topic.topic_id
        )

    async def asked(self, subscription: Subscription, request: SenderRequest) -> Struct | None:
        """Answers what the owner of a subscription, this shard, is asked about its push. Raises
        OwnerRefused."""
        match request:
            case TryPush():
                return await self._try(request)
            case NoteAttempts():
                self._attempts.note(request.subscription_id, request.attempts)
                return None
            case ListAttempts():
                return self._attempts.listed(subscription, request)

    def forget(self, subscription_id: int) -> None:
        """A subscription of this shard was deleted."""
        self._attempts.forget(subscription_id)

    async def _try(self, asked: TryPush) -> PushExchange:
        """Sends a receiver a test record, which is in no topic."""
        for _ in range(3):  # the settings may be newer than a question that is under way
            sender = self._senders.get(asked.subscription_id)
            if sender is not None and not self._closed:
                return await self._test(sender, asked)
            await self._changes.asked()
        raise OwnerRefused(
            409, "not_pushed", "the subscription has no sender: it is not pushed, or its sender is"
            " just beginning",
        )  # fmt: skip

    async def _test(self, sender: PushSender, asked: TryPush) -> PushExchange:
        told = await exchange(sender, self._tools, asked)
        job = sender.job  # as of now
        if told.outcome == AnswerOutcome.SUCCESS and told.endpoint == job.push.endpoint:
            place = job.subscription.slot, job.subscription.subscription_id
            self._board.resume(*place, self._tools.now_ns())
        return told

    def close(self) -> None:
        """Sends nothing new: the process will end."""
        if self._closed:
            return
        self._closed = True
        self._changes.close()
        for sender in self._senders.values():
            self._tasks.start(sender.close(leaves=False))

    async def ended(self) -> None:
        """Returns after ``close``, when what was under way is done, or has taken too long. Notes
        what senders at other shards have under way, if this shard owns the subscription."""
        self.close()
        until_ns = self._tools.now_ns() + round(DRAIN_S * 1e9)
        await self._tasks.wait(DRAIN_S)
        self._tasks.cancel()
        await self._tools.client.close()
        while self._has_others() and self._tools.now_ns() < until_ns:  # noqa: ASYNC110 - of others
            await asyncio.sleep(LEFT_S)

    def _has_others(self) -> bool:
        """Whether subscriptions of this shard have senders at others that have not left."""
        return any(
            row.is_present and row.shard != self._shard
            for sender in self._senders.values()
            if sender.number == 0
            for row in self._board.senders(
                sender.job.subscription.slot, sender.job.subscription.subscription_id
            )
        )

    # Settings

    async def _read(self, heard: int, stale: set[int]) -> ChangesFound[SenderSettings]:
        return await self._ledger.read(_settings, heard, stale)

    async def _take(self, settings: SenderSettings) -> None:
        subscription, topic, learned, history = settings
        number = sender_number(subscription.subscription_id, self._shard, self._shards)
        push = subscription.config.push
        is_pushed = push is not None and subscription.deleted_ms is None
        if number == 0:
            self._offer(subscription, is_pushed=is_pushed)
        sender = self._senders.get(subscription.subscription_id)
        if not is_pushed or push is None or number >= min(push.senders, self._shards):
            self._note_lacks(subscription, number, "")
            if sender is not None:
                self._end(sender)
            return
        source = EventSource(topic.name, topic.topic_id, topic.created_ms, history)
        secrets, problem = await self._secrets_of(subscription)
        lacks = problem or missing(push, secrets)
        barred = self._tokens.why_gone(push.token)
        self._note_lacks(subscription, number, barred or (lacks and f"secret_missing: {lacks}"))
        job = SenderJob(subscription, source, secrets, barred or lacks, Hiding(secrets), barred)
        if sender is not None and not sender.can_follow(job):
            self._end(sender)
        elif sender is not None:
            sender.follow(job)
        elif not self._closed and subscription.subscription_id not in self._ending:
            words = SenderWords(self._segment, self._shard, subscription.slot)
            part = self._part_of_others(subscription)
            before = learned.get(number)
            sender = PushSender(job, number, words, self._tools, part, before)
            sender.set_pressure(*self._pressure)
            self._senders[subscription.subscription_id] = sender
            sender.start()

    def _offer(self, subscription: Subscription, *, is_pushed: bool) -> None:
        push, subscription_id = subscription.config.push, subscription.subscription_id
        if is_pushed and push is not None:
            senders = min(push.senders, self._shards)
            self._board.offer(subscription.slot, subscription_id, push.rate_max, senders)
        else:
            self._board.withdraw(subscription.slot, subscription_id)

    def _part_of_others(self, subscription: Subscription) -> float | None:
        """How much of what they may the senders at other shards send; None: there are none."""
        others = [
            row
            for row in self._board.senders(subscription.slot, subscription.subscription_id)
            if row.is_present and row.shard != self._shard
        ]
        granted = sum(row.granted for row in others)
        if granted <= 0:
            return None
        return sum(min(row.state.rate, row.granted) for row in others) / granted

    async def _secrets_of(self, subscription: Subscription) -> tuple[PushSecrets | None, str]:
        """The secrets, and why they cannot be read, if so."""
        push = subscription.config.push
        if push is None or push.secrets_id is None:
            return None, ""
        try:
            return await asyncio.to_thread(self._secrets.load, push.secrets_id), ""
        except SecretsFileError as error:
            log.error("the secrets of subscription %s cannot be read: %s", subscription.name, error)
            return None, f"its secrets cannot be read: {error}"

    def _note_lacks(self, subscription: Subscription, number: int, lacks: str) -> None:
        subscription_id = subscription.subscription_id
        self.held_pushed.pop(subscription_id, None)
        self._lacking.discard(subscription_id)
        if lacks:
            self._lacking.add(subscription_id)
            if number == 0:
                self.held_pushed[subscription_id] = lacks

    def _end(self, sender: PushSender) -> None:
        """Ends a sender; after that another one may begin, if one is wanted then."""
        subscription_id = sender.job.subscription.subscription_id
        del self._senders[subscription_id]
        self._ending.add(subscription_id)
        self._tasks.start(self._close(sender, subscription_id))

    async def _close(self, sender: PushSender, subscription_id: int) -> None:
        await sender.close(leaves=True)
        self._ending.discard(subscription_id)
        self._changes.stale.add(subscription_id)


def _settings(tx: ReadTx, after: int, also: set[int]) -> ChangesFound[SenderSettings]:
    change, found = subscriptions.changed(tx, after, also)
    history = backup.event_history(tx)
    return ChangesFound(
        change,
        [
            SenderSettings(*each, push_rates.of(tx, each[0].subscription_id), history)
            for each in found
        ],
    )


def wants_more(rows: Iterable[PushSenderRow], now_ns: int) -> bool:
    """Whether more senders would help a subscription: what its drainable lag depends on.

    They would not while the receiver fails or asks for a pause, or takes no more, or if all that
    the settings allow is used. Then its lag does not ask for more of anything. They would if
    senders have less under way than they may send, because each has as many connections as it may
    use and waits for answers. What a sender uses is known after its first update interval, and that
    its receiver answers when it took something; until then nothing asks."""
    return any(
        row.is_present
        and row.state.mode == Mode.NORMAL
        and row.held_until_ns <= now_ns
        and row.records > 0
        and 0 <= row.use * row.granted < BUSY * row.state.rate
        for row in rows
    )
