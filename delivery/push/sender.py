"""One sender of a push subscription: gets messages as a consumer, POSTs them, reports what came.

    connect (as consumer ``push/N`` at the owner) -> messages -> queue -> the limiter lets one go ->
    POST -> delivered: acknowledged
         -> the receiver failed, or asks for a pause: given back, to be sent again after a rest;
            counted if it is the record that makes it fail (``answers.py``)
         -> the record was refused: given back, counted as a failed delivery
         -> gone: given back, and the subscription is paused

What may be POSTed now is the queue's to say (``queue.py``), when the limiter's (``limiter.py``),
what an answer means ``answers.py``'s. Here is what joins them; it runs in callbacks of the loop.

A POST begins only while the prefix is the daemon's, within the grant of the balancer, which is
looked at before each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from delivery.push.attempts import MESSAGE_CHARACTERS_MAX
from delivery.push.events import EventSource, request_of
from delivery.push.posts.answers import (
    AnswerOutcome,
    FailingRecords,
    PushAnswer,
    PushVerdict,
    judge,
)
from delivery.push.posts.client import PushClient
from delivery.push.queue import PushQueue, Unit
from delivery.push.rates.limiter import LearnedRates, Limiter, LimiterSettings
from delivery.push.rates.pacer import NEVER_NS
from delivery.push.reports import Failing, SenderReports
from delivery.push.secrets import Hiding, PushSecrets
from delivery.subscriptions.budget import QueuedBudget
from delivery.subscriptions.handing import Handed, PushedMessage, SenderOpened, SenderOutlet
from delivery.subscriptions.owners import Owners
from delivery.subscriptions.requests import Consume, Leave, OwnerRefused
from delivery.subscriptions.schemas import PushAttempt
from delivery.subscriptions.window.windows import kind_of
from delivery.tasks import Tasks
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.errors import LedgerError
from shards.boards.endpointholds import EndpointHolds
from shards.boards.pushboard import Mode, SenderWords

log = logging.getLogger("headgate.push")

CONNECT_AGAIN_S = 0.5
GONE_NS = 5_000_000_000
FOREIGN_NS = 100_000_000  # until it is looked at again whether the prefix is ours
# A sender that has more takes nothing; a write brings as many more. Of batches, it has the next one
# while one is under way.
QUEUE_MESSAGES = 256
QUEUE_BYTES = 256 << 10
QUEUE_BATCHES = 2
DEFERRING_PART = 0.5  # of the rate, while the daemon defers
# What all senders of a shard may have queued; each may have one write more. A message takes
# QUEUED_MESSAGE_BYTES in addition to its data, as measured.
QUEUED_BYTES_MAX = 32 << 20
QUEUED_MESSAGE_BYTES = 1_200


class SenderTools(NamedTuple):
    """What all senders of a shard share."""

    owners: Owners
    client: PushClient
    limits: LimiterSettings
    learned: LearnedRates
    queued: QueuedBudget
    holds: EndpointHolds
    now_ns: Callable[[], int]
    wall_ms: Callable[[], int]
    may_deliver: Callable[[], bool]
    failed: Callable[[Exception], None]


class SenderJob(Struct, frozen=True):
    """What a sender does, as of one moment of the settings."""

    subscription: Subscription
    source: EventSource
    secrets: PushSecrets | None
    lacks: str  # why nothing may be sent: secrets, or its token; empty if it may
    hiding: Hiding
    barred: str = ""  # why its token bars it, if so

    @property
    def config(self) -> SubscriptionConfig:
        """The settings of the subscription."""
        return self.subscription.config

    @property
    def push(self) -> PushSettings:
        """The settings of its pushing."""
        assert self.subscription.config.push is not None
        return self.subscription.config.push


class PushSender:
    """Sender ``number`` of a subscription, at this shard."""

    def __init__(
        self,
        job: SenderJob,
        number: int,
        words: SenderWords,
        tools: SenderTools,
        first_part: float | None = None,
        before: LearnedRate | None = None,
    ) -> None:
        """``first_part`` is how much of what they may the other senders send, if there are any;
        ``before``, what the ledger knows of this one from a former start of the daemon."""
        self.job = job
        self.number = number
        self.consumer = f"push/{number}"
        self.words = words
        self._tools = tools
        self._now_ns = tools.now_ns
        subscription_id = job.subscription.subscription_id
        self.queue: PushQueue[PushedMessage] = PushQueue(job.config, job.push)
        learned = words.join(subscription_id) or before
        part = job.push.start_part if first_part is None else first_part
        self.limiter = Limiter(tools.limits, 0.0, tools.now_ns(), learned, part)
        self._resumed_ns = words.resumed_ns
        self._hold_place = tools.holds.place(job.push.endpoint)
        self.reports = SenderReports(tools.owners, subscription_id, self.consumer, tools.failed)
        self._generation = -1
        self._due_ns = 0  # of the limiter's tick
        self.failing = FailingRecords()
        self._outlet: SenderOutlet | None = None
        self._posts = Tasks(tools.failed, self.look_again)
        self._told: LearnedRate | None = None
        self._said_mode = self.limiter.mode
        self._connecting = Tasks(tools.failed)
        self._is_connecting = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_looking = False
        self._loop = asyncio.get_running_loop()
        self.held = ""  # why nothing is sent, if so
        self.is_testing = False  # the next permit is for a test (exchange.py)
        self._last_failure = ""
        self._is_deferring = False
        self._closed = False

    def start(self) -> None:
        """Connects to the owner."""
        self._connect_later(0)

    def can_follow(self, job: SenderJob) -> bool:
        """Whether settings that have changed need no other sender."""
        now, then = self.job.config, job.config
        return kind_of(now) == kind_of(then)

    def follow(self, job: SenderJob) -> None:
        """Takes settings that have changed."""
        then, now = self.job, job
        is_other = now.push.endpoint != then.push.endpoint
        if is_other:
            self.limiter.restart(self._now_ns(), now.push.start_part)
            self._due_ns = 0  # the next look tells of it
        if then.config.paused and not now.config.paused:
            self._tools.holds.release(self._hold_place)
        if is_other or now.config.paused != then.config.paused:
            self.limiter.release()
            self.failing.clear()
        self.job = job
        self._hold_place = self._tools.holds.place(now.push.endpoint)
        self.hold_with_others()
        self._tell_next()
        self.queue.set_settings(job.push)
        self.look_again()

    async def close(self, *, leaves: bool) -> None:
        """Begins nothing more and returns when what is under way is done and told; ``leaves``:
        what it has goes to other senders immediately."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._connecting.cancel()
        try:
            await self._posts.wait()
            await self.reports.told()
            if leaves:
                await self._leave()
        finally:
            self._posts.cancel()
            self.reports.close()
            if self._outlet is not None:
                self._outlet.close()
            self.words.leave()
            self._tools.queued.forget(self.job.subscription.subscription_id)

    async def _leave(self) -> None:
        leaving = Leave(self.job.subscription.subscription_id, self.consumer)
        try:
            await self._tools.owners.ask(leaving)
        except (OwnerRefused, LedgerError):
            pass  # it is gone, or notices that the stream has ended

    # The stream

    def _connect_later(self, delay_s: float) -> None:
        if not self._is_connecting and not self._closed:
            self._is_connecting = True
            self._connecting.start(self._connect(delay_s))

    async def _connect(self, delay_s: float) -> None:
        asked = Consume(self.job.subscription.subscription_id, self.consumer, [], "")
        while True:
            await asyncio.sleep(delay_s)
            delay_s = CONNECT_AGAIN_S
            try:
                await self._tools.owners.ask(asked)
            except (OwnerRefused, LedgerError) as error:
                # The settings here may be newer than the owner's, or older.
                log.debug("sender %s is not connected yet: %s", self.consumer, error)
                continue
            self._outlet = SenderOutlet(self._received, self._has_room, self._ended)
            self._is_connecting = False  # the stream may end before this task has
            self._tools.owners.open(asked, self._outlet)
            return

    def _ended(self) -> None:
        self.queue.clear()
        self._connect_later(CONNECT_AGAIN_S)

    def _has_room(self) -> bool:
        messages, size = self.queue.messages, self.queue.bytes
        queued, subscription_id = self._tools.queued, self.job.subscription.subscription_id
        queued.note(subscription_id, size + messages * QUEUED_MESSAGE_BYTES)
        push, messages_max, bytes_max = self.job.push, QUEUE_MESSAGES, QUEUE_BYTES
        if push.format == "batch":
            messages_max = max(messages_max, QUEUE_BATCHES * push.batch_max)
            bytes_max = max(bytes_max, QUEUE_BATCHES * push.batch_bytes_max)
        is_short = messages < messages_max and size < bytes_max
        return is_short and queued.allows(subscription_id)

    def _received(self, handed: Handed) -> None:
        if isinstance(handed, SenderOpened):
            self.queue.clear()
            if handed.generation != self._generation:
                self._generation = handed.generation
                self.reports.forget()
                self.failing.clear()
            return
        fresh = [each for each in handed.messages if not self.reports.is_delivered(each)]
        self.queue.add(fresh, self._now_ns())
        self.look_again()

    # What is sent

    def look_again(self) -> None:
        """Something has changed that may let a POST begin."""
        if not self._is_looking and not self._closed:
            self._is_looking = True
            self._loop.call_soon(self._look)

    def look(self) -> None:
        """To be called regularly: what time, the balancer or the governor has changed."""
        if self._closed:
            return
        now_ns, limiter, words = self._now_ns(), self.limiter, self.words
        if words.resumed_ns != self._resumed_ns:
            self._resume(now_ns)
        maximum = self._maximum()
        if maximum == limiter.maximum and now_ns < self._due_ns and not self.queue.messages:
            return  # as most of a thousand senders most of the time
        limiter.set_maximum(maximum, now_ns)
        self.hold_with_others()
        if now_ns >= limiter.tick_due_ns:
            limiter.tick(now_ns)
            words.use(limiter.use)
        self._due_ns = limiter.tick_due_ns
        if limiter.maximum and limiter.state != self._told:  # before it has any it learns nothing
            self._told = limiter.state
            words.tell(limiter.state, now_ns)
            subscription_id = self.job.subscription.subscription_id
            self._tools.learned.note(subscription_id, self.number, limiter.state)
            self._say_mode()
        self._tell_next()
        self.look_again()

    def _resume(self, now_ns: int) -> None:
        """An operator has said, or seen by a test, that the receiver takes something again."""
        self._resumed_ns = self.words.resumed_ns
        if self._resumed_ns:
            self._tools.holds.release(self._hold_place)
            self.limiter.resume(now_ns)
            self._due_ns = 0

    def hold_with_others(self) -> None:
        """The receiver may have asked another sender for a pause, also of another subscription."""
        self.limiter.hold_with_others(self._tools.holds.until_ns(self._hold_place))

    def _tell_next(self) -> None:
        held_ns = self._tools.holds.until_ns(self._hold_place)
        self.words.tell_next(self.limiter.next_ns(self._now_ns()), held_ns)

    def _say_mode(self) -> None:
        """Says in the log that the mode has changed, and what failed last: once in a period."""
        mode = self.limiter.mode
        if mode is self._said_mode:
            return
        self._said_mode = mode
        log.log(
            logging.INFO if mode is Mode.NORMAL else logging.WARNING,
            "push subscription %s of topic %s is in %s mode%s",
            self.job.subscription.name, self.job.source.topic, mode.name.lower(),
            f": {self._last_failure}" if self._last_failure else "",
        )  # fmt: skip
        self._last_failure = ""

    def _look(self) -> None:
        self._is_looking = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        try:
            due_ns = self._send()
        except Exception as error:  # noqa: BLE001 - told by ``failed``
            self._tools.failed(error)
            return
        if self._outlet is not None:
            self._outlet.has_drained()
        if due_ns is not None:
            delay_s = max(0, due_ns - self._now_ns()) / 1e9
            self._timer = self._loop.call_later(delay_s, self._look)

    def _send(self) -> int | None:
        """Begins the POSTs that may begin; returns when to look again, None: when something
        happens."""
        self.held = self._why_held()
        if self.held or self.is_testing:
            return None
        limiter, queue = self.limiter, self.queue
        if queue.messages > 0 and not self._tools.client.is_ready(self.look_again):
            return None
        while queue.messages > 0:
            now_ns = self._now_ns()
            limiter.set_maximum(self._maximum(), now_ns)
            self.hold_with_others()
            next_ns = limiter.next_ns(now_ns)
            if next_ns > now_ns:
                if (due_ns := queue.next_due_ns()) is not None and due_ns <= now_ns:
                    limiter.wait(now_ns)
                return next_ns if next_ns < NEVER_NS else None
            if not self._tools.may_deliver():
                return now_ns + FOREIGN_NS
            unit = queue.next(now_ns)
            if unit is None:
                return queue.next_due_ns()
            limiter.attempted(now_ns)
            self.words.began()
            self._posts.start(self._post(unit))
        return None

    def _maximum(self) -> float:
        """Attempts a second that this sender may make now."""
        granted = self.words.follow()
        return granted * DEFERRING_PART if self._is_deferring else granted

    def set_pressure(self, is_coalescing: bool, is_deferring: bool) -> None:
        """The daemon has too much to do: batches grow first, then rates fall."""
        self.queue.is_coalescing, self._is_deferring = is_coalescing, is_deferring
        self.look_again()

    def _why_held(self) -> str:
        if self.job.config.paused:
            return "paused"
        return self.job.lacks

    async def _post(self, unit: Unit[PushedMessage]) -> None:
        job, push = self.job, self.job.push
        began_ns, began_ms = self._now_ns(), self._tools.wall_ms()
        headers, body = request_of(push, job.source, unit.messages, job.secrets, began_ms)
        answer = await self._tools.client.post(push.endpoint, headers, body, push.timeout_ms)
        if answer.failure is not None or not 200 <= (answer.status or 0) <= 299:
            answer = job.hiding.shown(msgspec.structs.replace(answer, headers=()))
        verdict = self.count(answer, began_ns, len(unit.messages))
        is_current = self.limiter.is_of_this_receiver(began_ns)
        is_counted = self._judged(unit, verdict, is_current=is_current)
        self.reports.attempted(attempts_of(unit.messages, answer, verdict, began_ms, is_counted))
        if verdict.outcome is AnswerOutcome.GONE and is_current:
            self._gone(push.endpoint, verdict.sentence)

    def count(self, answer: PushAnswer, began_ns: int, records: int) -> PushVerdict:
        """Counts what became of an attempt with N records, and says what that means."""
        verdict, now_ns = judge(answer), self._now_ns()
        delivered = records if verdict.outcome is AnswerOutcome.SUCCESS else 0
        self.words.ended(verdict.counted_as, now_ns - began_ns, delivered)
        if verdict.is_failure:
            self.limiter.failed(now_ns, began_ns)
        elif verdict.outcome is not AnswerOutcome.HELD:
            self.limiter.succeeded(now_ns, began_ns)
        if verdict.retry_after_ms is not None and self.limiter.is_of_this_receiver(began_ns):
            until_ns = now_ns + verdict.retry_after_ms * 1_000_000
            self.limiter.hold(until_ns)
            if answer.failure is None:  # else this machine is short of something
                self._tools.holds.hold(self._hold_place, until_ns, now_ns)
                self.hold_with_others()
            self._tell_next()
        return verdict

    def _judged(self, unit: Unit[PushedMessage], verdict: PushVerdict, *, is_current: bool) -> bool:
        """Tells the owner; returns whether it counts as a failed delivery."""
        outcome, reports, is_reliable = verdict.outcome, self.reports, self.job.config.reliable
        places = [each.place for each in unit.messages]
        if outcome is AnswerOutcome.SUCCESS:
            if is_current:
                self.failing.delivered(places)
            self._delivered(unit)
            return False
        why = self._last_failure = verdict.sentence
        is_counted = outcome is AnswerOutcome.RECORD
        if not is_counted and is_current and is_reliable:
            is_counted = self.failing.failed(places, may_be_theirs=verdict.may_be_of_record)
            why += "; other records were delivered meanwhile" if is_counted else ""
        # What failed of an unreliable subscription is dropped, and counted as dropped.
        failed = self.queue.refused(unit) if is_counted else self.queue.failed(unit)
        reports.give_back(failed, Failing(why, is_counted and is_reliable))
        return is_counted and is_reliable and bool(failed)

    def _delivered(self, unit: Unit[PushedMessage]) -> None:
        acknowledged, come_again = self.queue.done(unit)
        if self.job.config.reliable:
            self.reports.delivered(acknowledged)
            self.reports.remember(come_again)

    def _gone(self, endpoint: str, why: str) -> None:
        """The receiver wants no more: an operator has to resume the subscription."""
        self.reports.pause(endpoint, why)
        self.limiter.hold(self._now_ns() + GONE_NS)  # until the settings say so


def attempts_of(
    messages: Iterable[PushedMessage], answer: PushAnswer, verdict: PushVerdict, began_ms: int,
    is_counted: bool,
) -> list[PushAttempt]:  # fmt: skip
    """What the owner is told of a POST, for each message."""
    is_delivered = verdict.outcome is AnswerOutcome.SUCCESS
    told = verdict.sentence[:MESSAGE_CHARACTERS_MAX]
    failure = None if answer.failure is None else answer.failure.value
    return [
        PushAttempt(
            *each.place, each.attempt, began_ms, answer.took_ms, verdict.outcome.value, is_counted,
            answer.status, failure, "" if is_delivered else told,
        )
        for each in messages
    ]  # fmt: skip
