"""Clients that know nothing but the last event id skip nothing, wherever connections break.

Each browser counts ids in its own way, read in its sources (decision 0010). None of them may miss a
record; each may get some again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.client.events import EventParser, StreamEvent
from delivery.reading.followed import Key
from delivery.streams.formats import SSE, Origin
from delivery.watch.positions import format_position, parse_position
from uploader.l0.records import Record

KEYS = st.sets(st.tuples(st.integers(7, 9), st.integers(0, 2)), min_size=1, max_size=4)


def stream(now: dict[Key, int], last_id: str, rng: random.Random) -> bytes:
    """What a daemon sends whose topics have these heads by now. A client without a last id watches
    the tail."""
    position = dict(now)
    if last_id:
        sent_id = parse_position(last_id)
        position = {key: sent_id.get(key, 0) for key in now}
    sent = SSE.opening() + SSE.position(format_position(position))
    heads = {key: head + rng.randint(0, 3) for key, head in now.items()}
    while position != heads:
        written = b""
        for key in rng.sample(sorted(heads), rng.randint(1, len(heads))):
            last = rng.randint(position[key], heads[key])
            data = f'"{key[0]}:{key[1]}"'
            items = [(seq, 1_700, Record(data)) for seq in range(position[key] + 1, last + 1)]
            written += SSE.records(items, Origin("t", *key), coalesced=rng.random() < 0.5)
            position[key] = last
        sent += SSE.heartbeat() if rng.random() < 0.2 else b""
        sent += SSE.ending(written, format_position(position))
    now.update(heads)
    return sent


def by_standard(sent: bytes, last_id: str) -> tuple[list[StreamEvent], str]:
    """Chromium, and anything that follows the standard."""
    parser = EventParser(last_id)
    events = parser.feed(sent)
    return events, parser.last_event_id


def by_gecko(sent: bytes, last_id: str) -> tuple[list[StreamEvent], str]:
    """An id counts only in a block with data."""
    blocks = sent.split(b"\n\n")
    with_data = [block for block in blocks[:-1] if b"data:" in block]
    return by_standard(b"".join(block + b"\n\n" for block in with_data), last_id)


def by_webkit(sent: bytes, last_id: str) -> tuple[list[StreamEvent], str]:
    """An id counts when an event with data is dispatched, its own or a later one."""
    events, _ = by_standard(sent, last_id)
    return events, events[-1].last_event_id if events else last_id


Browser = Callable[[bytes, str], tuple[list[StreamEvent], str]]


@pytest.mark.parametrize("browser", [by_standard, by_gecko, by_webkit])
@given(keys=KEYS, seed=st.integers(0, 1 << 32))
def test_no_browser_skips_a_record(browser: Browser, keys: set[Key], seed: int) -> None:
    rng = random.Random(seed)
    now = dict.fromkeys(keys, 5)
    reached: dict[Key, int] = {}
    last_id = ""
    for _ in range(20):
        now = {key: head + rng.randint(0, 3) for key, head in now.items()}  # while it is away
        if not reached:
            tail = dict(now)
        sent = stream(now, last_id, rng)
        events, last_id = browser(sent[: rng.randint(0, len(sent))], last_id)
        if events and not reached:
            reached = tail  # from the first event on, all that comes after it is wanted
        for event in events:
            told = json.loads(event.data)
            for record in told.get("records", [told] if "seq" in told else []):
                topic_id, partition = map(int, record["data"].split(":"))
                key = (topic_id, partition)
                assert record["seq"] <= reached[key] + 1, "a record was skipped"
                reached[key] = max(reached[key], record["seq"])
