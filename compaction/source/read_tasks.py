"""Cuts a plan into read tasks of about equal bytes, one for each Spark task. Pure.

A task reads an *offset range* of a partition from all files that have rows of it, because files of
several days may interleave; from the extents of L0, of which rows outside the range are left out;
or through the daemon's ``diff``.

What a task reads of one partition has ascending offsets, and each offset is in exactly one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import TypeVar

from msgspec import Struct

from compaction.inputs.objects import TaskExtent, TaskObject
from compaction.source.errors import DataLoss
from compaction.source.plan import RECOVERY
from compaction.source.schemas import Plan, PlanFile, PlanObject, PlanPartition, PlanRange
from ledger.lake.types import FileRange, LakeRange

T = TypeVar("T")
EVER_AFTER_MS = 1 << 62
RANGE_BYTES_MIN = 1 << 20  # ranges are not cut smaller, because each reads whole row groups


class OffsetRange(Struct, frozen=True, array_like=True):
    """Offsets [start, stop) of a partition."""

    topic_id: int
    partition: int
    start: int
    stop: int


class CompactedRange(Struct, frozen=True, array_like=True):
    """Compacted offsets, and the files that have their rows."""

    offsets: OffsetRange
    files: tuple[FileRange, ...]


class ReadTask(Struct, frozen=True):
    """What one Spark task reads, under the lease ``plan``. ``topics`` are names by id.

    ``compacted`` is read from files, ``uncompacted`` from ``objects``, ``through_diff`` by asking
    the daemon.
    """

    plan: str
    topics: dict[int, str]
    compacted: tuple[CompactedRange, ...] = ()
    objects: tuple[TaskObject, ...] = ()
    uncompacted: tuple[OffsetRange, ...] = ()
    through_diff: tuple[OffsetRange, ...] = ()


_REASONS = {
    "cap": "they were evicted, because the topic was over its cap",
    "ttl": "they were evicted, because their time to live was over",
    "trim": "they were trimmed",
    "quarantined": "their object is damaged and in quarantine",
}


def losses(plan: Plan) -> list[DataLoss]:
    """Requested offsets that cannot be read, except gaps of a recovery, which never had records."""
    found = [
        DataLoss(h.topic, h.partition, h.first_offset, h.last_offset,
             _REASONS.get(h.reason, h.reason))
        for h in plan.holes
        if h.reason != RECOVERY
    ]  # fmt: skip
    return found + list(_uncovered(plan))


def _uncovered(plan: Plan) -> Iterator[DataLoss]:
    """Offsets that the plan should cover, and that no file or extent of it has."""
    held: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for hole in plan.holes:
        key = (hole.topic_id, hole.partition)
        held.setdefault(key, []).append((hole.first_offset, hole.last_offset))
    bounds = {(p.topic_id, p.partition): p.compacted_seq for p in plan.partitions}
    for file in plan.files:
        for one in file.ranges:
            key = (file.topic_id, one.partition)
            held.setdefault(key, []).append(
                (one.first_offset, min(one.last_offset, bounds.get(key, 0)))
            )
    for each in plan.objects:
        for extent in each.extents:
            key = (extent.topic_id, extent.partition)
            held.setdefault(key, []).append((extent.first_offset, extent.last_offset))
    for part in plan.partitions:
        next_wanted = part.from_
        for first, last in sorted(held.get((part.topic_id, part.partition), ())):
            if next_wanted >= part.to:
                break
            if first > next_wanted:
                yield _unknown(part, next_wanted, min(first, part.to) - 1)
            next_wanted = max(next_wanted, last + 1)
        if next_wanted < part.to:
            yield _unknown(part, next_wanted, part.to - 1)


def _unknown(part: PlanPartition, first: int, last: int) -> DataLoss:
    return DataLoss(
        part.topic, part.partition, first, last,
        "the ledger has no object or file with them; run `headgate check`",
    )  # fmt: skip


def tasks_of(
    plan: Plan, *, bytes_max: int, tasks_min: int = 1, through_diff: bool = False
) -> list[ReadTask]:
    """The plan's tasks, each of at most about ``bytes_max`` bytes in L0; a larger object is a task
    of its own. There are at least ``tasks_min``, unless there is too little to cut."""
    topics = {part.topic_id: part.topic for part in plan.partitions}
    parts = {(part.topic_id, part.partition): part for part in plan.partitions}
    objects = list(_objects(plan.objects))
    clusters = list(_clusters(plan.files, parts))
    total = sum(size for _, size in objects) + sum(size for _, size in clusters)
    target = max(1, min(bytes_max, ceil(total / tasks_min)))
    if through_diff:
        sizes: dict[tuple[int, int], int] = {}
        for each, size in clusters:
            key = (each.offsets.topic_id, each.offsets.partition)
            sizes[key] = sizes.get(key, 0) + size
        for object_, _ in objects:
            for extent in object_.extents:
                key = (extent.group, extent.partition)
                sizes[key] = sizes.get(key, 0) + extent.byte_length
        ranges = [
            part_of
            for key, part in parts.items()
            if part.from_ < part.to
            for part_of in _cut(OffsetRange(*key, part.from_, part.to), sizes.get(key, 0), target)
        ]
        return [ReadTask(plan.plan, topics, through_diff=some) for some in _packed(ranges, target)]
    compacted = [
        (CompactedRange(offsets, each.files), part_size)
        for each, size in clusters
        for offsets, part_size in _cut(each.offsets, size, target)
    ]
    tasks = [ReadTask(plan.plan, topics, compacted=some) for some in _packed(compacted, target)]
    uncompacted = tuple(
        OffsetRange(part.topic_id, part.partition, max(part.from_, part.compacted_seq + 1), part.to)
        for part in plan.partitions
        if max(part.from_, part.compacted_seq + 1) < part.to
    )
    for some in _packed(objects, target):
        held = {(extent.group, extent.partition) for each in some for extent in each.extents}
        wanted = tuple(each for each in uncompacted if (each.topic_id, each.partition) in held)
        tasks.append(ReadTask(plan.plan, topics, objects=some, uncompacted=wanted))
    return tasks


def _objects(objects: Iterable[PlanObject]) -> Iterator[tuple[TaskObject, int]]:
    for each in objects:
        extents = tuple(
            TaskExtent(
                extent.topic_id, extent.partition, extent.first_offset, extent.last_offset,
                extent.byte_start, extent.byte_length, extent.crc32c, extent.voids,
            )
            for extent in sorted(each.extents, key=lambda extent: extent.byte_start)
        )  # fmt: skip
        size = sum(extent.byte_length for extent in extents)
        yield TaskObject(each.key, each.locator, each.size_bytes, extents), size


def _clusters(
    plan_files: Iterable[PlanFile], parts: dict[tuple[int, int], PlanPartition]
) -> Iterator[tuple[CompactedRange, int]]:
    """Ranges whose files interleave, and their sizes, by partition and offset."""
    by_partition: dict[tuple[int, int], list[tuple[PlanRange, PlanFile]]] = {}
    for file in plan_files:
        for one in file.ranges:
            key = (file.topic_id, one.partition)
            by_partition.setdefault(key, []).append((one, file))
    for key in sorted(by_partition):
        part = parts.get(key)
        if part is None:
            continue
        low, high = part.from_, min(part.to, part.compacted_seq + 1)
        held = sorted(by_partition[key], key=lambda pair: pair[0].first_offset)
        start = stop = 0
        files: list[FileRange] = []
        size = 0
        for one, file in held:
            first, end = max(one.first_offset, low), min(one.last_offset + 1, high)
            if first >= end:
                continue
            if files and first >= stop:
                yield CompactedRange(OffsetRange(*key, start, stop), tuple(files)), size
                files, size = [], 0
            if not files:
                start = stop = first
            stop = max(stop, end)
            files.append(_range_of(file, one))
            length = one.last_offset + 1 - one.first_offset
            size += one.bytes * (end - first) // length
        if files:
            yield CompactedRange(OffsetRange(*key, start, stop), tuple(files)), size


def _range_of(file: PlanFile, one: PlanRange) -> FileRange:
    """As in the ledger, except for fields that a bulk read does not use."""
    known = LakeRange(
        one.partition, one.first_offset, one.last_offset, one.rows, one.bytes, 0, EVER_AFTER_MS
    )
    return FileRange(0, file.path, file.size_bytes, known)


def _cut(offsets: OffsetRange, size: int, target: int) -> list[tuple[OffsetRange, int]]:
    """The range in parts of at most about ``target`` bytes, and their sizes."""
    length = offsets.stop - offsets.start
    count = max(1, min(length, ceil(size / max(target, RANGE_BYTES_MIN))))
    edges = [offsets.start + length * index // count for index in range(count + 1)]
    return [
        (OffsetRange(offsets.topic_id, offsets.partition, first, last), size // count)
        for first, last in pairwise(edges)
    ]


def _packed(items: Sequence[tuple[T, int]], target: int) -> Iterator[tuple[T, ...]]:
    """Groups of consecutive items, of at most the target each."""
    pack: list[T] = []
    filled = 0
    for item, size in items:
        if pack and filled + size > target:
            yield tuple(pack)
            pack, filled = [], 0
        pack.append(item)
        filled += size
    if pack:
        yield tuple(pack)
