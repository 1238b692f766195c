"""Files and folders that only this user reads, whatever the umask of the process.

Whatever Headgate stores is made through this module; files of former versions are put right by
``close_to_others``, which the owner of a directory calls when it starts.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

FILE = 0o600
FOLDER = 0o700
OTHERS = 0o077


def opener(path: str, flags: int) -> int:
    """For ``open``: a new file is private."""
    return os.open(path, flags, FILE)


def make_file(path: Path) -> None:
    """Makes an empty file if it does not exist, for a library that opens it next, and says better
    than this function why it cannot."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE))


def signature(path: Path, *, follow_link: bool) -> object:
    """What changes when a file does, or why it cannot be looked at."""
    try:
        status = os.stat(path, follow_symlinks=follow_link)
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode, status.st_uid


def make_folders(path: Path) -> list[Path]:
    """Makes a folder and its parents if they do not exist; returns those made. Raises OSError."""
    made = []
    for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
        try:
            folder.mkdir(FOLDER)
        except FileExistsError:
            if not folder.is_dir():
                raise
        made.append(folder)
    if not path.is_dir():
        raise NotADirectoryError(20, "not a folder", str(path))
    return made


def close_to_others(root: Path, ours: tuple[str, ...]) -> int:
    """Takes the rights of others from what is in a folder and has a name that begins as one of
    ``ours``, at any depth, and from the folder, unless it holds other things too; returns how many
    had some. A folder that is private already hides what is in it, so it is not looked into. What
    another user owns, and links, stay as they are. Raises OSError."""
    if not root.is_dir() or not root.stat().st_mode & OTHERS:
        return 0
    names = os.listdir(root)
    found = [name for name in names if name.startswith(ours)]
    closed = sum(_close(root / name) for name in found)
    return closed + (_closed(root, root.stat()) if len(found) == len(names) else 0)


def _close(path: Path) -> int:
    status = path.lstat()
    closed = 0
    if stat.S_ISDIR(status.st_mode) and status.st_mode & OTHERS:
        # The folder last: if this is interrupted, the next call looks into it again.
        with os.scandir(path) as entries:
            closed = sum(_close(Path(entry.path)) for entry in entries)
    elif not stat.S_ISREG(status.st_mode):
        return 0
    return closed + _closed(path, status)


def _closed(path: Path, status: os.stat_result) -> int:
    if not status.st_mode & OTHERS or status.st_uid != os.geteuid():
        return 0
    path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)
    return 1
