"""What the three modes differ in, aspect by aspect, over HTTP: one test for each mode and aspect.

The aspects are those by which key-shared subscriptions are commonly compared with the others:
consumers, order, what is in flight, how the floor moves, affinity of keys, filters, backpressure,
and what happens when consumers come and go.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from delivery.subscriptions.window.hash_ring import HashRing
from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.subscribing import Message, Subscription, keys, seqs

FAST: dict[str, Any] = {"backoff_ms": [1, 1]}


def exclusive(daemon: Daemon, topic: str, **settings: Any) -> Subscription:
    return Subscription(daemon, topic, mode="exclusive", **FAST, **settings)


def shared(daemon: Daemon, topic: str, **settings: Any) -> Subscription:
    return Subscription(daemon, topic, mode="shared", **FAST, **settings)


def key_shared(daemon: Daemon, topic: str, **settings: Any) -> Subscription:
    return Subscription(daemon, topic, mode="key_shared", **FAST | settings)


def owners(of: Subscription, names: list[str], consumers: tuple[str, ...]) -> dict[str, str]:
    """The owner of each key while these consumers are present."""
    of.join(*consumers)
    return {name: of.key(name)["owner"] for name in names}


# Consumers


def test_exclusive_has_one_consumer_and_others_stand_by(daemon: Daemon, topic: str) -> None:
    found = exclusive(daemon, topic)
    found.join("first", "second")
    found.produce(*"abcdef")
    assert seqs(found.take("first", 6)) == [1, 2, 3, 4, 5, 6]
    assert found.gets_nothing("second")
    assert {each["consumer"]: each["active"] for each in found.state["consumers"]} == {
        "first": True, "second": False,
    }  # fmt: skip


def test_shared_has_any_number_of_consumers(daemon: Daemon, topic: str) -> None:
    found = shared(daemon, topic)
    consumers = [f"c{number}" for number in range(5)]
    found.join(*consumers)
    found.produce(*[None] * 10)
    found_by = [seq for each in consumers for seq in seqs(found.take(each, 2))]
    assert sorted(found_by) == list(range(1, 11))


def test_key_shared_has_any_number_of_consumers(daemon: Daemon, topic: str) -> None:
    found = key_shared(daemon, topic)
    consumers = [f"c{number}" for number in range(5)]
    found.join(*consumers)
    names = [f"k{number}" for number in range(50)]
    found.produce(*names)
    counts = [sum(each == found.key(name)["owner"] for name in names) for each in consumers]
    assert all(counts) and sum(counts) == 50
    parts = [found.take(each, count) for each, count in zip(consumers, counts, strict=True)]
    assert sorted(name for part in parts for name in keys(part)) == sorted(names)


# Order


def test_exclusive_keeps_the_order_of_everything_also_after_a_failure(
    daemon: Daemon, topic: str
) -> None:
    found = exclusive(daemon, topic)
    found.produce(*"abcdef")
    sent = found.take("c", 6)
    assert seqs(sent) == [1, 2, 3, 4, 5, 6]
    found.ack("c", sent[:1])
    found.nack("c", [sent[2]])
    # What follows the failed one comes back with it; what came before it stays.
    again = found.take("c", 4)
    assert seqs(again) == [3, 4, 5, 6]
    assert [each["attempt"] for each in again] == [2, 1, 1, 1]
    found.ack("c", [sent[1], *again])
    wait_until(lambda: found.floor == 6, "all to be finished")


def test_shared_has_no_order_a_failed_message_keeps_nobody_waiting(
    daemon: Daemon, topic: str
) -> None:
    found = shared(daemon, topic)
    found.produce("a", "a", "a")
    found.nack("c", found.take("c", 1), delay_ms=1)
    assert sorted(seqs(found.take("c", 3))) == [1, 2, 3]
    wait_until(lambda: found.state["in_flight"] == 3, "three of one key in flight")


def test_key_shared_keeps_the_order_of_each_key_and_of_no_others(
    daemon: Daemon, topic: str
) -> None:
    found = key_shared(daemon, topic, backoff_ms=[60_000, 60_000])
    found.produce("a", "b", "a", "b", "b")
    first = found.take("c", 2)
    assert keys(first) == ["a", "b"]
    found.nack("c", first[:1])  # rests for a minute: the other key goes on
    found.ack("c", first[1:])
    for seq in (4, 5):
        (message,) = found.take("c", 1)
        assert (message["key"], message["seq"]) == ("b", seq)
        found.ack("c", [message])
    assert found.gets_nothing("c") and found.key("a")["state"] == "resting"
    assert (found.key("a")["seq"], found.key("a")["waiting"]) == (1, 1)


# In flight


def test_exclusive_has_many_messages_in_flight_each_with_its_own_outcome(
    daemon: Daemon, topic: str
) -> None:
    found = exclusive(daemon, topic)
    found.produce(*"abcd")
    sent = found.take("c", 4)
    assert found.state["in_flight"] == 4
    found.ack("c", sent[3:])
    found.ack("c", sent[:1])
    assert found.state["in_flight"] == 2


def test_shared_has_many_messages_in_flight_each_with_its_own_outcome(
    daemon: Daemon, topic: str
) -> None:
    found = shared(daemon, topic)
    found.produce(*[None] * 4)
    sent = found.take("c", 4)
    found.nack("c", sent[1:2])
    found.ack("c", sent[2:])
    (again,) = found.take("c", 1)
    assert (again["seq"], again["attempt"]) == (2, 2)
    assert found.state["in_flight"] == 2


def test_key_shared_has_one_message_of_each_key_in_flight(daemon: Daemon, topic: str) -> None:
    found = key_shared(daemon, topic)
    found.produce(*"abcabcabc")
    sent = found.take("c", 3)
    assert seqs(sent) == [1, 2, 3] and found.gets_nothing("c")
    found.ack("c", sent[1:2])
    assert seqs(found.take("c", 1)) == [5], "the next of the key that is free"
    assert found.gets_nothing("c") and found.state["in_flight"] == 3


# The floor


def floor_passes_only_what_is_finished_with_all_before(found: Subscription) -> None:
    found.produce(*"abcde")
    sent = found.take("c", 5)
    found.ack("c", [sent[0], sent[2], sent[3]])
    state = found.state
    assert (state["partitions"][0]["floor"], state["lag"]) == (1, 2)
    found.ack("c", sent[1:2])
    assert found.floor == 4
    found.ack("c", sent[4:])
    assert (found.floor, found.state["lag"]) == (5, 0)


def test_exclusive_moves_the_floor_over_what_is_finished_with_all_before(
    daemon: Daemon, topic: str
) -> None:
    floor_passes_only_what_is_finished_with_all_before(exclusive(daemon, topic))


def test_shared_moves_the_floor_over_what_is_finished_with_all_before(
    daemon: Daemon, topic: str
) -> None:
    floor_passes_only_what_is_finished_with_all_before(shared(daemon, topic))


def test_key_shared_moves_the_floor_over_what_is_finished_with_all_before(
    daemon: Daemon, topic: str
) -> None:
    floor_passes_only_what_is_finished_with_all_before(key_shared(daemon, topic))


# Affinity


def test_exclusive_gives_all_keys_to_the_one_consumer(daemon: Daemon, topic: str) -> None:
    found = exclusive(daemon, topic)
    found.join("first", "second", "third")
    found.produce(*"abcdefgh")
    assert keys(found.take("first", 8)) == list("abcdefgh")


def test_shared_gives_messages_of_one_key_to_several_consumers(daemon: Daemon, topic: str) -> None:
    found = shared(daemon, topic)
    found.join("first", "second")
    found.produce(*"aaaa")
    assert keys(found.take("first", 2)) == keys(found.take("second", 2)) == ["a", "a"]


def test_key_shared_gives_a_key_to_its_consumer_on_the_hash_ring(
    daemon: Daemon, topic: str
) -> None:
    found = key_shared(daemon, topic)
    consumers = ("worker-1", "worker-2", "worker-3")
    ring = HashRing()
    for each in consumers:
        ring.join(each)
    found.join(*consumers)
    names = [f"order-{number}" for number in range(30)]
    found.produce(*names, *names)
    mine = {each: [name for name in names if ring.owner(name) == each] for each in consumers}
    assert all(mine.values())
    for _ in range(2):  # the second message of a key goes where the first one went
        for each in consumers:
            sent = found.take(each, len(mine[each]))
            assert keys(sent) == mine[each]
            found.ack(each, sent)
    assert found.floor == 60


# Filters


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_only_key_shared_filters_keys(daemon: Daemon, topic: str, mode: str) -> None:
    found = Subscription(daemon, topic, mode=mode)
    answer = found.ask("c", filters="a*")
    assert (answer.status, answer.code) == (400, "invalid"), answer.body
    found.produce("a", "b")
    assert keys(found.take("c", 2)) == ["a", "b"]


def test_key_shared_gives_a_consumer_the_keys_that_match_its_patterns(
    daemon: Daemon, topic: str
) -> None:
    found = key_shared(daemon, topic)
    found.join("exact", filters="payment")
    found.join("star", filters="ship*")
    found.join("one", filters="eu-west-?")
    found.produce("payment", "payments", "shipping", "ship", "eu-west-1", "eu-west-10", "")
    found.produce("shipping", data=[9])
    assert keys(found.take("exact", 1, filters="payment")) == ["payment"]
    assert keys(found.take("star", 2, filters="ship*")) == ["shipping", "ship"]
    assert keys(found.take("one", 1, filters="eu-west-?")) == ["eu-west-1"]
    for each in ("payments", "eu-west-10", ""):
        assert (found.key(each)["state"], found.key(each)["owner"]) == ("held", None)
    # What nobody wants waits for a consumer that does.
    assert sorted(keys(found.take("all", 3, filters="*"))) == ["", "eu-west-10", "payments"]


# Backpressure


def test_exclusive_stops_at_the_limit_of_the_subscription(daemon: Daemon, topic: str) -> None:
    found = exclusive(daemon, topic, window_max=3)
    found.join("first", "second")
    found.produce(*"abcde")
    sent = found.take("first", 3)
    assert found.gets_nothing("first") and found.gets_nothing("second")
    found.ack("first", sent[:2])
    assert seqs(found.take("first", 2)) == [4, 5]


def test_shared_stops_at_the_limit_of_a_consumer_and_of_the_subscription(
    daemon: Daemon, topic: str
) -> None:
    found = shared(daemon, topic, window_max=5, consumer_max=3)
    limits_hold(found, [None] * 8, ("slow", "other"))


def test_key_shared_stops_at_the_limit_of_a_consumer_and_of_the_subscription(
    daemon: Daemon, topic: str
) -> None:
    found = key_shared(daemon, topic, window_max=5, consumer_max=3)
    ring = HashRing()
    for each in ("slow", "other"):
        ring.join(each)
    of_slow = [f"k{n}" for n in range(100) if ring.owner(f"k{n}") == "slow"][:4]
    of_other = [f"k{n}" for n in range(100) if ring.owner(f"k{n}") == "other"][:4]
    limits_hold(found, [*of_slow, *of_other], ("slow", "other"))


def limits_hold(found: Subscription, names: list[Any], consumers: tuple[str, str]) -> None:
    slow, other = consumers
    found.join(*consumers)
    found.produce(*names)
    mine = found.take(slow, 3)
    assert found.gets_nothing(slow), "a consumer that is full gets nothing more"
    others = found.take(other, 2)
    assert found.gets_nothing(other), "nor does anybody while the subscription is full"
    assert found.state["in_flight"] == 5
    found.ack(slow, mine[:1])
    assert len(found.take(other, 1)) == 1, "room that one makes is there for all"
    found.ack(other, others)
    assert found.state["in_flight"] == 3


# Consumers come and go


def test_exclusive_fails_over_to_who_came_next_in_order(daemon: Daemon, topic: str) -> None:
    found = exclusive(daemon, topic)
    found.join("first", "second", "third")
    found.produce(*"abcd")
    found.ack("first", found.take("first", 2)[:1])
    found.leave("first")
    assert found.gets_nothing("third")
    again = found.take("second", 3)
    assert seqs(again) == [2, 3, 4]
    assert [each["attempt"] for each in again] == [1, 1, 1], "nobody failed"


def test_shared_gives_what_a_consumer_had_to_those_who_stay(daemon: Daemon, topic: str) -> None:
    found = shared(daemon, topic)
    found.join("first", "second", "third")
    found.produce(*[None] * 9)
    mine = {each: found.take(each, 3) for each in ("first", "second", "third")}
    found.leave("first")
    parts = [found.poll(each, wait_ms=1_000) for each in ("second", "third")]
    assert sorted(seqs(chain(*parts))) == sorted(seqs(mine["first"]))
    assert all(parts), "equal parts"


def test_key_shared_moves_keys_to_who_joins_and_from_who_leaves_only(
    daemon: Daemon, topic: str
) -> None:
    found = key_shared(daemon, topic)
    names = [f"key-{number}" for number in range(60)]
    two = owners(found, names, ("a", "b"))
    three = owners(found, names, ("a", "b", "c"))
    moved = [name for name in names if two[name] != three[name]]
    assert all(three[name] == "c" for name in moved)
    assert 0.15 < len(moved) / len(names) < 0.55
    found.leave("a")
    left = owners(found, names, ("b", "c"))
    assert all(left[name] == three[name] for name in names if three[name] != "a")
    assert set(left.values()) == {"b", "c"}


def test_key_shared_gives_what_a_consumer_had_to_the_next_owner_before_what_follows(
    daemon: Daemon, topic: str
) -> None:
    found = key_shared(daemon, topic)
    found.produce(*"ababab")
    sent = found.take("first", 2)
    found.join("second")
    found.leave("first")
    again: list[Message] = found.take("second", 2)
    assert sorted(seqs(again)) == [1, 2] and {each["attempt"] for each in again} == {1}
    assert again[0]["epoch"] > sent[0]["epoch"]
    late = found.settle("ack", "first", sent)
    assert (late.status, late.code) == (409, "stale_epoch")
    found.ack("second", again)
    assert sorted(seqs(found.take("second", 2))) == [3, 4]
