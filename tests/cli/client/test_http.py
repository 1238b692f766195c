"""The HTTP client: keep-alive, errors by kind, repeating within its patience; and on a
terminal they name commands."""

from __future__ import annotations

import ast
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.client import http
from commands.client.http import (
    Client,
    Refused,
    UnknownAnswer,
    Unreachable,
    in_commands,
    topic_path,
)
from tests.scripted import Answer, Call, Script, refusal, scripted
from tools.ports import kept_port


class Clock:
    """A clock that moves only by waiting."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.waits: list[float] = []

    def now_ms(self) -> float:
        return self.ms

    def sleep_ms(self, wait_ms: float) -> None:
        self.waits.append(wait_ms)
        self.ms += wait_ms


@pytest.fixture
def only_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real time tells the caller nothing and ends no attempt, however long an answer takes on this
    machine."""

    class Silent(threading.Timer):
        def run(self) -> None:
            """Its time is over, and nothing happens."""

    monkeypatch.setattr(threading, "Timer", Silent)
    monkeypatch.setattr(http, "TIMEOUT_MIN_S", 60.0)


def in_turn(*answers: Answer) -> Script:
    """Gives the answers one after the other."""
    left: Iterator[Answer] = iter(answers)
    return lambda call: next(left)


def test_calls_share_one_connection() -> None:
    with (
        scripted(lambda call: Answer(200, {"path": call.path})) as server,
        Client(server.url) as client,
    ):
        assert client.call("GET", "/a", query={"cursor": "x y"}) == b'{"path": "/a?cursor=x+y"}'
        assert client.call("POST", "/b", b'{"n":1}') == b'{"path": "/b"}'
        assert server.connections == 1
        assert server.calls[1][:3] == ("POST", "/b", {"n": 1})


def test_a_base_path_goes_before_every_path() -> None:
    with scripted(lambda call: Answer(200, {})) as server, Client(server.url + "/hg/") as client:
        client.call("GET", "/v0/status")
        assert server.calls[0].path == "/hg/v0/status"


def test_a_refusal_carries_status_code_message_and_detail() -> None:
    answer = refusal(400, "invalid", "too many", limit=5)
    with (
        scripted(lambda call: answer) as server,
        Client(server.url) as client,
        pytest.raises(Refused) as caught,
    ):
        client.call("GET", "/")
    error = caught.value
    assert (error.status, error.code, error.message) == (400, "invalid", "too many")
    assert error.detail == {"limit": 5}


def test_an_error_in_another_form_is_not_an_answer_of_headgate() -> None:
    answer = Answer(404, b"<html>", {"Content-Type": "text/html"})
    with (
        scripted(lambda call: answer) as server,
        Client(server.url) as client,
        pytest.raises(UnknownAnswer, match="answered 404 without an error"),
    ):
        client.call("GET", "/")


def test_an_address_where_nothing_listens_is_unreachable() -> None:
    with (
        kept_port() as port,
        Client(url := f"http://127.0.0.1:{port}") as client,
        pytest.raises(Unreachable, match="refused") as caught,
    ):
        client.call("GET", "/")
    assert caught.value.url == url


def test_silence_is_unreachable_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            Client(url, timeout_s=0.05) as client,
            pytest.raises(Unreachable, match=r"timed out after 50 ms"),
        ):
            client.call("GET", "/")


def test_a_kept_connection_that_was_closed_is_opened_again_without_patience() -> None:
    script = in_turn(Answer(200, 1), Answer(0), Answer(200, 2))
    with scripted(script) as server, Client(server.url) as client:
        assert client.call("GET", "/") == b"1"
        assert client.call("GET", "/") == b"2"
        assert server.connections == 2


def test_a_fresh_connection_that_ends_without_answer_is_unreachable() -> None:
    with (
        scripted(in_turn(Answer(0))) as server,
        Client(server.url) as client,
        pytest.raises(Unreachable),
    ):
        client.call("GET", "/")
    assert len(server.calls) == 1


@pytest.mark.usefixtures("only_the_clock")
def test_lost_connections_are_repeated_with_growing_waits_within_the_patience() -> None:
    clock = Clock()
    script = in_turn(Answer(0), Answer(0), Answer(0), Answer(200, 1))
    with (
        scripted(script) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms) as client,
    ):
        assert client.call("POST", "/", b"{}", patience_ms=1_000) == b"1"
    assert clock.waits == [100, 200, 400] and client.retries == 3


