"""A watch over any number of connections: every record once, in order, none left out.

A position says where a stream stands: the last offset of each of its partitions. The stream tells
it after each write, and here each record that is handed out moves it on. When a connection ends,
whatever the reason, the next one asks for what comes after the position: no record is left out, and
none is repeated that had come without a position.

    connect -> position, records, position, ... -> lost -> wait -> connect with the position

Waiting is by patience, as with any other call (http.py). It begins anew whenever a record arrives,
or the news that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple, TypeVar

from msgspec import UNSET, Struct

from commands.client.events import EventParser, EventTooLarge, StreamEvent
from commands.client.http import (
    RECONNECT_WAIT_MAX_MS,
    RECONNECT_WAIT_MS,
    Client,
    OpenAnswer,
    Refused,
    UnknownAnswer,
    Unreachable,
    decoded,
)
from delivery.reading.followed import Key
from delivery.streams import events
from delivery.streams.events import (
    WatchCaughtUp,
    WatchError,
    WatchRecord,
    WatchRecords,
    WatchTombstone,
    WatchTopicDeleted,
)
from delivery.watch.positions import PositionError, format_position, parse_position

RECREATED = "recreated"  # a tombstone's reason: its offsets are those of a former topic
Shape = TypeVar("Shape", bound=Struct)


class Arrived(NamedTuple):
    """A record, and where it is from."""

    topic: str
    partition: int
    record: WatchRecord


Told = list[Arrived] | WatchTombstone | WatchTopicDeleted | WatchCaughtUp


class WatchStream:
    """What one watch tells, with ``path`` and ``query`` as its address.

    ``topics`` are the ids of the topics that it names; None for the topic of a stream by name,
    whose id its position tells. ``position`` is where to begin; an empty one leaves it to the
    query. After a lost connection, the next one is tried for ``patience_ms``; the first one for
    ``reach_ms``.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        query: dict[str, str],
        topics: dict[str, int | None],
        position: dict[Key, int],
        *,
        patience_ms: float,
        reach_ms: float,
    ) -> None:
        self._client = client
        self._path = path
        self._query = query
        self._topics = topics
        self._offsets = dict(position)
        self._patience_ms = patience_ms
        self._reach_ms = reach_ms
        self._sole_partition = 0  # of a stream whose records do not name theirs
        self._is_new = True  # whether the connection has told no position yet
        self._failing_since_ms: float | None = None
        self._wait_ms = 0.0

    @property
    def position(self) -> dict[Key, int]:
        """The last offset of each partition that was handed out; empty before the first answer."""
        return dict(self._offsets)

    def told(self) -> Iterator[Told]:
        """What the stream tells, without an end. It counts as handed out when the next is asked
        for. Raises Unreachable, Refused, UnknownAnswer."""
        while True:
            answer = self._connected()
            try:
                with closing(answer):
                    yield from self._of_connection(answer.read)
            except (Unreachable, _EndedByError) as error:
                self._before_next(error)
            else:
                self._before_next(Unreachable(self._client.url, "the stream ended"))

    def _connected(self) -> OpenAnswer:
        headers = {"Accept": "text/event-stream"}
        if self._offsets:
            headers["Last-Event-ID"] = format_position(self._offsets)
        patience_ms = self._patience_left_ms() if self._client.reached else self._reach_ms
        return self._client.open(self._path, headers, query=self._query, patience_ms=patience_ms)

    def _patience_left_ms(self) -> float:
        if self._failing_since_ms is None:
            return self._patience_ms
        return max(0, self._failing_since_ms + self._patience_ms - self._client.now_ms())

    def _before_next(self, failed: Unreachable | _EndedByError) -> None:
        """Waits before the next connection, or raises what ended the last one."""
        if self._failing_since_ms is None:
            self._failing_since_ms = self._client.now_ms()
            self._wait_ms = 0.0
        if self._wait_ms >= self._patience_left_ms():
            raise failed.refused if isinstance(failed, _EndedByError) else failed
        self._client.retries += 1
        self._client.sleep_ms(self._wait_ms)
        self._wait_ms = min(max(RECONNECT_WAIT_MS, 2 * self._wait_ms), RECONNECT_WAIT_MAX_MS)

    def _of_connection(self, read: Callable[[], bytes]) -> Iterator[Told]:
        parser = EventParser()
        self._is_new = True
        while data := read():
            arrived: list[Arrived] = []  # what comes together is handed out together
            for step in self._steps(parser, data):
                if isinstance(step, list):
                    arrived += step
                    continue
                if arrived:
                    yield from self._handed_out(arrived)
                    arrived = []
                if isinstance(step, str):
                    self._stand(step)
                else:
                    yield from self._handed_out(step)
            if arrived:
                yield from self._handed_out(arrived)

    def _steps(self, parser: EventParser, data: bytes) -> Iterator[Told | str]:
        """What the bytes tell, and the positions in between."""
        at = parser.last_event_id
        try:
            found = parser.feed(data)
        except EventTooLarge as error:
            raise UnknownAnswer(f"{self._client.url}: {error}") from error
        for event in found:
            told = self._understood(event)
            if told:
                yield told
            if event.last_event_id != at:  # it counts the event that it comes with
                at = event.last_event_id
                yield at
        if parser.last_event_id != at:
            yield parser.last_event_id

    def _stand(self, text: str) -> None:
        """Takes a position, which names all partitions of the stream."""
        try:
            position = parse_position(text)
        except PositionError as error:
            raise UnknownAnswer(f"{self._client.url}: {error}") from error
        if len(self._topics) == 1 and position:
            self._topics = {topic: next(iter(position))[0] for topic in self._topics}
        if self._is_new and len(position) == 1:
            self._sole_partition = next(iter(position))[1]
        self._is_new = False
        self._offsets = position

    def _understood(self, event: StreamEvent) -> Told | None:
        match event.type:
            case events.RECORDS:
                return self._arrived(self._decoded(event, WatchRecords).records)
            case events.RECORD:
                return self._arrived([self._decoded(event, WatchRecord)])
            case events.TOMBSTONE:
                return self._decoded(event, WatchTombstone)
            case events.TOPIC_DELETED:
                return self._decoded(event, WatchTopicDeleted)
            case events.CAUGHT_UP:
                return self._decoded(event, WatchCaughtUp)
            case events.ERROR:
                error = self._decoded(event, WatchError)
                raise _EndedByError(Refused(503, error.code, error.message, error.detail))
        return None

    def _arrived(self, records: list[WatchRecord]) -> list[Arrived]:
        (only, *_) = self._topics
        found = [
            Arrived(
                only if record.topic is UNSET else record.topic,
                self._sole_partition if record.partition is UNSET else record.partition,
                record,
            )
            for record in records
        ]
        for topic in {each.topic for each in found}:
            self._topic_id(topic)
        return found

    def _topic_id(self, topic: str) -> int:
        topic_id = self._topics.get(topic)
        if topic_id is None:
            raise UnknownAnswer(
                f"{self._client.url} sent a record of {topic!r} before a position of it"
            )
        return topic_id

    def _handed_out(self, told: Told) -> Iterator[Told]:
        yield told
        if isinstance(told, list):
            last = {(topic, partition): record.seq for topic, partition, record in told}
            for (topic, partition), seq in last.items():
                self._offsets[self._topic_id(topic), partition] = seq
        elif isinstance(told, WatchTombstone) and told.reason != RECREATED:
            key = (told.topic_id, told.partition)
            self._offsets[key] = max(told.gap_to, self._offsets.get(key, 0))
        self._failing_since_ms = None

    def _decoded(self, event: StreamEvent, kind: type[Shape]) -> Shape:
        return decoded(self._client, event.data.encode(), kind)


class _EndedByError(Exception):
    """The stream told an error and ended; a later connection may go on."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused
