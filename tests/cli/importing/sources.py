"""Sources in memory, for tests of what is above them."""

from __future__ import annotations

from collections.abc import Sequence

from commands.importing.reading.raw import FileVersion


class Pieces:
    """A source that brings these pieces, one per read; None is a pause."""

    def __init__(self, *pieces: bytes | None, name: str = "pieces") -> None:
        self.name = name
        self.identity: str | None = None
        self.can_seek = False
        self.may_grow = False
        self.position = 0
        self._pieces = list(pieces)

    def location(self) -> str:
        return self.name

    def size(self) -> int | None:
        return None

    def version(self) -> FileVersion | None:
        return None

    def read(self, count: int) -> bytes | None:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        self.position += len(piece or b"")
        return piece

    def seek(self, position: int) -> None:
        raise AssertionError("these are read from front to back")

    def verify(self) -> None:
        """Nothing changes."""

    def close(self) -> None:
        """Nothing is open."""


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data in pieces that end at these places."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]
