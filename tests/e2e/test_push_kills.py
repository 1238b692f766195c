"""What kill -9 and SIGSTOP do to push: nothing to the rate, neither to what was learned nor to its
limit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.processes import shard_pids, stopped, succession
from tests.e2e.pushing import TIMES, Pushing
from tools.receiver.behavior import Behavior
from tools.receiver.log import Came, Went
from tools.receiver.process import ReceiverProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

RATE = 50.0
# From the first rate, a fifth of the maximum, it takes seven of these to most of the maximum.
LONG_PERIOD_S = 3.0
MOST = 0.75
MINUTES_S = 1_800  # of records: however slow the machine is, some are left


def test_a_rate_survives_the_kill_of_its_sender(data: Path) -> None:
    times = {**TIMES, "push_limiter_period_s": LONG_PERIOD_S}
    with ReceiverProcess() as receiver, running(data, shards=2, settings=times) as daemon:
        pushing = Pushing(daemon, receiver, "kept", rate_max=RATE)
        pushing.fill(int(MINUTES_S * RATE))
        pushing.wait_until_settled(RATE, 3)
        with succession(daemon, pushing.state["owner_shard"]) as (pid,):
            os.kill(pid, signal.SIGKILL)
        _wait_for_more(receiver, "kept", RATE / 2)
        assert daemon.status()["push"]["rate"] > MOST * RATE, "a killed sender began anew"
        pushing.wait_until_settled(RATE, 3)


def test_senders_that_are_killed_and_stopped_never_overstep_the_rate(data: Path) -> None:
    """Row H8, with real processes: in no second and no ten seconds more than the rate, its burst,
    and what was under way, also at those that died, of which there are two in a window at most."""
    with ReceiverProcess() as receiver, running(data, shards=4, settings=TIMES) as daemon:
        pushing = Pushing(
            daemon, receiver, "shared", rate_max=RATE, senders=4, partitions=4,
            connections_max=2,
        )  # fmt: skip
        pushing.fill(int(MINUTES_S * RATE))
        for shard in range(4):
            with succession(daemon, shard) as (pid,):
                os.kill(pid, signal.SIGKILL)
                _wait_for_more(receiver, "shared", 3 * RATE)
            with stopped(shard_pids(daemon)[shard]):
                _wait_for_more(receiver, "shared", RATE)
            _wait_for_more(receiver, "shared", 2 * RATE)
        assert pushing.oversteps(RATE, deaths=2) == []
        pushing.wait_until_settled(RATE, 3)


def test_the_kill_of_a_shard_repeats_no_more_than_what_was_under_way(
    data: Path, tmp_path: Path
) -> None:
    """What the owner says that it has finished is in its journal, wherever the sender is. Reports
    come to it within milliseconds; of a POST that was under way nobody knows."""
    senders, connections, kills = 2, 16, (0, 1, 0, 1)
    with (
        ReceiverProcess(tmp_path / "log") as receiver,
        running(data, shards=2, settings=TIMES) as daemon,
    ):
        pushing = Pushing(
            daemon, receiver, "again", rate_max=300, senders=senders, connections_max=connections
        )
        unknown = 0  # what was answered, or on its way, and may not have come to the owner
        for number, shard in enumerate(kills, 1):
            pushing.fill(1_250)
            _wait_for_more(receiver, "again", 400)
            with succession(daemon, shard) as (pid,):
                finished = 1_250 * number - pushing.state["lag"]
                os.kill(pid, signal.SIGKILL)
                unknown += len(set(ids_of(receiver))) - finished
        pushing.wait_until_drained()
        ids = ids_of(receiver)
        assert len(set(ids)) == 5_000
        assert len(ids) - len(set(ids)) <= unknown + len(kills) * senders * connections


def ids_of(receiver: ReceiverProcess) -> list[str]:
    """The ids of all that came."""
    return [
        event.id for each in receiver.entries() if isinstance(each, Came) for event in each.events
    ]


def _wait_for_more(receiver: ReceiverProcess, name: str, posts: float) -> None:
    most = receiver.counts(name).posts + posts
    wait_until(lambda: receiver.counts(name).posts > most, "POSTs to go on")


@pytest.mark.parametrize(("records", "keys", "latency_ms"), [(2_000, 100, 100), (40, 3, 900)])
def test_a_daemon_that_stops_in_good_order_repeats_nothing(
    data: Path, tmp_path: Path, records: int, keys: int, latency_ms: float
) -> None:
    """With few keys a shard may end while the sender of another one still has a POST under way."""
    with ReceiverProcess(tmp_path / "log") as receiver:
        receiver.behave("once", Behavior(latency_ms=latency_ms))
        with running(data, shards=2, settings=TIMES) as daemon:
            pushing = Pushing(daemon, receiver, "once", rate_max=500, senders=2)
            pushing.fill(records, keys)
            wait_until(lambda: receiver.counts("once").posts > records / 10, "POSTs")
        receiver.behave("once", Behavior())
        with running(data, shards=2, settings=TIMES) as daemon:
            pushing.daemon = daemon
            pushing.wait_until_drained()
        ids = ids_of(receiver)
        assert len(ids) == len(set(ids)) == records
        assert all(each.status == 200 for each in receiver.entries() if isinstance(each, Went))
