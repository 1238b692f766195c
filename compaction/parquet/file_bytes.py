"""Reads byte ranges of the lake's files.

If the store fails, that is a StoreError, as for objects of L0. If bytes are missing, that is
LakeFileDamaged. pyarrow is imported at the first read.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from compaction.inputs.place import permission_hint
from uploader.stores.base import ObjectMissing, StoreError

if TYPE_CHECKING:
    from compaction.inputs.place import Place

IO_THREADS = 1  # of pyarrow; its callers have threads of their own
_REFUSALS = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "NO_SUCH_BUCKET")


class LakeFileDamaged(Exception):
    """A file of the lake is not as it should be: which one, and what was found."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}; `headgate check` lists what else is damaged, and earlier snapshots"
            " of the table may still hold the rows"
        )
        self.path = path


class _Opened(NamedTuple):
    filesystem: Any
    file: Any


def fetcher(place: Place, path: str) -> Callable[[int, int], bytes]:
    """A function ``fetch(start, length)`` for one file. The function raises StoreError,
    ObjectMissing, LakeFileDamaged.

    A file on S3 stays open, because opening it costs a HEAD. A local file does not, because an open
    descriptor would keep the disk blocks of a deleted file.
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
                    # When keys expire, the place has another file system.
                    if not kept or kept[0].filesystem is not filesystem:
                        file = filesystem.open_input_file(place.path_of(path))
                        kept[:] = [_Opened(filesystem, file)]
                    file = kept[0].file
                data = file.read_at(length, start)
        except (OSError, ValueError) as error:
            raise _store_error(path, error) from error
        if len(data) != length:
            raise LakeFileDamaged(
                path, f"it has only {len(data)} of the bytes {start} to {start + length}"
            )
        return bytes(data)

    return fetch


def _store_error(path: str, error: OSError | ValueError) -> StoreError:
    text = str(error)
    if isinstance(error, FileNotFoundError) or "NO_SUCH_KEY" in text:
        return ObjectMissing(f"there is no file {path}")
    refused = isinstance(error, ValueError | PermissionError) or any(w in text for w in _REFUSALS)
    hint = permission_hint(text)
    return StoreError(f"reading {path} failed: {text}{hint and f'; {hint}'}", retryable=not refused)


@functools.cache
def keep_pyarrow_small() -> None:
    """Limits pyarrow to one thread for each kind of work: a daemon has threads of its own."""
    import pyarrow as pa

    pa.set_io_thread_count(IO_THREADS)
    pa.set_cpu_count(1)


class Window:
    """A file of which one range has been read, in the form that pyarrow's Parquet reader needs."""

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
            raise OSError(f"byte {self._position} was not read; the range begins at {self._start}")
        found = self._data[first:] if count < 0 else self._data[first : first + count]
        self._position += len(found)
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
