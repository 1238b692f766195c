"""Locks between processes: ``fcntl.lockf``, each on one byte of one lock file.

The kernel releases them when their holder dies, even by SIGKILL. There are two traps. When a
process closes *any* descriptor of a file, the kernel drops *all* its locks on that file, so each
process opens the file once and keeps it open. And two threads of one process both get a lock, so
the one that threads share (the ledger's) has a ``threading.Lock`` in front.

Bytes: the supervisor holds DIRECTORY while it lives. LEDGER is held for each write to the ledger,
ADOPTION while a lease changes hands. All shard processes share SHARDS, so that a new supervisor can
wait for the last one of a killed daemon. NAME_SLOTS is held while a topic or a token gets its
slot (shards/boards/namecounts.py). GROUP + id is held for a pull or a split, and those of
both groups for a merge.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path

from ledger import private_files

DIRECTORY = 0
LEDGER = 1
ADOPTION = 2
SHARDS = 3
NAME_SLOTS = 4
GROUP = 16

# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


class LockFile:
    """The process's one descriptor of a lock file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, private_files.FILE)

    def try_lock(self, byte: int) -> bool:
        """Takes a byte's lock if no other process holds it; never waits."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def try_share(self, byte: int) -> bool:
        """Takes a byte's lock shared with other processes; never waits."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def lock(self, byte: int) -> None:
        """Takes a byte's lock and waits for other processes. Not for an event loop."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)

    def unlock(self, byte: int) -> None:
        """Releases a byte's lock."""
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)

    def holder(self, byte: int) -> int | None:
        """The pid of another process that holds a byte's lock, or None."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else pid

    def close(self) -> None:
        """Closes the descriptor, which releases all locks of this process."""
        os.close(self._fd)


class SharedLock:
    """One byte's lock, between threads as well as processes. A context manager."""

    def __init__(self, file: LockFile, byte: int) -> None:
        self._file = file
        self._byte = byte
        self.threads = threading.Lock()

    def __enter__(self) -> None:
        self.threads.acquire()
        try:
            self._file.lock(self._byte)
        except BaseException:
            self.threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._file.unlock(self._byte)
        finally:
            self.threads.release()
