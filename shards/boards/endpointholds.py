"""Endpoints whose receivers asked for a pause, for all senders of the daemon.

An endpoint has a line of eight words, by its hash. A word is one pause: until when, in milliseconds
of the monotonic clock, and the rest of the hash. So it is stored and read whole, by any shard. A
pause takes the word that its endpoint has there, else one that is over, else that which is over
first.

Bounds: 4,096 pauses at a time, and eight of endpoints with the same line; of more, the shortest are
forgotten, and hold only the subscription that was asked. So do two that different shards store in
one word at the same moment. Two endpoints with the same 37 bits would share a pause; the hash has a
key, so that nobody can choose two.

This module neither logs nor decides.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from shards import layout as at
from shards.segment import Segment

TAG_BITS = 28
_TAG_MASK = (1 << TAG_BITS) - 1
_MS_MAX = (1 << (64 - TAG_BITS)) - 1  # two years since the boot
MS = 1_000_000


class HoldPlace(NamedTuple):
    """Where the pauses of an endpoint are: the first word of its line, and its tag."""

    first: int
    tag: int


class EndpointHolds:
    """The pauses of all endpoints."""

    def __init__(self, segment: Segment) -> None:
        first = segment.layout.endpoint_holds
        self._words = segment.sparse[first : first + at.HOLD_LINES * at.LINE_WORDS]
        self._key = int(segment.words[at.G_STARTED_NS]).to_bytes(8, "little")

    def place(self, endpoint: str) -> HoldPlace:
        """Where the pauses of an endpoint are; to be kept by who asks often."""
        digest = blake2b(endpoint.encode(), digest_size=8, key=self._key).digest()
        number = int.from_bytes(digest, "little")
        line = (number >> TAG_BITS) % at.HOLD_LINES
        return HoldPlace(line * at.LINE_WORDS, number & _TAG_MASK)

    def until_ns(self, place: HoldPlace) -> int:
        """Until when an endpoint is held; 0 for never."""
        for word in self._words[place.first : place.first + at.LINE_WORDS].tolist():
            if word & _TAG_MASK == place.tag and word:
                return (word >> TAG_BITS) * MS
        return 0

    def hold(self, place: HoldPlace, until_ns: int, now_ns: int) -> None:
        """Holds an endpoint, to the next millisecond; a longer pause stays as it is."""
        if self.until_ns(place) >= until_ns:
            return
        line = self._words[place.first : place.first + at.LINE_WORDS].tolist()
        own = [index for index, word in enumerate(line) if word & _TAG_MASK == place.tag and word]
        index = own[0] if own else min(range(len(line)), key=lambda each: line[each] >> TAG_BITS)
        until_ms = min(_MS_MAX, -(-until_ns // MS))
        if own or line[index] >> TAG_BITS < max(until_ms, now_ns // MS):
            self._words[place.first + index] = until_ms << TAG_BITS | place.tag

    def release(self, place: HoldPlace) -> None:
        """Ends the pause of an endpoint."""
        for index, word in enumerate(self._words[place.first : place.first + at.LINE_WORDS]):
            if word & _TAG_MASK == place.tag:
                self._words[place.first + index] = 0
