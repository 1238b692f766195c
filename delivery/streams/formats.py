"""The bytes of a stream, in three formats that say the same.

    SSE       text/event-stream: for browsers; an event is ``event: NAME`` and ``data: JSON``
    NDJSON    application/x-ndjson: a JSON object on a line
    MSGPACK   application/msgpack: a sequence of maps, with batches as they are stored

What stands in an event is in events.py. The bytes of an event do not depend on who watches, so all
watchers with the same format and filter share them. The position does depend on it, and ends each
write: an event of its own, but in an event stream the ``id`` of the last records, so that a client
that keeps the last ``id`` after each event has exactly those (decision 0010). Without records it
has data, though the standard does not ask for any: Firefox forgets an ``id`` that comes without,
and Safari does not count it before the next event that has some.

JSON is written as text here, and not encoded from Structs, because it is the stored text of the
record between a few numbers: 0.7 us instead of 1.05 us for a record of 200 bytes. Tests compare it
with the encoded WatchRecord.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring as quoted
from typing import Any

import msgspec
from msgspec import Struct

from delivery.streams import events
from delivery.streams.accept import accepted
from delivery.streams.events import (
    HeadAt,
    WatchCaughtUp,
    WatchClosing,
    WatchError,
    WatchTombstone,
    WatchTopicDeleted,
)
from uploader.l0.records import Record

RETRY_MS = 1_000  # how long a browser waits before it connects again

Item = tuple[int, int, Record]  # offset, timestamp in ms, record

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()


class FormatError(Exception):
    """No format of a stream is acceptable to the client."""


class Origin(Struct, frozen=True):
    """Where records come from, and which of its names a record of this stream shows."""

    topic: str
    topic_id: int
    partition: int
    shows_topic: bool = False
    shows_partition: bool = False


class Format(ABC):
    """How a stream's events become bytes. Any two results may be joined."""

    content_type: str

    def opening(self) -> bytes:
        """The first bytes of a stream; may be empty."""
        return b""

    @abstractmethod
    def records(self, items: Iterable[Item], origin: Origin, coalesced: bool = False) -> bytes:
        """Records, each an event of its own, or ``coalesced`` in one."""

    @abstractmethod
    def event(self, name: str, fields: Struct) -> bytes:
        """Any other event."""

    @abstractmethod
    def position(self, position: str) -> bytes:
        """Where a watcher resumes that has everything before this (positions.py)."""

    def ending(self, data: bytes, position: str) -> bytes:
        """Whole events, and the position after them."""
        return data + self.position(position)

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Says nothing, but that the connection is alive."""

    def tombstone(self, origin: Origin, gap_from: int, gap_to: int, reason: str) -> bytes:
        """Offsets that the watcher does not get."""
        told = WatchTombstone(
            origin.topic, origin.topic_id, origin.partition, gap_from, gap_to, reason
        )
        return self.event(events.TOMBSTONE, told)

    def caught_up(self, heads: Sequence[tuple[str, int, int]]) -> bytes:
        """The watcher is at the head: (topic, partition, last offset) of all its partitions."""
        return self.event(events.CAUGHT_UP, WatchCaughtUp([HeadAt(*head) for head in heads]))

    def topic_deleted(self, topic: str, topic_id: int) -> bytes:
        """A topic of the stream was deleted."""
        return self.event(events.TOPIC_DELETED, WatchTopicDeleted(topic, topic_id))

    def error(self, code: str, message: str, detail: dict[str, Any] | None = None) -> bytes:
        """Why the stream ends after this."""
        return self.event(events.ERROR, WatchError(code, message, detail or {}))

    def closing(self) -> bytes:
        """The stream ends because the daemon does."""
        return self.event(events.CLOSING, WatchClosing())


class ForwardingFormat(Format):
    """A format that can have batches as they are stored, undecoded."""

    @abstractmethod
    def batch(
        self, origin: Origin, first_seq: int, count: int, skip: int, codec: int, arrival_ms: int,
        payload: bytes,
    ) -> bytes:  # fmt: skip
        """A batch as it is stored (docs/l0-format.md): ``count`` records, whose offsets begin at
        ``first_seq``. The watcher already has the first ``skip`` of them."""


class _EventStream(Format):
    """The text of HTML, section 9.2 (server-sent events)."""

    content_type = "text/event-stream"

    def opening(self) -> bytes:
        return b"retry: %d\n\n" % RETRY_MS

    def records(self, items: Iterable[Item], origin: Origin, coalesced: bool = False) -> bytes:
        texts = _record_texts(items, origin)
        if not texts:
            return b""
        if coalesced:
            text = f'event: records\ndata: {{"records":[{",".join(texts)}]}}\n\n'
        else:
            between = "\n\nevent: record\ndata: "
            text = f"event: record\ndata: {between.join(texts)}\n\n"
        return text.encode()

    def event(self, name: str, fields: Struct) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), _json.encode(fields))

    def position(self, position: str) -> bytes:
        return b"event: position\nid: %b\ndata: {}\n\n" % position.encode()

    def ending(self, data: bytes, position: str) -> bytes:
        last = data.rfind(b"\n\n", 0, -2)
        at = last + 2 if last >= 0 else 0
        if not data.startswith(b"event: record", at):
            return super().ending(data, position)
        return b"%bid: %b\n%b" % (data[:at], position.encode(), data[at:])

    def heartbeat(self) -> bytes:
        return b":\n\n"


class _Lines(Format):
    """JSON objects on lines. A record has no field ``event``; anything else has."""

    content_type = "application/x-ndjson"

    def records(self, items: Iterable[Item], origin: Origin, coalesced: bool = False) -> bytes:
        texts = _record_texts(items, origin)
        return ("\n".join(texts) + "\n").encode() if texts else b""

    def event(self, name: str, fields: Struct) -> bytes:
        return b'{"event":"%b",%b\n' % (name.encode(), _json.encode(fields)[1:])

    def position(self, position: str) -> bytes:
        return b'{"event":"position","id":"%b"}\n' % position.encode()

    def heartbeat(self) -> bytes:
        return b'{"event":"heartbeat"}\n'


class _Maps(ForwardingFormat):
    """Maps of msgpack, one after the other. ``data`` and ``meta`` are as they are stored: a string
    is JSON text, and bytes are bytes."""

    content_type = "application/msgpack"

    def records(self, items: Iterable[Item], origin: Origin, coalesced: bool = False) -> bytes:
        records = [record_map(*item) for item in items]
        if not records:
            return b""
        return _msgpack.encode(
            {
                "event": events.RECORDS,
                "topic": origin.topic,
                "topic_id": origin.topic_id,
                "partition": origin.partition,
                "records": records,
            }
        )

    def batch(
        self, origin: Origin, first_seq: int, count: int, skip: int, codec: int, arrival_ms: int,
        payload: bytes,
    ) -> bytes:  # fmt: skip
        return _msgpack.encode(
            {
                "event": events.BATCH,
                "topic": origin.topic,
                "topic_id": origin.topic_id,
                "partition": origin.partition,
                "first_seq": first_seq,
                "count": count,
                "skip": skip,
                "codec": codec,
                "arrival_ms": arrival_ms,
                "payload": payload,
            }
        )

    def event(self, name: str, fields: Struct) -> bytes:
        return _msgpack.encode({"event": name, **msgspec.structs.asdict(fields)})

    def position(self, position: str) -> bytes:
        return _msgpack.encode({"event": events.POSITION, "id": position})

    def heartbeat(self) -> bytes:
        return _msgpack.encode({"event": events.HEARTBEAT})


SSE = _EventStream()
NDJSON = _Lines()
MSGPACK = _Maps()
FORMATS: tuple[Format, ...] = (SSE, NDJSON, MSGPACK)


def format_for(accept: str) -> Format:
    """The format that an ``Accept`` field asks for; the first of FORMATS, if it accepts all.

    Raises FormatError (406)."""
    offered = {each.content_type: each for each in FORMATS}
    chosen = accepted(accept, [*offered])
    if chosen is None:
        raise FormatError(f"a stream is sent as {', '.join(offered)}; Accept is {accept[:80]!r}")
    return offered[chosen]


def _record_texts(items: Iterable[Item], origin: Origin) -> list[str]:
    begin = "{"
    if origin.shows_topic:
        begin += f'"topic":{quoted(origin.topic)},'
    if origin.shows_partition:
        begin += f'"partition":{origin.partition},'
    return record_texts(items, begin)


def record_texts(items: Iterable[Item], begin: str) -> list[str]:
    """The JSON of each record, on one line: line breaks in a record's own JSON are blanks.
    ``begin`` is the brace and the fields before those of the record."""
    texts = []
    for offset, ts_ms, record in items:
        data, key, tag, node, meta = (
            record.data, record.key, record.tag, record.node, record.meta,
        )  # fmt: skip
        if isinstance(data, str):
            if "\n" in data or "\r" in data:
                data = _one_line(data)
            text = f'{begin}"seq":{offset},"ts":{ts_ms},"data":{data}'
        else:
            text = f'{begin}"seq":{offset},"ts":{ts_ms},"data_b64":"{b64encode(data).decode()}"'
        if key is not None:
            text += f',"key":{quoted(key)}'
        if tag is not None:
            text += f',"tag":{quoted(tag)}'
        if node is not None:
            text += f',"node":{quoted(node)}'
        if meta is not None:
            text += f',"meta":{_one_line(meta)}'
        texts.append(text + "}")
    return texts


def _one_line(text: str) -> str:
    """In valid JSON a line break is never part of a value."""
    return text.replace("\n", " ").replace("\r", " ")


def record_map(offset: int, ts_ms: int, record: Record) -> dict[str, Any]:
    """The fields of a record in msgpack."""
    fields: dict[str, Any] = {"seq": offset, "ts": ts_ms, "data": record.data}
    for name in ("key", "tag", "node", "meta"):
        value = getattr(record, name)
        if value is not None:
            fields[name] = value
    return fields
