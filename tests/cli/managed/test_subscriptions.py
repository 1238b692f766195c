"""``headgate subscriptions``, against answers in the shapes of the HTTP API."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from commands.managed import subscriptions as subscriptions_
from ledger.delivery.subscriptions import SubscriptionConfig
from tests.scripted import Answer, Call, refusal, run, says, scripted

AT = "/v0/topics/orders/subscriptions"
COUNTS = {
    "lag": 1200, "drainable_lag": 5, "in_flight": 3, "waiting": 6, "blocked_keys": 1,
    "oldest_unacknowledged_ms": 1500, "delivered": 9, "acknowledged": 8, "redelivered": 1,
    "refused": 2, "dropped": 0, "skipped": 3, "dead_lettered": 0, "evicted": 4, "unmatched": 0,
    "filtered": 0,
}  # fmt: skip
BLOCKED = {
    "key": "k", "partition": 1, "seq": 5, "attempts": 6, "since_ms": 0, "reason": "exit code 3",
    "waiting": 40,
}  # fmt: skip
PARTITIONS = [{"partition": 0, "floor": 8, "head_seq": 10, "lag": 2}]


def config(**more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = msgspec.to_builtins(SubscriptionConfig())
    return settings | more


def summary(name: str, **more: Any) -> dict[str, Any]:
    """A subscription as a list and PUT have it."""
    return COUNTS | {
        "subscription": name, "subscription_id": 1, "topic": "orders", "topic_id": 1,
        "config": config(), "created_ms": 5, "state": "running", "reason": "", "consumers": 2,
        "partitions": PARTITIONS, **more,
    }  # fmt: skip


def state(name: str, **more: Any) -> dict[str, Any]:
    """A subscription as GET has it."""
    return COUNTS | {
        "subscription": name, "topic": "orders", "owner_shard": 0, "held": "",
        "blocked_letters": "", "partitions": PARTITIONS, "consumers": [], "blocked": [], "gaps": [],
        "subscription_id": 1, "topic_id": 1, "config": config(), "created_ms": 5, **more,
    }  # fmt: skip


def test_ls_follows_the_pages_of_a_topic_and_of_all() -> None:
    def script(call: Call) -> Answer:
        path, _, after = call.path.partition("?")
        if after:
            return Answer(200, {"subscriptions": [summary("b")], "next_after": None})
        first = summary("a", state="held")
        return Answer(200, {"subscriptions": [first], "next_after": 7 if path[4] == "s" else "a"})

    with scripted(script) as server:
        listed = run(server, "subscriptions", "ls", "-o", "json")
        table = run(server, "subscriptions", "ls", "orders")
    assert [each["subscription"] for each in json.loads(listed.stdout)] == ["a", "b"]
    assert [call.path for call in server.calls] == [
        "/v0/subscriptions", "/v0/subscriptions?after=7", AT, f"{AT}?after=a",
    ]  # fmt: skip
    assert table.stdout.splitlines()[1].split() == [
        "orders", "a", "key_shared", "held", "1,200", "3", "1", "2", "1.5", "s",
    ]  # fmt: skip


def test_show_prints_rules_counts_gaps_consumers_and_blocked_keys() -> None:
    consumer = {
        "consumer": "w1", "kind": "stream", "filters": ["a*"], "share": 0.5, "in_flight": 3,
        "ready": 1, "active": True, "connected": True,
    }  # fmt: skip
    told = state(
        "s", held="the store is down", blocked_letters="bad is full",
        consumers=[consumer], blocked=[BLOCKED],
        gaps=[{"partition": 0, "gap_from": 2, "gap_to": 5, "reason": "ttl"}],
        config=config(poison="dead_letter", dead_letter_topic="bad"),
    )  # fmt: skip
    with says(Answer(200, told)) as server:
        shown = run(server, "subscriptions", "show", "orders", "s")
    assert shown.stdout == (
        "subscription s of orders\n"
        "  key_shared, after 5 redeliveries dead_letter to bad, time-out 30.0 s\n"
        "  held: the store is down\n"
        "  blocked letters: bad is full\n"
        "  lag 1,200, drainable lag 5, in flight 3, waiting 6, blocked keys 1, oldest"
        " unacknowledged 1.5 s,\n"
        "  delivered 9, acknowledged 8, redelivered 1, refused 2, skipped 3, evicted 4\n"
        "  missing: 2 to 5 of partition 0 (ttl)\n"
        "\n"
        "partition  finished up to  head seq  lag\n"
        "        0               8        10    2\n"
        "\n"
        "consumer  kind    filters  share  in flight  state\n"
        "w1        stream  a*         50%          3  active\n"
        "\n"
        "key  partition  seq  failed                      since  waiting  reason\n"
        "k            1    5       6  1970-01-01 00:00:00+00:00       40  exit code 3\n"
    )


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({"key_fallback": "node"}, "key_shared by key or node"),
        ({"key_fallback": "node", "reliable": False}, "key_shared by key or node, not reliable"),
        ({"key_fallback": "node", "mode": "shared"}, "shared"),
        ({}, "key_shared"),
    ],
)
def test_show_says_whether_nodes_count_as_keys(settings: dict[str, Any], rules: str) -> None:
    with says(Answer(200, state("s", config=config(**settings)))) as server:
        shown = run(server, "subscriptions", "show", "orders", "s").stdout.splitlines()[1]
    assert shown.partition(", after")[0] == f"  {rules}"


class Present:
    """One subscription, if any, with the answers to PUT and GET."""

    def __init__(self, present: dict[str, Any] | None) -> None:
        self.present = present

    def __call__(self, call: Call) -> Answer:
        if call.method == "PUT":
            return Answer(200, summary("s"))
        if self.present is None:
            return refusal(404, "unknown_subscription", "there is none")
        return Answer(200, self.present)


def test_create_sends_what_is_given_and_where_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions_, "wall_ms", lambda: 3_600_000)
    with scripted(Present(None)) as server:
        for options in (
            "--mode exclusive --start 3,4",
            "--not-reliable --paused --start latest",
            "--key-fallback node",
            "--poison dead_letter --dead-letter-topic bad --backoff-ms 5,50 --since 30m",
        ):
            made = run(server, "subscriptions", "create", "orders", "s", *options.split())
            assert made.exit_code == 0
    assert [call.body for call in server.calls if call.method == "PUT"] == [
        {"mode": "exclusive", "start": [3, 4]},
        {"reliable": False, "paused": True, "start": "latest"},
        {"key_fallback": "node"},
        {
            "poison": "dead_letter", "dead_letter_topic": "bad", "backoff_ms": [5, 50],
            "start": {"ts": 1_800_000},
        },
    ]  # fmt: skip


def test_create_leaves_the_same_subscription_and_refuses_to_change_another() -> None:
    with scripted(Present(state("s", config=config(mode="shared")))) as server:
        same = run(server, "subscriptions", "create", "orders", "s", "--mode", "shared")
        other = run(server, "subscriptions", "create", "orders", "s", "--window-max", "5")
    assert (same.exit_code, other.exit_code) == (0, 1)
    assert "exists with other settings: mode, window_max" in other.stderr
    assert {call.method for call in server.calls} == {"GET"}


def test_alter_changes_what_exists_only() -> None:
    with scripted(Present(state("s"))) as server:
        run(server, "subscriptions", "alter", "orders", "s", "--dead-letter-topic", "none")
        nothing = run(server, "subscriptions", "alter", "orders", "s")
    assert [call.body for call in server.calls if call.method == "PUT"] == [
        {"dead_letter_topic": None}
    ]
    assert nothing.exit_code == 2
    with scripted(Present(None)) as server:
        missing = run(server, "subscriptions", "alter", "orders", "s", "--paused")
    assert missing.exit_code == 1
    assert "`headgate subscriptions ls` lists" in missing.stderr
    assert [call.method for call in server.calls] == ["GET"]


@pytest.mark.parametrize(
    ("options", "to"),
    [
        (("--to", "latest"), "latest"),
        (("--to", "7"), 7),
        (("--to", "7,8"), [7, 8]),
        (("--since", "1970-01-01T00:00:01Z"), {"ts": 1000}),
    ],
)
def test_seek_goes_to_a_place_or_a_time(options: tuple[str, str], to: object) -> None:
    with says(Answer(200, {"partitions": PARTITIONS})) as server:
        sought = run(server, "subscriptions", "seek", "orders", "s", *options)
    assert server.calls == [Call("POST", f"{AT}/s/seek", {"to": to})]
    assert sought.stdout.splitlines()[1].split() == ["0", "8", "10", "2"]


@pytest.mark.parametrize("options", [(), ("--to", "x"), ("--to", "1", "--since", "1h")])
def test_seek_without_one_place_is_wrong_usage(options: tuple[str, ...]) -> None:
    with says(Answer(500)) as server:
        assert run(server, "subscriptions", "seek", "orders", "s", *options).exit_code == 2
    assert not server.calls


def test_keys_lists_what_is_blocked_and_explains_one_key() -> None:
    told = {
        "key": "a/b", "state": "stuck", "owner": "w1", "partition": 1, "seq": 5, "since_ms": 0,
        "attempts": 6, "reason": "exit code 3", "waiting": 40,
    }  # fmt: skip

    def script(call: Call) -> Answer:
        return Answer(200, told if "a%2Fb" in call.path else {"keys": [BLOCKED]})

    with scripted(script) as server:
        listed = run(server, "subscriptions", "keys", "orders", "s", "--limit", "3", "-o", "json")
        shown = run(server, "subscriptions", "keys", "orders", "s", "a/b")
    assert [each["key"] for each in json.loads(listed.stdout)] == ["k"]
    assert server.calls[0].path == f"{AT}/s/keys?limit=3"
    assert shown.stdout == (
        "key a/b: stuck, exit code 3\n"
        "  consumer w1\n"
        "  first message 5 of partition 1 since 1970-01-01 00:00:00+00:00\n"
        "  failed 6, waiting 40\n"
    )


def test_retry_and_skip_name_a_message_by_its_key_or_its_place() -> None:
    with says(Answer(200, BLOCKED)) as server:
        again = run(server, "subscriptions", "retry", "orders", "s", "k")
        given_up = run(server, "subscriptions", "skip", "orders", "s", "--seq", "5")
        both = run(server, "subscriptions", "skip", "orders", "s", "k", "--seq", "5")
        neither = run(server, "subscriptions", "retry", "orders", "s")
    assert server.calls == [
        Call("POST", f"{AT}/s/retry", {"key": "k"}),
        Call("POST", f"{AT}/s/skip", {"partition": 0, "seq": 5}),
    ]
    assert again.stdout == "message 5 of partition 1 of key k is sent again\n"
    assert given_up.stdout == "message 5 of partition 1 of key k is given up\n"
    assert (both.exit_code, neither.exit_code) == (2, 2)


def test_delete_deletes() -> None:
    with says(Answer(200, {"topic": "orders", "subscription": "s"})) as server:
        run(server, "subscriptions", "delete", "orders", "s", "--yes")
    assert server.calls == [Call("DELETE", f"{AT}/s", None)]


def test_many_blocked_messages_are_retried_or_skipped_by_a_condition() -> None:
    with says(Answer(200, {"repaired": 1200, "moving": 1})) as server:
        retried = run(server, "subscriptions", "retry", "orders", "s", "--all", "--resting")
        skipped = run(
            server, "subscriptions", "skip", "orders", "s", "--where", "key=test-*", "--where",
            "partition=3", "--where", "reason=*=503*", "-o", "json",
        )  # fmt: skip
    assert retried.stdout == (
        "1,200 messages are sent again; 1 dead letter on the way to the topic left alone\n"
    )
    assert json.loads(skipped.stdout) == {"repaired": 1200, "moving": 1}
    where = {"key": "test-*", "partition": 3, "reason": "*=503*"}
    assert server.calls == [
        Call("POST", f"{AT}/s/repair", {"action": "retry", "where": {"resting": True}}),
        Call("POST", f"{AT}/s/repair", {"action": "skip", "where": where}),
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "name one message"),
        (["k", "--all"], "name one message"),
        (["--all", "--where", "key=a"], "name one message"),
        (["k", "--resting"], "--resting is for"),
        (["--where", "tag=a"], "must be key=PATTERN"),
        (["--where", "key=a", "--where", "key=b"], "each once"),
        (["--where", "partition=-1"], "must be a number"),
    ],
)
def test_messages_to_repair_are_named_in_one_way(options: list[str], complaint: str) -> None:
    with says(Answer(200, {})) as server:
        result = run(server, "subscriptions", "skip", "orders", "s", *options)
    assert result.exit_code == 2 and complaint in result.stderr
    assert not server.calls


def test_a_finished_message_is_sent_once_more_by_its_place() -> None:
    with says(Answer(200, {"partition": 2, "seq": 7, "key": "k"})) as server:
        sent = run(
            server, "subscriptions", "resend", "orders", "s", "--partition", "2", "--seq", "7"
        )
    assert sent.stdout == "message 7 of partition 2 of key k is sent once more\n"
    assert server.calls == [Call("POST", f"{AT}/s/resend", {"partition": 2, "seq": 7})]
