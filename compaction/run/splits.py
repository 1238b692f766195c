"""Splits: what each task of a compaction reads. Pure functions of what the ledger says.

A *split* is the input of one task: whole objects, consecutive in commit order, or, if that avoids
a shuffle, one range of each object. The extents of an object are sorted by topic, so such a range
holds some topics whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ledger.lake.types import PlannedObject
from ledger.types import Extent

MIB = 1 << 20
SPLIT_BYTES = 512 * MIB
SPLIT_BYTES_MIN = 32 * MIB
SMALL_BYTES = 32 * MIB  # fewer bytes of a topic make a small file
GROUP_BYTES_MAX = 256 * MIB  # what a reducer holds in memory
# A GET costs a twelfth of the PUT that made the object: at 4 MiB, four are a third of it.
RANGE_BYTES_MIN = 1 * MIB
RANGE_BYTES_MIN_LOCAL = 128 * 1024  # reads of a directory cost nothing
LARGEST_SPLIT_RATIO_MAX = 1.25  # of the average


class SplitLimits(Struct, frozen=True):
    """Sizes that a plan keeps to; tests make them small."""

    split_bytes: int = SPLIT_BYTES
    split_bytes_min: int = SPLIT_BYTES_MIN
    small_bytes: int = SMALL_BYTES
    group_bytes_max: int = GROUP_BYTES_MAX
    range_bytes_min: int | None = None
    """Less than this is not worth a request; None: as the store charges."""


Split = Sequence[tuple[PlannedObject, list[Extent]]]
"""Objects, each with those of its extents that are read."""


def cut(sizes: Sequence[int], cores: int, limits: SplitLimits) -> list[tuple[int, int]]:
    """Ranges [start, end) of consecutive sizes with about equal sums, at least one size each."""
    total = sum(sizes)
    if not sizes:
        return []
    most = limits.split_bytes * 9 // 8  # a little more is better than another round of tasks
    count = max(1, -(-total // most), min(cores, total // limits.split_bytes_min))
    # Whole rounds over the cores, unless that makes splits too small.
    rounds = -(-count // cores) * cores
    if total // rounds >= limits.split_bytes_min:
        count = rounds
    found: list[tuple[int, int]] = []
    start, size, done = 0, 0, 0
    for at, each in enumerate(sizes):
        # Cut where the sum comes closest to an equal part of what is left.
        equal = (total - done) / max(1, count - len(found))
        if at > start and (size + each > most or size + each / 2 > equal):
            found.append((start, at))
            start, done, size = at, done + size, 0
        size += each
    found.append((start, len(sizes)))
    return found


def bytes_by_topic(splits: Sequence[Split]) -> dict[int, dict[int, int]]:
    """The bytes of each topic in each split: ``{topic id: {number of the split: bytes}}``."""
    found: dict[int, dict[int, int]] = {}
    for number, split in enumerate(splits):
        for _, extents in split:
            for extent in extents:
                of_topic = found.setdefault(extent.topic_id, {})
                of_topic[number] = of_topic.get(number, 0) + extent.byte_length
    return found


def small_in(by_split: dict[int, int], limits: SplitLimits) -> set[int]:
    """The splits in which a topic has so little that it would be a small file."""
    return {number for number, size in by_split.items() if size < limits.small_bytes}


def to_shuffle(by_topic: dict[int, dict[int, int]], limits: SplitLimits) -> int:
    """Bytes of topics that would become several small files."""
    total = 0
    for by_split in by_topic.values():
        small = small_in(by_split, limits)
        if len(small) > 1:
            total += sum(by_split[number] for number in small)
    return total


def splits_by_topic(
    needed: Split, by_topic: dict[int, dict[int, int]], cores: int, limits: SplitLimits
) -> list[Split] | None:
    """Splits of some topics each, or None if these would be worse than a shuffle."""
    topic_ids = sorted(by_topic)
    sizes = [sum(by_topic[topic_id].values()) for topic_id in topic_ids]
    parts = cut(sizes, cores, limits)
    total = sum(sizes)
    range_bytes_min = RANGE_BYTES_MIN if limits.range_bytes_min is None else limits.range_bytes_min
    if total < range_bytes_min * len(needed) * len(parts):
        return None
    largest = max(sum(sizes[start:end]) for start, end in parts)
    if largest * len(parts) > total * LARGEST_SPLIT_RATIO_MAX:
        return None
    found: list[Split] = []
    for start, end in parts:
        first, last = topic_ids[start], topic_ids[end - 1]
        split = [
            (each, [extent for extent in extents if first <= extent.topic_id <= last])
            for each, extents in needed
        ]
        found.append([(each, extents) for each, extents in split if extents])
    return found
