"""``headgate push``, and push subscriptions in ``headgate subscriptions show``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commands.pushing import texts
from ledger.delivery.push_settings import PushTarget
from tests.cli.managed.test_subscriptions import AT, config, state, summary
from tests.scripted import Answer, Call, refusal, run, says

URL = "https://example.com/hook"
ACTIVITY = {
    "mode": "slow", "rate_max": 20.0, "granted": 8.0, "rate": 0.0167, "use": 0.5, "senders": 1,
    "in_flight": 1, "attempts": 1200, "records": 7, "failures": 3, "p50_ms": 4.0, "p99_ms": 1024.0,
    "held_until_ms": 40_000, "outcomes": {"delivered": 1, "server_error": 3},
}  # fmt: skip
SENDER = {
    "shard": 0, "mode": "slow", "granted": 8.0, "rate": 0.0167, "ceiling": 5.5, "use": 0.5,
    "changed_ms": 5, "next_attempt_ms": 70_000, "held_until_ms": 40_000, "in_flight": 1,
    "attempts": 1200, "records": 7, "failures": 3, "p50_ms": 4.0, "p99_ms": 1024.0,
}  # fmt: skip
EXCHANGE = {
    "endpoint": URL, "address": "192.0.2.1:443",
    "request_headers": [{"name": "authorization", "value": "(hidden)"}], "request_body": '{"a":1}',
    "request_bytes": 7, "status": 400, "failure": None, "message": "",
    "answer_headers": [{"name": "Server", "value": "x"}], "answer_body": "no such\norder",
    "took_ms": 12.34, "waited_ms": 80.0, "outcome": "record", "meaning": "it refuses the record",
    "retry_after_ms": None,
}  # fmt: skip


def pushed(**more: Any) -> dict[str, Any]:
    """Settings with push."""
    return config(push=msgspec.to_builtins(PushTarget(URL, 20.0)) | more)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "wall_ms", lambda: 10_000)


def test_show_tells_where_to_how_fast_and_how_well() -> None:
    told = state(
        "s", config=pushed(headers=["authorization"], signed=True, secrets_count=2), push=ACTIVITY,
        push_senders=[SENDER],
    )  # fmt: skip
    with says(Answer(200, told)) as server:
        shown = run(server, "subscriptions", "show", "orders", "s")
    assert shown.exit_code == 0, shown.output
    assert (
        "  pushed to https://example.com/hook\n"
        "    binary, at most 20/s, headers authorization, signed with 2 secrets\n"
        "    mode slow, rate max 20, granted 8, rate 0.0167, use 0.5, senders 1, in flight 1,"
        " attempts 1,200,\n"
        "    records 7, failures 3, p50 4 ms, p99 1.0 s, outcomes: delivered 1 server_error 3\n"
        "    the receiver asked for a pause: in 30.0 s\n"
    ) in shown.stdout
    assert (
        "shard  mode    rate  share  ceiling  used  attempts  failures   p50    p99  next attempt\n"
        "    0  slow  0.0167      8      5.5   50%     1,200         3  4 ms  1.0 s  in 1 min 0 s\n"
    ) in shown.stdout


def test_show_tells_why_the_daemon_has_paused_it_and_that_nobody_sends_yet() -> None:
    told = state("s", config=pushed() | {"paused": True, "paused_because": "410 Gone"})
    with says(Answer(200, told)) as server:
        shown = run(server, "subscriptions", "show", "orders", "s").stdout
    assert "paused by the daemon: 410 Gone" in shown and "nobody sends yet" in shown


def test_ls_lists_those_that_are_pushed() -> None:
    found = [
        summary("a", config=pushed(), push=ACTIVITY | {"held_until_ms": None}), summary("b"),
        summary("c", config=pushed(), state="paused", push=ACTIVITY), summary("d", config=pushed()),
        summary("e", config=pushed(), push=ACTIVITY),
    ]  # fmt: skip
    with says(Answer(200, {"subscriptions": found, "next_after": None})) as server:
        table = run(server, "push", "ls", "orders")
        listed = run(server, "push", "ls", "orders", "-o", "json")
    rows = [line.split() for line in table.stdout.splitlines()]
    assert [row[1] for row in rows[1:]] == ["a", "c", "d", "e"]
    assert rows[1] == [
        "orders", "a", URL, "slow", "0.0167", "20", "1,200", "1,200", "3", "4", "ms",
    ]  # fmt: skip
    assert rows[2][3] == "paused" and rows[3][4] == "-" and rows[4][3] == "held"
    assert [each["subscription"] for each in json.loads(listed.stdout)] == ["a", "c", "d", "e"]


@pytest.mark.parametrize(("was_paused", "says_so"), [(True, "resumed"), (False, "was not paused")])
def test_a_push_is_resumed(was_paused: bool, says_so: str) -> None:
    with says(Answer(200, {"was_paused": was_paused})) as server:
        shown = run(server, "push", "resume", "orders", "s").stdout
    assert server.calls == [Call("POST", f"{AT}/s/push/resume", None)]
    assert shown == f"{says_so}; senders are in normal mode\n"


def test_a_test_shows_the_whole_exchange_and_fails_unless_the_receiver_takes_it() -> None:
    with says(Answer(200, EXCHANGE)) as server:
        refused = run(server, "push", "test", "orders", "s")
    assert server.calls == [Call("POST", f"{AT}/s/push/test", {})]
    assert refused.exit_code == 1
    assert refused.stdout == (
        "POST https://example.com/hook (192.0.2.1:443)\n"
        "> authorization: (hidden)\n"
        ">\n"
        '> {"a":1}\n'
        "< 400\n"
        "< Server: x\n"
        "<\n"
        "< no such\n"
        "< order\n"
        "record, 12 ms, after 80 ms: it refuses the record\n"
    )
    taken = EXCHANGE | {"status": 200, "outcome": "success", "meaning": "delivered"}
    with says(Answer(200, taken)) as server:
        assert run(server, "push", "test", "orders", "s", "-o", "json").exit_code == 0


def test_a_receiver_that_does_not_answer_is_told_with_the_reason() -> None:
    told = EXCHANGE | {
        "status": None, "failure": "refused", "message": "192.0.2.1:443 refuses connections",
        "answer_headers": [], "answer_body": "", "outcome": "receiver", "waited_ms": 0.0,
    }  # fmt: skip
    with says(Answer(200, told)) as server:
        shown = run(server, "push", "test", "orders", "s")
    assert "! refused: 192.0.2.1:443 refuses connections\nreceiver, 12 ms: " in shown.stdout
    assert "<" not in shown.stdout


def test_what_a_receiver_says_does_nothing_to_the_terminal() -> None:
    told = EXCHANGE | {"answer_body": "\x1b[2Jgone\r\x07", "meaning": "\x1b]0;x"}
    with says(Answer(200, told)) as server:
        shown = run(server, "push", "test", "orders", "s").stdout
    assert "< \ufffd[2Jgone" in shown
    assert all(each.isprintable() or each == "\n" for each in shown)


def test_a_test_may_have_data_and_a_key(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"order": 7}')
    with says(Answer(200, EXCHANGE)) as server:
        run(server, "push", "test", "orders", "s", "--data", f"@{file}", "--key", "k")
        run(server, "push", "test", "orders", "s", "--data", "[1]")
        for wrong in ("{", "@/nowhere"):
            assert run(server, "push", "test", "orders", "s", "--data", wrong).exit_code == 2
    assert [call.body for call in server.calls] == [
        {"data": {"order": 7}, "key": "k"}, {"data": [1]},
    ]  # fmt: skip


def test_a_test_that_the_limit_does_not_allow_now_is_told() -> None:
    with says(refusal(429, "push_limited", "ask again in 20 s", wait_ms=20_000)) as server:
        refused = run(server, "push", "test", "orders", "s")
    assert refused.exit_code == 1 and "ask again in 20 s" in refused.stderr


ATTEMPT = {
    "partition": 3, "seq": 57, "attempt": 2, "began_ms": 1_700_000_000_000, "took_ms": 12.3,
    "outcome": "record", "counted": True, "status": 400, "failure": None,
    "message": "400: it refuses\x1b[2J the record",
}  # fmt: skip


def test_attempts_lists_the_posts_of_a_record() -> None:
    later = ATTEMPT | {
        "status": None,
        "failure": "refused",
        "outcome": "receiver",
        "counted": False,
    }
    with says(Answer(200, {"attempts": [later, ATTEMPT], "kept": 9})) as server:
        shown = run(server, "push", "attempts", "orders", "hook", "57", "--partition", "3")
    assert shown.exit_code == 0, shown.output
    (call,) = server.calls
    assert call.path.endswith("/subscriptions/hook/push/attempts?limit=100&seq=57&partition=3")
    head, first, second = shown.stdout.splitlines()
    assert head.split()[:5] == ["began", "partition", "seq", "attempt", "outcome"]
    assert "refused" in first and "receiver" in first
    assert "2023-11-14 22:13:20+00:00" in second and "400" in second and "12 ms" in second
    assert "\x1b" not in shown.stdout


def test_attempts_says_how_many_others_are_kept() -> None:
    with says(Answer(200, {"attempts": [], "kept": 9})) as server:
        shown = run(server, "push", "attempts", "orders", "hook", "57")
    assert shown.stdout == "no such attempts; 9 attempts of others are kept\n"
    assert server.calls[0].path.endswith("?limit=100&seq=57&partition=0")
