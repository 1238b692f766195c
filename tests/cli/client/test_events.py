"""The parser of event streams, by the examples and the rules of the HTML standard."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.client import events
from commands.client.events import EventParser, EventTooLarge, StreamEvent


def parsed(text: str | bytes) -> list[StreamEvent]:
    return EventParser().feed(text.encode() if isinstance(text, str) else text)


def data_of(text: str | bytes) -> list[str]:
    return [event.data for event in parsed(text)]


def test_lines_of_data_are_joined() -> None:
    assert data_of("data: YHOO\ndata: +2\ndata: 10\n\n") == ["YHOO\n+2\n10"]


def test_comments_and_blocks_without_data_are_not_events() -> None:
    text = ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\n"
    parser = EventParser()
    assert parser.feed(text.encode() + b"data:  third event\n\n") == [
        StreamEvent("message", "first event", "1"),
        StreamEvent("message", "second event", ""),
        StreamEvent("message", " third event", ""),
    ]


def test_a_line_without_a_colon_is_a_field_with_an_empty_value() -> None:
    # The last block is cut off: it counts for nothing.
    assert data_of("data\n\ndata\ndata\n\ndata:") == ["", "\n"]


def test_one_space_after_the_colon_is_removed() -> None:
    assert data_of("data:test\n\ndata: test\n\ndata:  test\n\n") == ["test", "test", " test"]


def test_lines_end_with_cr_lf_or_both() -> None:
    assert data_of("data: a\rdata: b\r\ndata: c\n\r\ndata: d\r\rdata: e\n\n") == [
        "a\nb\nc",
        "d",
        "e",
    ]


def test_a_cr_and_its_lf_may_come_apart() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: b\r") == []
    assert parser.feed(b"\r") == [StreamEvent("message", "a\nb", "")]
    assert parser.feed(b"\ndata: c\n\n") == [StreamEvent("message", "c", "")]


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    assert data_of("\ufeffdata: a\n\n\ufeffdata: b\n\ndata: \ufeffc\n\n") == ["a", "\ufeffc"]


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    assert data_of(b"data: \xff\xc3\n\ndata: \xc3\xa9\n\n") == ["\ufffd\ufffd", "é"]


def test_the_type_is_that_of_its_block() -> None:
    text = (
        "event: add\ndata: 1\n\ndata: 2\n\nevent: gone\n\ndata: 3\n\nEvent: x\nevent:\ndata: 4\n\n"
    )
    assert [(event.type, event.data) for event in parsed(text)] == [
        ("add", "1"), ("message", "2"), ("message", "3"), ("message", "4"),
    ]  # fmt: skip


def test_an_id_counts_without_data_when_its_block_ends() -> None:
    parser = EventParser("7:0=1")
    assert parser.feed(b"event: record\ndata: {}\n\n") == [StreamEvent("record", "{}", "7:0=1")]
    assert parser.feed(b"id: 7:0=2\n") == [] and parser.last_event_id == "7:0=1"
    assert parser.feed(b"\n") == [] and parser.last_event_id == "7:0=2"


def test_an_id_with_a_nul_is_ignored_and_an_empty_one_resets() -> None:
    parser = EventParser("1")
    parser.feed(b"id: 2\0\n\n")
    assert parser.last_event_id == "1"
    parser.feed(b"id\n\n")
    assert parser.last_event_id == ""


def test_retry_is_a_number_of_digits() -> None:
    parser = EventParser()
    parser.feed(b"retry: 1000\n")
    assert parser.retry_ms == 1_000
    for text in ("retry: 5s\n", "retry: -1\n", "retry:\n", "retry: ٣\n", "retry:  7\n"):
        parser.feed(text.encode())
        assert parser.retry_ms == 1_000


def test_unknown_fields_are_ignored() -> None:
    assert parsed("foo: 1\ndata : 2\n data: 3\n: 4\n\n") == []


LINES = st.lists(
    st.sampled_from(
        [
            "data: a",
            "data:é",
            "data",
            "id: 1",
            "id: 2\0",
            "event: x",
            ": c",
            "retry: 5",
            "",
            "",
            "z",
        ]
    ),
    max_size=20,
)


@given(LINES, st.sampled_from(["\n", "\r", "\r\n"]), st.integers(0, 1 << 32))
def test_the_cuts_between_reads_do_not_matter(lines: list[str], end: str, seed: int) -> None:
    rng = random.Random(seed)
    text = ("\ufeff" + "".join(line + end for line in lines) + end).encode()
    whole, pieces = EventParser(), EventParser()
    expected = whole.feed(text)
    found: list[StreamEvent] = []
    while text:
        cut = rng.randint(0, 5)
        found += pieces.feed(text[:cut])
        text = text[cut:]
    assert found == expected
    assert (pieces.last_event_id, pieces.retry_ms) == (whole.last_event_id, whole.retry_ms)


def test_an_event_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVENT_BYTES_MAX", 1_000)
    parser = EventParser()
    parser.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLarge):
        parser.feed(b"x" * 200)
    parser = EventParser()
    for _ in range(4):
        parser.feed(b"data: " + b"x" * 200 + b"\n")
    with pytest.raises(EventTooLarge):
        parser.feed(b"data: " + b"x" * 200 + b"\n")
