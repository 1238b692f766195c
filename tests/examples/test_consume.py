"""examples/consume: workers that share a topic by key, with and without filters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.daemon import HANG_S, ROOT, Daemon, wait_until

POOL = ROOT / "examples" / "consume" / "worker_pool.py"
KEYS = ("payment", "shipping", "shipment", "eu-west-1", "refund")


@contextmanager
def pool(daemon: Daemon, printed: Path, *filters: str) -> Iterator[subprocess.Popen[bytes]]:
    """The example as a process; what it prints is in a file."""
    environ = os.environ | {
        "HEADGATE_URL": daemon.url, "PYTHONPATH": str(ROOT / "clients" / "python"),
    }  # fmt: skip
    with printed.open("wb") as out, subprocess.Popen(
        [sys.executable, POOL, "tasks", "pool", *filters], stdout=out, env=environ
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait(HANG_S)


def worked_on(printed: Path) -> dict[str, list[int]]:
    """What was worked on: by key its offsets, in order."""
    found: dict[str, list[int]] = {}
    for line in printed.read_text().splitlines():
        key, seq, _ = line.split(" ", 2)
        found.setdefault(key, []).append(int(seq))
    return found


def test_workers_share_keys_by_their_filters_and_each_key_is_in_order(
    shared_daemon: Daemon, tmp_path: Path
) -> None:
    daemon = shared_daemon
    records = [{"data": n, "key": key} for n in range(40) for key in KEYS]
    assert daemon.json("POST", "/v0/topics/tasks", {"records": records}).status == 200
    path = "/v0/topics/tasks/subscriptions/pool"
    shipping, western, rest = (tmp_path / name for name in ("shipping", "western", "rest"))
    with (
        pool(daemon, shipping, "payment", "ship*") as first,
        pool(daemon, western, "eu-west-?"),
    ):
        wait_until(lambda: daemon.get(path).json.get("acknowledged") == 160, "the first workers")
        first.send_signal(signal.SIGTERM)
        assert first.wait(HANG_S) == 0
        with pool(daemon, rest):  # takes what nobody took
            wait_until(lambda: daemon.get(path).json["acknowledged"] == 200, "the last one")
    assert set(worked_on(shipping)) == {"payment", "shipping", "shipment"}
    assert (set(worked_on(western)), set(worked_on(rest))) == ({"eu-west-1"}, {"refund"})
    for printed in (shipping, western, rest):
        for offsets in worked_on(printed).values():
            assert len(offsets) == 40 and offsets == sorted(offsets)
