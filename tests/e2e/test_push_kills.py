"""What the end of a shard and of a daemon repeats at a receiver.

Rates, and what was learned, are in ``tests/delivery/push/test_rates_kept.py`` and in chaos."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.processes import kill_shards
from tests.e2e.pushing import TIMES, Pushing
from tools.receiver.behavior import Behavior
from tools.receiver.log import Came, Went
from tools.receiver.process import ReceiverProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_kill_of_a_shard_repeats_no_more_than_what_was_under_way(
    data: Path, tmp_path: Path
) -> None:
    """What the receiver has answered is in the journal within milliseconds, wherever its sender
    is; of a POST that was under way nobody knows."""
    senders, connections, kills = 2, 16, (0, 1, 0, 1)
    with (
        ReceiverProcess(tmp_path / "log") as receiver,
        running(data, shards=2, settings=TIMES) as daemon,
    ):
        pushing = Pushing(
            daemon, receiver, "again", rate_max=300, senders=senders, connections_max=connections
        )
        for shard in kills:
            pushing.fill(1_250)
            _wait_for_more(receiver, "again", 400)
            kill_shards(daemon, shard)
        pushing.wait_until_drained()
        entries = receiver.entries()
        ids = [event.id for each in entries if isinstance(each, Came) for event in each.events]
        assert len(set(ids)) == 5_000
        assert len(ids) - len(set(ids)) <= len(kills) * senders * connections


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
        entries = receiver.entries()
        ids = [event.id for each in entries if isinstance(each, Came) for event in each.events]
        assert len(ids) == len(set(ids)) == records
        assert all(each.status == 200 for each in entries if isinstance(each, Went))
