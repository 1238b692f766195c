"""Shares and rates of senders outlive the processes that have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.delivery import push_rates
from tests.compaction.by_hand import opened
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.processes import kill_shards
from tests.e2e.pushing import TIMES, Pushing
from tools.receiver.behavior import Behavior
from tools.receiver.process import ReceiverProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RATE = 200.0
NEAR = 0.95 * RATE
SOON: dict[str, object] = {**TIMES, "push_limiter_period_s": 0.3}  # nothing fails here
NO_PERIOD: dict[str, object] = {**TIMES, "push_limiter_period_s": 3_600}


def is_fast(daemon: Daemon, senders: int) -> bool:
    """Whether these senders have the whole rate, and it is nearly in force."""
    push = daemon.status()["push"]
    return bool(
        push["senders"] == senders and push["granted"] > RATE - 0.01 and push["rate"] > NEAR
    )


def noted(daemon: Daemon) -> list[float]:
    """The rates that a start of the daemon would find: a flush writes them down."""
    with opened(daemon.data) as ledger:
        learned = ledger.read(push_rates.of, 1)
    return [rate.rate for rate in learned.values()]


def test_a_shard_that_is_killed_gives_its_share_back_and_its_successor_gets_it_again(
    data: Path,
) -> None:
    with ReceiverProcess() as receiver, running(data, shards=2, settings=SOON) as daemon:
        receiver.behave("two", Behavior())
        pushing = Pushing(
            daemon, receiver, "two", rate_max=RATE, senders=2, partitions=2, connections_max=4
        )
        pushing.fill(40_000)  # some are left, however slow the machine is
        wait_until(lambda: is_fast(daemon, 2), "both senders to have their share")
        for shard in (0, 1):
            kill_shards(daemon, shard)
            wait_until(lambda: is_fast(daemon, 2), "it to have its share and its rate")
        assert pushing.oversteps(RATE, deaths=2) == []


def test_a_daemon_that_was_killed_goes_on_with_the_rate_that_it_had(data: Path) -> None:
    """The second one has no time to climb: without what the first one learned, it would be at a
    fifth of the rate."""
    with ReceiverProcess() as receiver:
        receiver.behave("kept", Behavior())
        with running(data, shards=2, settings=SOON) as daemon:
            pushing = Pushing(daemon, receiver, "kept", rate_max=RATE)
            pushing.fill(40_000)  # some are left, however slow the machine is
            wait_until(lambda: is_fast(daemon, 1), "the sender to climb")
            wait_until(lambda: max(noted(daemon), default=0.0) > NEAR, "the ledger to have it")
            daemon.kill_everything()
        with running(data, shards=2, settings=NO_PERIOD) as daemon:
            rate = wait_until(lambda: daemon.status()["push"]["rate"], "the sender to begin")
            assert rate > 0.7 * RATE
