"""How far each subscription is, in shared memory, so that any shard can report it.

A row is that of a subscription's slot (``ledger/subscriptions.py``). Its owner writes it whole,
with the subscription's id and names, at a heartbeat if it has changed, and frees it when the
subscription is deleted. A row with another id is of a former subscription in this slot. Counts are
since the daemon started: a successor goes on from the row that it finds.

Ids only grow, so they are the generation of a slot: the owner of a former subscription, perhaps
another process, which has not learned yet that this was deleted, does not write over a later one.
If both wrote at the same time, the owner of the later one finds that the row ``is_of`` another, and
writes again.

This module neither logs nor decides.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from shards import layout as at
from shards.barrier import fence
from shards.segment import Segment

_READS_MAX = 100  # of a row that is being written; then it is taken as it is


class SubscriptionPhase(IntEnum):
    """What a subscription does. A number is a word's value, not a contract."""

    RUNNING = 0
    PAUSED = 1  # by request
    HELD = 2  # nothing can be delivered now: ``reason`` says why
    STOPPED = 3  # it cannot go on


class SubscriptionRow(Struct, frozen=True):
    """A subscription's row. The counts from ``delivered`` on only grow."""

    topic: str = ""
    subscription: str = ""
    phase: SubscriptionPhase = SubscriptionPhase.RUNNING
    reason: str = ""
    lag: int = 0  # records that are not finished
    drainable_lag: int = 0  # those of them that more consumers would help with
    in_flight: int = 0
    waiting: int = 0
    blocked_keys: int = 0
    consumers: int = 0
    consumer_max: int = 0  # messages that each of them may have
    oldest_unacknowledged_ms: int = 0  # the age, as of the heartbeat
    delivered: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    refused: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    evicted: int = 0
    unmatched: int = 0


NUMBERS = SubscriptionRow.__struct_fields__[4:]
assert len(NUMBERS) < at.U_NUMBERS_MAX


class BoardRow(NamedTuple):
    """A row and whose it is."""

    slot: int
    subscription_id: int
    row: SubscriptionRow


class SubscriptionBoard:
    """The rows of all subscriptions."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        self._data = segment.data
        self._layout = segment.layout

    def write(self, slot: int, subscription_id: int, row: SubscriptionRow) -> None:
        """Writes a row, unless it is a later subscription's; ``reason`` is cut to what it holds."""
        at_row, words = self._layout.subscription(slot), self._words
        if words[at_row + at.U_SUBSCRIPTION] > subscription_id:
            return
        texts = [row.topic.encode()[:255], row.subscription.encode()[:255]]
        left = at.U_TEXT_BYTES - len(texts[0]) - len(texts[1])
        texts.append(row.reason.encode()[:left])
        numbers = [row.phase, *(getattr(row, name) for name in NUMBERS)]
        words[at_row + at.U_VERSION] |= 1
        if fence is not None:
            fence()
        words[at_row + at.U_SUBSCRIPTION] = subscription_id
        _store(words, at_row + at.U_NUMBERS, numbers)
        _store(words, at_row + at.U_LENGTHS, [len(text) for text in texts])
        text = b"".join(texts)
        start = (at_row + at.U_TEXT) * at.WORD_BYTES
        self._data[start : start + len(text)] = text
        if fence is not None:
            fence()
        words[at_row + at.U_VERSION] += 1

    def is_of(self, slot: int, subscription_id: int) -> bool:
        """Whether the row is this subscription's."""
        return bool(
            self._words[self._layout.subscription(slot) + at.U_SUBSCRIPTION] == subscription_id
        )

    def free(self, slot: int, subscription_id: int) -> None:
        """Frees the row of a deleted subscription, unless it is another one's already."""
        at_row = self._layout.subscription(slot)
        if self._words[at_row + at.U_SUBSCRIPTION] == subscription_id:
            self._words[at_row + at.U_SUBSCRIPTION] = 0

    def read(self, slot: int, subscription_id: int) -> SubscriptionRow | None:
        """A subscription's row; None if its owner has not written it yet."""
        found_id, row = self._read(slot)
        return row if found_id == subscription_id else None

    def rows(self) -> list[BoardRow]:
        """All rows, by slot."""
        first = self._layout.subscription(0) + at.U_SUBSCRIPTION
        last = self._layout.subscription(at.SUBSCRIPTION_SLOTS)
        ids = self._words[first : last : at.SUBSCRIPTION_WORDS].tolist()
        found = [BoardRow(slot, *self._read(slot)) for slot, there in enumerate(ids) if there]
        return [each for each in found if each.subscription_id]

    def _read(self, slot: int) -> tuple[int, SubscriptionRow]:
        at_row, words = self._layout.subscription(slot), self._words
        start = (at_row + at.U_TEXT) * at.WORD_BYTES
        for _ in range(_READS_MAX):
            version = words[at_row + at.U_VERSION]
            if fence is not None:
                fence()
            found = words[at_row : at_row + at.U_TEXT].tolist()
            text = bytes(self._data[start : start + at.U_TEXT_BYTES])
            if fence is not None:
                fence()
            if not version & 1 and words[at_row + at.U_VERSION] == version:
                break
        topic, subscription, reason = found[at.U_LENGTHS :]
        names_end = topic + subscription
        phase, *numbers = found[at.U_NUMBERS : at.U_NUMBERS + 1 + len(NUMBERS)]
        return found[at.U_SUBSCRIPTION], SubscriptionRow(
            text[:topic].decode(errors="replace"),
            text[topic:names_end].decode(errors="replace"),
            SubscriptionPhase(phase & 3),
            text[names_end : names_end + reason].decode(errors="replace"),
            *numbers,
        )


def _store(words: memoryview, index: int, values: list[int]) -> None:
    words[index : index + len(values)] = array("Q", values)
