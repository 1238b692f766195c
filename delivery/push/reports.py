"""What a sender tells the owner of its subscription: delivered, refused, given back.

Reports are collected while one is under way. One that the owner did not take, because it is being
restarted or cannot read its ledger, is told again: nothing else would ever free its messages, for
senders have no acknowledgment timeout.

A message that was delivered is remembered until its acknowledgment is accepted. If the owner dies
before, the next one sends it again, and it is acknowledged without another POST. A seek ends that:
what is sent again after it is meant to be delivered again. So is a resent message, whenever it
comes: whoever remembers it cannot tell which delivery that was.

Attempts are told once, for people to look at; nothing waits for them.

Bounds: what is with the sender (``window_max``), REMEMBERED_MAX messages more, and ATTEMPTS_MAX.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from delivery.subscriptions.handing import PushedMessage
from delivery.subscriptions.owners import Owners
from delivery.subscriptions.requests import (
    Acknowledge,
    MessageRef,
    Nack,
    NoteAttempts,
    OwnerRefused,
    OwnerRequest,
    PausePush,
)
from delivery.subscriptions.running import REFUSED_NAMED
from delivery.subscriptions.schemas import Acknowledged, PushAttempt
from delivery.subscriptions.window.messages import Place
from delivery.tasks import Tasks
from ledger.errors import LedgerError

A = TypeVar("A")

log = logging.getLogger("headgate.push")

REPORT_MESSAGES = REFUSED_NAMED  # of one request: the answer names all that it refuses
AGAIN_S = 0.2
REMEMBERED_MAX = 10_000
ATTEMPTS_MAX = 1_000  # that wait to be told: of one POST, if it is the largest


class Failing(NamedTuple):
    """How messages were not delivered."""

    reason: str
    is_counted: bool


class SenderReports:
    """The reports of one sender."""

    def __init__(
        self,
        owners: Owners,
        subscription_id: int,
        consumer: str,
        failed: Callable[[Exception], None],
    ) -> None:
        self._owners = owners
        self._subscription_id = subscription_id
        self._consumer = consumer
        self._acks: dict[Place, int] = {}  # with their epochs
        self._nacks: dict[Failing, list[PushedMessage]] = {}
        self._pause: PausePush | None = None
        self._attempts: deque[PushAttempt] = deque(maxlen=ATTEMPTS_MAX)
        self._delivered: dict[Place, None] = {}  # whose acknowledgment was not accepted
        self._telling = Tasks(failed, self._start)
        self._is_gone = False

    def delivered(self, messages: Iterable[PushedMessage]) -> None:
        """A POST has delivered them."""
        for each in messages:
            self._acks[each.place] = each.epoch
        self._start()

    def remember(self, places: Iterable[Place]) -> None:
        """A POST has delivered them, but the owner knows that it has to send them again."""
        self._delivered.update(dict.fromkeys(places))
        while len(self._delivered) > REMEMBERED_MAX:
            del self._delivered[next(iter(self._delivered))]

    def give_back(self, messages: Sequence[PushedMessage], failing: Failing) -> None:
        """They were not delivered; the owner sends them again, or deals with them."""
        if messages:
            self._nacks.setdefault(failing, []).extend(messages)
            self._start()

    def pause(self, endpoint: str, because: str) -> None:
        """The receiver wants no more."""
        self._pause = PausePush(self._subscription_id, endpoint, because)
        self._start()

    def attempted(self, attempts: Iterable[PushAttempt]) -> None:
        """A POST has ended."""
        self._attempts.extend(attempts)
        self._start()

    def is_delivered(self, message: PushedMessage) -> bool:
        """Whether a message that comes again was delivered already. It is acknowledged then."""
        place = message.place
        if message.is_resent:
            return False
        if place not in self._delivered and place not in self._acks:
            return False
        self._delivered.pop(place, None)
        self.delivered((message,))
        return True

    def forget(self) -> None:
        """The subscription goes on elsewhere: what was delivered may be delivered again."""
        self._delivered.clear()
        self._acks.clear()
        self._nacks.clear()

    async def told(self) -> None:
        """Returns when the owner knows everything, or is gone."""
        while self._telling:
            await self._telling.wait()

    def close(self) -> None:
        """Tells nothing any more."""
        self._is_gone = True
        self._telling.cancel()

    def _start(self) -> None:
        """Starts a task; also when one has ended, which may have missed the last reports."""
        if not self._telling and not self._is_gone and self._has_more():
            self._telling.start(self._tell())

    def _has_more(self) -> bool:
        return bool(self._acks or self._nacks or self._pause or self._attempts)

    async def _tell(self) -> None:
        while self._has_more() and not self._is_gone:
            if self._pause is not None:
                pause, self._pause = self._pause, None
                await self._ask(pause)
            nacks, self._nacks = self._nacks, {}
            # First what came before a message that failed: what follows it comes back.
            for _ in range(0, len(self._acks), REPORT_MESSAGES):
                await self._acknowledge()
            for failing, messages in nacks.items():
                for first in range(0, len(messages), REPORT_MESSAGES):
                    await self._give_back(failing, messages[first : first + REPORT_MESSAGES])
            if self._attempts:
                await self._note_attempts()

    async def _note_attempts(self) -> None:
        attempts = [*self._attempts]
        self._attempts.clear()
        try:
            await self._owners.ask(NoteAttempts(self._subscription_id, attempts))
        except (OwnerRefused, LedgerError):
            pass  # they are lost with a shard, too

    async def _give_back(self, failing: Failing, messages: list[PushedMessage]) -> None:
        refs = [MessageRef(*each.place, each.epoch) for each in messages]
        await self._ask(Nack(self._subscription_id, self._consumer, refs, [], 0, *failing))

    async def _acknowledge(self) -> None:
        acks = self._acks
        refs = [MessageRef(*place, epoch) for place, epoch in islice(acks.items(), REPORT_MESSAGES)]
        answer = await self._ask(Acknowledge(self._subscription_id, self._consumer, refs, []))
        refused = set() if answer is None else _refused(answer)
        for partition, seq, epoch in refs:
            if acks.get((partition, seq)) == epoch:
                del acks[partition, seq]
                if (partition, seq) in refused:
                    self._delivered[partition, seq] = None

    async def _ask(self, request: OwnerRequest[A]) -> A | None:
        """The answer; None if there is nobody to ask any more."""
        while not self._is_gone:
            try:
                return await self._owners.ask(request)
            except OwnerRefused as refused:
                if refused.status < 500:
                    return None
            except LedgerError as error:
                log.warning("a report of a sender is told again: %s", error)
            await asyncio.sleep(AGAIN_S)
        return None


def _refused(told: Acknowledged) -> set[Place]:
    """What the owner did not take, because it was not with the sender any more."""
    return {
        (each.partition, each.seq)
        for each in told.refused_messages
        if each.reason == "epoch" and each.partition is not None and each.seq is not None
    }
