"""The pieces of a body that arrives in parts, joined once at the end.

A client that sends single bytes must not turn a 16 MiB body into 16 million objects: pieces are
joined 256 at a time, so that there are never more than ``length / 256 + 256`` of them.
"""

from __future__ import annotations

_FRESH_MAX = 256


class Pieces:
    """Bytes in order of arrival; ``size`` is their sum."""

    __slots__ = ("_fresh", "_joined", "size")

    def __init__(self) -> None:
        self._fresh: list[bytes] = []
        self._joined: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Appends a piece."""
        self._fresh.append(piece)
        self.size += len(piece)
        if len(self._fresh) >= _FRESH_MAX:
            self._joined.append(b"".join(self._fresh))
            self._fresh.clear()

    def take(self) -> bytes:
        """The whole body. The pieces are not used afterwards."""
        if not self._joined and len(self._fresh) == 1:
            return self._fresh[0]
        self._joined.extend(self._fresh)
        return b"".join(self._joined)


# Stands where no body is being taken in; nothing is ever added to it.
NO_PIECES = Pieces()
