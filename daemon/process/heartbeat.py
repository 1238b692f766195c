"""When a shard's loop counts as stuck: ticks of the supervisor without a new heartbeat.

``Pulse`` is pure. Only a shard's loop raises its heartbeat, ten times a second, so a loop that does
not turn is noticed whatever its threads do. Ticks of the supervisor are counted, not time, so that
a machine that was suspended kills no shard (docs/protocol.md 3); and ticks for which the shard
starved are not counted.

    moving -> missing (the watchdog is not fed) -> ABORT, for a dump of its stacks -> KILL, since a
    stopped process does not react to anything else

A loop that does not turn is either stuck, and ends only if it is killed, or it *starves*: the
kernel gives its thread no CPU, or has it in a sleep that no signal interrupts (state D: a disk that
does not answer). Killing a process that starves helps nobody. Its successor would starve as well,
and needs a second of CPU to start; from state D a process does not even go before the kernel lets
it. So the time for which a process starves counts as little as that of a suspended machine.

It starves during a tick if it used next to no CPU although one of its threads could run (R), or its
main thread is in state D. A loop that spins uses CPU, a stopped process is in state T, and one that
waits for a lock in state S: these are stuck. ``Starvation`` reads that from /proc (proc(5)); what
cannot be read does not starve.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

STALLED_TICKS_HOLDING = 20  # 2 s with a lease or a lock: others wait for it
STALLED_TICKS = 50  # 5 s with neither: only its own connections wait
ABORT_TICKS = 5  # before the kill: half a second to write the stacks
MISSING_TICKS = 10  # a second is longer than a busy machine delays a heartbeat
SHARE_MAX = 0.2  # of a tick; less CPU than this is what a process gets in passing


class HeartbeatVerdict(enum.Enum):
    """What to do to a shard."""

    LEAVE = enum.auto()
    ABORT = enum.auto()
    KILL = enum.auto()


class Pulse:
    """The heartbeat of one process of a shard."""

    def __init__(self) -> None:
        self._heartbeat = 0
        self._ready = False
        self._aborted_ticks: int | None = None
        self.stalled_ticks = 0
        self.starved_ticks = 0  # since the last heartbeat

    @property
    def moving(self) -> bool:
        """The shard serves, and its loop has turned within the last second of ticks."""
        return self._ready and self.stalled_ticks < MISSING_TICKS

    def tick(
        self,
        heartbeat: int,
        *,
        ready: bool,
        holding: bool,
        starves: Callable[[], bool] = lambda: False,
    ) -> HeartbeatVerdict:
        """The verdict of one tick; ABORT and KILL are given once each.

        A shard that is starting has no loop yet, and is left alone. ``starves`` is asked only when
        there was no heartbeat.
        """
        self._ready = ready
        if heartbeat != self._heartbeat or not ready:
            self._heartbeat = heartbeat
            self.stalled_ticks = self.starved_ticks = 0
            self._aborted_ticks = None
            return HeartbeatVerdict.LEAVE
        if self._aborted_ticks is None and starves():
            self.starved_ticks += 1
            return HeartbeatVerdict.LEAVE
        self.stalled_ticks += 1
        limit = STALLED_TICKS_HOLDING if holding else STALLED_TICKS
        if self._aborted_ticks is None:
            if self.stalled_ticks < limit - ABORT_TICKS:
                return HeartbeatVerdict.LEAVE
            self._aborted_ticks = self.stalled_ticks
            return HeartbeatVerdict.ABORT
        due = self.stalled_ticks == self._aborted_ticks + ABORT_TICKS
        return HeartbeatVerdict.KILL if due else HeartbeatVerdict.LEAVE


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