@pytest.mark.usefixtures("only_the_clock")
def test_an_answer_that_is_cut_off_is_asked_for_again() -> None:
    clock, answers = Clock(), [b"10\r\n\r\n12", b"2\r\n\r\n12"]

    def serve(listener: socket.socket) -> None:
        for each in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: " + each)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=[listener], daemon=True)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms) as client:
            assert client.call("POST", "/", b"{}", patience_ms=1_000) == b"12"
        server.join()


@pytest.mark.usefixtures("only_the_clock")
def test_patience_ends() -> None:
    clock = Clock()
    with (
        scripted(lambda call: Answer(0)) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms) as client,
        pytest.raises(Unreachable),
    ):
        client.call("POST", "/", b"{}", patience_ms=500)
    assert clock.waits == [100, 200]


@pytest.mark.parametrize(
    ("answer", "wait_ms"),
    [
        (refusal(429, "throttled", retry_after_ms=250)._replace(headers={"Retry-After": "1"}), 250),
        (refusal(503, "busy")._replace(headers={"Retry-After": "2"}), 2_000),
        (refusal(429, "throttled"), 1_000),
        (refusal(429, "throttled")._replace(headers={"Retry-After": "soon"}), 1_000),
    ],
)
def test_429_and_503_are_repeated_as_retry_after_asks(answer: Answer, wait_ms: float) -> None:
    clock = Clock()
    script = in_turn(answer, Answer(200, 1))
    with (
        scripted(script) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms) as client,
    ):
        assert client.call("POST", "/", b"{}", patience_ms=10_000) == b"1"
    assert clock.waits == [wait_ms]


@pytest.mark.usefixtures("only_the_clock")
def test_504_is_repeated_as_a_lost_connection_is_and_at_last_counts_as_no_answer() -> None:
    clock = Clock()
    unknown = refusal(504, "outcome_unknown", "it may be stored")
    with (
        scripted(in_turn(unknown, unknown, Answer(200, 1), *[unknown] * 9)) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms) as client,
    ):
        assert client.call("POST", "/", b"{}", patience_ms=10_000) == b"1"
        assert clock.waits == [100, 200]
        with pytest.raises(Unreachable, match="it may be stored"):
            client.call("POST", "/", b"{}", patience_ms=500)
        assert server.connections == 1


def test_without_patience_a_429_is_a_refusal_immediately() -> None:
    waits: list[float] = []
    with (
        scripted(lambda call: refusal(429, "throttled")) as server,
        Client(server.url, sleep_ms=waits.append) as client,
        pytest.raises(Refused),
    ):
        client.call("GET", "/")
    assert waits == []


@pytest.mark.usefixtures("only_the_clock")
def test_a_wait_longer_than_the_patience_is_not_begun() -> None:
    clock = Clock()
    with (
        scripted(lambda call: refusal(429, "throttled", retry_after_ms=400)) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms) as client,
        pytest.raises(Refused),
    ):
        client.call("POST", "/", b"{}", patience_ms=1_000)
    assert clock.waits == [400, 400]


def test_other_refusals_are_not_repeated() -> None:
    with (
        scripted(lambda call: refusal(422, "topic_full")) as server,
        Client(server.url) as client,
        pytest.raises(Refused),
    ):
        client.call("POST", "/", b"{}", patience_ms=10_000)
    assert len(server.calls) == 1


@pytest.mark.parametrize("url", ["127.0.0.1:7440", "ftp://host", "http://", "http://h:x", ""])
def test_text_that_is_not_a_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        Client(url)


def test_a_topic_is_quoted_in_a_path() -> None:
    assert topic_path("a:b.c-d_e", "diff") == "/v0/topics/a:b.c-d_e/diff"
    assert topic_path("a/b?c") == "/v0/topics/a%2Fb%3Fc"


def test_time_that_attempts_take_counts_as_waiting() -> None:
    """A minute of patience is not a minute of pauses between attempts of 30 s."""
    clock = Clock()

    def script(call: Call) -> Answer:
        clock.ms += 25_000  # then the connection ends
        return Answer(0)

    with (
        scripted(script) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms) as client,
        pytest.raises(Unreachable),
    ):
        client.call("POST", "/", b"{}", patience_ms=60_000)
    assert len(server.calls) == 3 and clock.ms < 76_000


def test_an_attempt_gets_no_more_time_than_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with (
            Client(url, now_ms=lambda: 0.0) as client,
            pytest.raises(Unreachable, match=r"timed out after 150 ms"),
        ):
            client.call("GET", "/", patience_ms=150, timeout_s=30)


