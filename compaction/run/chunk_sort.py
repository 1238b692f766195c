"""Sorts the chunks of a reducer by key in little memory: keys in memory, bytes in a local file.

Spark's shuffle delivers chunks in any order. The first MEMORY_BYTES are kept in memory, the others
in a file without a name. Then the chunks are read back one at a time, in the order of their keys.
PySpark's own sorter pickles what it spills, compresses it with zlib, and checks its memory only
every few hundred elements, which have up to 1 MiB each here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import IO, Generic, NamedTuple, TypeVar

from compaction.parquet.spill import local_file

MEMORY_BYTES = 64 << 20

K = TypeVar("K", bound=tuple[int, ...])


class _Place(NamedTuple):
    start: int
    length: int


class ChunkSorter(Generic[K]):
    """Takes chunks in any order and returns them in the order of their keys."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._held: dict[tuple[K, int], bytes] = {}
        self._held_bytes = 0
        self._places: dict[tuple[K, int], _Place] = {}
        self._file: IO[bytes] | None = None
        self._end = 0
        self._count = 0

    def add(self, key: K, chunk: bytes) -> None:
        """Adds a chunk. Equal keys keep their order. Raises OSError if the disk is full."""
        unique = (key, self._count)
        self._count += 1
        if self._held_bytes + len(chunk) <= self._memory_bytes:
            self._held[unique] = chunk
            self._held_bytes += len(chunk)
            return
        if self._file is None:
            self._file = local_file("headgate-chunks-")
        self._file.write(chunk)
        self._places[unique] = _Place(self._end, len(chunk))
        self._end += len(chunk)

    def sorted(self) -> Iterator[tuple[K, bytes]]:
        """The chunks by key; each is dropped from memory when it is taken."""
        if self._file is not None:
            self._file.flush()
        for unique in sorted([*self._held, *self._places]):
            held = self._held.pop(unique, None)
            yield unique[0], self._read(self._places[unique]) if held is None else held

    def _read(self, place: _Place) -> bytes:
        assert self._file is not None
        chunk = os.pread(self._file.fileno(), place.length, place.start)
        if len(chunk) != place.length:
            raise OSError(f"the file of chunks ends {place.length - len(chunk)} bytes early")
        return chunk

    def close(self) -> None:
        """Removes the file."""
        self._held.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


def by_key(
    pairs: Iterable[tuple[K, bytes]], memory_bytes: int = MEMORY_BYTES
) -> Iterator[tuple[K, bytes]]:
    """All pairs, sorted by key."""
    with closing(ChunkSorter[K](memory_bytes)) as spool:
        for key, chunk in pairs:
            spool.add(key, chunk)
        yield from spool.sorted()
