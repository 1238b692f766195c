"""The other process of a test: one small task over inherited descriptors.

    python -m tests.shards.peer TASK ARGUMENTS...

A task says on stdout where it stands, a line at a time, and waits for the end of stdin where it
is to keep what it holds. ``started`` runs one for the time of a ``with`` block.
"""

from __future__ import annotations

import os
import selectors
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ledger.types import Commit, ExtentRun, LeasedRange, LeaseId
from shards import layout as at
from shards import locks
from shards.commitlog import CommitLog
from shards.doorbell import Doorbells
from shards.frame import Part
from shards.journal import FinishedJournal, entry_bytes
from shards.layout import Layout
from shards.locks import LockFile, SharedLock
from shards.ring import RingWriter
from shards.segment import Segment

ROOT = Path(__file__).parents[2]


@contextmanager
def started(task: str, *arguments: object, fds: Sequence[int] = ()) -> Iterator[Peer]:
    """A peer that is killed, if it still runs, when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.shards.peer", task, *map(str, arguments)],
        cwd=ROOT,
        pass_fds=fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Peer(process)
    finally:
        process.kill()
        process.communicate()


class Peer:
    """A running peer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        """What it says next; waits for it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL, and waits until the kernel has taken everything from it."""
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=60)


def shape(segment: Segment) -> str:
    """A segment's layout as an argument."""
    return msgspec.json.encode(segment.layout).decode()


def request_parts(number: int) -> list[Part]:
    """Request ``number``: every byte of it follows from the number."""
    payload = number.to_bytes(8, "little")
    return [
        Part(number, index, 1, payload * (1 + (number * 31 + index) % 500), number, number)
        for index in range(1 + number % 3)
    ]


def commit_of(number: int) -> Commit:
    """Commit ``number``: every word of it follows from the number."""
    runs = tuple(ExtentRun(index, number, index, number, number) for index in range(number % 7))
    source = LeasedRange(number % 5, number, number + 1)
    return Commit(number, LeaseId(1, 2, 3, number), (source,), runs, ())


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _attached(fd: str, layout: str) -> Segment:
    return Segment.attach(int(fd), msgspec.json.decode(layout, type=Layout))


def write_ring(fd: str, layout: str) -> None:
    """Appends and "commits" as fast as it can, forever."""
    segment = _attached(fd, layout)
    writer = RingWriter(segment, 0)
    committed_at = segment.layout.shard(0) + at.S_COMMITTED
    number = 0
    while True:
        number += 1
        writer.append(number, number, b"", request_parts(number))
        segment.words[committed_at] = writer.head


class _Dying(RingWriter):
    """Dies when the bytes are written, before they are published."""

    def _write_parts(
        self, at_byte: int, arrival_ms: int, conditions: bytes, parts: Sequence[Part]
    ) -> None:
        super()._write_parts(at_byte, arrival_ms, conditions, parts[:1])
        os.kill(os.getpid(), signal.SIGKILL)


def die_in_append(fd: str, layout: str) -> None:
    """Publishes request 1, and dies in the middle of request 2."""
    segment = _attached(fd, layout)
    RingWriter(segment, 0).append(1, 1, b"", request_parts(1))
    _Dying(segment, 0).append(2, 2, b"", request_parts(2))


def attach(fd: str, layout: str) -> None:
    """Adds one to the window word and says what it is."""
    segment = _attached(fd, layout)
    segment.words[at.G_WINDOW_NS] += 1
    _say(str(segment.words[at.G_WINDOW_NS]))


def hold(path: str, byte: str, how: str) -> None:
    """Holds a byte's lock until stdin ends."""
    file = LockFile(Path(path))
    taken = file.try_share(int(byte)) if how == "share" else file.try_lock(int(byte))
    _say("held" if taken else "refused")
    sys.stdin.read()


def write_ledger(path: str, lock: str) -> None:
    """Is inside a transaction under the ledger's lock until a line comes."""
    shared = SharedLock(LockFile(Path(lock)), locks.LEDGER)
    with sqlite3.connect(path, isolation_level=None) as connection, shared:
        connection.execute("BEGIN IMMEDIATE")
        _say("writes")
        sys.stdin.readline()
        connection.execute("ROLLBACK")
    _say("done")
    sys.stdin.read()


def read_ledger(path: str) -> None:
    """Is inside a read transaction until stdin ends."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM state").fetchall()
        _say("reads")
        sys.stdin.read()
        connection.execute("COMMIT")


def count(path: str, byte: str, file_name: str, times: str) -> None:
    """Adds to the number in a file under a lock; without the lock, sums get lost."""
    file = LockFile(Path(path))
    counter = Path(file_name)
    for _ in range(int(times)):
        file.lock(int(byte))
        number = int(counter.read_text())
        os.sched_yield()
        counter.write_text(str(number + 1))
        file.unlock(int(byte))


def wait_for_bell(fd: str) -> None:
    """Sleeps in a selector until its bell rings."""
    bells = Doorbells([int(fd)])
    with selectors.DefaultSelector() as selector:
        selector.register(bells.fds[0], selectors.EVENT_READ)
        _say("waits")
        selector.select()
    bells.clear(0)
    _say("woken")


def write_log(fd: str, layout: str) -> None:
    """Publishes commits as fast as it can, forever."""
    log = CommitLog(_attached(fd, layout))
    while True:
        log.publish(commit_of(log.end + 1))


def write_journal(fd: str, layout: str) -> None:
    """Appends and "flushes" as fast as it can, forever, and says when it has done two laps."""
    journal = FinishedJournal(_attached(fd, layout), 0)
    told, number = False, 0
    while True:
        number += 1
        journal.append(1, 0, 0, [number, number + 1])
        if journal.is_half_full:
            journal.empty_up_to(journal.tail + 100 * entry_bytes(2))
            if not told and journal.head > 2 * journal.capacity:
                told = True
                _say("after two laps")


TASKS = {
    task.__name__: task
    for task in (
        attach,
        count,
        die_in_append,
        hold,
        read_ledger,
        wait_for_bell,
        write_journal,
        write_ledger,
        write_log,
        write_ring,
    )
}

if __name__ == "__main__":
    TASKS[sys.argv[1]](*sys.argv[2:])
