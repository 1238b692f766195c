"""What the balancer grants to the senders of one push subscription, and what they may be using.

Lifecycle of a sender here: found by ``look``, with nothing -> granted a rate, any number of times
-> gone by a later ``look``: it has left, has joined again (then it is another one), or has died.

A grant is *pending* until its sender has said that it obeys this one. Until then the sender may use
any grant since the one before, so all of them are *held*: the highest counts. The granter keeps the
sum of what is held within the subscription's rate. Only the supervisor uses this module;
``shards/boards/pushboard.py`` has the other side.
"""

from __future__ import annotations

from collections.abc import Mapping

from shards import layout as at
from shards.barrier import keep_order
from shards.boards.pushboard import GRANT_UNITS, grant_word, is_for, units_granted, units_of
from shards.doubles import double_of
from shards.segment import Segment


class ShareHeld:
    """One sender, as the balancer knows it. Rates are attempts a second."""

    def __init__(self, joins: int) -> None:
        self.joins = joins
        self.word = 0  # of the last grant; 0: none for this join
        self.held_units = 0
        self.use = 0.0

    @property
    def granted(self) -> float:
        """The last grant."""
        return units_granted(self.word) / GRANT_UNITS

    @property
    def held(self) -> float:
        """What it may be using; at least the last grant."""
        return self.held_units / GRANT_UNITS


class SlotGrants:
    """The senders of the subscription in a slot."""

    def __init__(self, segment: Segment, slot: int, subscription_id: int) -> None:
        layout = segment.layout
        first, stop = layout.share(slot, 0), layout.share(slot + 1, 0)
        self._words = segment.sparse[first:stop]
        self._bytes = self._words.cast("B")
        self._subscription_id = subscription_id
        self._seen = b""
        self._number = 0
        self._senders: dict[int, ShareHeld] = {}

    @property
    def senders(self) -> Mapping[int, ShareHeld]:
        """The senders that are present, by shard, as of the last ``look``."""
        return self._senders

    def look(self) -> bool:
        """Reads what the senders say. Whether anything has changed since the last time."""
        seen = bytes(self._bytes)
        if seen == self._seen:
            return False
        self._seen = seen
        words = memoryview(seen).cast("Q").tolist()
        found: dict[int, ShareHeld] = {}
        for shard, start in enumerate(range(0, len(words), at.SHARE_WORDS)):
            joins = words[start + at.V_JOINS]
            if not joins & 1 or words[start + at.V_SUBSCRIPTION] != self._subscription_id:
                continue
            sender = self._senders.get(shard)
            if sender is None or sender.joins != joins:
                sender = ShareHeld(joins)
            if words[start + at.V_IN_USE] == sender.word:
                sender.held_units = units_granted(sender.word)
            sender.use = double_of(words[start + at.V_USE])
            found[shard] = sender
        self._senders = found
        return True

    def grant(self, shard: int, rate: float) -> None:
        """Grants another rate to a sender that is there."""
        sender, units = self._senders[shard], units_of(rate)
        if sender.word and units == units_granted(sender.word):
            return
        self._number += 1
        sender.word = grant_word(units, self._number, sender.joins)
        sender.held_units = max(sender.held_units, units)
        keep_order()
        self._words[shard * at.SHARE_WORDS + at.V_GRANTED] = sender.word

    def withdraw(self) -> None:
        """Grants nothing any more: the subscription is not there, or does not push."""
        for shard in self._senders:
            self.grant(shard, 0.0)

    def died(self, shard: int) -> None:
        """Clears a share for its process, which has ended."""
        start = shard * at.SHARE_WORDS
        words = self._words
        if words[start + at.V_JOINS] & 1:
            words[start + at.V_IN_USE] = 0
            words[start + at.V_JOINS] += 1
        self._senders.pop(shard, None)

    def check_invariants(self) -> None:
        """What is granted is held, and in the sender's word."""
        for shard, sender in self._senders.items():
            assert sender.held_units >= units_granted(sender.word)
            word = self._words[shard * at.SHARE_WORDS + at.V_GRANTED]
            assert not sender.word or (word == sender.word and is_for(word, sender.joins))
