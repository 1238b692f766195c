"""The end of a sender's stream: bytes from the owner of its subscription come in here.

It is an ``Outlet`` (``delivery/streams/outlet.py``), as the connection of a consumer is: written to
by the owner in this process, or by the pipe to it.
"""

from __future__ import annotations

from collections.abc import Callable


class SenderOutlet:
    """Takes what it is given; ``has_room`` tells whether the sender would take more."""

    def __init__(
        self,
        received: Callable[[bytes], None],
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

    def write(self, data: bytes) -> None:
        """Takes whole chunks."""
        if self.closed or not data:
            return
        self._received(data)
        self._is_full = not self._has_room()

    def has_drained(self) -> None:
        """To be called when the sender has room again."""
        if self._is_full and not self.closed and self._has_room():
            self._is_full = False
            if self.drained is not None:
                self.drained()

    def end(self, data: bytes = b"") -> None:
        """The owner ends the stream."""
        if self.closed:
            return
        self.write(data)
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
