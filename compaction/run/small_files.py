"""Which small files a run rewrites. A pure function.

Late records and topics with little traffic leave small files. When a day of a table has enough of
them, they join the next run and become one file. A file is rewritten a few times at most, because
the result is larger each time, and files of ``small_bytes`` or more are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.tables.names import day_of_file
from ledger.lake.types import LakeFile

SMALL_BYTES = 32 * 1024 * 1024
GATHERED_MIN = 8
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
