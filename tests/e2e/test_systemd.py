"""Life under systemd: a real NOTIFY_SOCKET and watchdog, and the unit's own command and filter.

systemd itself does not run here; ``tests/e2e/unit.py`` interprets the unit file as systemd would.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from shards.clock import monotonic_ns
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.processes import alive, kill_shards, shard_pids, stopped, succession
from tests.e2e.standbys import Standby, started
from tests.e2e.stores import on_s3
from tests.e2e.unit import UNIT, command, confined, settings, systemd_analyze
from tests.minio import Bucket


class Manager:
    """The service manager's end: gathers datagrams in the order in which they were sent."""

    def __init__(self) -> None:
        self.address = f"@headgate-test-{os.getpid()}-{monotonic_ns()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address.replace("@", "\0"))
        self._socket.setblocking(False)
        self._seen: list[str] = []

    @property
    def environ(self) -> dict[str, str]:
        """What a unit with WatchdogSec=1 gives to its process."""
        return {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": "1000000"}

    @property
    def seen(self) -> list[str]:
        """All datagrams so far."""
        while True:
            try:
                self._seen.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self._seen

    def index(self, start: str, after: int = -1) -> int:
        """Waits for a datagram that starts so, after another one's index."""
        where = wait_until(
            lambda: [i for i, s in enumerate(self.seen) if i > after and s.startswith(start)],
            f"{start} after {self.seen[after : after + 1]}",
        )
        return where[0]

    def close(self) -> None:
        """Ends it."""
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    """A service manager that hears one daemon."""
    with closing(Manager()) as found:
        yield found


def test_start_reload_and_stop_are_announced_and_no_shard_inherits_the_way_to_the_manager(
    data: Path, manager: Manager, listen: str
) -> None:
    daemon = Daemon(data, shards=3, listen=listen, environ=manager.environ)
    daemon.start()
    try:
        ready = manager.index("READY=1")
        daemon.port = int(listen.rpartition(":")[2])
        assert daemon.get("/readyz").status == 200
        assert manager.seen[ready].splitlines() == [
            "READY=1", f"STATUS=ready on http://{listen} with 3 shards", "WATCHDOG_USEC=1000000",
        ]  # fmt: skip
        assert not any(s.startswith("WATCHDOG") for s in manager.seen[:ready])
        for pid in shard_pids(daemon):
            inherited = psutil.Process(pid).environ()
            assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & inherited.keys()

        before_usec = monotonic_ns() // 1_000
        daemon.process.send_signal(signal.SIGHUP)
        begin = manager.index("RELOADING=1", ready)
        told = re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=(\d+)", manager.seen[begin])
        assert told and before_usec <= int(told[1]) <= monotonic_ns() // 1_000
        again = manager.index("READY=1", begin)
        wait_until(lambda: "configuration reloaded" in daemon.text, "the reload to be said")

        assert daemon.stop() == 0
        stopping = manager.index("STOPPING=1", again)
        assert manager.seen[stopping].splitlines()[1:] == [
            "STATUS=draining", "EXTEND_TIMEOUT_USEC=20000000",
        ]  # fmt: skip
    finally:
        daemon.kill_everything()


@pytest.mark.slow
def test_the_watchdog_is_fed_while_all_loops_turn_and_not_while_one_is_stuck(
    data: Path, manager: Manager
) -> None:
    with running(data, shards=2, environ=manager.environ) as daemon:
        last = -1
        for _ in range(5):
            last = manager.index("WATCHDOG=1", last)
        with stopped(shard_pids(daemon)[1]):
            stuck = manager.index("STATUS=shard 1 is stuck", last)
            died = manager.index("STATUS=shard 1 died (killed by SIGKILL)", stuck)
        back = manager.index("STATUS=ready on", died)
        manager.index("WATCHDOG=1", back)
        assert not any(s.startswith("WATCHDOG") for s in manager.seen[stuck:back])
        # The supervisor kept turning, and shard 0 too: it is shard 1 for which nothing was told.
        assert [shard["restarts"] for shard in daemon.status()["shards"]] == [0, 1]


def test_a_take_over_has_more_time_than_the_watchdog_gives(
    data: Path, manager: Manager, bucket: Bucket
) -> None:
    daemon = Standby(data, bucket)
    daemon.environ |= manager.environ
    with started(daemon):  # of a prefix that nobody has owned
        waits = manager.index("READY=1\nSTATUS=standby on")
        takes = manager.index("STATUS=taking over", waits)
        assert manager.seen[takes].endswith("\nWATCHDOG_USEC=3600000000")
        serves = manager.index("READY=1\nSTATUS=ready on", takes)
        assert manager.seen[serves].endswith("\nWATCHDOG_USEC=1000000")


@pytest.mark.slow
def test_a_shard_that_is_aborted_says_where_it_was_and_is_back(data: Path) -> None:
    with running(data, shards=2) as daemon:
        with succession(daemon, 0) as (pid,):
            os.kill(pid, signal.SIGABRT)
        assert daemon.produce("t", 1).status == 200
    assert "shard 0 died (killed by SIGABRT)" in daemon.text
    assert "Fatal Python error: Aborted" in daemon.text
    assert 'daemon/process/shard.py", line' in daemon.text


@pytest.mark.slow
def test_the_managers_watchdog_ends_the_supervisor_with_its_stack_and_no_shard_stays(
    data: Path,
) -> None:
    with running(data, shards=2) as daemon:
        shards = shard_pids(daemon)
        daemon.process.send_signal(signal.SIGABRT)  # what WatchdogSec= sends
        assert daemon.process.wait(HANG_S) == -signal.SIGABRT
        wait_until(lambda: not any(map(alive, shards)), "the shards to end")
    assert "Fatal Python error: Aborted" in daemon.text
    assert 'daemon/process/supervisor.py", line' in daemon.text


def as_the_unit(path: str) -> dict[str, object]:
    """Options for ``running``: the unit's command under the unit's filter."""
    return {"command": (*confined(UNIT, command(UNIT)), "headgate"), "environ": {"PATH": path}}


@pytest.mark.slow
def test_under_the_units_filter_shards_are_pinned_and_records_are_kept(
    data: Path, path: str
) -> None:
    with running(data, shards=2, **as_the_unit(path)) as daemon:
        assert "cli" in psutil.Process(daemon.process.pid).cmdline(), "the shell must be gone"
        for shard in daemon.status()["shards"]:
            assert psutil.Process(shard["pid"]).cpu_affinity() == [shard["cpu"]]
            # 2: a filter of system calls.
            assert "\nSeccomp:\t2\n" in Path(f"/proc/{shard['pid']}/status").read_text()
        daemon.produce("t", 1, 2, 3)
        kill_shards(daemon, 0)
        assert [record["data"] for record in daemon.read_all("t")] == [1, 2, 3]
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration reloaded" in daemon.text, "the reload")


@pytest.mark.slow
def test_under_the_units_filter_s3_is_reached(data: Path, path: str, bucket: Bucket) -> None:
    unit, s3 = as_the_unit(path), on_s3(bucket)
    environ = {**s3.pop("environ"), "PATH": path}
    with running(data, **s3, command=unit["command"], environ=environ) as daemon:
        daemon.produce("t", "over the network")
        assert [record["data"] for record in daemon.read_all("t")] == ["over the network"]


def test_under_the_units_filter_what_it_forbids_is_refused() -> None:
    attempts = "import mmap, os, socket\n" + "".join(
        f"try: {attempt}\nexcept PermissionError: print('refused')\n"
        for attempt in (
            "os.chroot('/')", "os.chown('.', 0, 0)", "mmap.mmap(-1, 4096, prot=7)",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        )
    )  # fmt: skip
    said = subprocess.run(
        confined(UNIT, [sys.executable, "-c", attempts]),
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert said.split() == ["refused"] * 4


def test_the_units_are_sound_and_hardened() -> None:
    systemd_analyze()
    said = subprocess.run(
        ["make", "--no-print-directory", "verify-units"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    levels = re.findall(r"level for (\S+): (\S+)", said.stdout)
    assert {unit for unit, _ in levels} == {"headgate.service", "headgate-compact.service"}
    assert all(float(level) <= 2.0 for _, level in levels)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("WatchdogSec=", "WatchdogSecs="), "Unknown key 'WatchdogSecs'"),
        (("/bin/sh -c", "/usr/lib/no/such/shell -c"), "is not executable"),
        (("(?m)^(SystemCall|Protect).*", ""), "Overall exposure level for headgate.service: 4.1"),
    ],
)
def test_a_unit_that_is_wrong_or_soft_is_refused(
    tmp_path: Path, wrong: tuple[str, str], said: str
) -> None:
    for unit in UNIT.parent.iterdir():
        shutil.copy(unit, tmp_path)
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(*wrong, unit.read_text()))
    ran = subprocess.run(
        ["sh", "tools/verify_units.sh", str(tmp_path)],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 1
    assert said in ran.stderr


def test_a_machine_without_systemds_tools_is_told_what_to_install(tmp_path: Path) -> None:
    ran = subprocess.run(
        ["/bin/sh", "tools/verify_units.sh"],
        cwd=ROOT, check=False, capture_output=True, text=True, env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 1
    assert "systemd-analyze is not installed (on Debian: apt install systemd)" in ran.stderr


def test_the_unit_lets_a_drain_end_and_does_not_restart_what_a_restart_cannot_fix() -> None:
    def only(name: str) -> str:
        (value,) = settings(UNIT, name)
        return value

    assert only("Type") == "notify"
    assert float(only("TimeoutStopSec")) > 20
    assert only("RestartPreventExitStatus").split() == ["2", "5"]
    assert only("OOMPolicy") == "continue"
    # The supervisor kills a stuck shard after 5 s and starts another: systemd must have patience.
    assert float(only("WatchdogSec")) >= 20
