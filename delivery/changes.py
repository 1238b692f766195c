"""Changes of routers and subscriptions: into the ledger, then into a shared word, by which their
owners notice them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from delivery.ledger_thread import LedgerThread
from ledger import changes
from ledger.tx import WriteTx
from shards import layout as at
from shards.doorbell import Doorbells
from shards.segment import Segment

T = TypeVar("T")


class DeliveryChanges:
    """Makes them; any shard may."""

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
