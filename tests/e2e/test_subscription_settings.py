"""Settings of a subscription change live: no consumer connects again, and nothing is lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.e2e.consuming import ConsumerStream
from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.subscribing import Subscription, keys

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
