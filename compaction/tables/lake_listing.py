"""Lists and removes files of the lake: a directory tree, or keys of a bucket.

S3 goes through the one S3 store (LIST of 1,000 keys, DELETE of 1,000 keys); pyarrow would ask for
each file twice and leave markers for folders. Requests are counted as S3 bills them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct

from compaction.inputs.place import Place
from ledger.lake.catalog import is_below
from uploader.stores.counted import CountedStore, Requests

DELETE_BATCH = 1_000


class FoundFile(Struct, frozen=True):
    """A file of the lake; ``modified_ms`` by the store's clock."""

    location: str
    size_bytes: int
    modified_ms: int


class LakeListing:
    """The files below a place's lake. Used by one thread; errors are StoreError and OSError."""

    def __init__(self, place: Place) -> None:
        self._lake = place.lake
        self._store: CountedStore | None = None
        self._local = Requests()
        if self._lake.startswith("s3://"):
            self._store = CountedStore(place.open_lake())

    @property
    def requests(self) -> Requests:
        """What was asked so far."""
        return self._local if self._store is None else self._store.requests

    def close(self) -> None:
        """Ends connections."""
        if self._store is not None:
            self._store.close()

    def below(self, folder: str) -> Iterator[FoundFile]:
        """Files below ``folder``, a location within the lake, at any depth. None: no files."""
        inside = self._inside(folder).rstrip("/") + "/"
        if self._store is None:
            yield from _walk(f"{self._path}/{inside}".rstrip("/"))
            return
        for head in self._store.list(inside):
            yield FoundFile(f"{self._lake}/{head.key}", head.size_bytes, head.modified_ms)

    def remove(self, locations: Iterable[str]) -> int:
        """Removes files, and returns how many; one that is not there is no error."""
        names = [self._inside(location) for location in locations]
        if self._store is not None:
            for start in range(0, len(names), DELETE_BATCH):
                self._store.delete(names[start : start + DELETE_BATCH])
            return len(names)
        for name in names:
            path = f"{self._path}/{name}"
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
        return len(names)

    @property
    def _path(self) -> str:
        return self._lake.removeprefix("file://")

    def _inside(self, location: str) -> str:
        if not is_below(location, self._lake):
            raise ValueError(f"{location} is not below the lake {self._lake}")
        return location.removeprefix(f"{self._lake}/")


def _walk(folder: str) -> Iterator[FoundFile]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif entry.is_file(follow_symlinks=False):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield FoundFile(f"file://{entry.path}", status.st_size, status.st_mtime_ns // 1_000_000)
