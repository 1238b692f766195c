"""Secrets of push subscriptions: they are used, they rotate, and they stand in one file only."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import zstandard

from delivery.push.secrets import FILE_NAME
from delivery.push.signatures import signature
from tests.e2e.daemon import HANG_S, ROOT, UNANSWERED, Daemon, running, wait_until
from tests.e2e.pushing import TIMES
from tests.e2e.test_recovery import recovered
from tests.signing import secret_of

KEYS = (b"first-key-of-the-receiver", b"second-key-of-the-receiver")
FIRST, SECOND = (secret_of(each) for each in KEYS)
TOKEN = "Bearer token-that-only-the-receiver-knows"
# What must not be found, in the forms that it has on the way.
MARKS = (
    *(each.removeprefix("whsec_").rstrip("=").encode() for each in (FIRST, SECOND)),
    *KEYS,
    b"token-that-only-the-receiver-knows",
)
PATH = "/v0/topics/orders/subscriptions/billing"


class Post(NamedTuple):
    """What came."""

    headers: dict[str, str]
    body: bytes

    def is_signed_with(self, secret: str) -> bool:
        """Whether one of its signatures is that of a secret."""
        seconds = int(self.headers["webhook-timestamp"])
        expected = signature(secret, self.headers["webhook-id"], seconds, self.body)
        return expected in self.headers["webhook-signature"].split(" ")


class EchoingServer(ThreadingHTTPServer):
    """Answers with a status, and says in its answer everything that it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoingHandler)
        self.status = 200
        self.posts: list[Post] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/endpoint-of-billing"

    def wait_for(self, count: int) -> None:
        """Waits until this many requests have come."""
        wait_until(lambda: len(self.posts) >= count, f"{count} POSTs")


class EchoingHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: EchoingServer

    def do_POST(self) -> None:
        """Notes a request and answers it."""
        body = self.rfile.read(int(self.headers["content-length"]))
        post = Post({name.lower(): value for name, value in self.headers.items()}, body)
        self.server.posts.append(post)
        said = {"you sent": post.headers.get("authorization"), **post.headers}
        echo = json.dumps(said).encode()
        self.send_response(self.server.status, f"no {post.headers.get('authorization')}")
        self.send_header("x-echo", post.headers.get("authorization", ""))
        self.send_header("content-length", str(len(echo)))
        self.end_headers()
        self.wfile.write(echo)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[EchoingServer]:
    with EchoingServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(HANG_S)


def put(daemon: Daemon, **push: Any) -> Any:
    """Creates the subscription, or changes it."""
    return daemon.json("PUT", PATH, {"push": push, "start": "earliest"})


def produce(daemon: Daemon, *data: object) -> None:
    answer = daemon.produce("orders", *data)
    assert answer.status == 200, answer.body


def found_in(text: bytes) -> list[bytes]:
    """Which of the marks are there, also in frames of zstd."""
    texts = [text]
    start = text.find(zstandard.FRAME_HEADER)
    while start >= 0:
        try:
            texts.append(zstandard.ZstdDecompressor().decompressobj().decompress(text[start:]))
        except zstandard.ZstdError:
            pass  # four bytes that are something else
        start = text.find(zstandard.FRAME_HEADER, start + 1)
    return [mark for mark in MARKS if any(mark in each for each in texts)]


