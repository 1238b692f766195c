"""Subscriptions are created, changed, shown, listed, sought and deleted over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import asdict

from daemon.api.handlers import push_activity
from daemon.schemas.subscriptions import SubscriptionSettings
from delivery.subscriptions.requests import Describe, ListAttempts, OwnerRefused, Seek, TryPush
from ledger.delivery import subscriptions
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.subscriptions import SubscriptionConfig
from shards import layout as at
from shards.boards.pushboard import PushBoard, PushOutcome, SenderWords
from shards.boards.pushgrants import SlotGrants
from shards.boards.rowboard import RowPhase, SubscriptionRow
from shards.clock import monotonic_ns, wall_ms
from tests.daemon.api.handlers.subscribing import SubscribingNode, subscribing

STATE: dict[str, Any] = {
    "subscription": "s", "topic": "t", "owner_shard": 0, "lag": 7, "drainable_lag": 5,
    "in_flight": 1, "waiting": 6, "blocked_keys": 1, "oldest_unacknowledged_ms": 12,
    "delivered": 9, "acknowledged": 8, "redelivered": 1, "refused": 2, "dropped": 0,
    "skipped": 0, "dead_lettered": 0, "evicted": 0, "unmatched": 0, "filtered": 0, "held": "",
    "blocked_letters": "", "partitions": [],
    "consumers": [], "blocked": [], "gaps": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubscribingNode]:
    with subscribing(tmp_path_factory.mktemp("ledger")) as node:
        yield node


@pytest.fixture
def node(shared: SubscribingNode) -> Iterator[SubscribingNode]:
    """A node without subscriptions."""
    shared.owners.forget()
    yield shared
    for each in shared.ask("GET", "").json["subscriptions"]:
        assert shared.ask("DELETE", f"/{each['subscription']}").status == 200


def test_a_subscription_is_created_with_the_settings_that_are_given(node: SubscribingNode) -> None:
    answer = node.ask("PUT", "/s", {"mode": "shared", "backoff_ms": [5, 50]})
    assert answer.status == 201
    shown = answer.json
    assert (shown["topic"], shown["subscription"]) == ("t", "s")
    assert (shown["config"]["mode"], shown["config"]["backoff_ms"]) == ("shared", [5, 50])
    assert shown["config"]["redeliveries_max"] == SubscriptionConfig().redeliveries_max
    assert [each["floor"] for each in shown["partitions"]] == [0, 0]
    assert (shown["state"], shown["lag"], shown["consumers"]) == ("running", 0, 0)


def test_settings_that_are_not_given_stay_as_they_are(node: SubscribingNode) -> None:
    node.ask("PUT", "/s", {"mode": "shared", "window_max": 7})
    answer = node.ask("PUT", "/s", {"window_max": 8, "start": "latest"})
    assert answer.status == 200
    assert (answer.json["config"]["mode"], answer.json["config"]["window_max"]) == ("shared", 8)


def test_settings_have_the_fields_of_the_ledger_and_the_beginning() -> None:
    assert set(SubscriptionSettings.__struct_fields__) == {
        *SubscriptionConfig.__struct_fields__, "start",
    } - {"paused_because"}  # fmt: skip
    assert set(asdict(SubscriptionSettings()).values()) == {UNSET}


def test_each_change_moves_the_word_that_owners_look_at(node: SubscribingNode) -> None:
    seen = [node.segment.words[at.G_DELIVERY]]
    for method, body in (("PUT", {}), ("PUT", {"paused": True}), ("DELETE", None)):
        node.ask(method, "/s", body)
        seen.append(node.segment.words[at.G_DELIVERY])
    assert seen == sorted(set(seen))


def test_a_list_shows_what_owners_tell_a_page_at_a_time(node: SubscribingNode) -> None:
    ids = [node.ask("PUT", f"/{name}", {}).json["subscription_id"] for name in "bac"]
    row = SubscriptionRow("t", "a", RowPhase.HELD, "the store is down", lag=9, consumers=2)
    node.board.write(1, ids[1], row)
    first = node.ask("GET", "?limit=2").json
    assert [each["subscription"] for each in first["subscriptions"]] == ["a", "b"]
    told = first["subscriptions"][0]
    assert (told["state"], told["reason"]) == ("held", "the store is down")
    assert (told["lag"], told["consumers"]) == (9, 2)
    second = node.ask("GET", f"?limit=2&after={first['next_after']}").json
    assert [each["subscription"] for each in second["subscriptions"]] == ["c"]
    assert second["next_after"] is None


def test_all_subscriptions_are_listed_by_id_a_page_at_a_time(node: SubscribingNode) -> None:
    ids = [node.ask("PUT", f"/{name}", {}).json["subscription_id"] for name in "bac"]
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = node.ask("GET", f"/v0/subscriptions?limit=2&after={after}").json
        found += [each["subscription_id"] for each in page["subscriptions"]]
        after = page["next_after"]
    assert found == ids


def test_one_subscription_is_shown_as_its_owner_sees_it(node: SubscribingNode) -> None:
    number = node.ask("PUT", "/s", {"mode": "exclusive"}).json["subscription_id"]
    node.owners.answer = STATE
    shown = node.ask("GET", "/s").json
    assert node.owners.asked == [Describe(number)]
    assert STATE.items() <= shown.items()
    assert (shown["subscription_id"], shown["config"]["mode"]) == (number, "exclusive")


def test_an_owner_that_is_being_restarted_is_a_503_to_ask_again(node: SubscribingNode) -> None:
    node.ask("PUT", "/s", {})
    node.owners.answer = OwnerRefused(503, "owner_restarted", "ask again", {"owner_shard": 3})
    answer = node.ask("GET", "/s")
    assert (answer.status, answer.code) == (503, "owner_restarted")
    assert answer.headers["retry-after"] == "1"
    assert answer.json["error"]["detail"] == {"owner_shard": 3}


def test_a_deleted_subscription_is_gone_and_its_name_can_be_used_again(
    node: SubscribingNode,
) -> None:
    first = node.ask("PUT", "/s", {}).json["subscription_id"]
    assert node.ask("DELETE", "/s").json == {"topic": "t", "subscription": "s", "deleted": True}
    for method in ("GET", "DELETE"):
        assert node.ask(method, "/s").code == "unknown_subscription"
    assert node.ask("PUT", "/s", {}).json["subscription_id"] == first + 1


@pytest.mark.parametrize("to", ["earliest", "latest", [0, 0]])
def test_a_seek_tells_the_owner_the_floor_of_each_partition(
    node: SubscribingNode, to: object
) -> None:
    number = node.ask("PUT", "/s", {}).json["subscription_id"]
    node.owners.answer = {"partitions": []}
    assert node.ask("POST", "/s/seek", {"to": to}).json == {"partitions": []}
    assert node.owners.asked == [Seek(number, {0: 0, 1: 0})]


def test_a_time_is_looked_up_in_the_records_of_each_partition(node: SubscribingNode) -> None:
    node.ask("PUT", "/s", {})
    # The index of times says offset 1 for partition 1, which the ledger does not have.
    for method, path, body in (
        ("POST", "/s/seek", {"to": {"ts": 0}}),
        ("PUT", "/new", {"start": {"ts": 0}}),
    ):
        message = node.ask(method, path, body).json["error"]["message"]
        assert "is 1 for partition 1, whose last offset is 0" in message


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"to": 1}, "has 1 offsets, but its topic has 2 partitions"),
        ({"to": [0, 7]}, "is 7 for partition 1, whose last offset is 0"),
        ({"to": "tomorrow"}, "to must be"),
        ({}, "misses the required field `to`"),
        ({"to": {"ts": -1}}, "to.ts must be an integer"),
    ],
)
def test_a_place_that_the_topic_does_not_have_is_refused(
    node: SubscribingNode, body: object, says: str
) -> None:
    node.ask("PUT", "/s", {})
    answer = node.ask("POST", "/s/seek", body)
    assert (answer.status, answer.code) == (400, "invalid")
    assert says in answer.json["error"]["message"]
    assert not node.owners.asked


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"mode": "fifo"}, 'mode must be one of "exclusive", "key_shared", "shared", got \'fifo\''),
        ({"poison": "ignore"}, "poison must be one of"),
        ({"ack_timeout_ms": 0}, "ack_timeout_ms must be an integer from 1"),
        ({"backoff_ms": [9, 3]}, "backoff_ms"),
        ({"backoff_ms": [9]}, "backoff_ms must be"),
        ({"poison": "dead_letter"}, "dead_letter_topic"),
        ({"window_max": "many"}, "window_max must be an integer"),
        ({"windows": 4}, "has the unknown field `windows`"),
        ({"filter": {"color": "a"}}, "has the unknown field `color`"),
        ({"filter": "a=b"}, "filter must be"),
        ({"filter": {"tag": "a\\"}}, "filter.tag is a pattern that ends with a backslash"),
        ({"filter": {"where": ["a=b", "paid"]}}, "filter.where[1] cannot be used: 'paid' has no ="),
        ({"filter": {"where": ["a=b"] * 9}}, "filter.where"),
        ({"filter": {"where": ["a=" + "b" * 255]}}, "filter.where"),
        ({"start": [1]}, "has 1 offsets, but its topic has 2 partitions"),
        ([], "the body must be a JSON object"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_field(
    node: SubscribingNode, body: object, says: str
) -> None:
    answer = node.ask("PUT", "/s", body)
    assert (answer.status, answer.code) == (400, "invalid")
    assert says in answer.json["error"]["message"]
    assert node.ask("GET", "/s").code == "unknown_subscription"


def test_dead_letters_go_to_a_topic_that_exists_and_not_around_in_a_circle(
    node: SubscribingNode,
) -> None:
    to_none = node.ask("PUT", "/s", {"poison": "dead_letter", "dead_letter_topic": "none"})
    assert (to_none.status, to_none.code) == (404, "unknown_topic")
    to_itself = node.ask("PUT", "/s", {"poison": "dead_letter", "dead_letter_topic": "t"})
    assert (to_itself.status, to_itself.code) == (409, "dead_letter_cycle")


def test_a_name_that_is_not_one_is_refused_without_repeating_all_of_it(
    node: SubscribingNode,
) -> None:
    for method in ("PUT", "GET", "DELETE"):
        answer = node.ask(method, "/" + "x" * 3000)
        assert (answer.status, answer.code) == (400, "invalid_subscription")
        assert len(answer.body) < 500


def test_when_there_are_as_many_as_there_may_be_another_one_is_refused(
    node: SubscribingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_MAX", 1)
    node.ask("PUT", "/s", {})
    answer = node.ask("PUT", "/more", {})
    assert (answer.status, answer.code) == (409, "subscriptions_full")
    assert answer.json["error"]["detail"] == {"limit_subscriptions": 1}


URL = "https://example.com/hook"


def push_of(node: SubscribingNode, name: str = "s") -> Any:
    """The push settings of a subscription, as a list shows them."""
    listed = node.ask("GET", "").json["subscriptions"]
    return next(each["config"]["push"] for each in listed if each["subscription"] == name)


def test_push_settings_that_are_not_given_have_defaults_and_then_stay_as_they_are(
    node: SubscribingNode,
) -> None:
    made = node.ask("PUT", "/s", {"push": {"endpoint": URL, "senders": 2}})
    assert made.status == 201
    assert made.json["config"]["push"] == {
        "endpoint": URL, "rate_max": 100.0, "rate_start": None, "senders": 2, "connections_max": 16,
        "timeout_ms": 10_000, "format": "binary", "batch_max": 100, "batch_bytes_max": 262_144,
        "batch_wait_ms": 100, "type_from": None, "headers": [], "signed": False, "secrets_count": 0,
    }  # fmt: skip
    changed = node.ask("PUT", "/s", {"push": {"rate_max": 5, "format": "batch"}})
    assert changed.status == 200
    push = changed.json["config"]["push"]
    assert (push["endpoint"], push["senders"]) == (URL, 2)
    assert (push["rate_max"], push["format"]) == (5.0, "batch")
    assert node.ask("PUT", "/s", {"window_max": 9}).json["config"]["push"] == push
    assert node.ask("PUT", "/s", {"push": {}}).json["config"]["push"] == push
    node.owners.answer = STATE
    assert node.ask("GET", "/s").json["config"]["push"] == push


def test_null_ends_the_push_and_another_one_begins_with_defaults(node: SubscribingNode) -> None:
    node.ask("PUT", "/s", {"push": {"endpoint": URL, "rate_max": 5}})
    assert node.ask("PUT", "/s", {"push": None}).json["config"]["push"] is None
    assert node.ask("PUT", "/s", {"push": None}).status == 200
    without = node.ask("PUT", "/s", {"push": {"rate_max": 7}})
    assert without.json["error"]["detail"]["field"] == "push.endpoint"
    again = node.ask("PUT", "/s", {"push": {"endpoint": URL}})
    assert again.json["config"]["push"]["rate_max"] == 100.0


def test_why_the_daemon_has_paused_it_is_shown_and_cannot_be_set(node: SubscribingNode) -> None:
    made = node.ask("PUT", "/s", {"push": {"endpoint": URL}}).json
    node.ledger.write(subscriptions.pause, made["subscription_id"], URL, "410 Gone")
    (listed,) = node.ask("GET", "").json["subscriptions"]
    assert (listed["config"]["paused"], listed["config"]["paused_because"]) == (True, "410 Gone")
    refused = node.ask("PUT", "/s", {"paused_because": "I say so"})
    assert "unknown field `paused_because`" in refused.json["error"]["message"]
    resumed = node.ask("PUT", "/s", {"paused": False}).json["config"]
    assert (resumed["paused"], resumed["paused_because"]) == (False, "")


@pytest.mark.parametrize(
    ("push", "says"),
    [
        ({"endpoint": "nonsense"}, "the endpoint must be a URL with http or https"),
        ({"endpoint": "http://u:hunter2@h:99999/"}, "must have no user and no password"),
        ({"endpoint": "http://" + "h" * 2_000}, "the endpoint must have a host name"),
        ({"endpoint": URL + "x" * 3_000}, "push.endpoint must be a string with at most 2048"),
        ({"endpoint": URL * 30_000}, "push.endpoint must be a string with at most 2048"),
        ({"endpoint": 7}, "push.endpoint must be a string"),
        ({"endpoint": URL, "rate_max": 0}, "push.rate_max must be a number from 0.01667 to 100000"),
        ({"endpoint": URL, "rate_max": 1e9}, "push.rate_max must be a number from"),
        ({"endpoint": URL, "rate_max": -1}, "push.rate_max must be a number from"),
        ({"endpoint": URL, "rate_max": "fast"}, "push.rate_max must be a number from"),
        ({"endpoint": URL, "rate_max": float("nan")}, "JSON is malformed"),
        ({"endpoint": URL, "rate_max": float("inf")}, "JSON is malformed"),
        ({"endpoint": URL, "senders": 0}, "push.senders must be an integer from 1 to 64"),
        ({"endpoint": URL, "senders": 65}, "push.senders must be an integer from 1 to 64"),
        ({"endpoint": URL, "rate_max": 0.5, "senders": 31}, "rate_max allows 30"),
        ({"endpoint": URL, "format": "xml"}, "push.format must be one of"),
        ({"endpoint": URL, "type_from": "key"}, "'s' is 'key'; give tag, or data.FIELD"),
        ({"endpoint": URL, "type_from": "data."}, "'s' is 'data.'; give tag, or data.FIELD"),
        ({"endpoint": URL, "secrets_id": "x"}, "has the unknown field `secrets_id`"),
        ({"endpoint": URL, "signed": True}, "has the unknown field `signed`"),
        ({"endpoint": URL, "x" * 900_000: 1}, "has the unknown field"),
        (URL, "push must be a JSON object"),
        ([], "push must be a JSON object"),
    ],
)
def test_push_settings_that_cannot_be_are_refused_with_the_field(
    node: SubscribingNode, push: object, says: str
) -> None:
    answer = node.ask("PUT", "/s", {"push": push})
    assert (answer.status, answer.code) == (400, "invalid")
    assert says in answer.json["error"]["message"]
    assert len(answer.body) < 3_000 and b"hunter2" not in answer.body
    assert node.ask("GET", "/s").code == "unknown_subscription"


def test_a_subscription_that_keeps_no_track_may_be_pushed(node: SubscribingNode) -> None:
    answer = node.ask("PUT", "/s", {"reliable": False, "push": {"endpoint": URL}})
    assert answer.status == 201
    assert node.ask("PUT", "/s", {"reliable": True}).status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.8"])
def test_an_endpoint_that_may_not_be_called_is_refused_and_what_is_allowed_is_named(
    node: SubscribingNode, host: str
) -> None:
    answer = node.ask("PUT", "/s", {"push": {"endpoint": f"http://{host}:80/hook"}})
    assert (answer.status, answer.code) == (400, "push_forbidden")
    assert "push_allow" in answer.json["error"]["message"]
    assert answer.json["error"]["detail"]["field"] == "push.endpoint"
    allowed = node.ask("PUT", "/s", {"push": {"endpoint": "http://hooks.test/hook"}})
    assert allowed.status == 201


def test_what_senders_do_is_shown_by_any_shard(
    node: SubscribingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the thread stood still for a second between two readings of the clocks.
    readings = count(push_activity._ahead_ns() - 10_000_000_000, 1_000_000_000)
    monkeypatch.setattr(push_activity, "_ahead_ns", readings.__next__)
    node.owners.answer = STATE
    number = node.ask("PUT", "/s", {"push": {"endpoint": URL, "rate_max": 20}}).json[
        "subscription_id"
    ]
    shown = node.ask("GET", "/s").json
    assert (shown["push"], shown["push_senders"]) == (None, []), "its owner has not noticed it yet"

    PushBoard(node.segment).offer(0, number, 20.0, 1)
    words = SenderWords(node.segment, 0, 0)
    words.join(number)
    grants = SlotGrants(node.segment, 0, number)
    grants.look()
    grants.grant(0, 8.0)
    words.follow()
    now_ns = monotonic_ns()
    words.tell(LearnedRate(1, 2.0, 5.0), now_ns)
    words.tell_next(now_ns + 600_000_000_000, now_ns + 570_000_000_000)
    words.use(0.5)
    for outcome in (PushOutcome.DELIVERED, PushOutcome.SERVER_ERROR, PushOutcome.SERVER_ERROR):
        words.began()
        words.ended(outcome, 3_000_000, 7 if outcome is PushOutcome.DELIVERED else 0)
    words.began()

    shown = node.ask("GET", "/s").json
    push, (sender,) = shown["push"], shown["push_senders"]
    assert (push["mode"], push["rate_max"], push["granted"], push["rate"]) == ("slow", 20, 8, 2)
    assert push["outcomes"] == {"delivered": 1, "server_error": 2}
    for told in (push, sender):
        assert (told["attempts"], told["failures"], told["records"]) == (4, 2, 7)
        assert (told["in_flight"], told["p50_ms"], told["p99_ms"]) == (1, 4.0, 4.0)
    assert (sender["shard"], sender["mode"], sender["granted"]) == (0, "slow", 8)
    assert (sender["ceiling"], sender["use"]) == (5, 0.5)
    assert 300_000 < sender["next_attempt_ms"] - wall_ms() <= 600_000
    assert sender["next_attempt_ms"] - sender["held_until_ms"] == 30_000
    assert sender["held_until_ms"] - push["held_until_ms"] == 1_000, "each has its own reading"
    (listed,) = node.ask("GET", "").json["subscriptions"]
    node.ask("PUT", "/s", {"paused": True})
    (sender,) = node.ask("GET", "/s").json["push_senders"]
    assert sender["next_attempt_ms"] is None
    assert {**listed["push"], "held_until_ms": 0} == {**push, "held_until_ms": 0}

    words.leave()
    shown = node.ask("GET", "/s").json
    assert shown["push_senders"] == [] and shown["push"]["attempts"] == 4
    node.ask("PUT", "/s", {"push": None})
    shown = node.ask("GET", "/s").json
    assert (shown["push"], shown["push_senders"]) == (None, [])
    PushBoard(node.segment).withdraw(0, number)


def test_a_push_that_is_resumed_is_not_paused_and_its_senders_hear_of_it(
    node: SubscribingNode,
) -> None:
    asked = {"push": {"endpoint": URL}, "paused": True}
    made = node.ask("PUT", "/s", asked).json
    words = SenderWords(node.segment, 0, 0)
    PushBoard(node.segment).offer(0, made["subscription_id"], 20.0, 1)
    words.join(made["subscription_id"])
    assert words.resumed_ns == 0
    for was_paused in (True, False):
        before_ns = words.resumed_ns
        assert node.ask("POST", "/s/push/resume").json == {"was_paused": was_paused}
        assert words.resumed_ns > before_ns
        assert node.ask("PUT", "/s", {}).json["config"]["paused"] is False
    PushBoard(node.segment).withdraw(0, made["subscription_id"])
    node.ask("PUT", "/c", {"paused": True})
    refused = node.ask("POST", "/c/push/resume")
    assert (refused.status, refused.code) == (409, "not_pushed")
    assert node.ask("PUT", "/c", {}).json["config"]["paused"] is True
    assert node.ask("POST", "/none/push/resume").code == "unknown_subscription"


def test_a_filter_is_replaced_as_a_whole_and_ends_with_null_or_nothing(
    node: SubscribingNode,
) -> None:
    wanted = {"tag": "a*", "where": ["status=paid"]}
    assert node.ask("PUT", "/s", {"filter": wanted}).json["config"]["filter"] == wanted
    assert node.ask("PUT", "/s", {"paused": True}).json["config"]["filter"] == wanted
    other = node.ask("PUT", "/s", {"filter": {"key": "k"}})
    assert other.json["config"]["filter"] == {"key": "k"}
    nothings: tuple[object, ...] = (None, {})
    for nothing in nothings:
        assert node.ask("PUT", "/s", {"filter": nothing}).json["config"]["filter"] is None


def test_attempts_are_asked_of_the_owner(node: SubscribingNode) -> None:
    number = node.ask("PUT", "/s", {"push": {"endpoint": URL}}).json["subscription_id"]
    node.owners.answer = {"attempts": [], "kept": 3}
    assert node.ask("GET", "/s/push/attempts").json == {"attempts": [], "kept": 3}
    node.ask("GET", "/s/push/attempts?partition=2&seq=7&limit=5")
    assert node.owners.asked == [
        ListAttempts(number, None, None, 100), ListAttempts(number, 2, 7, 5)
    ]  # fmt: skip
    assert node.ask("GET", "/s/push/attempts?seq=0").code == "invalid"


def test_a_test_of_a_receiver_is_asked_of_the_owner(node: SubscribingNode) -> None:
    number = node.ask("PUT", "/s", {"push": {"endpoint": URL}}).json["subscription_id"]
    node.owners.answer = {"status": 200}
    assert node.ask("POST", "/s/push/test").json == {"status": 200}
    node.ask("POST", "/s/push/test", {"data": [1], "key": "k"})
    first, second = node.owners.asked
    assert isinstance(first, TryPush) and isinstance(second, TryPush)
    assert json.loads(first.data) == {"headgate": "test", "topic": "t", "subscription": "s"}
    assert (first.subscription_id, first.key) == (number, None)
    assert (second.data, second.key) == ("[1]", "k")
    assert first.token != second.token
    body = b'{"data":"\xff"}'
    head = "POST /v0/topics/t/subscriptions/s/push/test HTTP/1.1\r\nHost: a\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    assert b" 400 " in node.raw(head.encode() + body).partition(b"\r\n")[0]
    large = node.ask("POST", "/s/push/test", {"data": "x" * 65_536})
    assert (large.status, large.code) == (413, "too_large")
