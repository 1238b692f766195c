"""Settings of a subscription change live: no consumer connects again, and nothing is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.e2e.consuming import ConsumerStream
from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.subscribing import Subscription, keys, seqs

pytestmark = pytest.mark.slow  # a setting each; `tests/delivery/subscriptions` has the rules


def changed(found: Subscription, **settings: Any) -> None:
    """Changes settings and waits until the owner goes by them: it tells whether it is paused."""
    paused = settings.pop("paused", False)
    for now_paused in (True, False)[: 1 if paused else 2]:
        assert found.set(paused=now_paused, **settings).status == 200
        wait_until(partial(tells_of, found, paused=now_paused), "the owner to know the settings")


def tells_of(found: Subscription, *, paused: bool) -> bool:
    """Whether its owner tells all shards that it is paused, or not."""
    first = found.daemon.status()["subscriptions"]["first"]  # those that do not run, then others
    states = [each["state"] for each in first if each["topic"] == found.topic]
    return ("paused" in states) is paused


def stuck(daemon: Daemon, topic: str) -> Subscription:
    """A subscription whose key ``bad`` is blocked, with one message that waits for it."""
    found = Subscription(daemon, topic, redeliveries_max=0)
    found.produce("bad", "bad", "good")
    sent = found.take("c", 2)
    assert keys(sent) == ["bad", "good"]
    found.ack("c", sent[1:])
    found.nack("c", sent[:1])
    assert found.gets_nothing("c") and found.key("bad")["state"] == "stuck"
    return found


def test_a_consumer_gets_more_when_its_limit_is_raised_and_less_when_it_is_lowered(
    daemon: Daemon, topic: str
) -> None:
    found = Subscription(daemon, topic, consumer_max=2)
    found.produce(*"abcdefgh")
    first = found.take("c", 2)
    assert found.gets_nothing("c")
    changed(found, consumer_max=5)
    more = found.take("c", 3)
    changed(found, consumer_max=1)
    found.ack("c", [*first, *more[:2]])
    assert found.gets_nothing("c"), "it has one already"
    found.ack("c", more[2:])
    assert len(found.take("c", 1)) == 1
    assert found.gets_nothing("c")


def test_more_is_in_flight_when_the_window_is_widened(daemon: Daemon, topic: str) -> None:
    found = Subscription(daemon, topic, window_max=2)
    found.produce(*"abcd")
    found.take("c", 2)
    assert found.gets_nothing("c")
    changed(found, window_max=4)
    assert len(found.take("c", 2)) == 2


def test_a_blocked_message_is_dropped_when_the_policy_becomes_drop(
    daemon: Daemon, topic: str
) -> None:
    found = stuck(daemon, topic)
    changed(found, poison="drop")
    (following,) = found.take("c", 1)
    assert (following["key"], following["seq"], following["attempt"]) == ("bad", 2, 1)
    found.ack("c", [following])
    assert (found.floor, found.state["dropped"], found.state["blocked_keys"]) == (3, 1, 0)


def test_a_blocked_message_is_moved_when_the_policy_becomes_dead_letter(
    daemon: Daemon, topic: str
) -> None:
    found = stuck(daemon, topic)
    letters = f"{topic}.letters"
    assert daemon.json("PUT", f"/v0/topics/{letters}", {}).status == 201
    changed(found, poison="dead_letter", dead_letter_topic=letters)
    assert seqs(found.take("c", 1)) == [2]
    (letter,) = wait_until(lambda: daemon.diff(letters)["records"], "the dead letter")
    assert (letter["key"], letter["data"]) == ("bad", 0)
    origin = letter["meta"]["headgate"]
    assert (origin["topic"], origin["subscription"], origin["seq"]) == (topic, found.name, 1)
    wait_until(lambda: found.state["dead_lettered"] == 1, "the letter to count")
    assert found.floor == 1


def test_a_blocked_message_is_sent_again_when_more_attempts_are_allowed(
    daemon: Daemon, topic: str
) -> None:
    found = stuck(daemon, topic)
    changed(found, redeliveries_max=1)
    (again,) = found.take("c", 1)
    assert (again["seq"], again["attempt"]) == (1, 2)


def test_the_pause_after_a_failure_is_that_of_the_moment(daemon: Daemon, topic: str) -> None:
    found = Subscription(daemon, topic, backoff_ms=[60_000, 60_000])
    found.produce("slow", "fast")
    sent = found.take("c", 2)
    found.nack("c", sent[:1])
    changed(found, backoff_ms=[1, 1])
    found.nack("c", sent[1:])
    (again,) = found.take("c", 1)
    assert (again["key"], again["attempt"]) == ("fast", 2)
    assert found.key("slow")["state"] == "resting"


def test_messages_come_back_when_the_time_for_them_is_shortened(daemon: Daemon, topic: str) -> None:
    found = Subscription(daemon, topic, ack_timeout_ms=3_600_000)
    found.produce("a")
    found.take("slow", 1)
    found.join("other")
    changed(found, ack_timeout_ms=1_000)
    (again,) = found.take("other", 1)
    assert (again["seq"], again["attempt"]) == (1, 1), "a consumer that is gone has not failed"


def test_keys_that_nobody_wants_are_skipped_when_that_becomes_the_rule(
    daemon: Daemon, topic: str
) -> None:
    found = Subscription(daemon, topic)
    found.join("c", filters="a*")
    found.produce("b", "b", "a", "c")
    sent = found.take("c", 1, filters="a*")
    found.ack("c", sent)
    assert found.key("b")["state"] == "held" and found.floor == 0
    changed(found, unmatched="skip")
    wait_until(lambda: found.floor == 4, "what nobody wants to be skipped")
    assert found.state["unmatched"] == 3


def test_messages_without_a_key_are_in_order_when_their_node_begins_to_count_as_one(
    daemon: Daemon, topic: str
) -> None:
    found = Subscription(daemon, topic, redeliveries_max=0)
    records = [{"data": number, "node": node} for number, node in enumerate("nnm")]
    answer = daemon.json("POST", f"/v0/topics/{topic}", {"records": records})
    assert answer.status == 200, answer.body
    before = found.take("c", 3)
    changed(found, key_fallback="node")
    sent = found.take("c", 2)
    assert found.settle("ack", "c", before).status == 409, "it was given back"
    assert seqs(sent) == [1, 3] and found.gets_nothing("c")
    assert [(each["node"], "key" in each) for each in sent] == [("n", False), ("m", False)]
    found.nack("c", sent[:1])
    found.ack("c", sent[1:])
    assert found.gets_nothing("c") and found.key("n")["state"] == "stuck"
    assert daemon.json("POST", f"{found.path}/skip", {"key": "n"}).json["seq"] == 1
    assert found.gets_nothing("d", filters="m*")
    assert seqs(found.take("c", 1, filters="n*")) == [2]


def test_a_paused_subscription_sends_nothing_and_takes_acknowledgments(
    daemon: Daemon, topic: str
) -> None:
    found = Subscription(daemon, topic)
    found.produce(*"abc")
    sent = found.take("c", 1)
    changed(found, paused=True)
    assert found.gets_nothing("c")
    found.ack("c", sent)
    assert found.floor == 1
    changed(found, paused=False)
    assert seqs(found.take("c", 2)) == [2, 3]


def test_another_mode_takes_back_what_is_in_flight_and_keeps_what_is_finished(
    daemon: Daemon, topic: str
) -> None:
    found = Subscription(daemon, topic, mode="key_shared")
    found.produce(*"aab")
    sent = found.take("c", 2)
    assert seqs(sent) == [1, 3]
    found.ack("c", sent[1:])
    changed(found, mode="exclusive")
    late = found.settle("ack", "c", sent[:1])
    assert (late.status, late.code) == (409, "stale_epoch")
    again = found.take("c", 2)
    assert seqs(again) == [1, 2], "in the order of all messages, and without the finished one"
    found.ack("c", again)
    assert found.floor == 3


def test_a_setting_that_cannot_be_changes_nothing(daemon: Daemon, topic: str) -> None:
    found = Subscription(daemon, topic, consumer_max=7)
    for bad in ({"mode": "fifo"}, {"consumer_max": 0}, {"poison": "eat"}, {"backoff_ms": [5]}):
        answer = found.set(**bad)
        assert (answer.status, answer.code) == (400, "invalid"), answer.body
    assert found.state["config"]["consumer_max"] == 7


def test_a_topic_takes_its_subscriptions_along_and_one_of_the_same_names_begins_anew(
    daemon: Daemon, topic: str
) -> None:
    found = Subscription(daemon, topic, start="earliest")
    found.produce("a", "b")
    with ConsumerStream(daemon, 0, found.path, "c") as stream:
        assert keys(stream.messages(2)) == ["a", "b"]
        assert daemon.ask("DELETE", f"/v0/topics/{topic}").status in (200, 204)
        assert stream.rest()[-1]["code"] == "deleted"
    assert daemon.get(found.path).status == 404

    assert daemon.json("PUT", f"/v0/topics/{topic}", {}).status == 201
    assert daemon.get(found.path).status == 404
    again = Subscription(daemon, topic, start="earliest")
    again.produce("c")
    assert keys(again.take("c", 1)) == ["c"]