def told_by_commands(daemon: Daemon) -> bytes:
    """What commands print about the subscription."""
    told = b""
    for command in (
        ["subscriptions", "show", "orders", "billing"],
        ["subscriptions", "show", "orders", "billing", "-o", "json"],
        ["subscriptions", "ls", "orders"],
        ["push", "ls"],
        ["push", "ls", "-o", "json"],
        ["push", "test", "orders", "billing"],
        ["status", "-o", "json"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "cli", *command, "--url", daemon.url], cwd=ROOT,
            capture_output=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert b"Traceback" not in done.stderr and b"Usage" not in done.stderr, done.stderr
        told += done.stdout + done.stderr
    return told


def told_by_the_daemon(daemon: Daemon) -> bytes:
    """What it answers, and what any user of the machine sees of its processes."""
    told = b""
    for path in (
        PATH, f"{PATH}/keys", "/v0/topics/orders/subscriptions", "/v0/status", "/metrics",
        "/v0/scaling", "/v0/subscriptions",
    ):  # fmt: skip
        answer = daemon.get(path)
        assert answer.status == 200, answer.body
        told += answer.body
    # It is refused while there is no turn for it, too.
    told += daemon.json("POST", f"{PATH}/push/test", {}).body
    for process in [parent := psutil.Process(daemon.process.pid), *parent.children(recursive=True)]:
        told += "\0".join([*process.cmdline(), *process.environ().values()]).encode()
    return told


@pytest.mark.slow
def test_secrets_are_in_what_is_sent_and_in_their_file_and_nowhere_else(
    data: Path, receiver: EchoingServer
) -> None:
    settings = {**TIMES, "log_level": "debug"}
    told = b""
    with running(data, shards=2, settings=settings) as daemon:
        daemon.json("PUT", "/v0/topics/orders", {})
        secret = {"headers": {"Authorization": TOKEN}, "secrets": [FIRST]}
        for refused in (
            {"endpoint": receiver.url, "headers": {"Authorization": TOKEN + "\n"}},
            {"endpoint": receiver.url, "headers": {"Authorization": [TOKEN]}},
            {"endpoint": receiver.url, "headers": {"content-type": TOKEN}},
            {"endpoint": receiver.url, "secrets": [FIRST[:-4] + "?"]},
            {"endpoint": receiver.url, "secrets": [FIRST.removeprefix("whsec_")]},
            {"endpoint": receiver.url, "secrets": FIRST},
            {"endpoint": receiver.url, "secret": FIRST},
            {"endpoint": receiver.url.replace("//", f"//{TOKEN.split()[1]}@"), **secret},
            {"endpoint": "ftp://127.0.0.1", **secret},
        ):
            answer = put(daemon, **refused)
            assert answer.status == 400, answer.body
            told += answer.body
        answer = put(daemon, endpoint=receiver.url, **secret)
        assert answer.status == 201, answer.body
        told += answer.body
        produce(daemon, "first")
        wait_until(lambda: receiver.posts, "the first record")
        assert receiver.posts[0].headers["authorization"] == TOKEN
        assert receiver.posts[0].is_signed_with(FIRST)
        told += told_by_the_daemon(daemon) + told_by_commands(daemon)
        # Each kind of failure is told somewhere.
        for status in (500, 401, 302, 400, 410):
            receiver.status = status
            before = len(receiver.posts)
            produce(daemon, f"refused with {status}")
            receiver.wait_for(before + 1)
            told += told_by_the_daemon(daemon) + told_by_commands(daemon)
        told += put(daemon, secrets=[SECOND, FIRST]).body
        assert mode_of(data / FILE_NAME) == 0o600
        assert b"endpoint-of-billing" in told and b"uthorization" in told
        assert b'"request_headers"' in told and b"(hidden)" in told
        assert daemon.stop() == 0
        told += daemon.text.encode()
    assert not found_in(told)
    searched = b""
    for path in data.rglob("*"):
        if path.is_file() and path.name != FILE_NAME:
            content = path.read_bytes()
            searched += content
            assert not found_in(content), path
    # The search finds what is there: the settings in the ledger, the secrets in their file.
    assert b"endpoint-of-billing" in searched
    kept = (data / FILE_NAME).read_bytes()
    assert all(mark in kept for mark in MARKS if mark not in KEYS)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def is_used(daemon: Daemon, receiver: EchoingServer, token: str) -> bool:
    """Whether the last request had this token; sends another record."""
    produce(daemon, token)
    return bool(receiver.posts) and receiver.posts[-1].headers["x-token"] == token


@pytest.mark.slow
def test_a_secret_rotates_without_a_request_that_the_receiver_cannot_verify(
    data: Path, receiver: EchoingServer
) -> None:
    with running(data, settings=TIMES) as daemon:
        daemon.json("PUT", "/v0/topics/orders", {})
        put(daemon, endpoint=receiver.url, secrets=[FIRST], headers={"x-token": "1", "x-kept": "1"})
        for secrets, token in (([FIRST], "1"), ([SECOND, FIRST], "2"), ([SECOND], "3")):
            produce(daemon, *range(20))  # some of them are under way during the change
            answer = put(daemon, secrets=secrets, headers={"X-Token": token})
            assert answer.status == 200, answer.body
            wait_until(partial(is_used, daemon, receiver, token), f"a request with token {token}")
        for post in receiver.posts:
            signed = tuple(post.is_signed_with(each) for each in (FIRST, SECOND))
            assert (
                signed
                == {"1": (True, False), "2": (True, True), "3": (False, True)}[
                    post.headers["x-token"]
                ]
            )
            assert post.headers["x-kept"] == "1"


def numbered(number: int) -> dict[str, Any]:
    """Secrets that belong together."""
    return {"headers": {"x-number": str(number)}, "secrets": [secret_of(b"%032d" % number)]}


class Changing:
    """Changes secrets, one time after the other, until the daemon dies. ``last`` is the last change
    that was acknowledged."""

    def __init__(self) -> None:
        self.last = 0

    def run(self, daemon: Daemon) -> None:
        with contextlib.suppress(*UNANSWERED):
            while put(daemon, **numbered(self.last + 1)).status == 200:
                self.last += 1

    def until(self, number: int) -> None:
        """Waits for a change."""
        wait_until(lambda: self.last >= number, f"change {number}")


@pytest.mark.slow
def test_a_kill_of_everything_while_secrets_change_leaves_what_belongs_together(
    data: Path, receiver: EchoingServer
) -> None:
    changing = Changing()
    for kills in range(3):
        with running(data, shards=2, settings=TIMES) as daemon:
            if not kills:
                daemon.json("PUT", "/v0/topics/orders", {})
                assert put(daemon, endpoint=receiver.url, **numbered(0)).status == 201
            came = len(receiver.posts)
            produce(daemon, "again")
            receiver.wait_for(came + 1)
            for post in receiver.posts[came:]:
                number = int(post.headers["x-number"])
                assert post.is_signed_with(secret_of(b"%032d" % number))
                assert changing.last <= number <= changing.last + 1
            changing.last = int(receiver.posts[-1].headers["x-number"])
            thread = threading.Thread(target=changing.run, args=(daemon,))
            thread.start()
            changing.until(changing.last + 20)
            daemon.kill_everything()
            thread.join(HANG_S)
    left = json.loads((data / FILE_NAME).read_bytes())["entries"]
    # A kill leaves what was not committed yet, and what was not removed yet.
    assert len(left) <= 1 + 2 * 3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["set again", "put back"])
