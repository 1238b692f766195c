"""What an owner gives its consumers: messages in the form that each takes, and what is missing.

*Streams and polls* get bytes in the formats of streams (delivery/streams/formats.py). A message is
a record of a diff with ``partition``, ``epoch`` and ``attempt``. NDJSON has a line for each; an
event stream an event ``message`` for each; msgpack a map with all of the batch.

*Senders* of push subscriptions get values; their end of such a stream is here, too::

    opened -> (messages, of one batch)* -> ended, by either side; or opened again, by another window

Where owner and sender are in two processes, ``hand`` encodes each value as msgpack, one in each
write of the pipe between them, and the sender's end decodes it.

*Gaps* are what a subscription does not deliver, because retention removed it first: told to one
consumer, and in the state. Retention evicts a little at a time, so what a subscription misses while
nobody listens comes in pieces; consumers are told of the whole: as few ranges as possible.

Nothing here decides what becomes of a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Struct

from delivery.schemas import Tombstone
from delivery.streams.formats import MSGPACK, SSE, Format, Item, Origin, record_map, record_texts
from delivery.streams.outlet import Outlet
from delivery.subscriptions.schemas import MissedOffsets
from delivery.subscriptions.window.messages import Place
from ledger.types import Topic
from uploader.l0.records import Record

MESSAGE = "message"
MESSAGES = "messages"
GAPS_KEPT = 100  # the last ones; each is 60 bytes of an answer

Sent = tuple[int, int, Item]  # partition, attempt, record


def encoded(format_: Format, epoch: int, sent: Sequence[Sent]) -> bytes:
    """A batch for a stream."""
    if format_ is MSGPACK:
        return _encoder.encode({"event": MESSAGES, "epoch": epoch, MESSAGES: _maps(epoch, sent)})
    texts = _texts(epoch, sent)
    if format_ is SSE:
        return "".join([f"event: {MESSAGE}\ndata: {text}\n\n" for text in texts]).encode()
    return ("\n".join(texts) + "\n").encode()


def polled(epoch: int | None, sent: Sequence[Sent], gaps: bytes) -> bytes:
    """The answer to a poll; ``gaps`` is the JSON of that list."""
    texts = ",".join(_texts(epoch or 0, sent)).encode()
    number = b"null" if epoch is None else b"%d" % epoch
    return b'{"epoch":%b,"messages":[%b],"gaps":%b}' % (number, texts, gaps)


def _texts(epoch: int, sent: Iterable[Sent]) -> Iterator[str]:
    for (partition, attempt), run in groupby(sent, itemgetter(0, 1)):
        begin = f'{{"partition":{partition},"epoch":{epoch},"attempt":{attempt},'
        yield from record_texts([each[2] for each in run], begin)


def _maps(epoch: int, sent: Iterable[Sent]) -> list[dict[str, Any]]:
    return [
        {"partition": partition, "epoch": epoch, "attempt": attempt, **record_map(*item)}
        for partition, attempt, item in sent
    ]


class PushedMessage(Struct, frozen=True, array_like=True, gc=False):
    """A message of a subscription, as it was sent in the batch ``epoch``. ``is_resent``: an
    operator wants it to be delivered once more, whatever was delivered before."""

    partition: int
    epoch: int
    attempt: int
    seq: int
    ts: int
    record: Record
    is_resent: bool = False

    @property
    def place(self) -> Place:
        """Partition and offset."""
        return self.partition, self.seq

    @property
    def key(self) -> str | None:
        """The key that orders it, if it has one."""
        return self.record.key

    @property
    def node(self) -> str | None:
        """The node, which may count as a key."""
        return self.record.node

    @property
    def size_bytes(self) -> int:
        """Characters or bytes of its fields."""
        record = self.record
        return (
            len(record.data) + len(record.key or "") + len(record.tag or "")
            + len(record.node or "") + len(record.meta or "")
        )  # fmt: skip


class SenderOpened(Struct, frozen=True, tag=True, array_like=True):
    """Begins a sender's stream, at each owner and after each seek: nothing that came before is the
    sender's any more. What it has delivered counts in the same ``generation`` only."""

    generation: int


