"""examples/push/receive.py: run, and sent what the daemon's senders send."""

from __future__ import annotations

import http.client
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from delivery.push.events import EventSource, request_of
from delivery.push.secrets import PushSecrets
from delivery.subscriptions.handing import PushedMessage
from ledger.delivery.push_settings import PushFormat, PushSettings
from shards.clock import wall_ms
from tests.e2e.daemon import HANG_S, ROOT, running, wait_until
from tests.e2e.pushing import TIMES
from tests.signing import secret_of
from tools.ports import kept_port
from uploader.l0.records import Record

PROGRAM = ROOT / "examples" / "push" / "receive.py"
SOURCE = EventSource("orders", 1, 1_700_000_000_000, "")
OLD, NEW, FOREIGN = (secret_of(each * 32) for each in (b"o", b"n", b"f"))
FORMATS: tuple[PushFormat, ...] = ("binary", "structured", "batch")


class Running:
    """The example as a process; after ``kill`` another one goes on with its database and port."""

    def __init__(self, database: Path, secrets: str, port: int = 0) -> None:
        self.database = database
        self._secrets = secrets
        self._wanted = port
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, self.database, str(self._wanted)],
            env={**os.environ, "WEBHOOK_SECRETS": self._secrets},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        told = self.process.stdout.readline().split()
        self.port = urlsplit(told[-1]).port or 0
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._connection.close()
        self.process.send_signal(number)
        self.process.communicate()

    def post(self, headers: dict[str, str], body: bytes) -> int:
        """All requests use one connection."""
        self._connection.request("POST", "/", body, headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def rows(self) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.database, timeout=HANG_S)) as connection:
            return connection.execute("SELECT key, seq, data FROM events ORDER BY seq").fetchall()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Running]:
    with kept_port() as port:
        running = Running(tmp_path / "events.db", f"{NEW} {OLD}", port)
        yield running
        running.kill(signal.SIGINT)


def message(seq: int, attempt: int = 1) -> PushedMessage:
    record = Record(f'{{"n": {seq}}}', key=f"é {seq}")
    return PushedMessage(0, 1, attempt, seq, 1_700_000_000_000, record)


def request(
    format_: PushFormat, sent: list[PushedMessage], secret: str = OLD, late_ms: int = 0
) -> tuple[dict[str, str], bytes]:
    settings = PushSettings("http://127.0.0.1", format=format_, signed=True)
    return request_of(settings, SOURCE, sent, PushSecrets((secret,)), wall_ms() - late_ms)


def test_a_record_is_kept_once_however_often_and_in_whatever_format_it_comes(
    receiver: Running,
) -> None:
    expected: list[tuple[object, ...]] = []
    for seq, first in enumerate(FORMATS, 1):
        for attempt, format_ in enumerate((first, *FORMATS), 1):
            assert receiver.post(*request(format_, [message(seq, attempt)])) == 204
        expected.append((f"é {seq}", str(seq), f'{{"n": {seq}}}'))
        assert receiver.rows() == expected
    receiver.kill()
    receiver.start()
    sent = [message(seq) for seq in (2, 3, 4)]
    assert receiver.post(*request("batch", sent)) == 204
    assert receiver.rows() == [*expected, ("é 4", "4", '{"n": 4}')]


def test_bytes_are_kept_as_they_were(receiver: Running) -> None:
    data = bytes(range(256))
    for seq, format_ in enumerate(FORMATS, 1):
        sent = PushedMessage(0, 1, 1, seq, 0, Record(data))
        assert receiver.post(*request(format_, [sent])) == 204
    assert receiver.rows() == [(None, str(seq), data) for seq in (1, 2, 3)]


def test_only_what_is_signed_with_a_known_secret_lately_is_taken(receiver: Running) -> None:
    for format_ in FORMATS:
        headers, body = request(format_, [message(1)])
        for changed in (
            request(format_, [message(1)], FOREIGN),
            request(format_, [message(1)], late_ms=400_000),
            request(format_, [message(1)], late_ms=-400_000),
            (headers, body.replace(b"1", b"2")),
            ({**headers, "webhook-id": "other"}, body),
            ({**headers, "webhook-timestamp": "-1"}, body),
            ({name: headers[name] for name in headers if not name.startswith("webhook")}, body),
        ):
            assert receiver.post(*changed) == 401
    assert receiver.rows() == []
    assert receiver.post(*request("binary", [message(1)], NEW)) == 204


def test_what_is_not_an_event_is_refused_for_good(receiver: Running) -> None:
    unsigned = Running(receiver.database.with_name("unsigned.db"), "")
    try:
        for headers, body in (
            ({"content-type": "text/plain"}, b"x"),
            ({"content-type": "application/cloudevents+json"}, b"{"),
            ({"content-type": "application/cloudevents+json"}, b"{}"),
            ({"content-type": "application/cloudevents-batch+json"}, b"[1]"),
            ({"content-type": "application/json", "ce-id": "1", "ce-key": "%ff"}, b"1"),
        ):
            assert unsigned.post(headers, body) == 400
    finally:
        unsigned.kill(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["binary", "batch"])
def test_each_record_of_a_daemon_is_kept_once_though_receiver_and_daemon_are_killed(
    receiver: Running, tmp_path: Path, format_: PushFormat
) -> None:
    records = 600
    with running(tmp_path / "data", shards=2, settings=TIMES) as daemon:
        daemon.json("PUT", "/v0/topics/orders", {"partitions": 2})
        push = {
            "endpoint": f"http://127.0.0.1:{receiver.port}", "secrets": [NEW], "format": format_,
            "senders": 2, "rate_max": 200,
        }  # fmt: skip
        path = "/v0/topics/orders/subscriptions/books"
        answer = daemon.json("PUT", path, {"start": "earliest", "push": push})
        assert answer.status == 201, answer.body
        sent = [{"data": number, "key": f"k{number % 7}"} for number in range(records)]
        assert daemon.json("POST", "/v0/topics/orders", {"records": sent}).status == 200
        wait_until(lambda: len(receiver.rows()) > records / 6, "some records")
        receiver.kill()
        receiver.start()
        wait_until(lambda: len(receiver.rows()) > records / 3, "more records")
        for shard in psutil.Process(daemon.process.pid).children():
            shard.kill()
        wait_until(lambda: len(receiver.rows()) == records, "all records", 240)
    rows = receiver.rows()
    assert sorted(int(str(data)) for _, _, data in rows) == list(range(records))
    assert all(key == f"k{int(str(data)) % 7}" for key, _, data in rows)
