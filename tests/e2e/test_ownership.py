"""One owner per prefix: copies are refused, and a take-over ends the former owner permanently."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from ledger.log.entry import Entry, Owner
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.load import load
from tests.e2e.processes import Line
from uploader.ownership.ownerlog import OwnerLog
from uploader.ownership.ownership import PERIOD_NS
from uploader.stores import open_store

TAKE_OVER = (sys.executable, "-m", "cli", "serve", "--take-over")
NOBODY = Owner("test", 0, "", 0, 0, "")  # who only reads the log


def command(*arguments: str) -> tuple[int, str]:
    """A command that must end by itself: exit code and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        cwd=ROOT, timeout=2 * HANG_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def entries(store_url: str) -> list[Entry]:
    """The current owner's log."""
    with closing(open_store(store_url)) as store:
        return list(OwnerLog(store, NOBODY, lambda _: None).chain())


def signal_all(daemon: Daemon, number: signal.Signals) -> None:
    """Sends a signal to the supervisor and all its shards."""
    os.killpg(daemon.process.pid, number)


@pytest.mark.slow
def test_a_copied_data_directory_is_refused_naming_the_owner(data: Path, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    copy = tmp_path / "copy"
    with running(data, store=store) as daemon:
        daemon.produce("t", 1)
        shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock"))
        before = [(e.incarnation, e.number) for e in entries(store)]
        code, said = command("serve", "--listen", "127.0.0.1:0", "--data", str(copy),
                             "--store", store)  # fmt: skip
        assert code == 1
        assert f"{data} of host" in said and f"pid {daemon.process.pid}" in said
        assert "--take-over" in said
        # Nor may a recovery take it from a daemon that is seen to run.
        code, said = command("recover", "--data", str(tmp_path / "new"), "--store", store)
        assert code == 1
        assert f"pid {daemon.process.pid}" in said and "--take-over" in said
        # Nor use its data directory.
        code, said = command("recover", "--data", str(data), "--store", store, "--take-over")
        assert code == 1 and f"in use by the headgate with pid {daemon.process.pid}" in said
        assert [(e.incarnation, e.number) for e in entries(store)][: len(before)] == before
        assert {e.incarnation for e in entries(store)} == {1}
        assert daemon.produce("t", 2).json["first_seq"] == 2


@pytest.mark.slow
def test_a_killed_daemon_restarts_on_its_own_directory_without_a_flag(
    data: Path, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/store"
    with running(data, store=store) as daemon:
        daemon.produce("t", 1)
        daemon.kill_everything()
    with running(data, store=store) as daemon:
        assert daemon.produce("t", 2).json["first_seq"] == 2
        assert [record["data"] for record in daemon.read_all("t")] == [1, 2]


@pytest.mark.slow
def test_a_paused_daemon_that_wakes_after_a_take_over_never_acknowledges_again(
    data: Path, tmp_path: Path
) -> None:
    # The 20 s of the take-over are waited for.
    store = f"file://{tmp_path}/store"
    copy = tmp_path / "copy"
    with running(data, shards=2, store=store) as first, Line(first) as line:
        assert line.produce("t", "first")["first_seq"] == 1
        signal_all(first, signal.SIGSTOP)
        try:
            line.send("t", "waits in the socket")
            shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock"))
            with running(copy, store=store, command=TAKE_OVER) as second:
                found = second.read_all("t")
                assert [record["data"] for record in found] == ["first"]
                assert second.produce("t", "second").status == 200
                signal_all(first, signal.SIGCONT)
                answer = line.answer()
                assert answer is None or (answer.status, answer.code) == (503, "superseded")
                assert first.process.wait(HANG_S) == 5
                after = second.produce("t", "third")
                assert after.status == 200
                data_now = [record["data"] for record in second.read_all("t")]
                assert data_now == ["first", "second", "third"]
        finally:
            if first.process.poll() is None:
                signal_all(first, signal.SIGCONT)
        first.stop()
        assert "has taken the prefix over" in first.text
    # Its ledger is from before the recovery: it cannot come back by itself.
    code, said = command("serve", "--listen", "127.0.0.1:0", "--data", str(data), "--store", store)
    assert code == 1 and "headgate recover" in said


@pytest.mark.slow
def test_there_is_at_most_one_entry_a_period_under_load_and_none_while_idle(
    data: Path, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/store"
    with running(data, store=store) as daemon:
        with load(daemon, [("t", 0)], connections=2, pause_s=0.005):
            wait_until(lambda: len(entries(store)) >= 4, "four entries under load")
        wait_until(
            lambda: (
                daemon.status()["totals"]["objects_committed"]
                == entries(store)[-1].mark.commit_number
            ),
            "all commits to be listed",
        )
        told = entries(store)
        times = [entry.created_ms for entry in told]
        gaps = [after - before for before, after in pairwise(times)]
        # The first one is the start's; a wall clock may be slewed.
        assert all(gap > 0.98 * PERIOD_NS / 1e6 for gap in gaps), gaps
        until_s = daemon.status()["uptime_s"] + 2.5 * PERIOD_NS / 1e9
        wait_until(lambda: daemon.status()["uptime_s"] > until_s, "idle periods to pass")
        assert len(entries(store)) == len(told)
        # The first write after idleness sends an entry with its object, and is answered
        # immediately.
        assert daemon.produce("t", "again").status == 200
        wait_until(lambda: len(entries(store)) > len(told), "an entry with the object")