class PushedBatch(Struct, frozen=True, tag=True, array_like=True):
    """What an owner hands over in one write."""

    messages: list[PushedMessage]


Handed = SenderOpened | PushedBatch

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Handed)
_json_encoder = msgspec.json.Encoder()


def hand(outlet: Outlet, handed: Handed) -> None:
    """Hands something over, to the end of the stream or to the pipe to it."""
    if isinstance(outlet, SenderOutlet):
        outlet.take(handed)
    else:
        outlet.write(_encoder.encode(handed))


class SenderOutlet:
    """The end of a sender's stream, an ``Outlet`` as the connection of a consumer is. ``has_room``
    tells whether the sender would take more."""

    def __init__(
        self,
        received: Callable[[Handed], None],
        has_room: Callable[[], bool],
        ended: Callable[[], None],
    ) -> None:
        self.drained: Callable[[], None] | None = None
        self.closed_by_peer: Callable[[], None] | None = None
        self.closed = False
        self._received = received
        self._has_room = has_room
        self._ended = ended
        self._is_full = False

    @property
    def writable(self) -> bool:
        """Whether the sender would take more now."""
        return not self.closed and not self._is_full

    def take(self, handed: Handed) -> None:
        """Takes what the owner has handed over, in this process."""
        if not self.closed:
            self._received(handed)
            self._is_full = not self._has_room()

    def write(self, data: bytes) -> None:
        """Takes what has come through the pipe from the owner."""
        self.take(_decoder.decode(data))

    def has_drained(self) -> None:
        """To be called when the sender has room again."""
        if self._is_full and not self.closed and self._has_room():
            self._is_full = False
            if self.drained is not None:
                self.drained()

    def end(self, data: bytes = b"") -> None:
        """The owner ends the stream; it never says anything with that."""
        if self.closed:
            return
        self.closed = True
        self.drained = self.closed_by_peer = None
        self._ended()

    def close(self) -> None:
        """The sender ends the stream."""
        if self.closed:
            return
        self.closed = True
        told, self.closed_by_peer, self.drained = self.closed_by_peer, None, None
        if told is not None:
            told()


class Gaps:
    """The last gaps of one subscription; ``untold`` are those that no consumer knows of."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.known: list[MissedOffsets] = []
        self.untold: list[MissedOffsets] = []

    def add(self, partition: int, tombstone: Tombstone) -> None:
        """A gap was found."""
        gap = MissedOffsets(partition, tombstone.gap_from, tombstone.gap_to, tombstone.reason)
        known = with_gap(self.known, gap)
        if known != self.known:
            self.known, self.untold = known, with_gap(self.untold, gap)

    def told(self, format_: Format) -> bytes:
        """The gaps that no consumer was told of yet, for a stream."""
        found = b""
        for gap in self.untold:
            origin = Origin(self._topic.name, self._topic.topic_id, gap.partition)
            found += format_.tombstone(origin, gap.gap_from, gap.gap_to, gap.reason)
        self.untold = []
        return found

    def take(self) -> bytes:
        """The same for a poll: the JSON of a list."""
        untold, self.untold = self.untold, []
        return _json_encoder.encode(untold)


def with_gap(gaps: Sequence[MissedOffsets], gap: MissedOffsets) -> list[MissedOffsets]:
    """These gaps and another one, joined with that which it continues."""
    for index in range(len(gaps) - 1, -1, -1):
        there = gaps[index]
        if (there.partition, there.reason) == (gap.partition, gap.reason):
            if there.gap_from <= gap.gap_from <= there.gap_to + 1:
                end = max(there.gap_to, gap.gap_to)
                joined = MissedOffsets(gap.partition, there.gap_from, end, gap.reason)
                return [*gaps[:index], joined, *gaps[index + 1 :]]
            break
    return [*gaps, gap][-GAPS_KEPT:]
