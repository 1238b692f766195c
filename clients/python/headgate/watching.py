"""A watch over any number of connections: every record once, in order, none left out.

A position says where the stream stands: the last offset of each of its partitions
(``7:0=120,1=98``: topic id, partitions, offsets). The daemon tells it after each write, and here
each record that is handed out moves it on. When a connection ends, the next one asks for what comes
after the position:

    connect -> position, records, position, ... -> lost -> wait -> connect with the position
"""

from __future__ import annotations

import json
import logging
import math
from typing import Any

from headgate.errors import HeadgateError, UnknownAnswer
from headgate.records import Gap, Record, fields_of, gap_of
from headgate.steps import (
    RECONNECT_MAX_S,
    RECONNECT_S,
    Answer,
    Emit,
    Emitting,
    Lost,
    Op,
    Read,
    Request,
    Wait,
    asked,
    path,
)

log = logging.getLogger("headgate")

LINE_BYTES_MAX = 64 << 20  # the largest record, in JSON, is far below
RECREATED = "recreated"  # a gap's reason: its offsets are those of a former topic
ERRORS_MAX = 5  # streams in a row that the daemon ended with an error
SILENCE_S = 40.0  # a stream says something every 15 s


class Watching:
    """What a watch asks for, and where it is. Without a place to begin it has what is new."""

    def __init__(
        self, topic: str, *, from_seq: int | None = None, from_ts: int | None = None,
        partition: int | None = None, key: str | None = None, tag: str | None = None,
        node: str | None = None, position: str = "",
    ) -> None:  # fmt: skip
        self._topic = topic
        self._path = path("topics", topic, "watch")
        self._filters = {"partition": partition, "key": key, "tag": tag, "node": node}
        self._begins = {"from_seq": from_seq, "from_ts": from_ts}
        self._ids = ""  # of the topic, as text
        self._offsets: dict[int, int] = {}
        self._sole_partition = 0  # of a stream whose records do not name theirs
        self._wait_s = 0.0
        self._errors = 0  # since the last record
        if position:
            self._stand(position, is_first=False)

    @property
    def position(self) -> str:
        """After what was handed out last; empty before the first answer."""
        places = (f"{partition}={seq}" for partition, seq in sorted(self._offsets.items()))
        return f"{self._ids}:{','.join(places)}" if self._ids else ""

    def told(self) -> Emitting[Record | Gap]:
        """Records and gaps, without an end. Raises HeadgateError, for example if the topic is
        deleted."""
        patience_s: float | None = None
        while True:
            answer = yield from self._opened(patience_s)
            patience_s = math.inf
            try:
                yield from self._of_stream(answer.stream)
            except Lost:
                pass
            yield Wait(self._wait_s)
            self._wait_s = min(max(RECONNECT_S, 2 * self._wait_s), RECONNECT_MAX_S)

    def _opened(self, patience_s: float | None) -> Op[Answer]:
        headers = {"Accept": "application/x-ndjson"}
        query: dict[str, object] = dict(self._filters)
        if self._ids:
            headers["Last-Event-ID"] = self.position
        else:
            query |= self._begins
        request = Request("GET", self._path, None, query, headers, SILENCE_S)
        return asked(request, opens=True, patience_s=patience_s)

    def _of_stream(self, stream: Any) -> Emitting[Record | Gap]:
        begun, is_first = b"", True
        while data := (yield Read(stream)):
            *lines, begun = (begun + data).split(b"\n") if b"\n" in data else (begun + data,)
            if len(begun) > LINE_BYTES_MAX:
                raise UnknownAnswer("unknown_answer", "a line of the stream has over 64 MiB")
            for line in filter(None, lines):
                said = line_of(line)
                event = said.get("event")
                if event == "position":
                    self._stand(said["id"], is_first=is_first)
                    is_first = False
                elif event is None:
                    record = Record(**fields_of(said, self._topic, self._sole_partition))
                    self._moved(record.partition, record.seq)
                    yield Emit(record)
                elif event == "tombstone":
                    gap = gap_of(said, self._topic)
                    if gap.reason != RECREATED:
                        self._moved(gap.partition, gap.last_seq)
                    yield Emit(gap)
                elif event == "caught-up":
                    self._wait_s = 0.0
                elif event == "error":
                    self._failed(said)

    def _failed(self, said: dict[str, Any]) -> None:
        """The daemon ends the stream. Raises HeadgateError if it has done so ERRORS_MAX times
        without a record between."""
        code, message = str(said.get("code")), str(said.get("message"))
        log.warning("the watch of %s was ended by the daemon: %s (%s)", self._topic, message, code)
        self._errors += 1
        if self._errors >= ERRORS_MAX:
            raise HeadgateError(code, message)

    def _stand(self, text: str, *, is_first: bool) -> None:
        """Takes a position, which names all partitions of the stream. Raises ValueError."""
        self._ids, _, places = text.partition(":")
        pairs = (place.split("=") for place in places.split(","))
        self._offsets = {int(partition): int(seq) for partition, seq in pairs}
        if is_first and len(self._offsets) == 1:
            (self._sole_partition,) = self._offsets

    def _moved(self, partition: int, seq: int) -> None:
        self._wait_s = 0.0
        self._errors = 0
        self._offsets[partition] = max(seq, self._offsets.get(partition, 0))


def line_of(line: bytes) -> dict[str, Any]:
    """A line of a stream. Raises UnknownAnswer."""
    try:
        said = json.loads(line)
    except ValueError as error:
        raise UnknownAnswer("unknown_answer", f"not a line of JSON: {line[:80]!r}") from error
    if not isinstance(said, dict):
        raise UnknownAnswer("unknown_answer", f"not an event: {line[:80]!r}")
    return said
