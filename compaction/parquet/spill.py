"""Keeps rows of many days in a local file, sorted by day, until their files are written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

from ledger.lake.types import LakeRange

SPILL_BYTES = 32 << 20  # rows that are gathered in memory and written day by day


def local_file(prefix: str) -> IO[bytes]:
    """A file without a name, in Spark's local directory if there is one, else in the temporary one.
    It is gone when the process ends."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if not os.path.isdir(folder):
        folder = tempfile.gettempdir()
    return tempfile.TemporaryFile(prefix=prefix, dir=folder)


class Spill:
    """Rows of many days, in a file that has no name and is gone when this object is closed."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file = local_file("headgate-days-")
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), schema)
        self._waiting: dict[int, list[tuple[pa.Table, list[LakeRange]]]] = {}
        self._waiting_bytes = 0
        self._batches = 0
        self._places: dict[int, list[tuple[int, list[LakeRange]]]] = {}

    def add(self, day: int, rows: pa.Table, ranges: list[LakeRange]) -> None:
        self._waiting.setdefault(day, []).append((rows, ranges))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= SPILL_BYTES:
            self._write()

    def _write(self) -> None:
        for day, parts in self._waiting.items():
            rows = pa.concat_tables([part for part, _ in parts]).combine_chunks()
            ranges = [each for _, some in parts for each in some]
            for batch in rows.to_batches():
                self._writer.write_batch(batch)
                self._places.setdefault(day, []).append((self._batches, ranges))
                self._batches += 1
                ranges = []
        self._waiting.clear()
        self._waiting_bytes = 0

    def days(self) -> Iterator[tuple[int, Iterator[tuple[pa.Table, list[LakeRange]]]]]:
        """Each day with its rows in their order."""
        self._write()
        self._writer.close()
        self._file.flush()
        reader = pa.ipc.open_file(pa.PythonFile(self._file, mode="r"))
        for day in sorted(self._places):
            yield (
                day,
                (
                    (pa.Table.from_batches([reader.get_batch(index)]), ranges)
                    for index, ranges in self._places[day]
                ),
            )

    def close(self) -> None:
        self._file.close()
