"""Push subscriptions of a real daemon that are deleted and created again under their names."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.pushing import TIMES, Pushing
from tools.receiver.behavior import Behavior
from tools.receiver.process import ReceiverProcess

pytestmark = pytest.mark.slow  # tests/delivery/push/test_created_again.py has the rules

ROUNDS = 12
SHARDS = 4
FAST, SLOW = 200.0, 3.0


def test_what_is_deleted_and_created_again_many_times_is_delivered_within_its_limit(
    data: Path,
) -> None:
    """By turns the subscription or its topic is deleted, always with POSTs under way; its owner is
    another shard each time, in the same slot."""
    with ReceiverProcess() as receiver, running(data, shards=SHARDS, settings=TIMES) as daemon:
        topic = "again"
        for number in range(ROUNDS):
            name = f"hook-{number}"
            rate = SLOW if number % 3 == 2 else FAST
            latency_ms = 100.0 if rate == SLOW else 60_000.0 if number % 2 else 2_000.0
            receiver.behave(name, Behavior(latency_ms=latency_ms))
            pushing = Pushing(
                daemon, receiver, topic, rate_max=rate, senders=1 + number % 2,
                connections_max=1 if rate == SLOW else 16,
                endpoint=receiver.url(name),
            )  # fmt: skip
            pushing.fill(30)
            wait_until(partial(_has_posts, receiver, name), f"POSTs to {name}")
            pushing.name = name
            assert pushing.oversteps(rate) == []
            path = f"/v0/topics/{topic}" if number % 4 < 2 else pushing.path
            assert daemon.ask("DELETE", path).status == 200
        daemon.ask("DELETE", f"/v0/topics/{topic}")
        wait_until(lambda: daemon.get("/v0/status").json["push"]["count"] == 0, "no more offers")
        attempts = [receiver.counts(f"hook-{number}").posts for number in range(ROUNDS)]
        assert all(each <= 30 + 16 * 2 for each in attempts), attempts


def _has_posts(receiver: ReceiverProcess, name: str) -> bool:
    return receiver.counts(name).posts >= 3
