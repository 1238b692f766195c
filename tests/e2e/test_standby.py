"""Two daemons and a bucket: a standby takes over by itself, and an old owner becomes the standby."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.daemon import HANG_S, wait_until
from tests.e2e.standbys import Standby, started, wait_known
from tests.minio import Bucket

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
