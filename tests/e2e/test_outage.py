"""An outage of the store, from outside: alarms, refusals, and what is stored afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.daemon import ROOT, Daemon, running, wait_until
from tests.e2e.processes import Line
from tests.e2e.proxy import Fault, store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket


def status_of(daemon: Daemon) -> tuple[int, str]:
    """Exit code and words of ``headgate status``."""
    command = [sys.executable, "-m", "cli", "status", "--url", daemon.url]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found.returncode, found.stdout + found.stderr


@pytest.mark.slow
def test_status_readyz_and_the_log_report_an_outage_and_its_end(data: Path, bucket: Bucket) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(
            bucket, proxy.endpoint_url, commit_window_min_ms=1, store_down_not_ready_ms=4_000
        )
        with running(data, shards=2, **options) as daemon, Line(daemon) as line:
            line.produce("t", "before")
            assert status_of(daemon)[0] == 0
            proxy.decide = lambda _: Fault.SLOW_DOWN
            line.send("t", "during")
            assert "SlowDown" in daemon.alarm("store_failing")["message"]
            code, words = status_of(daemon)
            assert code == 4 and "store failing for" in words and "SlowDown" in words
            refused = wait_until(lambda: _refused(daemon), "the gate to be closed")
            assert refused == (503, "store_failing")
            wait_until(lambda: daemon.get("/readyz").status == 503, "not to be ready")
            assert "store failing for" in daemon.get("/readyz").json["error"]["message"]
            proxy.release()
            answer = line.answer()
            assert answer is not None and answer.json["first_seq"] == 2
            wait_until(lambda: daemon.get("/readyz").status == 200, "to be ready again")
            wait_until(lambda: daemon.produce("t", "after").status == 200, "the gate to open")
            wait_until(lambda: "store_failing is over after" in daemon.text, "the log to say so")
            assert status_of(daemon)[0] == 0
            stored = [record["data"] for record in daemon.diff("t")["records"]]
    assert stored == ["before", "during", "after"]
    told = [text for text in daemon.log if "store" in text and "fail" in text]
    assert ["store failing for" in text for text in told] == [True, False], told


@pytest.mark.slow
def test_a_store_that_hangs_is_failing_before_any_of_its_puts_has_timed_out(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=1, **options) as daemon, Line(daemon) as line:
            line.produce("t", "before")
            proxy.hold_object_puts()
            line.send("t", "during")
            assert "a PUT has no answer" in daemon.alarm("store_failing")["message"]
            assert proxy.held and not daemon.status()["store"]["put_failures"]
            assert wait_until(lambda: _refused(daemon), "the gate") == (503, "store_failing")
            proxy.release()
            answer = line.answer()
            assert answer is not None and answer.json["first_seq"] == 2
            wait_until(lambda: daemon.produce("t", "after").status == 200, "the gate to open")


def _refused(daemon: Daemon) -> tuple[int, str] | None:
    """What a request is told at the gate; None for one that passes (and is wrong)."""
    answer = daemon.ask("POST", "/v0/topics/t", b"[]", content_type="application/json")
    return (answer.status, answer.code) if answer.status == 503 else None
