"""Senders find the speed of real receivers that answer 503 beyond their capacity."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.pushing import LOOK_S, PATIENT_MS, SETTLED_HANG_S, TIMES, Pushing
from tools.receiver.behavior import Behavior
from tools.receiver.process import ReceiverProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("capacity", [50, 100])
def test_a_sender_settles_at_the_capacity_of_its_receiver_and_follows_it(
    data: Path, capacity: int
) -> None:
    """Row H25: within a tenth, with less than 5 % failures; then half of it, then all of it. The
    capacities are such that a busy machine can send as much; ``make bench`` has larger ones."""
    with ReceiverProcess() as receiver, running(data, settings=TIMES) as daemon:
        receiver.behave("found", Behavior(capacity_per_s=capacity))
        pushing = Pushing(daemon, receiver, "found", rate_max=1_000, connections_max=64)
        pushing.fill(3 * int(SETTLED_HANG_S) * capacity)  # some are left, however long it takes
        pushing.wait_until_settled(capacity, 10)
        receiver.behave("found", Behavior(capacity_per_s=capacity / 2))
        pushing.wait_until_settled(capacity / 2, 10)
        receiver.behave("found", Behavior(capacity_per_s=capacity))
        pushing.wait_until_settled(capacity, 10)


# The healthy ones by capacity; rate_max is far above it. The others cannot be served at all.
CAPACITIES = {"c25": 25, "c30": 30, "c35": 35, "c40": 40, "c50": 50, "c60": 60}
BAD = {
    "down": Behavior(capacity_per_s=0),
    "silent": Behavior(silent_share=1),
    "cut": Behavior(cut_share=1),
    "slow": Behavior(latency_ms=400),
}
SLOW_PER_S = 10  # 4 connections of 400 ms each
QUICK = {"backoff_ms": [50, 1_000]}
DEAD = ("down", "silent", "cut")
DEAD_RECORDS = 1_000


def test_ten_receivers_of_different_speed_do_not_slow_each_other(data: Path) -> None:
    with ReceiverProcess() as receiver, running(data, shards=2, settings=TIMES) as daemon:
        pushings = {}
        for name, capacity in CAPACITIES.items():
            receiver.behave(name, Behavior(capacity_per_s=capacity))
            pushings[name] = Pushing(
                daemon, receiver, name, settings=QUICK, rate_max=500, timeout_ms=PATIENT_MS
            )
        for name, behavior in BAD.items():
            receiver.behave(name, behavior)
            pushings[name] = Pushing(
                daemon, receiver, name, settings=QUICK, rate_max=500, connections_max=4,
                timeout_ms=1_000 if name == "silent" else PATIENT_MS,
            )  # fmt: skip
        for name, pushing in pushings.items():
            per_s = CAPACITIES.get(name, SLOW_PER_S)
            pushing.fill(DEAD_RECORDS if name in DEAD else int(SETTLED_HANG_S) * per_s)
        expected = {**CAPACITIES, "slow": SLOW_PER_S}
        wait_until(
            lambda: all(
                pushings[name].is_settled(capacity, 8) for name, capacity in expected.items()
            ),
            "all that answer to have what they can take",
            SETTLED_HANG_S,
            LOOK_S,
        )
        for name in DEAD:
            state = pushings[name].state
            assert state["lag"] == DEAD_RECORDS
        pushings["silent"].set(push={"timeout_ms": PATIENT_MS})
        for name in BAD:
            receiver.behave(name, Behavior())
        for name in BAD:
            pushings[name].wait_until_drained()


@pytest.mark.parametrize("shards", [1, 4])
def test_a_backlog_uses_the_whole_rate_and_never_more(data: Path, shards: int) -> None:
    """Rows H8 and H15, at a real receiver."""
    rate = 40.0
    with ReceiverProcess() as receiver, running(data, shards=shards, settings=TIMES) as daemon:
        pushing = Pushing(
            daemon,
            receiver,
            "whole",
            rate_max=rate,
            senders=shards,
            partitions=shards,
            connections_max=2,
        )
        # Some are left, however long it takes.
        pushing.fill(2 * int(SETTLED_HANG_S * rate))
        pushing.wait_until_settled(rate, 10)
        # That is 90 % on the way up: only at its whole rate a sender shows whether it goes beyond.
        most = receiver.counts("whole").posts + 20 * rate
        wait_until(
            lambda: receiver.counts("whole").posts > most, "POSTs at the whole rate",
            SETTLED_HANG_S, LOOK_S,
        )  # fmt: skip
        assert pushing.oversteps(rate) == []
