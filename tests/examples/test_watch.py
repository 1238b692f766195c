"""examples/watch: the program is run; the page is not, but a client asks and listens as it does.

The client follows the HTML standard (section 9.2): the parser of tests/cli/client/test_events.py,
the header Last-Event-ID, and no second attempt after an answer other than 200.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from commands.client.events import EventParser, StreamEvent
from delivery.streams import events
from tests.e2e.daemon import PAGE_ORIGIN, ROOT, Daemon, stream, wait_until

PAGE = (ROOT / "examples" / "watch" / "index.html").read_text()


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Daemon:
    shared_daemon.json("PUT", "/v0/topics/orders", {"partitions": 2})
    return shared_daemon


class EventSource:
    """A connection as a browser opens it. ``lose`` drops it; the next one resumes."""

    def __init__(self, daemon: Daemon, path: str) -> None:
        self._daemon = daemon
        self._path = path
        self.last_event_id = ""
        self.retry_ms: int | None = None
        self.is_over = False
        self.connect()

    def connect(self) -> None:
        headers = {
            "Accept": "text/event-stream",
            "Cache-Control": "no-cache",
            "Origin": PAGE_ORIGIN,
        }
        if self.last_event_id:
            headers["Last-Event-ID"] = self.last_event_id
        self._opened = contextlib.ExitStack()
        opening = stream(self._daemon.port, self._path, headers=headers)
        self.answer = self._opened.enter_context(opening)
        self._parser = EventParser(self.last_event_id)

    def events(self) -> list[StreamEvent]:
        """The events of the next bytes."""
        data = self.answer.read1(4096)
        self.is_over = not data
        found = self._parser.feed(data)
        self.last_event_id, self.retry_ms = self._parser.last_event_id, self._parser.retry_ms
        return found

    def until(self, name: str) -> StreamEvent:
        """The next event of this name, when the position after it has come too, or the end."""
        found: StreamEvent | None = None
        before = self.last_event_id
        while not self.is_over:
            for event in self.events():
                if event.type == name:
                    found = event
                carries_one = event.type == events.POSITION or event.last_event_id != before
                if found is not None and carries_one:
                    return found
                before = event.last_event_id
        assert found is not None, f"the stream ended without {name}"
        return found

    def lose(self) -> None:
        self._opened.close()


def test_the_page_listens_to_every_event_that_is_sent() -> None:
    listened = set(re.findall(r'stream\.addEventListener\("([\w-]+)"', PAGE))
    # The browser itself connects again when the daemon has stopped.
    sent = {
        events.RECORD, events.RECORDS, events.TOMBSTONE, events.CAUGHT_UP, events.TOPIC_DELETED,
        events.ERROR, events.POSITION,
    }  # fmt: skip
    assert listened == sent | {"open"}


def test_a_page_of_another_origin_gets_records_and_resumes(daemon: Daemon) -> None:
    assert "`/v0/topics/${encodeURIComponent(topic)}/watch`" in PAGE
    assert "`${daemon}/v0/tickets`" in PAGE
    source = EventSource(daemon, "/v0/topics/orders/watch?key=customer-*")
    assert source.answer.status == 200
    assert source.answer.getheader("Content-Type") == "text/event-stream"
    assert source.answer.getheader("Access-Control-Allow-Origin") == PAGE_ORIGIN
    source.until("caught-up")
    assert source.retry_ms == 1_000

    def produce(number: int, key: str) -> None:
        records = [{"data": {"n": number}, "key": key}]
        assert daemon.json("POST", "/v0/topics/orders", {"records": records}).status == 200

    produce(0, "other")
    produce(1, "customer-1")
    assert json.loads(source.until("record").data)["data"] == {"n": 1}
    source.lose()
    produce(2, "customer-1")
    produce(3, "customer-2")
    source.connect()
    found: list[int] = []
    while len(found) < 2:
        for event in source.events():
            if event.type in ("record", "records"):
                told = json.loads(event.data)
                found += [each["data"]["n"] for each in told.get("records", [told])]
    assert sorted(found) == [2, 3]
    source.lose()


def test_a_deleted_topic_is_told_and_the_next_connection_is_refused(daemon: Daemon) -> None:
    daemon.produce("gone", 1)
    source = EventSource(daemon, "/v0/topics/gone/watch")
    source.until("caught-up")
    assert daemon.json("DELETE", "/v0/topics/gone").status == 200
    assert json.loads(source.until("topic-deleted").data)["topic"] == "gone"
    source.lose()
    source.connect()
    assert source.answer.status == 404
    source.lose()


def test_the_program_copies_each_record_once_though_it_is_killed(
    daemon: Daemon, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.ndjson"
    command = [sys.executable, str(ROOT / "examples" / "watch" / "follow.py"), "copied", str(copy)]

    def until_copied(count: int) -> None:
        with subprocess.Popen([*command, daemon.url]) as program:
            try:
                wait_until(
                    lambda: copy.exists() and len(copy.read_bytes().splitlines()) >= count,
                    f"{count} lines in the copy",
                )
            finally:
                program.kill()

    daemon.produce("copied", *range(30))
    until_copied(30)
    copy.write_bytes(copy.read_bytes() + b"a line without a position\n")
    daemon.produce("copied", *range(30, 50))
    until_copied(50)
    assert [json.loads(line) for line in copy.read_bytes().splitlines()] == list(range(50))
