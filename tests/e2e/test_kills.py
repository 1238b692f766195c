"""Processes that are killed or stopped under load: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.load import check_stored, load
from tests.e2e.processes import (
    alive,
    connect_to,
    restarts,
    shard_pids,
    stop_until_killed,
    stopped,
    succession,
)
from tests.e2e.proxy import store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket

PLACES = [("orders", 0), ("clicks", 0), ("clicks", 1)]


@pytest.fixture(params=["embedded", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A store for the daemon."""
    if request.param == "embedded":
        return {}
    bucket: Bucket = request.getfixturevalue("bucket")
    return on_s3(bucket, commit_window_min_ms=10)


@pytest.mark.slow
def test_a_stopped_shard_is_skipped_by_its_group_and_then_killed(data: Path) -> None:
    with running(data, shards=2) as daemon, connect_to(daemon, 0) as line:
        line.produce("t", 0)
        # The supervisor is stopped too, so that the turn is seen to be skipped, not freed.
        with succession(daemon, 1) as (pid,):
            with stopped(pid):
                with stopped(daemon.process.pid):
                    # Every second turn is the stopped shard's.
                    for number in range(1, 9):
                        assert line.produce("t", number)["first_seq"] == number + 1
                    assert alive(pid)
                wait_until(lambda: not alive(pid), "the supervisor to kill the stopped shard")
            # The connection is to shard 0: it never noticed.
            line.produce("t", 9)
        assert restarts(daemon, 0) == 0
        assert [record["data"] for record in daemon.read_all("t")] == list(range(10))
    assert "shard 1 has not turned for 50 ticks: killed" in daemon.text


@pytest.mark.slow
def test_a_shard_that_is_stopped_while_it_holds_a_lease_is_killed_sooner(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=1, **options) as daemon, connect_to(daemon, 0) as line:
            line.produce("t", "first")
            proxy.hold_object_puts()
            line.send("t", "held")
            wait_until(lambda: proxy.held, "the PUT to be under way")
            with succession(daemon, 0) as (pid,):
                stop_until_killed(pid)
                proxy.release()
                assert line.answer() is None
            wait_until(lambda: len(daemon.read_all("t")) == 2, "the lease to be committed")
            assert daemon.produce("t", "after").json["first_seq"] == 3
    assert "shard 0 has not turned for 20 ticks: killed" in daemon.text


def test_after_a_kill_of_everything_what_was_acknowledged_is_there(
    data: Path, options: dict[str, Any]
) -> None:
    with running(data, shards=3, **options) as daemon:
        with load(daemon, PLACES[:1], connections=6, depth=4) as run:
            run.wait_more(200)
            pids = [daemon.process.pid, *shard_pids(daemon)]
            daemon.kill_everything()
            for producer in run.producers:
                producer.stopping.set()
        assert not any(alive(pid) for pid in pids)
    with running(data, shards=2, **options) as daemon:
        check_stored(daemon, PLACES[:1], run)
        head = daemon.diff("orders", tail=True)["head_seq"]
        assert daemon.produce("orders", "after").json["first_seq"] == head + 1


@pytest.mark.slow
def test_shards_whose_supervisor_is_killed_end_by_themselves_and_a_restart_works(
    data: Path,
) -> None:
    with running(data, shards=2) as daemon:
        pids = shard_pids(daemon)
        with load(daemon, PLACES[:1], connections=4, depth=4) as run:
            run.wait_more(100)
            os.kill(daemon.process.pid, signal.SIGKILL)
            daemon.process.wait()
            for producer in run.producers:
                producer.stopping.set()
        with running(data, shards=2) as successor:
            assert not any(alive(pid) for pid in pids)
            check_stored(successor, PLACES[:1], run)
            assert successor.status()["incarnation"] == 2
