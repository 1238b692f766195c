"""How far each subscription is, in shared memory, so that any shard can report it.

A row is that of a subscription's slot (``ledger/subscriptions.py``, ``rowboard.py``). Its owner
writes it at a heartbeat if it has changed.

This module neither logs nor decides.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from shards import layout as at
from shards.rowboard import RowBoard, WrittenRow
from shards.segment import Segment


class SubscriptionPhase(IntEnum):
    """What a subscription does. A number is a word's value, not a contract."""

    RUNNING = 0
    PAUSED = 1  # by request
    HELD = 2  # nothing can be delivered now: ``reason`` says why
    STOPPED = 3  # it cannot go on


class SubscriptionRow(Struct, frozen=True):
    """A subscription's row: texts, the phase, and numbers, of which the counts from ``delivered``
    on only grow."""

    topic: str = ""
    subscription: str = ""
    phase: SubscriptionPhase = SubscriptionPhase.RUNNING
    reason: str = ""
    stands: str = ""  # which message it stands still at, and why (delivery/standstill.py)
    stands_since_ns: int = 0  # since when; 0: it does not
    is_pushed: int = 0
    lag: int = 0  # records that are not finished
    drainable_lag: int = 0  # those of them that more consumers would help with
    in_flight: int = 0
    waiting: int = 0
    blocked_keys: int = 0
    consumers: int = 0
    consumer_max: int = 0  # messages that each of them may have
    oldest_unacknowledged_ms: int = 0  # the age, as of the heartbeat
    oldest_unfinished_ms: int = 0  # likewise, since the record was stored
    delivered: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    refused: int = 0
    dropped: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    evicted: int = 0
    unmatched: int = 0


_NUMBERS = SubscriptionRow.__struct_fields__[5:]
NUMBERS = _NUMBERS[2:]  # what is shown as it is
_PHASE, _SINCE = 0, 1  # places of numbers


class BoardRow(NamedTuple):
    """A row and whose it is."""

    slot: int
    subscription_id: int
    row: SubscriptionRow


class SubscriptionBoard:
    """The rows of all subscriptions."""

    def __init__(self, segment: Segment) -> None:
        self._rows = RowBoard(
            segment, segment.layout.subscription(0), at.SUBSCRIPTION_SLOTS, 1 + len(_NUMBERS), 4
        )

    def write(self, slot: int, subscription_id: int, row: SubscriptionRow) -> None:
        """Writes a row, unless it is a later subscription's; texts are cut to what it holds."""
        numbers = [row.phase, *(getattr(row, name) for name in _NUMBERS)]
        texts = [row.topic, row.subscription, row.reason, row.stands]
        self._rows.write(slot, subscription_id, numbers, texts)

    def is_of(self, slot: int, subscription_id: int) -> bool:
        """Whether the row is this subscription's."""
        return self._rows.is_of(slot, subscription_id)

    def free(self, slot: int, subscription_id: int) -> None:
        """Frees the row of a deleted subscription, unless it is another one's already."""
        self._rows.free(slot, subscription_id)

    def read(self, slot: int, subscription_id: int) -> SubscriptionRow | None:
        """A subscription's row; None if its owner has not written it yet."""
        found = self._rows.read(slot)
        return _row(found) if found.id == subscription_id else None

    def rows(self) -> list[BoardRow]:
        """All rows, by slot."""
        return self._those(self._rows.slots())

    def standing(self) -> list[BoardRow]:
        """Those that stand still. Costs two columns if none does."""
        return self._those(self._rows.slots(_SINCE))

    def phases(self) -> list[tuple[int, int]]:
        """The id and the phase of each slot's row."""
        return self._rows.numbers(_PHASE)

    def _those(self, slots: list[int]) -> list[BoardRow]:
        found = [(slot, self._rows.read(slot)) for slot in slots]
        return [BoardRow(slot, row.id, _row(row)) for slot, row in found if row.id]


def _row(found: WrittenRow) -> SubscriptionRow:
    topic, subscription, reason, stands = found.texts
    phase, *numbers = found.numbers
    return SubscriptionRow(
        topic, subscription, SubscriptionPhase(phase & 3), reason, stands, *numbers
    )
