"""Two daemons and a bucket: a standby takes over by itself, and the old owner stands by."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import pytest

from shards.clock import monotonic_ns
from tests.e2e.daemon import HANG_S, ROOT, UNANSWERED, wait_until
from tests.e2e.standbys import Standby, started, wait_known
from tests.minio import Bucket


def handover(data: Path) -> subprocess.CompletedProcess[str]:
    """``headgate handover``."""
    return subprocess.run(
        [sys.executable, "-m", "cli", "handover", "--data", str(data)],
        cwd=ROOT, timeout=2 * HANG_S, capture_output=True, text=True, check=False,
    )  # fmt: skip


pytestmark = [pytest.mark.slow, pytest.mark.s3]


def test_a_standby_takes_over_from_a_killed_owner_and_the_paused_one_becomes_its_standby(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    first, second = Standby(data, bucket), Standby(tmp_path / "second", bucket)
    with started(first):
        first.wait_owner()  # the prefix was free
        first.produce("t", "first")
        with started(second):
            second.wait_standby()
            refused = second.produce("t", "too early")
            assert (refused.status, refused.code) == (503, "standby")
            assert second.get("/livez").status == 200
            assert second.get("/readyz").code == "standby"
            assert b"headgate_standby 1\n" in second.get("/metrics").body
            wait_known(first)
            first.produce("t", "second")
            wait_until(
                lambda: second.status()["standby"]["commits"] == first.status()["commits"],
                "the standby to have all commits",
            )
            os.killpg(first.process.pid, signal.SIGSTOP)
            second.wait_owner()
            assert second.produce("t", "third").status == 200
            os.killpg(first.process.pid, signal.SIGCONT)
            first.wait_standby()
            assert first.produce("t", "never").code == "standby"
            assert "has taken the prefix over" in first.text
            assert [each["data"] for each in second.read_all("t")] == ["first", "second", "third"]
            # And back, by the same way.
            wait_known(second)
            second.kill_everything()
            first.wait_owner()
            assert [each["data"] for each in first.read_all("t")] == ["first", "second", "third"]
            assert first.produce("t", "fourth").status == 200
            assert first.stop() == 0


def acknowledged(*daemons: Standby, count: int = 10) -> list[tuple[int, int]]:
    """Sends to one daemon after the other until it is acknowledged, again and again, until the
    last one has acknowledged ``count``. Returns when each was, and by which daemon."""
    found: list[tuple[int, int]] = []
    at = 0
    while sum(by == len(daemons) - 1 for _, by in found) < count:
        with contextlib.suppress(*UNANSWERED):
            answer = daemons[at].produce("t", len(found))
            if answer.status == 200:
                found.append((monotonic_ns(), at))
                continue
            assert answer.status == 503, answer.body
        at = (at + 1) % len(daemons)
        time.sleep(0.01)
    return found


def test_a_handover_loses_nothing_and_the_former_owner_stands_by(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    first, second = Standby(data, bucket), Standby(tmp_path / "second", bucket)
    with started(first):
        first.wait_owner()
        first.produce("t", "first")
        refused = handover(data)
        assert refused.returncode == 1 and "no standby has asked" in refused.stderr
        with started(second):
            second.wait_standby()
            wait_known(first)
            with ThreadPoolExecutor(1) as pool:
                sending = pool.submit(acknowledged, first, second)
                done = handover(data)
                assert done.returncode == 0, done.stderr
                found = sending.result()
            assert {at for _, at in found} == {0, 1}
            records = [each["data"] for each in second.read_all("t")][1:]
            assert [each for each, _ in groupby(records)] == list(range(len(found)))
            first.wait_standby()
            assert second.stop() == 0  # a clean stop hands over too
            first.wait_owner()
