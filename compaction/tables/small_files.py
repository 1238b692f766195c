"""Which small files a run should rewrite. A pure function.

Rows that arrive late, and topics with little traffic, leave small files. When enough of one table
and day have gathered they join the next run's shuffle and become one. A file is rewritten a few
times at most: each time it comes out larger, and from ``small_bytes`` on it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.tables.names import day_of_file
from ledger.lake.types import LakeFile

SMALL_BYTES = 32 * 1024 * 1024
GATHERED_MIN = 8
# What one table may add to a run. A run's memory is bound by its tasks, this bounds its time.
REWRITE_BYTES_MAX = 1024 * 1024 * 1024


def files_to_rewrite(
    files: Iterable[LakeFile],
    *,
    small_bytes: int = SMALL_BYTES,
    gathered_min: int = GATHERED_MIN,
    bytes_max: int = REWRITE_BYTES_MAX,
) -> list[str]:
    """Paths of live small files of one table, of days on which ``gathered_min`` have gathered.

    Oldest days first, within a day the smallest files first, at most ``bytes_max`` together; of a
    day never one file alone. Files whose path names no day are not ours to judge.
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
