"""Compaction from another machine: HTTP to the daemon and the object store, and nothing else.

The driver and Spark's workers end immediately if they touch the data directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from compaction.access.http_calls import DaemonRefused, socket_address
from compaction.access.operations import NOW
from compaction.access.via_daemon import ViaDaemon
from compaction.tables.catalog import _end_threads as end_threads
from ledger import notes, topics
from ledger.errors import RunLost, RunUnfinished
from ledger.lake import catalog, readleases, runs
from ledger.lake.catalog import Move, Pointer
from shards.clock import wall_ms
from tests.e2e.daemon import ROOT, Daemon, running, wait_until
from tests.e2e.lake import diff_rows, produce_some
from tests.e2e.remote_driver import NO_POINT, STOPPED
from tests.e2e.stores import on_s3
from tests.minio import Bucket

TOPICS = ("clicks", "eu.orders")
REMOTE = {"admin_over_tcp": "true"}
JOB_S = 300.0  # ends a hang only


class Remote:
    """Drivers that may not touch the data directory."""

    def __init__(self, daemon: Daemon, environ: dict[str, str]) -> None:
        self.daemon = daemon
        self.environ = {
            **os.environ,
            **environ,
            "PYTHONPATH": f"{ROOT / 'tests' / 'e2e' / 'forbidden'}:{ROOT}",
            "HEADGATE_FORBIDDEN": str(daemon.data),
        }

    def start(self, point: str = NO_POINT, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.remote_driver", point, "--url", self.daemon.url,
             *arguments],
            cwd=ROOT, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def compact(self, *arguments: str) -> Any:
        """A run to its end; its report."""
        done = self.start(NO_POINT, *arguments)
        printed, said = done.communicate(timeout=JOB_S)
        assert done.returncode == 0 and "FORBIDDEN" not in said, said
        return json.loads(printed)


def fill(daemon: Daemon, rng: random.Random, count: int) -> None:
    for topic in TOPICS:
        produce_some(daemon, rng, topic, count, wall_ms())


def offsets(daemon: Daemon, bucket: Bucket) -> dict[str, list[tuple[int, int]]]:
    """(partition, offset) of every row of each table, as pyiceberg reads the data directory's
    catalog without Headgate."""
    from pyiceberg.catalog import load_catalog

    opened = load_catalog(
        "headgate",
        **{
            "uri": f"sqlite:///{daemon.data}/catalog.db",
            "s3.endpoint": bucket.endpoint_url,
            "s3.access-key-id": bucket.access_key,
            "s3.secret-access-key": bucket.secret_key,
            "s3.region": bucket.region,
        },
    )
    with contextlib.ExitStack() as stack:
        stack.callback(end_threads)
        stack.callback(opened.close)
        return {
            name: sorted(
                (row["partition"], row["offset"])
                for row in opened.load_table(("headgate", name))
                .scan(selected_fields=("partition", "offset"))
                .to_arrow()
                .to_pylist()
            )
            for _, name in opened.list_tables("headgate")
        }


def wanted(daemon: Daemon) -> dict[str, list[tuple[int, int]]]:
    return {
        topic.replace(".", "_"): sorted((r.partition, r.offset) for r in diff_rows(daemon, topic))
        for topic in TOPICS
    }


def test_a_driver_elsewhere_learns_all_from_the_daemon(tmp_path: Path) -> None:
    with running(tmp_path / "data", settings=REMOTE) as daemon:
        assert daemon.produce("orders", 1, 2).status == 200
        remote = Remote(daemon, {})
        del remote.environ["HEADGATE_FORBIDDEN"]  # the embedded store is in the data directory
        report = remote.compact("--dry-run")
        assert report["objects"] == 1 and list(report["would_compact"]) == ["orders"]
        access = ViaDaemon(socket_address(str(daemon.data)))
        assert [topic.name for topic in access.read(topics.page)] == ["orders"]
        with pytest.raises(DaemonRefused, match="404 not_found"):
            access.write(topics.delete, "orders", NOW)
        assert access.write(notes.put, "n", "v") is None and access.read(notes.get, "n") == "v"
        # The default catalog, by compare and swap.
        none, old, new = (f"file://{daemon.data}/store/lake/{n}" for n in range(3))
        t, u = Pointer("ns", "t", old), Pointer("ns", "u", old)
        assert access.catalog(catalog.add, [t, u]) == [True, True]
        assert access.catalog(catalog.add, [Pointer("ns", "t", new), u]) == [False, True]
        assert access.catalog(catalog.swap, [Move("ns", "t", none, new)]) == [False]
        moves = [Move("ns", "t", old, new), Move("ns", "u", none, new)]
        assert access.catalog(catalog.swap, moves) == [True, False]
        assert access.catalog(catalog.swap, moves) == [True, False], "asked again"
        assert access.catalog(catalog.pointers, "ns") == {"t": new, "u": old}


def test_a_driver_whose_lease_expired_can_change_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", settings=REMOTE) as daemon:
        first, second = ViaDaemon(daemon.url), ViaDaemon(daemon.url)
        first.write(runs.begin, "a", "one host", NOW)
        first.run = "a"
        with pytest.raises(RunUnfinished, match="run a of one host"):
            second.write(runs.begin, "b", "another", NOW)
        old, new = (f"file://{daemon.data}/store/lake/{n}" for n in range(2))
        assert first.catalog(catalog.add, [Pointer("ns", "t", old)])
        second.write(readleases.end, "a")  # as if it had not been renewed in time
        second.write(runs.begin, "b", "another", NOW)
        assert second.read(runs.unfinished) == ("b", "another")
        with pytest.raises(RunLost):
            first.write(notes.put, "n", "v")
        with pytest.raises(RunLost) as caught:
            first.catalog(catalog.swap, [Move("ns", "t", old, new)])
        assert caught.value.run == "a"
        assert second.read(notes.get, "n") is None
        assert second.catalog(catalog.pointers_of, [("ns", "t"), ("ns", "u")]) == [old, None]


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.slow
def test_of_two_drivers_one_compacts_and_the_other_is_refused(
    tmp_path: Path, bucket: Bucket
) -> None:
    with running(tmp_path / "data", **on_s3(bucket, commit_window_min_ms=10, **REMOTE)) as daemon:
        fill(daemon, random.Random(2), 15)
        remote = Remote(daemon, bucket.environment)
        both = [remote.start() for _ in range(2)]
        said = [each.communicate(timeout=JOB_S)[1] for each in both]
        assert sorted(each.returncode for each in both) in ([0, 0], [0, 1]), said
        for each, text in zip(both, said, strict=True):
            if each.returncode:
                assert "another compaction is at work" in text
        assert offsets(daemon, bucket) == wanted(daemon)


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.slow
def test_a_driver_that_was_stopped_for_longer_than_its_lease_is_fenced(
    tmp_path: Path, bucket: Bucket
) -> None:
    with running(tmp_path / "data", **on_s3(bucket, commit_window_min_ms=10, **REMOTE)) as daemon:
        fill(daemon, random.Random(3), 15)
        remote = Remote(daemon, bucket.environment)
        stopped = remote.start(STOPPED)
        try:
            wait_until(
                lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED,
                "the driver to stop", JOB_S,
            )  # fmt: skip
            access = ViaDaemon(daemon.url)
            wait_until(lambda: access.read(runs.living, NOW) is None, "its lease to expire")
            remote.compact()
            assert offsets(daemon, bucket) == wanted(daemon)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        _, said = stopped.communicate(timeout=JOB_S)
        assert stopped.returncode == 1 and "has lost its lease" in said, said
        assert offsets(daemon, bucket) == wanted(daemon)
        assert remote.compact()["objects"] == 0
