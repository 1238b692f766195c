"""An event stream as the HTML standard parses it, and the chunks of HTTP that carry it.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, "Interpreting an event
stream". A block without data sets the last event id and dispatches nothing. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

HEAD_BYTES_MAX = 64


class Event(NamedTuple):
    """A block with data."""

    name: str
    data: str


class Position(NamedTuple):
    """The last event id is now this one."""

    text: str


class SseParser:
    """Bytes in, events and positions out."""

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._rest = b""
        self._first = True
        self._name = ""
        self._data: list[str] = []
        self._id = ""
        self._told_id = ""

    def feed(self, data: bytes) -> list[Event | Position]:
        """What the bytes complete."""
        self._rest += data
        found: list[Event | Position] = []
        while (line := self._line()) is not None:
            if self._first:
                line = line.removeprefix("\ufeff")
                self._first = False
            if line:
                self._field(line)
            else:
                found += self._dispatch()
        return found

    def _line(self) -> str | None:
        """The next line that has ended by LF, CR or CRLF. A CR at the end may be half of a CRLF."""
        ends = [at for at in (self._rest.find(b"\n"), self._rest.find(b"\r")) if at >= 0]
        if not ends:
            return None
        end = min(ends)
        size = 1
        if self._rest[end : end + 1] == b"\r":
            if end + 1 == len(self._rest):
                return None
            size += self._rest[end + 1 : end + 2] == b"\n"
        line, self._rest = self._rest[:end], self._rest[end + size :]
        return line.decode("utf-8", errors="replace")

    def _field(self, line: str) -> None:
        name, colon, value = line.partition(":")
        if not name and colon:
            return  # a comment
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)

    def _dispatch(self) -> list[Event | Position]:
        found: list[Event | Position] = []
        if self._data:
            found.append(Event(self._name or "message", "\n".join(self._data)))
        if self._id != self._told_id:
            found.append(Position(self._id))
            self._told_id = self._id
        self._name, self._data = "", []
        return found


class ChunkDecoder:
    """Bytes of a chunked body in, its content out. Raises ValueError for what is not chunks."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""
        self._left = 0  # bytes of the chunk that are still to come, with its CRLF

    def feed(self, data: bytes) -> bytes:
        """The content of what has arrived."""
        self._rest += data
        found = []
        while self._rest and not self.ended:
            if self._left > 2:
                piece = self._rest[: self._left - 2]
                found.append(piece)
                self._take(len(piece))
            elif self._left:
                end = self._rest[: self._left]
                if end != b"\r\n"[2 - self._left :][: len(end)]:
                    raise ValueError(f"a chunk ends with {end!r}")
                self._take(len(end))
            elif not self._head():
                break
        return b"".join(found)

    def _take(self, count: int) -> None:
        self._rest = self._rest[count:]
        self._left -= count

    def _head(self) -> bool:
        """Takes the size of the next chunk, if it is there."""
        line, end, rest = self._rest.partition(b"\r\n")
        if not end:
            if len(self._rest) > HEAD_BYTES_MAX:
                raise ValueError(f"a chunk begins with {self._rest[:HEAD_BYTES_MAX]!r}")
            return False
        size = int(line, 16)
        if not size:
            if len(rest) < 2:
                return False
            self.ended = True
        self._rest, self._left = rest, size + 2
        return True
