"""Where a watcher's bytes go: one stream to one client, as delivery sees it.

Nothing is read for a client until its outlet has drained, so that a slow client costs at most what
was written to it last. ``daemon/http/stream.py`` is the outlet that is a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Outlet(Protocol):
    """A stream of bytes to one client. All calls come from the loop's thread.

    open -> (write -> ``drained``, if the write left it not ``writable``)* -> ``end``, or the client
    goes: ``closed_by_peer``. Then it is ``closed``; writes go nowhere and no function is called.
    """

    # Called when everything is taken after a write that left the outlet not writable.
    drained: Callable[[], None] | None
    # Called once if the outlet closes for another reason than ``end``.
    closed_by_peer: Callable[[], None] | None

    @property
    def writable(self) -> bool:
        """Whether everything that was written is taken. False once it is closed."""

    @property
    def closed(self) -> bool:
        """Whether it has ended, from either side."""

    def write(self, data: bytes) -> None:
        """Writes whole chunks (``wire.chunk``). Outlets may share one ``data``."""

    def end(self, data: bytes = b"") -> None:
        """Writes ``data``, whole chunks too, and ends the stream. Does nothing if it is closed."""