def test_after_a_recovery_nothing_is_sent_until_the_secrets_are_there_again(
    tmp_path: Path, receiver: EchoingServer, way: str
) -> None:
    options = {"store": f"file://{tmp_path}/store"}
    lost, data = tmp_path / "lost", tmp_path / "data"
    secret = {"headers": {"authorization": TOKEN}, "secrets": [FIRST]}
    with running(lost, settings=TIMES, **options) as daemon:
        daemon.json("PUT", "/v0/topics/orders", {})
        assert put(daemon, endpoint=receiver.url, **secret).status == 201
        produce(daemon, "before")
        wait_until(lambda: receiver.posts, "the first record")
        before = receiver.posts[0].headers["ce-id"].split("-")
        assert daemon.stop() == 0
    recovered(data, options)

    with running(data, settings=TIMES, **options) as daemon:
        produce(daemon, "after")

        def held() -> Any:
            state = daemon.get(PATH).json
            return state if "secret_missing" in state["held"] and state["lag"] else None

        state = wait_until(held, "the subscription to be held for its secret")
        for each in ("secret_missing", "signing secret", "authorization"):
            assert each in state["held"]
        assert state["drainable_lag"] == 0
        came = len(receiver.posts)
        if way == "set again":
            answer = put(daemon, headers={"x-other": "1"})
            assert (answer.status, answer.code) == (409, "secret_missing")
            assert put(daemon, **secret).status == 200
        else:
            shutil.copy(lost / FILE_NAME, data / FILE_NAME)
        wait_until(lambda: receiver.posts[-1].body == b'"after"', "the record")
        wait_until(lambda: not daemon.get(PATH).json["held"], "it to be held no more")
        assert {post.headers["authorization"] for post in receiver.posts[came:]} == {TOKEN}
        assert all(post.is_signed_with(FIRST) for post in receiver.posts[came:])
        after = receiver.posts[-1].headers["ce-id"].split("-")
        assert after[:2] == before[:2]
        assert after[2] != before[2] == "0"