@pytest.mark.usefixtures("only_the_clock")
def test_after_two_seconds_the_caller_is_told_what_the_call_waits_for_and_later_the_end() -> None:
    clock = Clock()
    said: list[str] = []
    answers = iter([*[refusal(503, "not_ready", "shards start")] * 5, Answer(200, 1)])
    with (
        scripted(lambda call: next(answers)) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms, say=said.append) as client,
    ):
        assert client.call("GET", "/", patience_ms=59_999.4) == b"1"
    assert clock.waits == [1_000] * 5
    assert said == [
        f"waiting up to 60.0 s for {server.url}: shards start (not_ready)",
        f"{server.url} answers again",
    ]


@pytest.mark.usefixtures("only_the_clock")
def test_the_caller_is_not_told_of_a_short_wait() -> None:
    clock = Clock()
    said: list[str] = []
    answers = iter([*[Answer(0)] * 4, Answer(200, 1)])
    with (
        scripted(lambda call: next(answers)) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms, say=said.append) as client,
    ):
        assert client.call("GET", "/", patience_ms=60_000) == b"1"
    assert clock.waits == [100, 200, 400, 800] and said == []


def test_the_caller_is_told_of_a_wait_for_an_answer() -> None:
    """The attempt is still running when the caller is told."""
    said: list[str] = []
    told = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        told.set()

    def script(call: Call) -> Answer:
        told.wait()
        return Answer(200, 1)

    with scripted(script) as server, Client(server.url, notice_ms=1, say=say) as client:
        assert client.call("GET", "/", patience_ms=60_000) == b"1"
    assert said == [
        f"waiting up to 1 min 0 s for {server.url}: no answer so far",
        f"{server.url} answers again",
    ]


@pytest.mark.usefixtures("only_the_clock")
def test_a_long_poll_uses_no_patience_while_it_may_be_unanswered() -> None:
    clock = Clock()
    said: list[str] = []

    def script(call: Call) -> Answer:
        clock.ms += 20_000
        return Answer(0) if len(server.calls) == 1 else Answer(200, 1)

    with (
        scripted(script) as server,
        Client(server.url, sleep_ms=clock.sleep_ms, now_ms=clock.now_ms, say=said.append) as client,
    ):
        assert client.call("GET", "/", patience_ms=1_000, silent_ms=20_000) == b"1"
    assert said == []


ROOT = Path(__file__).resolve().parents[3]
ROUTE = re.compile(r"(?<!`)\b(GET|PUT|POST|DELETE) (/v0|\.\.\.)/")
NO_COMMAND_MEETS = {"daemon/api/handlers/plans.py"}  # plans are for readers in Spark


def test_a_message_names_the_command_and_its_arguments() -> None:
    told = "topic 'o' has no subscription 'b'; create it with PUT /v0/topics/o/subscriptions/b"
    assert in_commands(told).endswith("; create it with `headgate subscriptions create o b`")
    told = "there is no topic 'o', and auto_create_topics is false; create it with PUT /v0/topics/o"
    assert in_commands(told).endswith("; create it with `headgate topics create o`")
    told = "there is no cursor 'c'; create it with PUT /v0/cursors/c, or move another"
    assert "create it with `headgate cursors create c`, or" in in_commands(told)
    assert in_commands("the store takes nothing now (GET /v0/status says why)").endswith(
        "now (`headgate status` says why)"
    )


def test_no_message_of_the_daemon_keeps_a_route() -> None:
    found = [text for folder in ("daemon", "delivery", "ledger") for text in texts(ROOT / folder)]
    assert len(found) > 5
    assert [text for text in found if ROUTE.search(in_commands(text))] == []


def texts(folder: Path) -> Iterator[str]:
    """What the code may say that names a route; what it fills in is a word here."""
    for path in folder.rglob("*.py"):
        if str(path.relative_to(ROOT)) in NO_COMMAND_MEETS:
            continue
        source = path.read_text()
        if "/v0" not in source and ".../" not in source:
            continue
        silent: set[int] = set()  # a walk comes to a node before what is in it
        for node in ast.walk(ast.parse(source)):
            if id(node) in silent:
                continue
            if isinstance(node, ast.Expr):  # a docstring
                silent.add(id(node.value))
                continue
            if isinstance(node, ast.JoinedStr):
                silent.update(map(id, node.values))
                parts = (p.value if isinstance(p, ast.Constant) else "word" for p in node.values)
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if ROUTE.search(text):
                yield text
