"""Whether a process waits for the machine, from real processes and from made ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.process.heartbeat import Starvation, ThreadStat, parse
from shards.clock import monotonic_ns

TICK_NS = 100_000_000
SPIN = "while True: pass"
WAIT = "import signal; signal.pause()"


def line(state: str, user: int, system: int, name: str = "headgate") -> str:
    """A line of /proc/PID/stat."""
    return f"7 ({name}) {state} 1 7 7 0 -1 4194304 1 2 3 4 {user} {system} 0 0 20 0 9 0 100 5 6"


class Proc:
    """A /proc with process 7, whose threads are 7 and 8."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, main: str, other: str, cpu_ticks: int) -> None:
        """Their states, and the CPU time of the process."""
        for path, state in (("stat", main), ("task/7/stat", main), ("task/8/stat", other)):
            file = self.root / "7" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(line(state, cpu_ticks, 0))


@pytest.mark.parametrize("name", ["headgate", "a) R 1 (b", ""])
def test_a_process_may_have_any_name(name: str) -> None:
    assert parse(line("S", 12, 30, name)) == ThreadStat("S", 42)


@pytest.mark.parametrize(
    ("main", "other", "used_ticks", "starves"),
    [
        ("R", "S", 0, True),  # nobody runs it
        ("S", "R", 1, True),  # a thread that may have what the loop waits for
        ("D", "S", 0, True),  # the kernel waits for a disk
        ("R", "S", 9, False),  # it spins
        ("S", "S", 0, False),  # it waits for a lock
        ("S", "D", 0, False),  # the loop does not wait for the disk of a thread
        ("T", "T", 0, False),  # it was stopped
    ],
)
def test_it_starves_if_it_could_run_and_got_no_cpu(
    main: str, other: str, used_ticks: int, starves: bool, tmp_path: Path
) -> None:
    proc, starvation = Proc(tmp_path), Starvation(tmp_path)
    proc.write(main, other, 100)
    assert not starvation.look(7, 5 * TICK_NS), "the first look has nothing to compare with"
    proc.write(main, other, 100 + used_ticks)
    assert starvation.look(7, 6 * TICK_NS) == starves
    starvation.begins()
    assert not starvation.look(7, 7 * TICK_NS)


def test_a_process_that_is_gone_does_not_starve(tmp_path: Path) -> None:
    assert not Starvation(tmp_path).look(7, TICK_NS)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("torn")
    assert not Starvation(tmp_path).look(7, TICK_NS)


@pytest.fixture
def started() -> Iterator[Callable[[str], int]]:
    """Starts Python programs on one CPU; ends them afterwards."""
    cpu = max(os.sched_getaffinity(0))
    processes: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> int:
        process = subprocess.Popen([sys.executable, "-S", "-c", program])
        os.sched_setaffinity(process.pid, {cpu})
        processes.append(process)
        return process.pid

    yield start
    for process in processes:
        process.kill()
        process.wait()


def found(pid: int, wanted: bool) -> bool:
    """Looks until the answer, which the machine decides, is what it must become."""
    starvation = Starvation()
    next_ns = monotonic_ns()
    while True:
        if monotonic_ns() >= next_ns:
            next_ns += TICK_NS
            if starvation.look(pid, monotonic_ns()) == wanted:
                return True


def test_a_process_that_others_keep_from_its_cpu_starves(
    started: Callable[[str], int],
) -> None:
    hog, victim = started(SPIN), started(SPIN)
    os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0))
    assert found(victim, True)
    os.kill(hog, signal.SIGKILL)
    assert found(victim, False), "alone it spins, and that is another thing"


def test_a_process_that_waits_does_not_starve(started: Callable[[str], int]) -> None:
    assert found(started(WAIT), False)


def test_a_stopped_process_does_not_starve(started: Callable[[str], int]) -> None:
    process = started(SPIN)
    os.kill(process, signal.SIGSTOP)
    os.waitid(os.P_PID, process, os.WSTOPPED)
    starvation = Starvation()
    assert not any(starvation.look(process, tick * TICK_NS) for tick in range(5))
