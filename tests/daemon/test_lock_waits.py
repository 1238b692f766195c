"""Starts and recoveries wait for a command that holds the ledger lock for a transaction.

Such a command is a ``gc`` whose daemon was stopped and is started again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from daemon.upkeep.owner import LOCK_NAME
from shards import locks
from tests.e2e.daemon import HANG_S, ROOT, Daemon, wait_until
from tests.shards.peer import started


def waits_for_a_lock(pid: int) -> bool:
    """Whether a process sleeps in front of a file lock; its line in /proc/locks has an arrow."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(fields[1] == "->" and fields[5] == str(pid) for fields in lines)


def test_a_recovery_waits_for_the_ledger_lock_of_a_command(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with started("hold", data / LOCK_NAME, locks.LEDGER, "alone") as peer:
        assert peer.line() == "held"
        recover = subprocess.Popen(
            [sys.executable, "-m", "cli", "recover", "--data", str(data), "--allow-empty"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            wait_until(
                lambda: recover.poll() is not None or waits_for_a_lock(recover.pid),
                "the recovery to wait for the lock",
            )
            assert recover.poll() is None, recover.communicate()[0]
            peer.kill()
            said, _ = recover.communicate(timeout=HANG_S)
        finally:
            recover.kill()
            recover.communicate()
    assert recover.returncode == 0, said


@pytest.mark.slow
def test_a_start_waits_for_the_ledger_lock_of_a_command(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    daemon = Daemon(data)
    with started("hold", data / LOCK_NAME, locks.LEDGER, "alone") as peer:
        assert peer.line() == "held"
        held = f"process {peer.pid} ("
        daemon.start()
        try:
            wait_until(
                lambda: daemon.process.poll() is not None or held in daemon.text,
                "the start to name who has the lock",
            )
            assert daemon.process.poll() is None, daemon.text
            peer.kill()
            daemon.wait_ready()
            assert daemon.stop() == 0
        finally:
            daemon.kill_everything()
