"""Changes of topics, routers and subscriptions: made by any shard, followed by each.

    make: into the ledger -> its number into a shared word -> all shards look
    look: the word is another one, or something is stale -> what has changed is asked, in a task,
    one question at a time -> each change is taken, in order -> what was there is heard
    the ledger cannot be read -> what was stale is stale again, and the next look asks

The word may be late, never early. So the cost is that of the changes, not of what there is. A topic
that grows has another word, which is early: owners of its subscriptions wait until they have heard
of the growth, or have found that it was never made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeVar

from delivery.ledger_thread import LedgerThread
from delivery.tasks import Tasks
from ledger import changes
from ledger.errors import LedgerError
from ledger.tx import WriteTx
from shards import layout as at
from shards.doorbell import Doorbells
from shards.segment import Segment

AGAIN_S = 0.1  # until who waits asks a ledger again that cannot be read

T = TypeVar("T")

log = logging.getLogger("headgate.changes")


class DeliveryChanges:
    """Makes changes of routers and subscriptions; any shard may."""

    def __init__(
        self,
        segment: Segment,
        bells: Doorbells,
        ledger: LedgerThread,
        ledger_lock: AbstractContextManager[None],
    ) -> None:
        self._words = segment.words
        self._shards = range(segment.layout.shards)
        self._bells = bells
        self._ledger = ledger
        self._ledger_lock = ledger_lock

    async def make(self, change: Callable[[WriteTx], T]) -> T:
        """What ``change`` returns, in one transaction."""
        ledger = self._ledger.ledger

        def changed() -> T:
            result = ledger.write(change)
            with self._ledger_lock:
                number = ledger.read(changes.latest)
                self._words[at.G_DELIVERY] = max(self._words[at.G_DELIVERY], number)
            return result

        result = await self._ledger.run(changed)
        self._bells.ring_all(self._shards)
        return result

    async def forget_growth(self, topic_ids: Collection[int]) -> None:
        """Words may tell of growth that was never made, because its transaction was taken back or
        its process died in it: they are lowered to what there is. Raises LedgerError."""
        ledger = self._ledger.ledger

        def forgotten() -> None:
            with self._ledger_lock:  # nobody is in such a transaction
                number = ledger.read(changes.latest)
                for word in map(at.grown, topic_ids):
                    self._words[word] = min(self._words[word], number)

        await self._ledger.run(forgotten)


class ChangesFound(NamedTuple, Generic[T]):
    """What changed up to change ``number``, if ``is_all``; otherwise there is more to ask for."""

    number: int
    found: Sequence[T]
    is_all: bool = True


class FollowedChanges(Generic[T]):
    """Follows changes of ``what``. ``read`` gets the number up to which it has ``heard``, and the
    ids of what is *stale*: to be read in any case. ``take`` gets each that is found."""

    def __init__(
        self,
        what: str,
        word: Callable[[], int],
        read: Callable[[int, set[int]], Awaitable[ChangesFound[T]]],
        take: Callable[[T], Awaitable[None]],
        tasks: Tasks,
        heard: int = 0,
    ) -> None:
        self._what = what
        self._word = word
        self._read = read
        self._take = take
        self._tasks = tasks
        self.heard = heard
        self.stale: set[int] = set()
        self._seen = -1  # the word
        self._stale_asked: set[int] = set()  # what was stale when the question began
        self._has_failed = False  # the last question
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_current(self) -> bool:
        """Whether all changes are taken that the word tells of."""
        return self._seen == self._word()

    def look(self) -> None:
        """To be called regularly. Cheap while nothing changes."""
        if self._asking is None and not self._closed and (self.stale or not self.is_current):
            self._asking = self._tasks.start(self._ask())

    async def asked(self) -> None:
        """Returns after a question: the one that is under way, or else another one."""
        if self._asking is None and not self._closed:
            self._asking = self._tasks.start(self._ask())
        if self._asking is not None:
            await asyncio.wait([self._asking])

    async def read_again(self, id_: int) -> None:
        """Returns when this one was read and taken once more."""
        self.stale.add(id_)
        while (id_ in self.stale or id_ in self._stale_asked) and not self._closed:
            await self.asked()
            if self._has_failed:
                await asyncio.sleep(AGAIN_S)

    def close(self) -> None:
        """Asks nothing more: the process ends, and so does the ledger's thread."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask(self) -> None:
        word = self._word()
        stale, self.stale = self.stale, set()
        self._stale_asked = stale
        try:
            is_all = False
            while not is_all:
                number, found, is_all = await self._read(self.heard, stale)
                for each in found:
                    await self._take(each)
                self.heard = number
            self._seen = word
            self._has_failed = False
        except LedgerError as error:
            self.stale |= stale
            self._has_failed = True
            log.warning("%s cannot be read, and are looked for again: %s", self._what, error)
        finally:
            self._stale_asked = set()
            self._asking = None
