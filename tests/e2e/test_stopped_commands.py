"""A command that is stopped while it holds the ledger does not stop the daemon."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running, wait_until
from tests.shards.peer import started


def held(daemon: Daemon) -> list[str]:
    return [a["message"] for a in daemon.status()["alarms"] if a["alarm"] == "ledger_held"]


@pytest.mark.slow
def test_commits_go_on_though_a_command_is_stopped_in_its_transaction(data: Path) -> None:
    with running(data) as daemon:
        assert daemon.produce("t", {"data": 1}).status == 200
        ledger = data / "ledger" / "ledger.db"
        with started("write_ledger", ledger, data / "lock") as peer:
            assert peer.line() == "writes"
            (message,) = wait_until(lambda: held(daemon), "the holder to be named")
            assert f"process {peer.pid} (" in message
            os.kill(peer.pid, signal.SIGSTOP)
            assert peer.process.stdin is not None
            print(file=peer.process.stdin, flush=True)  # it would end its transaction now
            assert daemon.produce("t", {"data": 2}).status == 200
            assert peer.line() == "done"
        wait_until(lambda: not held(daemon), "the alarm to end")
        assert "which is stopped, holds the ledger's lock: continued" in daemon.text
