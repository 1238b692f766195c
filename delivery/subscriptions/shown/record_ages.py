"""How long ago the oldest unfinished record of a subscription was stored.

    the first unfinished offset of each partition -> when its object was made, from the ledger, for
    all offsets of the extent -> remembered until the partition has passed that extent

Bounds: WANTED_MAX offsets are looked up at a time, about 20 us each in the ledger's thread; those
of other partitions follow with the next look. What is remembered is one entry per partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from delivery.ledger_thread import LedgerThread
from ledger import reads
from ledger.errors import LedgerError

WANTED_MAX = 256


class _Stored(NamedTuple):
    ms: int
    last_offset: int


class RecordAges:
    """The ages of a shard's records that subscriptions have not finished."""

    def __init__(self, ledger: LedgerThread) -> None:
        self._ledger = ledger
        self._stored: dict[int, dict[int, _Stored]] = {}  # by subscription and partition
        self._is_loading = False
        self._wanted: dict[tuple[int, int], tuple[int, int, int]] = {}

    @property
    def is_due(self) -> bool:
        """Whether ``load`` has something to do that it does not do yet."""
        return bool(self._wanted) and not self._is_loading

    def oldest_ms(
        self, subscription_id: int, topic_id: int, first: Mapping[int, int], wall_ms: int
    ) -> int:
        """The age of the oldest record; ``first`` has the first unfinished offset of each partition
        that has one. 0: there is none, or it is not known yet."""
        known = self._stored.get(subscription_id, {})
        kept: dict[int, _Stored] = {}
        for partition, offset in first.items():
            stored = known.get(partition)
            if stored is not None and offset <= stored.last_offset:
                kept[partition] = stored
            elif len(self._wanted) < WANTED_MAX:
                self._wanted[subscription_id, partition] = topic_id, partition, offset
        if kept:
            self._stored[subscription_id] = kept
        else:
            self._stored.pop(subscription_id, None)
        return max(0, wall_ms - min((stored.ms for stored in kept.values()), default=wall_ms))

    def forget(self, subscription_id: int) -> None:
        """A subscription ends."""
        self._stored.pop(subscription_id, None)

    async def load(self) -> None:
        """Looks up what is wanted. What cannot be read is wanted again."""
        wanted, self._wanted = self._wanted, {}
        self._is_loading = True
        try:
            found = await self._ledger.read(reads.stored, [*wanted.values()])
        except LedgerError:
            return
        finally:
            self._is_loading = False
        for (subscription_id, partition), stored in zip(wanted, found, strict=True):
            if stored is not None:
                self._stored.setdefault(subscription_id, {})[partition] = _Stored(*stored)
