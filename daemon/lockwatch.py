"""No process stops all commits by being stopped itself: who holds the ledger for long is named.

Commands beside the daemon (``compact``, ``gc``, a Spark driver) write the ledger in short
transactions under its lock. One that is stopped in the middle (Ctrl-Z, SIGSTOP, a debugger) would
keep the lock, and every commit would wait for it. One that is stopped in the middle of a read pins
the ledger's WAL, which then grows with every commit. Both are looked for by the supervisor's ticks.

Lifecycle of who is found: seen -> named, in the log and by an alarm -> gone. One that is stopped
-> continued (SIGCONT: it ends its transaction) -> killed, if it does not go on (a debugger): what a
command had under way its next run makes up for. One that runs is at work, and is only named.
Shards that serve are only named here, for the supervisor ends one that is stuck
(daemon/heartbeat.py); one that is starting is treated as a command is.

Looks are counted, not time, so that a suspended machine ends nobody. See decision 0014.
"""

from __future__ import annotations

import enum
import logging
import os
import signal
from collections.abc import Callable, Collection, Set
from pathlib import Path
from typing import NamedTuple

from shards import locks
from shards.alarms import AlarmBoard, AlarmKind
from shards.locks import LockFile

log = logging.getLogger("headgate.lockwatch")

WAL_BYTES_MAX = 64 << 20  # four times what a commit copies back (ledger/schema.py)
PIN_TICKS = 10  # between two looks for readers: a list of all locks of the machine
PROGRAM_CHARACTERS_MAX = 120
# Of SQLite's WAL index (its file format, 2.3): which reader uses which snapshot.
_READ_LOCKS = range(123, 128)


class Act(enum.Enum):
    """What is to be done about a process."""

    LEAVE = enum.auto()
    NAME = enum.auto()
    CONTINUE = enum.auto()
    KILL = enum.auto()


class Limits(NamedTuple):
    """Looks in a row: until a process is named; stopped in all of them, until it is dealt with."""

    named: int
    continued: int
    killed: int


LOCK_LIMITS = Limits(10, 2, 20)  # of 0.1 s: named after 1 s, continued after 0.2 s, killed after 2
PIN_LIMITS = Limits(10, 2, 4)  # of 1 s: many a read is at work for seconds


