"""Processes that are killed or stopped under load: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shards import locks
from tests.e2e.daemon import ROOT, running, wait_until
from tests.e2e.load import check_stored, load
from tests.e2e.processes import (
    alive,
    connect_to,
    locked_ledger,
    restarts,
    shard_pids,
    stop_until_killed,
    stopped,
    succession,
    unlisted,
)
from tests.e2e.proxy import store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket

PLACES = [("orders", 0), ("clicks", 0), ("clicks", 1)]
HOLD_A_LOCK = """
import sys
from pathlib import Path
from shards.locks import LockFile
file = LockFile(Path(sys.argv[1]))
while not file.try_lock(int(sys.argv[2])):
    pass
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["embedded", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A store for the daemon."""
    if request.param == "embedded":
        return {}
    bucket: Bucket = request.getfixturevalue("bucket")
    return on_s3(bucket, commit_window_min_ms=10)


@pytest.mark.slow
def test_what_a_dead_shard_had_in_flight_is_taken_over(data: Path, bucket: Bucket) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=2, **options) as daemon:
            daemon.produce("kept", "first")
            with connect_to(daemon, 0) as line:
                proxy.hold_object_puts()
                line.send("kept", "under way")
                wait_until(lambda: proxy.held, "the PUT to be under way")
                # The shard that had the turn holds the lease; the request is in shard 0's ring.
                with succession(daemon, 0, 1) as pids:
                    for pid in pids:
                        os.kill(pid, signal.SIGKILL)
                    assert line.answer() is None
                    proxy.release()
            wait_until(lambda: len(daemon.read_all("kept")) > 1, "the orphan to be committed")
            found = daemon.read_all("kept")
            adopted = daemon.status()["totals"]["orphans_adopted"]
            number = daemon.produce("kept", "after").json["first_seq"]

    assert [record["data"] for record in found] == ["first", "under way"]
    assert number == 3
    assert adopted in (0, 1)  # 0: the slot's own successor took its lease back
    assert "taking over lease" in daemon.text


@pytest.mark.slow
def test_a_stopped_shard_is_skipped_by_its_group_and_then_killed(data: Path) -> None:
    with running(data, shards=2) as daemon, connect_to(daemon, 0) as line:
        line.produce("t", 0)
        # The supervisor is stopped too, so that the turn is seen to be skipped, not freed.
        with succession(daemon, 1) as (pid,), ExitStack() as until_killed:
            with unlisted(daemon):
                with locked_ledger(daemon):  # not within its own transaction
                    until_killed.enter_context(stopped(pid))
                # Every second turn is the stopped shard's.
                for number in range(1, 9):
                    assert line.produce("t", number)["first_seq"] == number + 1
                assert alive(pid)
            wait_until(lambda: not alive(pid), "the supervisor to kill the stopped shard")
            # The connection is to shard 0: it never noticed.
            line.produce("t", 9)
        assert restarts(daemon, 0) == 0
        assert [record["data"] for record in daemon.read_all("t")] == list(range(10))
    # 50 ticks, or fewer if it was stopped while it had a lock or a lease.
    assert re.search(r"shard 1 has not turned for \d+ ticks: killed", daemon.text)


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


@pytest.mark.slow
def test_a_lock_whose_holder_is_killed_is_free_immediately(data: Path) -> None:
    with running(data, shards=2) as daemon:
        daemon.produce("t", 0)
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD_A_LOCK, str(data / "lock"), str(locks.GROUP)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with holder, connect_to(daemon, 0) as line:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            line.send("t", 1, ack_timeout_ms=600_000)

            def overdue() -> bool:
                group = daemon.status()["groups"][0]
                return bool(group["backlog_bytes"]) and group["last_upload_age_ms"] > 300

            # Windows pass, and nothing is pulled while a stranger holds the group's lock.
            wait_until(overdue, "the request to be long overdue")
            assert daemon.status()["commits"] == 1
            holder.kill()
            answer = line.answer()
    assert answer is not None and answer.json["first_seq"] == 2


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
        wait_until(lambda: not any(alive(pid) for pid in pids), "the end of all processes")
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
