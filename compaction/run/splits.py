"""Runs: what each task of a compaction reads. Pure functions of the ledger's words.

Vocabulary: ``plan.py``. Runs are whole objects, consecutive in commit order, or, where that
spares a shuffle, the objects *split by topics*: an object's extents stand in the order of topics,
so each task reads one range of each object.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ledger.lake.types import PlannedObject
from ledger.types import Extent

MIB = 1 << 20
RUN_BYTES = 512 * MIB
RUN_BYTES_MIN = 32 * MIB
SMALL_BYTES = 32 * MIB  # a share below this would be a small file
GROUP_BYTES_MAX = 256 * MIB  # what a reducer holds in memory
# A GET costs a twelfth of the PUT that made the object: at 4 MiB, four are a third of it.
RANGE_BYTES_MIN = 1 * MIB
RANGE_BYTES_MIN_LOCAL = 128 * 1024  # a directory's reads cost nothing
SPLIT_SHARE_MAX = 1.25


class Limits(Struct, frozen=True):
    """Sizes that the plan keeps to; tests make them small."""

    run_bytes: int = RUN_BYTES
    run_bytes_min: int = RUN_BYTES_MIN
    small_bytes: int = SMALL_BYTES
    group_bytes_max: int = GROUP_BYTES_MAX
    range_bytes_min: int | None = None
    """By default what the store makes worth a request."""


Needed = Sequence[tuple[PlannedObject, list[Extent]]]
"""Objects with those of their extents that are read."""


def cut(sizes: Sequence[int], cores: int, limits: Limits) -> list[tuple[int, int]]:
    """Runs [start, end) of consecutive sizes of about equal sums; one at least each."""
    total = sum(sizes)
    if not sizes:
        return []
    most = limits.run_bytes * 9 // 8  # a little more is better than another round of tasks
    count = max(1, -(-total // most), min(cores, total // limits.run_bytes_min))
    # Whole rounds over the cores, as long as that makes no run too small.
    rounds = -(-count // cores) * cores
    if total // rounds >= limits.run_bytes_min:
        count = rounds
    runs: list[tuple[int, int]] = []
    start, size, done = 0, 0, 0
    for at, each in enumerate(sizes):
        # Cut where the run comes closest to its share of what is left.
        share = (total - done) / max(1, count - len(runs))
        if at > start and (size + each > most or size + each / 2 > share):
            runs.append((start, at))
            start, done, size = at, done + size, 0
        size += each
    runs.append((start, len(sizes)))
    return runs


def shares_of(runs: Sequence[Needed]) -> dict[int, dict[int, int]]:
    """By topic and run: bytes."""
    shares: dict[int, dict[int, int]] = {}
    for number, run in enumerate(runs):
        for _, extents in run:
            for extent in extents:
                of_topic = shares.setdefault(extent.topic_id, {})
                of_topic[number] = of_topic.get(number, 0) + extent.byte_length
    return shares


def small_runs(by_run: dict[int, int], limits: Limits) -> set[int]:
    """The runs in which a topic's share would be a small file."""
    return {number for number, size in by_run.items() if size < limits.small_bytes}


def to_shuffle(shares: dict[int, dict[int, int]], limits: Limits) -> int:
    """Bytes of small shares that would make several small files of a topic."""
    total = 0
    for by_run in shares.values():
        small = small_runs(by_run, limits)
        if len(small) > 1:
            total += sum(by_run[number] for number in small)
    return total


def split_by_topics(
    needed: Needed, shares: dict[int, dict[int, int]], cores: int, limits: Limits
) -> list[Needed] | None:
    """The objects split by topics, or None where that would be worse than a shuffle."""
    topic_ids = sorted(shares)
    sizes = [sum(shares[topic_id].values()) for topic_id in topic_ids]
    parts = cut(sizes, cores, limits)
    total = sum(sizes)
    range_bytes_min = RANGE_BYTES_MIN if limits.range_bytes_min is None else limits.range_bytes_min
    if total < range_bytes_min * len(needed) * len(parts):
        return None
    if max(sum(sizes[start:end]) for start, end in parts) * len(parts) > total * SPLIT_SHARE_MAX:
        return None
    found: list[Needed] = []
    for start, end in parts:
        first, last = topic_ids[start], topic_ids[end - 1]
        run = [
            (each, [extent for extent in extents if first <= extent.topic_id <= last])
            for each, extents in needed
        ]
        found.append([(each, extents) for each, extents in run if extents])
    return found
