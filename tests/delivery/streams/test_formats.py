"""The bytes of streams."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.client.events import EventParser
from delivery.reading.diff import diff_record
from delivery.streams.events import WatchCaughtUp, WatchRecord, WatchRecords
from delivery.streams.formats import (
    MSGPACK,
    NDJSON,
    SSE,
    Format,
    FormatError,
    Item,
    Origin,
    format_for,
)
from uploader.l0.records import Record

HERE = Origin("orders", 7, 3)
SHOWN = Origin('a"b:c', 7, 3, shows_topic=True, shows_partition=True)

# JSON as producers send it: with blanks and line breaks between its values.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each, max_size=3)
)
BREAKS = st.sampled_from(["", " ", "\n", "\r\n", "\r", "\t"])
JSON = st.builds(
    lambda value, before, after: before + msgspec.json.encode(value).decode() + after,
    VALUES, BREAKS, BREAKS,
)  # fmt: skip
TEXTS = st.none() | st.text(max_size=5)
RECORDS = st.builds(
    Record, JSON | st.binary(max_size=5), st.none(), TEXTS, TEXTS, TEXTS,
    st.none() | st.just('{"a":\n1}'),
)  # fmt: skip
ITEMS = st.lists(st.tuples(st.integers(1, 1 << 60), st.integers(0, 1 << 50), RECORDS), min_size=1)
ORIGINS = st.sampled_from([HERE, SHOWN])


def expected(items: list[Item], origin: Origin) -> list[dict[str, Any]]:
    """The records as ``diff`` answers them, and their names."""
    found = []
    for item in items:
        fields = msgspec.json.decode(msgspec.json.encode(diff_record(*item)))
        if origin.shows_topic:
            fields["topic"] = origin.topic
        if origin.shows_partition:
            fields["partition"] = origin.partition
        found.append(fields)
    return found


@given(ITEMS, ORIGINS)
def test_an_event_stream_has_an_event_for_each_record(items: list[Item], origin: Origin) -> None:
    text = SSE.records(items, origin)
    assert b"\r" not in text
    blocks = text.decode().removesuffix("\n\n").split("\n\n")
    for block, record in zip(blocks, expected(items, origin), strict=True):
        name, data = block.split("\n")
        assert name == "event: record" and data.startswith("data: ")
        assert msgspec.json.decode(data[6:]) == record
        msgspec.json.decode(data[6:], type=WatchRecord)


@given(ITEMS, ORIGINS)
def test_coalesced_records_are_one_event(items: list[Item], origin: Origin) -> None:
    text = SSE.records(items, origin, coalesced=True)
    name, data, *end = text.decode().split("\n")
    assert name == "event: records" and end == ["", ""]
    assert msgspec.json.decode(data[6:]) == {"records": expected(items, origin)}
    msgspec.json.decode(data[6:], type=WatchRecords)


@given(ITEMS, ORIGINS, st.booleans())
def test_lines_have_a_record_each(items: list[Item], origin: Origin, coalesced: bool) -> None:
    lines = NDJSON.records(items, origin, coalesced).split(b"\n")
    assert lines.pop() == b""
    assert [msgspec.json.decode(line) for line in lines] == expected(items, origin)


@given(ITEMS, ORIGINS)
def test_maps_have_records_as_they_are_stored(items: list[Item], origin: Origin) -> None:
    told = msgspec.msgpack.decode(MSGPACK.records(items, origin))
    assert told["event"] == "records"
    assert (told["topic"], told["topic_id"], told["partition"]) == (origin.topic, 7, 3)
    for found, record in zip(told["records"], expected(items, HERE), strict=True):
        if isinstance(found["data"], bytes):
            assert found["data"] == b64decode(record.pop("data_b64"))
        else:
            assert msgspec.json.decode(found["data"]) == record.pop("data")
        assert ("meta" in found) is (record.pop("meta", None) is not None)
        found.pop("meta", None)
        assert {**found, "data": 0} == {**record, "data": 0}


@pytest.mark.parametrize("form", [SSE, NDJSON, MSGPACK])
def test_no_records_are_no_bytes(form: Format) -> None:
    assert form.records([], HERE) == form.records([], HERE, coalesced=True) == b""


def test_a_batch_goes_out_as_it_is_stored() -> None:
    told = msgspec.msgpack.decode(MSGPACK.batch(HERE, 120, 3, 1, 1, 1_700, b"\x93\x01\x02\x03"))
    assert told == {
        "event": "batch", "topic": "orders", "topic_id": 7, "partition": 3, "first_seq": 120,
        "count": 3, "skip": 1, "codec": 1, "arrival_ms": 1_700, "payload": b"\x93\x01\x02\x03",
    }  # fmt: skip


EVENTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("tombstone", lambda form: form.tombstone(HERE, 5, 9, "cap"),
     {"topic": "orders", "topic_id": 7, "partition": 3, "gap_from": 5, "gap_to": 9,
      "reason": "cap"}),
    ("caught-up", lambda form: form.caught_up([("orders", 0, 120)]),
     {"positions": [{"topic": "orders", "partition": 0, "head_seq": 120}]}),
    ("topic-deleted", lambda form: form.topic_deleted("orders", 7),
     {"topic": "orders", "topic_id": 7}),
    ("error", lambda form: form.error("store_unavailable", "the store\nfails", {"a": 1}),
     {"code": "store_unavailable", "message": "the store\nfails", "detail": {"a": 1}}),
    ("error", lambda form: form.error("internal", "a bug"),
     {"code": "internal", "message": "a bug", "detail": {}}),
    ("closing", lambda form: form.closing(), {"code": "shutting_down"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "fields"), EVENTS)
def test_each_event_says_the_same_in_every_format(
    name: str, make: Any, fields: dict[str, Any]
) -> None:
    first, data, *end = make(SSE).decode().split("\n")
    assert first == f"event: {name}" and end == ["", ""]
    assert msgspec.json.decode(data.removeprefix("data: ")) == fields
    line = make(NDJSON)
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    assert msgspec.json.decode(line) == {"event": name, **fields}
    assert msgspec.msgpack.decode(make(MSGPACK)) == {"event": name, **fields}


def test_openings_heartbeats_and_positions() -> None:
    assert SSE.opening() == b"retry: 1000\n\n"
    assert NDJSON.opening() == MSGPACK.opening() == b""
    assert SSE.heartbeat() == b":\n\n"
    assert NDJSON.heartbeat() == b'{"event":"heartbeat"}\n'
    assert msgspec.msgpack.decode(MSGPACK.heartbeat()) == {"event": "heartbeat"}
    assert SSE.position("7:0=120") == b"event: position\nid: 7:0=120\ndata: {}\n\n"
    assert NDJSON.position("7:0=120") == b'{"event":"position","id":"7:0=120"}\n'
    told = {"event": "position", "id": "7:0=120"}
    assert msgspec.msgpack.decode(MSGPACK.position("7:0=120")) == told


@pytest.mark.parametrize("coalesced", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_the_last_records_of_a_write_carry_its_position_in_an_event_stream(
    count: int, coalesced: bool
) -> None:
    items = [(seq, 9, Record(r'"\n\nevent: record\n"')) for seq in range(1, count + 1)]
    before = SSE.event("caught-up", WatchCaughtUp([]))
    records = SSE.records(items, Origin("orders", 7, 0), coalesced and count > 1)
    for data in (records, before + records):
        found = EventParser("7:0=0").feed(SSE.ending(data, "7:0=3"))
        assert [event.last_event_id for event in found[:-1]] == ["7:0=0"] * (len(found) - 1)
        assert found[-1].type in ("record", "records") and found[-1].last_event_id == "7:0=3"
        plain = EventParser("").feed(data)
        assert [(e.type, e.data) for e in found] == [(e.type, e.data) for e in plain]


def test_without_records_at_its_end_a_write_has_an_event_for_its_position() -> None:
    records = SSE.records([(1, 9, Record("1"))], Origin("orders", 7, 0))
    for data in (b"", records + SSE.event("caught-up", WatchCaughtUp([]))):
        assert SSE.ending(data, "7:0=1") == data + SSE.position("7:0=1")
    for form in (NDJSON, MSGPACK):
        data = form.records([(1, 9, Record("1"))], Origin("orders", 7, 0))
        assert form.ending(data, "7:0=1") == data + form.position("7:0=1")


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", SSE),
        ("  ", SSE),
        ("*/*", SSE),
        ("text/event-stream", SSE),
        ("Text/Event-Stream; charset=utf-8", SSE),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", SSE),
        ("text/*", SSE),
        ("application/*", NDJSON),
        ("application/x-ndjson", NDJSON),
        ("application/x-ndjson, */*", NDJSON),
        ("application/x-ndjson;q=0.5, */*", SSE),
        ("application/x-ndjson;q=0.5, application/msgpack;q=0.9", MSGPACK),
        ("application/msgpack ; Q=0.001", MSGPACK),
        ("text/event-stream;q=0, */*", NDJSON),
        ("application/msgpack;q=2", MSGPACK),
    ],
)
def test_accept_chooses_the_format(accept: str, form: Format) -> None:
    assert format_for(accept) is form


@pytest.mark.parametrize("accept", ["image/png", "text/plain, */*;q=0", "text/event-stream;q=0.0"])
def test_a_client_that_accepts_none_is_told_what_there_is(accept: str) -> None:
    with pytest.raises(FormatError) as told:
        format_for(accept)
    assert str(told.value) == (
        "a stream is sent as text/event-stream, application/x-ndjson, application/msgpack;"
        f" Accept is {accept!r}"
    )