class Pulse:
    """One process, for as long as each look finds it. Pure."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._looks = self._stopped_looks = 0
        self.named = False

    def look(self, *, stopped: bool) -> Act:
        """One look; NAME is given once, CONTINUE and KILL once for each time that it is stopped."""
        self._looks += 1
        self._stopped_looks = self._stopped_looks + 1 if stopped else 0
        if self._stopped_looks == self._limits.continued:
            return Act.CONTINUE
        if self._stopped_looks == self._limits.killed:
            return Act.KILL
        if self._looks >= self._limits.named and not self.named:
            self.named = True
            return Act.NAME
        return Act.LEAVE


class _Watched:
    """What processes are found at: the lock, or the WAL."""

    def __init__(self, kind: AlarmKind, limits: Limits, does: str) -> None:
        self.kind = kind
        self.limits = limits
        self.does = does
        self.pulses: dict[int, Pulse] = {}


class LedgerWatch:
    """The looks at one ledger. ``alarms`` None: nobody reads them yet, the log is all there is."""

    def __init__(
        self,
        lock_file: LockFile,
        ledger_path: Path,
        alarms: AlarmBoard | None = None,
        wal_bytes_max: int = WAL_BYTES_MAX,
    ) -> None:
        self._lock_file = lock_file
        self._wal = ledger_path.with_name(f"{ledger_path.name}-wal")
        self._index = ledger_path.with_name(f"{ledger_path.name}-shm")
        self._alarms = alarms
        self._wal_bytes_max = wal_bytes_max
        self._ticks = 0
        self._lock = _Watched(AlarmKind.LEDGER_HELD, LOCK_LIMITS, "holds the ledger's lock")
        self._pins = _Watched(AlarmKind.WAL_PINNED, PIN_LIMITS, "keeps the ledger's WAL in use")

    def tick(self, now_ns: int, children: Collection[int] = ()) -> int | None:
        """One look of ten a second; who holds the lock now. ``children`` are watched elsewhere."""
        holder = self._lock_file.holder(locks.LEDGER)
        self._look(
            self._lock, self._holders, now_ns, children, set() if holder is None else {holder}
        )
        self._ticks += 1
        if self._ticks % PIN_TICKS == 0:
            found = (
                self._pinning() - set(children) - {os.getpid()} if self._wal_is_long() else set()
            )
            self._look(self._pins, self._pinning, now_ns, (), found)
        return holder

    def _holders(self) -> set[int]:
        holder = self._lock_file.holder(locks.LEDGER)
        return set() if holder is None else {holder}

    def _wal_is_long(self) -> bool:
        try:
            return self._wal.stat().st_size > self._wal_bytes_max
        except FileNotFoundError:
            return False

    def _pinning(self) -> set[int]:
        """Who is inside a read. By the kernel's list: opening SQLite's file here would, when it is
        closed, drop the locks that our own connections have on it."""
        try:
            there = self._index.stat()
            lines = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return set()
        name = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino}"
        found = set()
        for line in lines:
            fields = line.split()
            if name in fields and "POSIX" in fields and "->" not in fields:
                pid, first, last = int(fields[-4]), int(fields[-2]), fields[-1]
                if first in _READ_LOCKS and last != "EOF":
                    found.add(pid)
        return found

    def _look(
        self,
        watched: _Watched,
        again: Callable[[], Set[int]],
        now_ns: int,
        children: Collection[int],
        found: Set[int],
    ) -> None:
        pulses = watched.pulses
        for pid in [pid for pid in pulses if pid not in found]:
            del pulses[pid]
        if self._alarms is not None and not any(pulse.named for pulse in pulses.values()):
            self._alarms.clear(watched.kind)
        for pid in found:
            pulse = pulses.get(pid)
            if pulse is None:
                pulse = pulses[pid] = Pulse(watched.limits)
            act = pulse.look(stopped=pid not in children and is_stopped(pid))
            if act is Act.NAME:
                self._tell(watched, described(pid), now_ns)
            elif act is not Act.LEAVE:
                self._end(watched, again, pid, act, now_ns)

    def _end(
        self, watched: _Watched, again: Callable[[], Set[int]], pid: int, act: Act, now_ns: int
    ) -> None:
        who = described(pid)
        number = signal.SIGCONT if act is Act.CONTINUE else signal.SIGKILL
        what = "continued" if act is Act.CONTINUE else "killed, for it did not go on"
        try:
            send(pid, number, lambda: pid in again() and is_stopped(pid))
        except OSError as error:
            what = f"not {what}: {error.strerror}; continue it (kill -CONT) or end it"
            self._tell(watched, f"{who} {what}", now_ns)
            watched.pulses[pid].named = True
        log.error("%s %s: %s", who, watched.does, what)

    def _tell(self, watched: _Watched, who: str, now_ns: int) -> None:
        if self._alarms is None:
            log.warning("%s %s", who, watched.does)
        else:  # the log tells of alarms too
            self._alarms.raise_(watched.kind, who, now_ns)


def send(pid: int, number: signal.Signals, still: Callable[[], bool]) -> None:
    """Signals a process if ``still`` says so once its number cannot be given to another any more.

    Raises OSError when that is not permitted; a process that has ended is no error.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if still():
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or by a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def described(pid: int) -> str:
    """A process by its number and program, and whether it is stopped."""
    if pid <= 0:
        return "a process of another container"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        words = []
    program = " ".join(words).strip()[:PROGRAM_CHARACTERS_MAX] or "of an unknown program"
    return f"process {pid} ({program})" + (", which is stopped," if is_stopped(pid) else "")
