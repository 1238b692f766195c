"""Bytes of the lake's files, and what can be wrong with them.

A *fetch* reads a range of one file. What the store answers badly is a StoreError, as for objects
of L0; bytes that are not there are LakeFileDamaged. pyarrow is imported at the first fetch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from uploader.stores.base import ObjectMissing, StoreError

if TYPE_CHECKING:
    from compaction.place import Place

IO_THREADS = 1  # of pyarrow itself; its callers have threads of their own
_REFUSALS = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "NO_SUCH_BUCKET")


class LakeFileDamaged(Exception):
    """A file of the lake is not what it should be: which one, and what was found in it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}; `headgate check` tells what else is damaged, and the table's"
            " former snapshots may still hold the rows"
        )
        self.path = path


class _Opened(NamedTuple):
    filesystem: Any
    file: Any


def fetcher(place: Place, path: str) -> Callable[[int, int], bytes]:
    """``fetch(start, length)`` of a file. Raises StoreError, ObjectMissing, LakeFileDamaged.

    Of S3 the opened file is kept, for opening costs a HEAD; of a directory it is not, for a
    descriptor would keep the blocks of a file that was deleted.
    """
    kept: list[_Opened] = []
    lock = threading.Lock()

    def fetch(start: int, length: int) -> bytes:
        filesystem, _ = place.filesystem()
        try:
            if path.startswith("file://"):
                with filesystem.open_input_file(place.path_of(path)) as file:
                    data = file.read_at(length, start)
            else:
                with lock:
                    # Keys that expired come with another file system.
                    if not kept or kept[0].filesystem is not filesystem:
                        file = filesystem.open_input_file(place.path_of(path))
                        kept[:] = [_Opened(filesystem, file)]
                    file = kept[0].file
                data = file.read_at(length, start)
        except (OSError, ValueError) as error:
            raise _store_error(path, error) from error
        if len(data) != length:
            raise LakeFileDamaged(
                path, f"bytes {start} to {start + length} were asked for, {len(data)} came"
            )
        return bytes(data)

    return fetch


def _store_error(path: str, error: OSError | ValueError) -> StoreError:
    text = str(error)
    if isinstance(error, FileNotFoundError) or "NO_SUCH_KEY" in text:
        return ObjectMissing(f"there is no file {path}")
    refused = isinstance(error, ValueError | PermissionError) or any(w in text for w in _REFUSALS)
    return StoreError(f"reading {path} failed: {text}", retryable=not refused)


@functools.cache
def keep_pyarrow_small() -> None:
    """For a daemon: one thread of its own for each kind of work. Ours are enough, and counted."""
    import pyarrow as pa

    pa.set_io_thread_count(IO_THREADS)
    pa.set_cpu_count(1)


class Window:
    """A file of which one range has been fetched, as pyarrow's Parquet reader takes files."""

    closed = False

    def __init__(self, data: bytes, start: int) -> None:
        self._data = memoryview(data)
        self._start = start
        self._position = 0

    def seek(self, position: int, whence: int = 0) -> int:
        end = self._start + len(self._data)
        self._position = position + (0, self._position, end)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> memoryview:
        first = self._position - self._start
        if first < 0:
            raise OSError(f"byte {self._position} was not fetched, the range is {self._start} on")
        found = self._data[first:] if count < 0 else self._data[first : first + count]
        self._position += len(found)
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
