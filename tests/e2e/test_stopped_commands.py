"""A compaction that is stopped, wherever it is, does not stop the daemon: it has no part of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from compaction.access.http_calls import socket_address
from compaction.access.operations import NOW
from compaction.access.via_daemon import ViaDaemon
from ledger.lake import runs
from tests.e2e.daemon import HANG_S, ROOT, running, wait_until
from tests.e2e.orphans import Place

STOPS = """
import os, signal, sys
from tests.e2e import killed_compact
killed_compact.die = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
killed_compact.arm("the run has begun")
killed_compact.headgate(["compact", *sys.argv[1:]])
"""


@pytest.mark.slow
def test_commits_go_on_though_a_compaction_is_stopped_in_its_run(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        assert daemon.produce("t", 1).status == 200
        arguments = place.command("compact")[4:]
        command = subprocess.Popen(
            [sys.executable, "-c", STOPS, *arguments], cwd=ROOT, env=place.environ,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process = psutil.Process(command.pid)
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the command to stop")
            access = ViaDaemon(socket_address(str(data)))
            assert access.read(runs.living, NOW) is not None
            opened = [file.path for file in process.open_files()]
            assert not [path for path in opened if path.startswith(str(data))], opened
            for number in range(3):
                assert daemon.produce("t", number).status == 200
            access.await_backup()
            wait_until(lambda: daemon.status()["alarms"] == [], "no alarm, or one that passes")
        finally:
            os.kill(command.pid, signal.SIGKILL)
            command.wait(HANG_S)
        assert place.json("check")["problems"] == []
