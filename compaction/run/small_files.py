"""Which files a run rewrites: small ones join new rows, larger ones are merged. Pure functions.

Late records and topics with little traffic leave small files. When a day of a table has enough of
them, they join the next run and become one file. A file is rewritten a few times at most, because
the result is larger each time, and files of ``small_bytes`` or more are left alone.

At volume a task is cut by the bytes of L0 that it holds, of several topics, which compress to a
quarter; its files are below the target. As soon as those of a day make a file of the target, they
are merged into one, so each row is written once more than it has to be.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.tables.names import day_of_file
from ledger.lake.types import LakeFile

SMALL_BYTES = 32 * 1024 * 1024
GATHERED_MIN = 8
TARGET_BYTES = 128 * 1024 * 1024  # a file this large stays as it is
# A merge is written as one file: rows that are sorted together may compress a little worse.
MERGED_BYTES_MAX = 448 * 1024 * 1024
MERGED_FILES_MAX = 16  # a merge holds a row group of each: 16 MiB
# Limits what one table adds to the time of a run; tasks limit its memory.
REWRITE_BYTES_MAX = 1024 * 1024 * 1024


def files_to_rewrite(
    files: Iterable[LakeFile],
    *,
    small_bytes: int = SMALL_BYTES,
    gathered_min: int = GATHERED_MIN,
    bytes_max: int = REWRITE_BYTES_MAX,
) -> list[str]:
    """Paths of small live files of one table, of days that have at least ``gathered_min`` of them.

    Oldest days first, within a day the smallest files first, at most ``bytes_max`` in total, and at
    least two files of a day. Files without a day in their path are left alone.
    """
    by_day: dict[str, list[LakeFile]] = {}
    for file in files:
        day = day_of_file(file.path)
        if file.dropped_ms is None and file.size_bytes < small_bytes and day is not None:
            by_day.setdefault(day, []).append(file)
    chosen: list[str] = []
    left = bytes_max
    for _, gathered in sorted(by_day.items()):
        if len(gathered) < max(gathered_min, 2):
            continue
        taken = []
        for file in sorted(gathered, key=lambda each: (each.size_bytes, each.path)):
            if file.size_bytes > left:
                break
            left -= file.size_bytes
            taken.append(file.path)
        if len(taken) > 1:
            chosen += taken
    return chosen


def files_to_merge(
    files: Iterable[LakeFile],
    *,
    target_bytes: int = TARGET_BYTES,
    merged_bytes_max: int = MERGED_BYTES_MAX,
    files_max: int = MERGED_FILES_MAX,
    bytes_max: int = REWRITE_BYTES_MAX,
) -> list[list[str]]:
    """Sets of paths of live files below the target, each of which becomes one file of at least the
    target. A set is of one day and of runs that followed each other. At most ``bytes_max`` in
    total, the oldest days first."""
    by_day: dict[str, list[LakeFile]] = {}
    for file in files:
        day = day_of_file(file.path)
        if file.dropped_ms is None and file.size_bytes < target_bytes and day is not None:
            by_day.setdefault(day, []).append(file)
    chosen: list[list[str]] = []
    left = bytes_max
    for _, of_day in sorted(by_day.items()):
        sets: list[list[LakeFile]] = [[]]
        for file in sorted(of_day, key=lambda each: each.path):  # the run's id begins with its time
            if len(sets[-1]) == files_max or _size(sets[-1]) + file.size_bytes > merged_bytes_max:
                sets.append([])
            sets[-1].append(file)
        for some in sets:
            if len(some) > 1 and target_bytes <= _size(some) <= left:
                chosen.append([each.path for each in some])
                left -= _size(some)
    return chosen


def _size(files: Iterable[LakeFile]) -> int:
    return sum(each.size_bytes for each in files)
