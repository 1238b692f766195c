"""A receiver that is down asks for nothing; one that is slow to answer asks for more senders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.pushing import PATIENT_MS, TIMES, Pushing
from tools.receiver.behavior import Behavior
from tools.receiver.process import ReceiverProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BAD = {
    "down": Behavior(capacity_per_s=0),
    "silent": Behavior(silent_share=1),
    "cut": Behavior(cut_share=1),
}
SAMPLES = 20


def scaling_of(daemon: Daemon, name: str) -> Any:
    """What a scaler is told of a subscription."""
    answer = daemon.get("/v0/scaling")
    assert answer.status == 200, answer.body
    found = {each["subscription"]: each for each in answer.json["subscriptions"]}
    return found.get(name, {"lag": 0, "drainable_lag": 0, "value": 0})


def test_lag_of_a_receiver_that_is_down_asks_for_nothing_and_raises_no_pressure(
    data: Path,
) -> None:
    """D19: from the first record on, and whatever way the receiver fails."""
    with ReceiverProcess() as receiver, running(data, settings=TIMES) as daemon:
        for name, behavior in {**BAD, "slow": Behavior(latency_ms=300)}.items():
            receiver.behave(name, behavior)
            pushing = Pushing(
                daemon, receiver, name, rate_max=200, connections_max=4,
                timeout_ms=1_000 if name == "silent" else PATIENT_MS,
            )  # fmt: skip
            pushing.fill(5_000)
        seen: list[tuple[str, int, int]] = []

        def the_slow_one_asks() -> bool:
            for name in BAD:
                told = scaling_of(daemon, name)
                assert told["lag"] <= 5_000
                seen.append((name, told["drainable_lag"], told["value"]))
            return bool(
                len(seen) >= SAMPLES * len(BAD) and scaling_of(daemon, "slow")["drainable_lag"]
            )

        wait_until(the_slow_one_asks, "the slow receiver to ask for more senders", 60)
        assert {each[1:] for each in seen} == {(0, 0)}, "those that are down ask for nothing"
        state = daemon.get("/v0/topics/down/subscriptions/down").json
        assert state["lag"] == 5_000 and state["blocked_keys"] <= 1_000
        wait_until(
            lambda: (
                {daemon.status()["pressure"]["inputs"][name] for name in ("ready", "ring")} == {0}
            ),
            "no pressure from what waits for receivers",
        )
