"""The bytes of a source as they lie there: a file, or a pipe.

A source with an *identity* can be found again later: it has a cursor. For a file that is the device
and the inode, so it survives a rename; or its path, for file systems that number their files anew.
A pipe has no identity.

A file may change while it is read. ``verify`` is to be called after a read and before what was read
is used: it raises SourceChanged if the file became shorter than what was read of it, or if its
first KiB changed. A change that leaves both as they were cannot be noticed.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

from commands.importing.reading.problems import SourceChanged, SourceMissing, SourceProblem

HEAD_BYTES = 1024
LINGER_S = 0.05  # a pipe without bytes for this long makes a pause
_STREAMS = (stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK)


class FileVersion(NamedTuple):
    """What changes when a file is written to, unless its writer hides it."""

    size: int
    modified_us: int


class RawSource(Protocol):
    """Bytes that are read once, from front to back. Used by one thread."""

    name: str
    identity: str | None  # None: it cannot be found again
    can_seek: bool
    may_grow: bool  # and otherwise change
    position: int  # how much was read or passed

    def location(self) -> str:
        """Where it lies now: the path of a file, also after it was renamed, or a URL."""
        ...

    def size(self) -> int | None:
        """How many bytes there are now; None if that is not known."""
        ...

    def version(self) -> FileVersion | None:
        """The version of a file; None if it was written to since it was opened."""
        ...

    def read(self, count: int) -> bytes | None:
        """At most ``count`` bytes; none at the end, None if nothing comes for a while."""
        ...

    def seek(self, position: int) -> None:
        """Reads on from there; only if ``can_seek``."""
        ...

    def verify(self) -> None:
        """Raises SourceChanged."""
        ...

    def close(self) -> None: ...


class LocalFile:
    """A regular file."""

    can_seek: bool = True
    may_grow: bool = True

    def __init__(self, path: str, *, by_path: bool = False) -> None:
        self.name = shown(path)
        self._file = _opened(path)
        status = os.fstat(self._file)
        self.inode = (status.st_dev, status.st_ino)
        self.changed_ns = status.st_ctime_ns  # of the inode, when it was opened
        self._version = _version_of(status)
        self.identity: str | None = (
            f"path\0{Path(path).resolve()}"
            if by_path
            else f"file\0{status.st_dev}\0{status.st_ino}"
        )
        self.position = 0
        self._head = b""

    def location(self) -> str:
        try:
            return shown(os.readlink(f"/proc/self/fd/{self._file}"))
        except OSError:
            return self.name  # without /proc

    def size(self) -> int | None:
        return self._status().st_size

    def version(self) -> FileVersion | None:
        return self._version if _version_of(self._status()) == self._version else None

    def read(self, count: int) -> bytes | None:
        data = self._bytes_at(self.position, count)
        self.position += len(data)
        return data

    def seek(self, position: int) -> None:
        self.position = position

    def verify(self) -> None:
        size = self._status().st_size
        if size < self.position:
            raise SourceChanged(
                f"has {size:,} bytes, and {self.position:,} were read of it: it was truncated or"
                " written anew"
            )
        head = self._bytes_at(0, HEAD_BYTES)
        if not head.startswith(self._head):
            raise SourceChanged("was written anew while it was read: its first KiB changed")
        self._head = head

    def _status(self) -> os.stat_result:
        try:
            return os.fstat(self._file)
        except OSError as error:
            raise _unreadable(error) from error

    def _bytes_at(self, position: int, count: int) -> bytes:
        try:
            return os.pread(self._file, count, position)
        except OSError as error:
            raise _unreadable(error) from error

    def close(self) -> None:
        os.close(self._file)


class Pipe:
    """What another program writes."""

    can_seek: bool = False
    may_grow: bool = False
    identity: str | None = None

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.position = 0
        self._descriptor = descriptor

    def location(self) -> str:
        return self.name

    def size(self) -> int | None:
        return None

    def version(self) -> FileVersion | None:
        return None

    def read(self, count: int) -> bytes | None:
        ready, _, _ = select.select([self._descriptor], [], [], LINGER_S)
        if not ready:
            return None
        try:
            data = os.read(self._descriptor, count)
        except OSError as error:
            raise _unreadable(error) from error
        self.position += len(data)
        return data

    def seek(self, position: int) -> None:
        raise ValueError("a pipe is read from front to back")

    def verify(self) -> None:
        """What was read cannot change."""

    def close(self) -> None:
        if self._descriptor > 2:
            os.close(self._descriptor)


def _version_of(status: os.stat_result) -> FileVersion:
    return FileVersion(status.st_size, max(0, status.st_mtime_ns // 1_000))


def shown(path: str) -> str:
    """A path as text: bytes in it that are not UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def open_local(path: str, *, by_path: bool = False) -> RawSource:
    """A file or a pipe; ``-`` is stdin. Raises SourceProblem."""
    if path == "-":
        # As a file, if it is one, so that it has an identity.
        regular = stat.S_ISREG(os.fstat(0).st_mode)
        return LocalFile("/proc/self/fd/0") if regular else Pipe("stdin", 0)
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise _missing(path, error) from error
    if kind == stat.S_IFDIR:
        raise SourceMissing("is a directory", hint=f"'{path.rstrip('/')}/*' names its files")
    if kind in _STREAMS:
        return Pipe(shown(path), os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return LocalFile(path, by_path=by_path)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _missing(path, error) from error


def _unreadable(error: OSError) -> SourceProblem:
    return SourceProblem(f"cannot be read: {error.strerror}")


def _missing(path: str, error: Exception) -> SourceMissing:
    match error:
        case FileNotFoundError():
            return SourceMissing("does not exist")
        case PermissionError():
            return SourceMissing("cannot be opened: permission denied")
    return SourceMissing(f"cannot be opened: {getattr(error, 'strerror', None) or error}")
