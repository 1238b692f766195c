"""What the three modes differ in, over HTTP: order, and what happens when consumers come and go.

What each mode does in any history is in ``tests/delivery/subscriptions/window``."""

from __future__ import annotations

from itertools import chain
from typing import Any

from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.subscribing import Subscription, keys, seqs

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
