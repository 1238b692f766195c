"""What both halves of the embedded store need: durable names in directories, clear errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ledger.private_files import FILE, make_folders
from uploader.stores.base import StoreError, StoreRefused

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_TRY_S = 0.02
FULL = (errno.ENOSPC, errno.EDQUOT)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_private(path: Path, data: bytes) -> None:
    """Replaces a file that only this user may read: after a kill or a loss of power it is the old
    one or the new one. Callers that read it first hold ``locked``. Raises OSError."""
    unfinished = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(unfinished, flags, FILE)
    with open(fd, "wb") as file:
        os.fchmod(fd, FILE)
        file.write(data)
        file.flush()
        os.fsync(fd)
    unfinished.replace(path)
    sync_directory(path.parent)


@contextlib.contextmanager
def locked(path: Path, wait_s: float | None = None) -> Iterator[None]:
    """Holds the lock of this file, alone on this machine. Raises OSError, a BlockingIOError if
    another process has it for ``wait_s``."""
    fd = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, FILE)
    try:
        if wait_s is None:
            fcntl.flock(fd, fcntl.LOCK_EX)
        else:
            _lock_soon(fd, round(wait_s / _TRY_S))
        yield
    finally:
        os.close(fd)


def _lock_soon(fd: int, tries: int) -> None:
    for _ in range(tries):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_TRY_S)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def make_directory(path: Path) -> None:
    """Makes a directory and its parents durably if they do not exist. Raises OSError."""
    if path.is_dir():
        return
    for folder in make_folders(path):
        sync_directory(folder.parent)


def settle_directory(path: Path) -> None:
    """Makes a directory, and makes every name on the way to it durable: a process may have been
    killed after making a directory and before syncing its parent. Raises OSError."""
    make_folders(path)
    for folder in path.parents:
        if not os.access(folder, os.R_OK | os.W_OK):
            break  # its entries were made by a user with more rights
        sync_directory(folder)


def failed(what: str, url: str, error: OSError, *, outcome_unknown: bool = False) -> StoreError:
    """The StoreError for an OSError: refused for missing rights, otherwise retryable."""
    if error.errno in _FORBIDDEN:
        return StoreRefused(
            f"cannot {what} {url}: {error}; it must be a directory that the user who runs"
            " headgate may write to"
        )
    hint = "; free some space there, and the call is repeated" if error.errno in FULL else ""
    return StoreError(
        f"cannot {what} {url}: {error}{hint}", retryable=True, outcome_unknown=outcome_unknown
    )


def read_count(locator: str, start: int, length: int | None, size: int) -> int:
    """How many bytes a range read returns: up to the object's end, as in S3. Raises StoreError."""
    if start < 0 or (length is not None and length < 0):
        raise ValueError(f"start {start} and length {length} must not be negative")
    if start > size or (start == size > 0 and length != 0):
        raise StoreError(
            f"{locator} has {size} bytes; cannot read from byte {start}", retryable=False
        )
    return size - start if length is None else min(length, size - start)
