"""The connections of consumers, as the owner of their subscription sees them.

A *session* is a consumer that is present. It has a stream, or it polls::

    open (a stream) -> lost (the stream is gone) -> open again, by its name -> ... -> left
                                                 -> 3 s later: left
    poll -> answered -> poll ... -> answered, and quiet for the acknowledgment timeout: left

Streams get what there is as soon as their outlet has drained; a poll gets one batch. What a session
is sent is decided by the window; this module only knows whether it can be sent something.
"""

from __future__ import annotations

import asyncio

from delivery.pipes.server import Asker
from delivery.streams.formats import Format
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from delivery.subscriptions.window.batches import Batch

HEARTBEAT_NS = 15_000_000_000  # of a stream that is silent
LOST_NS = 3_000_000_000  # a stream that is gone may come back within this time
BATCH_MESSAGES = 256


class Session:
    """A consumer that is present. ``parked`` is a batch whose records must be loaded first; it was
    taken and not sent. ``ends_ns`` is when the consumer is taken for gone, 0: not by time.
    ``is_sender``: it is one of the daemon's own, which sends on what it gets. ``answered`` is the
    batch that answered ``asker``, with the number of its messages; epoch 0: none. ``asked_most`` is
    the most that a poll of it has asked for."""

    __slots__ = (
        "answered", "asked_most", "asker", "ends_ns", "filters", "format", "is_sender", "name",
        "outlet", "parked", "poll", "poll_ends_ns", "poll_max", "written_ns",
    )  # fmt: skip

    def __init__(self, name: str, filters: tuple[str, ...]) -> None:
        self.name = name
        self.filters = filters
        self.is_sender = False  # it has a stream without a format
        self.outlet: Outlet | None = None
        self.format: Format | None = None
        self.parked: Batch | None = None
        self.ends_ns = 0
        self.poll: asyncio.Future[bytes] | None = None
        self.asker: Asker | None = None
        self.answered = (0, 0)
        self.poll_max = 0
        self.asked_most = 0
        self.poll_ends_ns = 0
        self.written_ns = 0

    @property
    def kind(self) -> str:
        """How the consumer gets messages."""
        return "stream" if self.is_sender or self.format is not None else "poll"

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection now."""
        return (self.outlet is not None and not self.outlet.closed) or self.poll is not None

    def room(self) -> int:
        """How many messages it can be sent now."""
        if self.outlet is not None:
            return BATCH_MESSAGES if self.outlet.writable else 0
        if self.poll is not None and not self.poll.done():
            return self.poll_max
        return 0

    def answer(self, body: bytes) -> None:
        """Answers the poll, if one waits."""
        if self.poll is not None and not self.poll.done():
            self.poll.set_result(body)
        self.poll = None

    def end_stream(self, data: bytes = b"") -> None:
        """Ends the stream, if there is one, after ``data``."""
        outlet, self.outlet = self.outlet, None
        if outlet is not None and not outlet.closed:
            outlet.drained = outlet.closed_by_peer = None
            outlet.end(chunk(data) if data else b"")

    def beat(self, now_ns: int) -> None:
        """Shows that a stream without messages is alive."""
        if self.outlet is not None and self.format is not None and self.outlet.writable:
            self.written_ns = now_ns
            self.outlet.write(chunk(self.format.heartbeat()))
