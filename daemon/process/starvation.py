"""Whether a process that does nothing waits for the machine: for a CPU, or for the kernel.

A loop that does not turn is either stuck, and ends only if it is killed, or it *starves*: the
kernel gives its thread no CPU, or has it in a sleep that no signal interrupts (state D: a disk that
does not answer). Killing a process that starves helps nobody. Its successor would starve as well,
and needs a second of CPU to start; from state D a process does not even go before the kernel lets
it. So the time for which a process starves counts as little as that of a suspended machine.

It starves during a tick if it used next to no CPU although one of its threads could run (R), or its
main thread is in state D. A loop that spins uses CPU, a stopped process is in state T, and one that
waits for a lock in state S: these are stuck. Read from /proc (proc(5)); what cannot be read does
not starve.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# Of a tick. Less than this is what a process gets in passing.
SHARE_MAX = 0.2


class ThreadStat(NamedTuple):
    """The state of a thread or of a process (that of its main thread), and its CPU time."""

    state: str
    cpu_ticks: int


def parse(stat: str) -> ThreadStat:
    """A line of /proc/PID/stat. A process may be named anything, also ``) R 1``."""
    fields = stat.rpartition(")")[2].split()
    return ThreadStat(fields[0], int(fields[11]) + int(fields[12]))


class Starvation:
    """One process; call ``look`` in each tick in which it does not turn."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._clock_ticks_s = os.sysconf("SC_CLK_TCK")
        self._before: tuple[int, int] | None = None  # CPU ticks, and when

    def begins(self) -> None:
        """The process turns: the next look is the first one."""
        self._before = None

    def look(self, pid: int, now_ns: int) -> bool:
        """Whether the process starved since the last look; False at the first one."""
        try:
            process = self._proc / str(pid)
            main = parse((process / "stat").read_text())
            before, self._before = self._before, (main.cpu_ticks, now_ns)
            if before is None:
                return False
            used_s = (main.cpu_ticks - before[0]) / self._clock_ticks_s
            if used_s > SHARE_MAX * (now_ns - before[1]) / 1e9:
                return False
            return main.state in "DR" or any(
                parse((thread / "stat").read_text()).state == "R"
                for thread in (process / "task").iterdir()
            )
        except (OSError, ValueError, IndexError):
            return False  # it ended meanwhile
