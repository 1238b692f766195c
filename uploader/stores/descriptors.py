"""Open files for range reads: the few that were used last, shared by all threads.

A descriptor is closed when its last reader is done, never during a read: its number could
belong to another file by then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from uploader.lru import LruCache

# 64 segments are 4 GiB of objects; a shard's file limit is usually 1,024.
DESCRIPTORS_MAX = 64


class _Opened:
    """Owns a descriptor; CPython's reference count closes it after the last holder."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound here: when a process ends, the module `os` may be gone before this object.
        if self.fd >= 0:
            close(self.fd)


class Descriptors:
    """A bounded cache of read-only descriptors for the files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened: LruCache[str, _Opened] = LruCache(DESCRIPTORS_MAX)

    @contextmanager
    def open(self, name: str) -> Iterator[int]:
        """A descriptor of the file, valid inside the block. Raises OSError."""
        with self._lock:
            opened = self._opened.get(name)
        if opened is None:
            opened = _Opened(self._folder / name)
            with self._lock:
                self._opened.keep(name, opened)
        yield opened.fd

    def forget(self, name: str) -> None:
        """Drops a file that was removed."""
        with self._lock:
            self._opened.drop(name)

    def drop(self) -> None:
        """Drops all files and their clean pages, so that they are read from the disk again."""
        with self._lock:
            for opened in self._opened.values():
                os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._opened.clear()

    def close(self) -> None:
        """Drops all files."""
        with self._lock:
            self._opened.clear()
