"""What consumers ask is checked, and handed to the owner of the subscription as it was meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.api.handlers.consumers import split_patterns
from daemon.schemas.subscriptions import FILTERS_MAX
from delivery.subscriptions.requests import (
    Acknowledge,
    BatchRef,
    BlockedWhere,
    Consume,
    DescribeKey,
    Leave,
    ListKeys,
    MessageRef,
    Nack,
    OwnerRefused,
    Poll,
    RepairBlocked,
    Resend,
    RetryKey,
    SkipKey,
)
from tests.daemon.api.handlers.subscribing import SubscribingNode, subscribing

DONE = {"accepted": 1, "refused": 0, "refused_messages": [], "epoch": 0}
PLACE = {"partition": 1, "seq": 5}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SubscribingNode]:
    with subscribing(tmp_path_factory.mktemp("ledger")) as node:
        assert node.ask("PUT", "/s", {}).json["subscription_id"] == 1
        yield node


@pytest.fixture
def node(shared: SubscribingNode) -> SubscribingNode:
    """A node with the subscription ``s``, whose owner has not been asked anything."""
    shared.owners.forget()
    shared.owners.answer = DONE
    return shared


def test_a_consumer_with_max_polls_with_its_filters(node: SubscribingNode) -> None:
    node.owners.answer = {"epoch": None, "messages": [], "gaps": []}
    answer = node.ask("GET", "/s/consume?consumer=c&filter=a*&filter=b%5C%2Cc,d&max=5&wait_ms=10")
    assert (answer.status, answer.json) == (200, node.owners.answer)
    assert answer.headers["content-type"] == "application/json"
    assert node.owners.asked == [Poll(1, "c", ["a*", r"b\,c", "d"], 5, 10)]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "application/x-ndjson"),
        ("*/*", "application/x-ndjson"),
        ("text/event-stream", "text/event-stream"),
        ("application/msgpack", "application/msgpack"),
    ],
)
def test_a_consumer_without_max_gets_a_stream_once_the_owner_has_not_refused_it(
    node: SubscribingNode, accept: str, content_type: str
) -> None:
    head = "GET /v0/topics/t/subscriptions/s/consume?consumer=c HTTP/1.1\r\nHost: a\r\n"
    written = node.raw(f"{head}Accept: {accept}\r\n\r\n".encode())
    asked = Consume(1, "c", [], content_type)
    assert (node.owners.asked, node.owners.opened) == ([asked], [asked])
    assert f"Content-Type: {content_type}\r\n".encode() in written
    assert written.endswith(b"8\r\nmessage\n\r\n0\r\n\r\n")


def test_a_stream_that_the_owner_refuses_is_refused_with_its_status(node: SubscribingNode) -> None:
    node.owners.answer = OwnerRefused(429, "too_many_consumers", "use fewer", {"limit": 1000})
    answer = node.ask("GET", "/s/consume?consumer=c")
    assert (answer.status, answer.code) == (429, "too_many_consumers")
    assert answer.headers["retry-after"] == "1"
    assert not node.owners.opened


def test_head_of_a_poll_takes_no_message(node: SubscribingNode) -> None:
    written = node.raw(
        b"HEAD /v0/topics/t/subscriptions/s/consume?consumer=c&max=1 HTTP/1.1\r\nHost: a\r\n\r\n"
    )
    assert written.startswith(b"HTTP/1.1 405 ")
    assert not node.owners.asked


@pytest.mark.parametrize(
    ("query", "status", "code", "says"),
    [
        ("", 400, "invalid", "consumer"),
        ("?consumer=", 400, "invalid_consumer", "1 to 255 characters"),
        ("?consumer=" + "n" * 256, 400, "invalid_consumer", "got 256"),
        ("?consumer=%E2%80%8B", 400, "invalid_consumer", "printable"),
        ("?consumer=c&max=0", 400, "invalid", "max must be an integer from 1"),
        ("?consumer=c&max=many", 400, "invalid", "max must be an integer from 1"),
        ("?consumer=c&max=1&wait_ms=30001", 400, "invalid", "wait_ms must be an integer from 0"),
        ("?consumer=c&wait_ms=5", 400, "invalid", "wait_ms is for a request with max"),
        ("?consumer=c&filter=", 400, "invalid", "filter is empty"),
        ("?consumer=c&filter=a,,b", 400, "invalid", "filter is empty"),
        ("?consumer=c&filter=a%5C", 400, "invalid", "ends with a backslash"),
        ("?consumer=c&filter=" + "a" * 1025, 400, "invalid", "1025 characters, the limit is 1024"),
        ("?consumer=c&consumer=d", 400, "bad_request", "appears twice"),
    ],
)  # fmt: skip
def test_what_a_consumer_cannot_be_is_refused(
    node: SubscribingNode, query: str, status: int, code: str, says: str
) -> None:
    answer = node.ask("GET", f"/s/consume{query}")
    assert (answer.status, answer.code) == (status, code)
    assert says in answer.json["error"]["message"]
    assert not node.owners.asked


def test_a_consumer_has_at_most_64_filters(node: SubscribingNode) -> None:
    filters = "&".join(f"filter={n}*" for n in range(FILTERS_MAX))
    assert node.ask("GET", f"/s/consume?consumer=c&max=1&{filters}").status == 200
    answer = node.ask("GET", f"/s/consume?consumer=c&max=1&{filters},one")
    assert answer.json["error"]["detail"] == {"field": "filter", "limit": FILTERS_MAX}


def test_a_format_that_nobody_sends_is_not_acceptable(node: SubscribingNode) -> None:
    answer = node.ask("GET", "/s/consume?consumer=c", accept="image/png")
    assert (answer.status, answer.code) == (406, "not_acceptable")


@given(st.lists(st.text(st.sampled_from("ab*?,"), min_size=1), min_size=1))
def test_patterns_are_what_is_between_commas_and_an_escaped_comma_is_part_of_one(
    patterns: list[str],
) -> None:
    escaped = [pattern.replace(",", r"\,") for pattern in patterns]
    assert split_patterns(",".join(escaped)) == escaped


@pytest.mark.parametrize(
    ("body", "messages", "batches"),
    [
        ({"messages": [PLACE | {"epoch": 9}]}, [MessageRef(1, 5, 9)], []),
        ({"batch": 9}, [], [BatchRef(9)]),
        ({"batch": 9, "except": [PLACE]}, [], [BatchRef(9, ((1, 5),))]),
        ({"batches": [7, 9, 7], "batch": 9}, [], [BatchRef(9), BatchRef(7)]),
    ],
)
def test_an_acknowledgment_names_messages_or_whole_batches(
    node: SubscribingNode, body: dict[str, Any], messages: list[Any], batches: list[Any]
) -> None:
    assert node.ask("POST", "/s/ack", {"consumer": "c"} | body).json == DONE
    more = {"consumer": "c", "delay_ms": 3, "reason": "busy"}
    assert node.ask("POST", "/s/nack", more | body).json == DONE
    assert node.owners.asked == [
        Acknowledge(1, "c", messages, batches),
        Nack(1, "c", messages, batches, 3, "busy"),
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "there is nothing in it"),
        ({"except": [PLACE], "messages": [PLACE | {"epoch": 1}]}, "give batch or batches with it"),
        ({"messages": [PLACE]}, "misses the required field `epoch`"),
        ({"messages": [PLACE | {"epoch": -1}]}, "messages[0].epoch must be an integer"),
        ({"messages": [PLACE | {"epoch": 1}] * 10_001}, "messages must be"),
        ({"batches": [*range(101)], "except": [PLACE] * 100}, "may be 10000 at most"),
        ({"batch": "all"}, "batch must be an integer"),
        ({"batch": 1, "requeue": True}, "has the unknown field `requeue`"),
        ({"batch": 1, "consumer": "n" * (1 << 19)}, "got 524288"),
        ({"batch": 1, "consumer": 3}, "consumer must be a string"),
    ],
    ids=str.split("nothing except no-epoch negative many product text unknown long number"),
)
def test_an_acknowledgment_that_says_nothing_clear_is_refused(
    node: SubscribingNode, body: dict[str, Any], says: str
) -> None:
    for path in ("ack", "nack"):
        answer = node.ask("POST", f"/s/{path}", {"consumer": "c"} | body)
        assert answer.status == 400
        assert says in answer.json["error"]["message"]
        assert len(answer.body) < 500
    assert not node.owners.asked


def refused(*reasons: str) -> dict[str, Any]:
    messages = [PLACE | {"epoch": 9, "reason": reason} for reason in reasons]
    return {"accepted": 0, "refused": len(reasons), "refused_messages": messages, "epoch": 0}


def test_an_acknowledgment_of_what_the_consumer_does_not_have_is_a_conflict(
    node: SubscribingNode,
) -> None:
    node.owners.answer = refused("epoch", "finished")
    for path in ("ack", "nack"):
        answer = node.ask("POST", f"/s/{path}", {"consumer": "c", "batch": 9})
        assert (answer.status, answer.code) == (409, "stale_epoch")
        assert answer.json["error"]["detail"] == node.owners.answer | {"epoch": 0}


def test_an_acknowledgment_may_be_repeated_and_may_be_refused_in_part(
    node: SubscribingNode,
) -> None:
    for told in (refused("finished"), refused("epoch") | {"accepted": 3}):
        node.owners.answer = told
        answer = node.ask("POST", "/s/ack", {"consumer": "c", "batch": 9})
        assert (answer.status, answer.json) == (200, told)


def test_operators_ask_for_keys_and_settle_blocked_messages(node: SubscribingNode) -> None:
    key = "a/b c,?"
    node.ask("GET", "/s/keys?limit=7")
    node.ask("GET", "/s/keys/" + quote(key, safe=""))
    node.ask("POST", "/s/retry", {"key": key})
    node.ask("POST", "/s/skip", PLACE)
    node.ask("POST", "/s/repair", {"action": "retry", "where": {}})
    where = {"key": "a*", "partition": 1, "resting": True}
    node.ask("POST", "/s/repair", {"action": "skip", "where": where})
    node.ask("POST", "/s/resend", PLACE)
    node.ask("POST", "/s/leave", {"consumer": "c"})
    assert node.owners.asked == [
        ListKeys(1, 7),
        DescribeKey(1, key),
        RetryKey(1, key),
        SkipKey(1, None, (1, 5)),
        RepairBlocked(1, True, BlockedWhere()),
        RepairBlocked(1, False, BlockedWhere("a*", 1, None, True)),
        Resend(1, (1, 5)),
        Leave(1, "c"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"partition": 1},
        {"seq": 1},
        PLACE | {"key": "k"},
    ],
)
def test_a_blocked_message_is_named_in_one_way(node: SubscribingNode, body: dict[str, Any]) -> None:
    for path in ("retry", "skip"):
        answer = node.ask("POST", f"/s/{path}", body)
        assert (answer.status, answer.code) == (400, "invalid")
        assert "name one message" in answer.json["error"]["message"]


def test_a_condition_that_cannot_be_is_refused(node: SubscribingNode) -> None:
    for field in ("key", "reason"):
        answer = node.ask("POST", "/s/repair", {"action": "skip", "where": {field: "half\\"}})
        assert (answer.status, answer.code) == (400, "invalid")
        assert answer.json["error"]["detail"]["field"] == f"where.{field}"
    for body in ({"action": "skip", "where": {"node": "x"}}, {"action": "drop", "where": {}}, {}):
        assert node.ask("POST", "/s/repair", body).status == 400
    assert not node.owners.asked


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/consume?consumer=c&max=1", None),
        ("GET", "/consume?consumer=c", None),
        ("POST", "/ack", {"consumer": "c", "batch": 1}),
        ("POST", "/nack", {"consumer": "c", "batch": 1}),
        ("POST", "/leave", {"consumer": "c"}),
        ("GET", "/keys", None),
        ("GET", "/keys/k", None),
        ("POST", "/retry", {"key": "k"}),
        ("POST", "/skip", {"key": "k"}),
        ("POST", "/repair", {"action": "skip", "where": {}}),
        ("POST", "/resend", PLACE),
        ("POST", "/seek", {"to": "latest"}),
    ],
)
def test_a_subscription_that_does_not_exist_is_named(
    node: SubscribingNode, method: str, path: str, body: object
) -> None:
    answer = node.ask(method, f"/other{path}", body)
    assert (answer.status, answer.code) == (404, "unknown_subscription")
    assert answer.json["error"]["detail"] == {"topic": "t", "subscription": "other"}
    assert not node.owners.asked


def test_a_name_is_looked_up_once_until_subscriptions_change(node: SubscribingNode) -> None:
    ask = {"consumer": "c", "batch": 1}
    first = node.ask("PUT", "/u", {}).json["subscription_id"]
    node.ask("POST", "/u/ack", ask)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node.ledger, "read", None)
        assert node.ask("POST", "/u/ack", ask).status == 200
    node.ask("DELETE", "/u")
    assert node.ask("POST", "/u/ack", ask).code == "unknown_subscription"
    second = node.ask("PUT", "/u", {}).json["subscription_id"]
    assert node.ask("POST", "/u/ack", ask).status == 200
    ids = [request.subscription_id for request in node.owners.asked]
    assert ids == [first, first, second]
