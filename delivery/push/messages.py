"""What a sender gets from the owner of its subscription: the events of a msgpack stream.

An owner writes whole chunks of HTTP (delivery/streams/wire.py), each with one or more maps of
msgpack (delivery/subscriptions/encoding.py). Nothing here decides what becomes of a message.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from delivery.subscriptions.missed import GAPS_KEPT
from delivery.subscriptions.requests import SENDER_OPENED

# A chunk has the gaps that no consumer was told of yet, and one more event.
EVENTS_MAX = GAPS_KEPT + 1


class StreamBroken(Exception):
    """Bytes that are not events of a stream."""


class PushedMessage(Struct, gc=False):
    """A message of a subscription. ``data`` is JSON text as it was received (str), or bytes.
    ``epoch`` changes when the owner sends it again before it is dealt with."""

    partition: int
    epoch: int
    attempt: int
    seq: int
    ts: int
    data: Any  # msgspec decodes no union of str and bytes
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None

    @property
    def size_bytes(self) -> int:
        """Characters or bytes of its fields."""
        return (
            len(self.data) + len(self.key or "") + len(self.tag or "")
            + len(self.node or "") + len(self.meta or "")
        )  # fmt: skip


class PushedBatch(Struct, frozen=True, tag_field="event", tag="messages"):
    """What an owner has given a sender in one write; all of it has the same ``epoch``."""

    epoch: int
    messages: list[PushedMessage]


class PushGap(Struct, frozen=True, tag_field="event", tag="tombstone"):
    """Offsets that the subscription missed. They are in its state, too."""

    partition: int
    gap_from: int
    gap_to: int
    reason: str


class StreamOpened(Struct, frozen=True, tag_field="event", tag=SENDER_OPENED):
    """Nothing that came before is the sender's any more. What it has delivered counts in the same
    ``generation`` only."""

    generation: int


class StreamEnded(Struct, frozen=True, tag_field="event", tag="error"):
    """Why the stream ends after this."""

    code: str
    message: str
    detail: dict[str, Any]


class StreamAlive(Struct, frozen=True, tag_field="event", tag="heartbeat"):
    """Nothing has happened for a while."""


StreamEvent = PushedBatch | PushGap | StreamOpened | StreamEnded | StreamAlive

_one = msgspec.msgpack.Decoder(StreamEvent)
_several = msgspec.msgpack.Decoder(list[StreamEvent])


def events_of(written: bytes) -> list[StreamEvent]:
    """The events of what an owner has written: whole chunks. Raises StreamBroken."""
    found: list[StreamEvent] = []
    start = 0
    while start < len(written):
        line_end = written.find(b"\r\n", start)
        try:
            size = int(written[start:line_end], 16)
        except ValueError:
            size = -1
        begin = line_end + 2
        start = begin + size + 2
        if line_end < 0 or size < 0 or written[start - 2 : start] != b"\r\n":
            raise StreamBroken("a write of a stream is not made of whole chunks")
        if size:
            found += _decoded(written[begin : begin + size])
    return found


def _decoded(data: bytes) -> list[StreamEvent]:
    """The events of one chunk. msgspec decodes one value and refuses bytes after it, so that the
    maps of a chunk are decoded as an array of as many, and their number is tried: nearly always it
    is 1, and otherwise what is decoded in vain is a few tombstones."""
    try:
        return [_one.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        first = error
    if isinstance(first, msgspec.ValidationError):
        raise StreamBroken(f"an event of a stream is not one that a sender knows: {first}")
    for count in range(2, EVENTS_MAX + 1):
        try:
            return _several.decode(b"\xdc%b%b" % (count.to_bytes(2, "big"), data))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            first = error
    raise StreamBroken(f"a chunk of a stream is not a sequence of events: {first}") from first
