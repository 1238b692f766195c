"""Leases that cannot commit: what the daemon reports, and how it recovers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from daemon.config import load
from daemon.memory import layout_of
from shards.leases import LIVE, Lease, LeaseTable
from shards.segment import Segment
from tests.e2e.daemon import UNANSWERED, Answer, Daemon, running, wait_until
from tests.e2e.processes import Line, shard_pids
from tests.e2e.proxy import store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket

pytestmark = [pytest.mark.s3, pytest.mark.slow]


@contextlib.contextmanager
def segment_of(daemon: Daemon) -> Iterator[Segment]:
    """The shared memory of a running daemon."""
    shards = len(daemon.status()["shards"])
    layout = layout_of(msgspec.structs.replace(load(None, {}), shards=shards))
    held = Path(f"/proc/{daemon.process.pid}/fd")
    path = next(fd for fd in held.iterdir() if os.readlink(fd).startswith("/memfd:headgate"))
    fd = os.open(path, os.O_RDWR)
    segment = Segment.attach(fd, layout)
    try:
        yield segment
    finally:
        segment.close()


def alarms(daemon: Daemon) -> dict[str, str]:
    """Message by alarm."""
    return {found["alarm"]: found["message"] for found in daemon.status()["alarms"]}


def asked(daemon: Daemon, path: str) -> Answer:
    """The answer, by a shard that did not end meanwhile: here they end on their own."""

    def answers() -> list[Answer]:
        with contextlib.suppress(*UNANSWERED):
            return [daemon.get(path)]
        return []

    (answer,) = wait_until(answers, f"a shard that lives to answer {path}")
    return answer


def held_lease(leases: LeaseTable) -> Lease:
    """The one whose PUT is held, once those of earlier writes are done."""

    def live() -> list[Lease]:
        found = list(leases.in_state(LIVE))
        return found if len(found) == 1 else []

    (lease,) = wait_until(live, "one lease to be left")
    return lease


def test_a_lease_that_ends_every_process_that_takes_it_is_named_and_goes_on_once_it_can(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=2, **options) as daemon, segment_of(daemon) as segment:
            daemon.produce("t", "before")
            pids = shard_pids(daemon)
            leases = LeaseTable(segment.words, segment.layout)
            proxy.hold_object_puts()
            with Line(daemon) as line:
                line.send("t", "accepted")
                wait_until(lambda: proxy.held, "the PUT to be under way")
                # Shards take turns: the one that uploads need not be the one that was written to.
                lease = held_lease(leases)
                (source,) = lease.ranges
                header = source.start % segment.layout.ring_bytes + 9
                segment.ring(source.shard)[header] ^= 1
                os.kill(pids[lease.holder], signal.SIGKILL)

            def told() -> str:
                found = asked(daemon, "/v0/status").json["alarms"]
                return next((a["message"] for a in found if a["alarm"] == "lease_stuck"), "")

            message = wait_until(told, "the alarm")
            assert re.search(r"was taken over \d+ times and is not committed", message), message
            ready = asked(daemon, "/readyz")
            assert ready.status == 503
            assert "a lease cannot be committed" in ready.json["error"]["message"]
            third = "taken over 3 times so far, cannot continue in this process"
            log = wait_until(lambda: daemon.text if third in daemon.text else "", "the log")
            assert "no frame at" in log
            # One for each time: shards are not started in a loop. One that is killed, as a busy
            # machine makes the supervisor kill one that stands still with a lease, does not count.
            ended = log.count(" died (exit code ")
            assert 0 < ended <= log.count("cannot continue in this process")
            segment.ring(source.shard)[header] ^= 1
            proxy.release()
            wait_until(lambda: asked(daemon, "/readyz").status == 200, "the daemon to be ready")
            assert [record["data"] for record in daemon.read_all("t")] == ["before", "accepted"]
            wait_until(lambda: not alarms(daemon), "the alarms to end")
