"""What an owner hands to a sender of a push subscription, and the sender's end of that stream.

    opened -> (messages, of one batch)* -> ended, by either side; or opened again, by another window

Owner and sender exchange values. Where they are in two processes, ``hand`` encodes each as msgpack,
one in each write of the pipe between them, and the sender's end decodes it. Nothing here decides
what becomes of a message.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from delivery.streams.outlet import Outlet
from delivery.subscriptions.window.batches import Place
from uploader.l0.records import Record


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
