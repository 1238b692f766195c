"""The parser of event streams: bytes in, events out, by the HTML standard (section 9.2.6).

    stream    [BOM] blocks; bytes that are not UTF-8 become U+FFFD
    block     lines that end with CR LF, LF or CR, up to an empty line
    line      ``field: value``, ``field`` alone (its value is empty), or ``: comment``

An event has a type, ``data`` and the last event id of the stream. A block without ``data`` is not
an event, but its ``id`` counts; so Headgate sends positions. A block that the end of the stream
cuts off counts for nothing.

It differs from the standard in one point: a line or an event of more than EVENT_BYTES_MAX is
refused, because what is not limited fills the memory.
"""

from __future__ import annotations

from typing import NamedTuple

EVENT_BYTES_MAX = 64 << 20  # the largest record, in JSON, is far below
_BOM = b"\xef\xbb\xbf"


class StreamEvent(NamedTuple):
    """An event as a browser would dispatch it."""

    type: str
    data: str
    last_event_id: str


class EventTooLarge(ValueError):
    """A line or an event of more than EVENT_BYTES_MAX."""


class EventParser:
    """Parses one connection. ``last_event_id`` holds between connections: a new parser begins with
    that of the one before."""

    def __init__(self, last_event_id: str = "") -> None:
        self.last_event_id = last_event_id  # of the last block that ended
        self.retry_ms: int | None = None  # what the server asked for
        self._id = last_event_id
        self._begun: list[bytes] = []  # the pieces of a line that has not ended
        self._begun_bytes = 0
        self._begins = True
        self._after_cr = False  # the CR before may be half of a CR LF
        self._type = ""
        self._data: list[str] = []
        self._bytes = 0

    def feed(self, data: bytes) -> list[StreamEvent]:
        """The events that are complete with these bytes. Raises EventTooLarge."""
        events: list[StreamEvent] = []
        data = self._with_line_feeds(data)
        begun, line_feed, rest = data.rpartition(b"\n")
        if line_feed:
            lines = (b"".join(self._begun) + begun).split(b"\n")
            self._begun = []
            self._begun_bytes = 0
            if self._begins:
                self._begins = False
                lines[0] = lines[0].removeprefix(_BOM)
            for line in lines:
                if line:
                    self._take(line)
                else:
                    self._end_of_block(events)
        if rest:
            self._begun.append(rest)
            self._begun_bytes += len(rest)
        if self._bytes + self._begun_bytes > EVENT_BYTES_MAX:
            raise EventTooLarge(f"an event of the stream has more than {EVENT_BYTES_MAX:,} bytes")
        return events

    def _with_line_feeds(self, data: bytes) -> bytes:
        """The bytes with LF for each end of a line."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" not in data:
            return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes) -> None:
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._bytes += len(line)
        elif name == "event":
            self._type = value
        elif name == "id":
            if "\0" not in value:
                self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value[:18])

    def _end_of_block(self, events: list[StreamEvent]) -> None:
        self.last_event_id = self._id
        data = "\n".join(self._data)
        # The standard looks for an empty buffer, to which each line has added a line feed.
        if self._data:
            events.append(StreamEvent(self._type or "message", data, self._id))
        self._type = ""
        self._data = []
        self._bytes = 0
