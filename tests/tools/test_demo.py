"""``make demo``: what a new user sees first; it leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import demo

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "tools.demo"]


def environment(tmp_path: Path) -> dict[str, str]:
    """Our environment, with a temporary folder, and a setting that must not reach the demo."""
    return os.environ | {"TMPDIR": str(tmp_path), "HEADGATE_STORE_URL": "s3://not-for-the-demo"}


def port_in(printed: str) -> int:
    found = re.search(r"127\.0\.0\.1:(\d+)", printed)
    assert found is not None, printed
    return int(found[1])


@pytest.mark.slow
def test_the_demo_writes_and_reads_the_samples_and_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.run(
        DEMO,
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    for shown in ("headgate produce orders", "headgate status", "headgate groups", "A-10482",
                  "headgate compact", "headgate.orders    21"):  # fmt: skip
        assert shown in run.stdout, run.stdout
    assert list(tmp_path.iterdir()) == []
    assert not demo.is_ready(port_in(run.stdout))


@pytest.mark.slow
def test_ctrl_c_stops_the_daemon_and_removes_its_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        DEMO,
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        printed = ""
        while "headgate produce" not in printed:
            line = process.stdout.readline()
            assert line, f"ended early: {printed}"
            printed += line
        # As a terminal does: to the commands that it runs, too. One that was just begun would
        # otherwise go on by itself, and wait a minute for the daemon.
        os.killpg(process.pid, signal.SIGINT)
        printed += process.stdout.read()
        assert process.wait() == 130, printed
    assert "stopped, and the daemon with it" in printed
    assert list(tmp_path.iterdir()) == []
    assert not demo.is_ready(port_in(printed))


def test_a_daemon_that_ends_is_reported_with_its_code_and_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "headgate"
    command.write_text("#!/bin/sh\necho the port is taken\nexit 3\n")
    command.chmod(0o755)
    monkeypatch.setattr(demo, "command_path", lambda: command)
    daemon = demo.start(tmp_path, 1)
    with pytest.raises(demo.DemoError, match=r"(?s)exit code 3.*the port is taken"):
        demo.wait_until_ready(daemon, tmp_path, 1)


def test_a_daemon_that_ignores_sigterm_is_killed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "headgate"
    command.write_text("#!/bin/sh\ntrap '' TERM\necho up\nexec sleep 1000\n")
    command.chmod(0o755)
    monkeypatch.setattr(demo, "command_path", lambda: command)
    monkeypatch.setattr(demo, "STOP_WITHIN_S", 0.2)
    daemon = demo.start(tmp_path, 1)
    while "up" not in demo.log_tail(tmp_path):
        assert daemon.poll() is None
    with pytest.raises(demo.DemoError, match="did not end within"):
        demo.stop(daemon, tmp_path)
    assert daemon.returncode == -signal.SIGKILL
