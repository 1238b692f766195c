"""Objects of the embedded store that are put only if absent: one file each, by link(2).

A body is written to a temporary name, made durable, and linked to its final name. So a file with
that name is always complete, and of several writers one succeeds. The file name is the key, with
everything except letters, digits and ``_.-~`` as ``%XX``. Files that a crash left unfinished begin
with ``.new-``; ``tidy`` removes those whose flock is free.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from uploader.stores.base import ObjectHead, ObjectMissing
from uploader.stores.disk import failed, make_directory, read_count, sync_directory
from uploader.stores.segment import create_locked

UNFINISHED_PREFIX = ".new-"
FILE_NAME_BYTES_MAX = 255


def is_entry(locator: str) -> bool:
    """Whether a locator is that of an entry, which is its key; those of frames have colons."""
    return ":" not in locator


class Entries:
    """The entries in one folder. Used from any thread and process. Raises StoreError."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._url = url

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Makes the entry durably if its name is free."""
        target = self._path(key)
        try:
            make_directory(self.folder)
            unfinished = self.folder / f"{UNFINISHED_PREFIX}{secrets.token_hex(8)}"
            fd = create_locked(unfinished)
            try:
                rest = memoryview(body)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fsync(fd)
                made = _link(unfinished, target)
            finally:
                unfinished.unlink(missing_ok=True)
                os.close(fd)
            # Also if the name was taken: what the caller reads next must survive a loss of power.
            sync_directory(self.folder)
        except OSError as error:
            raise failed(f"put {key} into", self._url, error, outcome_unknown=True) from error
        return made

    def get(self, locator: str, start: int, length: int | None) -> bytes:
        """Bytes of an entry, as ObjectStore.get."""
        try:
            with self._path(locator).open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                count = read_count(locator, start, length, size_bytes)
                file.seek(start)
                return file.read(count)
        except FileNotFoundError as error:
            raise ObjectMissing(f"there is no object at {locator} in {self._url}") from error
        except OSError as error:
            raise failed(f"get {locator} from", self._url, error) from error

    def put_in_parts(self, key: str) -> EntryInParts:
        """Begins an entry of any size."""
        return EntryInParts(self.folder, self._path(key), key, self._url)

    def delete(self, locators: list[str]) -> None:
        """Removes entries durably. A missing entry is not an error."""
        try:
            for locator in locators:
                self._path(locator).unlink(missing_ok=True)
            if locators and self.folder.is_dir():
                sync_directory(self.folder)
        except OSError as error:
            raise failed("delete from", self._url, error) from error

    def heads(self) -> Iterator[ObjectHead]:
        """All entries, in any order."""
        try:
            with os.scandir(self.folder) as found:
                for entry in found:
                    if entry.name.startswith("."):
                        continue
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue  # deleted since its name was read
                    key = unquote(entry.name)
                    modified_ms = status.st_mtime_ns // 1_000_000
                    yield ObjectHead(key, key, status.st_size, modified_ms)
        except FileNotFoundError:
            return
        except OSError as error:
            raise failed("list", self._url, error) from error

    def tidy(self) -> None:
        """Removes the unfinished files of dead writers. Raises OSError."""
        for path in self.folder.glob(f"{UNFINISHED_PREFIX}*"):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:
                continue  # its writer lives
            finally:
                os.close(fd)

    def _path(self, key: str) -> Path:
        if not is_entry(key):
            raise ValueError(f"the key {key!r} must not contain a colon: locators of frames do")
        name = quote(key, safe="")
        if not 0 < len(name) <= FILE_NAME_BYTES_MAX or name.startswith("."):
            raise ValueError(
                f"the key {key!r} becomes a file name of {len(name)} bytes; it must have 1 to"
                f" {FILE_NAME_BYTES_MAX} bytes and not begin with a dot"
            )
        return self.folder / name


class EntryInParts:
    """An entry that is written part by part, as PartedPut."""

    def __init__(self, folder: Path, target: Path, key: str, url: str) -> None:
        self._folder = folder
        self._target = target
        self._key = key
        self._url = url
        self._unfinished = folder / f"{UNFINISHED_PREFIX}{secrets.token_hex(8)}"
        self._fd: int | None = None
        self._size_bytes = 0

    def put(self, part: bytes) -> None:
        """Adds a part durably, so that no sync has more than one part to write."""
        try:
            if self._fd is None:
                make_directory(self._folder)
                self._fd = create_locked(self._unfinished)
            written = 0
            while written < len(part):
                written += os.pwrite(
                    self._fd, memoryview(part)[written:], self._size_bytes + written
                )
            os.fdatasync(self._fd)
        except OSError as error:
            raise failed(f"put a part of {self._key} into", self._url, error) from error
        self._size_bytes += len(part)

    def finish(self) -> None:
        """Gives the entry its name, durably."""
        try:
            if self._fd is None:
                raise ValueError(f"{self._key} was finished without a part")
            os.fsync(self._fd)
            _link(self._unfinished, self._target)
            sync_directory(self._folder)
        except OSError as error:
            raise failed(f"put {self._key} into", self._url, error, outcome_unknown=True) from error
        self.abandon()

    def abandon(self) -> None:
        """Removes the temporary file."""
        if self._fd is None:
            return
        try:
            self._unfinished.unlink(missing_ok=True)
        except OSError as error:
            raise failed(f"give up {self._key} in", self._url, error) from error
        finally:
            os.close(self._fd)
            self._fd = None


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True
