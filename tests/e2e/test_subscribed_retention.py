"""Retention of a topic with a subscription: held back up to a limit, and told beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.daemon import running
from tests.e2e.subscribing import Subscription
from tests.e2e.test_retention import SOON, state, until_count


@pytest.mark.slow
def test_what_is_not_finished_stays_up_to_a_limit_and_what_goes_beyond_it_is_told(
    data: Path,
) -> None:
    caps = {"cap_records": 5}
    with running(data, settings=SOON) as daemon:
        daemon.json("PUT", "/v0/topics/held", {**caps, "retain_for_subscriptions": 1_000_000})
        daemon.json("PUT", "/v0/topics/tight", {**caps, "retain_for_subscriptions": 1})
        held = Subscription(daemon, "held", start="earliest")
        tight = Subscription(daemon, "tight", start="earliest", paused=True)
        held.produce(*"abcdefghijkl")
        for key in "abcdefghijkl":  # each in an extent of its own, which goes as a whole
            tight.produce(key)
        until_count(daemon, "tight", 5)
        assert state(daemon, "held")["count"] == 12

        messages = held.take("c", 12)
        held.ack("c", messages[:4])
        now = until_count(daemon, "held", 8)
        assert (now["earliest_seq"], now["lost_reason"]) == (5, "cap")
        held.ack("c", messages[4:])
        until_count(daemon, "held", 5)

        tight.set(paused=False)
        asked = tight.ask("c", wait_ms=1_000).json
        assert [message["seq"] for message in asked["messages"]] == [8, 9, 10, 11, 12]
        assert asked["gaps"] == [{"partition": 0, "gap_from": 1, "gap_to": 7, "reason": "cap"}]
