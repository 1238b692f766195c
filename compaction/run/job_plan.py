"""Which task reads what and writes what: a pure function of what the ledger says.

A *split* is what one task reads (``splits.py``). A *file group* is what is written together
(``file_groups.py``): a *local* group by the task that has read it, a *shuffled* group by a
*reducer*, which gets its extents from several splits.

Splits are whole objects, consecutive in commit order. A topic with many bytes in a split is written
by the task that reads them. A topic with few bytes in several splits would leave a small file in
each. If tasks are few and objects large, the splits are made *by topic* instead: the extents of an
object are sorted by topic, so each task reads one range of each object and writes its topics whole.
Otherwise the small parts, and only these, are shuffled. Another range costs a GET; a byte that is
shuffled costs as much CPU time as decoding and writing it
(docs/decisions/0008-compaction.md).

    splits     of about equal bytes, at most an eighth more than ``split_bytes`` (what a task holds
               in memory), at least one for each core while each has SPLIT_BYTES_MIN
    by topic   if more than SHUFFLED_RATIO_MAX would be shuffled, a range would have
               ``range_bytes_min`` on average, and no task would have more than
               LARGEST_SPLIT_RATIO_MAX of the average
    groups     a topic's shuffled extents by (partition, offset), cut at GROUP_BYTES_MAX
    joining    files join the first group of their topic, as many as GROUP_BYTES_MAX allows, the
               others have groups of their own; a file joins one group as a whole
    merged     sets of files have a task each, after the others
    reducers   the largest group first, each to the reducer that has the least

No byte is read twice: each extent is in one split and in one group.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from msgspec import Struct

from compaction.inputs.objects import TaskExtent, TaskObject
from compaction.run.file_groups import JoiningFile, TopicWork
from compaction.run.splits import (
    Split,
    SplitLimits,
    bytes_by_topic,
    cut,
    small_in,
    splits_by_topic,
    to_shuffle,
)
from ledger.lake.types import PlannedObject
from ledger.types import Extent

SHUFFLED_RATIO_MAX = 0.2  # if less is shuffled, objects are read whole


class FileGroup(Struct, frozen=True, array_like=True):
    """What is written together. ``topic`` is an index into the plan's topics; ``reducer`` is None
    for a local group. ``bytes`` are those in L0, also of the rows of files that join."""

    number: int
    topic: int
    bytes: int
    joining: tuple[JoiningFile, ...] = ()
    reducer: int | None = None


class MapTask(Struct, frozen=True, array_like=True):
    """A split, and the local groups that are written from it."""

    number: int
    bytes: int
    objects: tuple[TaskObject, ...]
    local: tuple[FileGroup, ...]


class JobPlan(Struct, frozen=True):
    """What a job does; ``shuffled`` is empty if there is no shuffle. ``reads`` counts an object
    once for each task that reads it."""

    topics: tuple[TopicWork, ...]
    tasks: tuple[MapTask, ...]
    shuffled: tuple[FileGroup, ...]
    reducers: int
    objects: int
    reads: int
    bytes: int


def plan_job(
    objects: Sequence[PlannedObject],
    topics: Sequence[TopicWork],
    cores: int,
    limits: SplitLimits | None = None,
) -> JobPlan:
    """The plan for objects in commit order; extents of other topics are left out.

    Raises ValueError if a topic is given twice or cores is less than 1.
    """
    limits = limits or SplitLimits()
    if cores < 1:
        raise ValueError(f"cores must be at least 1, got {cores}")
    index_of = {topic.topic_id: index for index, topic in enumerate(topics)}
    if len(index_of) != len(topics):
        raise ValueError("a topic is given twice")
    needed = [
        (each, [extent for extent in each.extents if extent.topic_id in index_of])
        for each in objects
    ]
    needed = [(each, extents) for each, extents in needed if extents]
    sizes = [sum(extent.byte_length for extent in extents) for _, extents in needed]
    splits: Sequence[Split] = [needed[start:end] for start, end in cut(sizes, cores, limits)]
    by_topic = bytes_by_topic(splits)
    if to_shuffle(by_topic, limits) > SHUFFLED_RATIO_MAX * sum(sizes):
        other = splits_by_topic(needed, by_topic, cores, limits)
        if other is not None:
            splits, by_topic = other, bytes_by_topic(other)
    counts: dict[str, int] = {}
    for split in splits:
        for each, _ in split:
            counts[each.key] = counts.get(each.key, 0) + 1
    groups = _Groups()
    local: list[list[FileGroup]] = [[] for _ in splits] or [[]]
    group_in_split: dict[tuple[int, int], int] = {}
    shuffled_in: dict[int, set[int]] = {}
    joining = {index: _joining_parts(topic.joining, limits) for index, topic in enumerate(topics)}
    for index, topic in enumerate(topics):
        by_split = by_topic.get(topic.topic_id, {})
        small = small_in(by_split, limits)
        if len(small) > 1:
            shuffled_in[topic.topic_id] = small
        for number, size in by_split.items():
            if number not in small or len(small) == 1:
                # If the topic is shuffled as well, its files join the shuffled groups.
                joins = joining[index] if len(small) < 2 else []
                group = groups.new(index, size, joins.pop(0) if joins else ())
                local[number].append(group)
                group_in_split[topic.topic_id, number] = group.number
    shuffled, cuts = _shuffled(groups, topics, splits, shuffled_in, joining, limits)
    for index, parts in joining.items():
        for part in parts:
            lightest = min(local, key=lambda some: sum(group.bytes for group in some))
            lightest.append(groups.new(index, 0, part))
    packed, reducers = _packed(shuffled, cores, limits)
    tasks = []
    for number, of_task in enumerate(local):
        split = splits[number] if splits else []
        of_split = {t: g for (t, n), g in group_in_split.items() if n == number}
        found = tuple(
            _task_object(each, extents, of_split, cuts, counts[each.key] > 1)
            for each, extents in split
        )
        size = sum(e.byte_length for each in found for e in each.extents)
        if found or of_task:
            tasks.append(MapTask(number, size, found, tuple(of_task)))
    for index, topic in enumerate(topics):
        for some in topic.merged:  # in tasks of their own: the others hold what they have read
            tasks.append(MapTask(len(tasks) + len(local), 0, (), (groups.new(index, 0, some),)))
    return JobPlan(
        tuple(topics),
        tuple(tasks),
        tuple(packed),
        reducers,
        len(needed),
        sum(counts.values()),
        sum(sizes),
    )


class _Groups:
    def __init__(self) -> None:
        self._count = 0

    def new(self, topic: int, size: int, joining: tuple[JoiningFile, ...] = ()) -> FileGroup:
        number = self._count
        self._count += 1
        return FileGroup(number, topic, size + sum(each.l0_bytes for each in joining), joining)


# By topic: the group of each shuffled extent, by (partition, first offset).
_Cuts = dict[int, dict[tuple[int, int], int]]


def _shuffled(
    groups: _Groups,
    topics: Sequence[TopicWork],
    splits: Sequence[Split],
    shuffled_in: dict[int, set[int]],
    joining: dict[int, list[tuple[JoiningFile, ...]]],
    limits: SplitLimits,
) -> tuple[list[FileGroup], _Cuts]:
    """The shuffled groups, and which extents are in them."""
    extents: dict[int, list[Extent]] = {topic_id: [] for topic_id in shuffled_in}
    for number, split in enumerate(splits):
        for _, some in split:
            for extent in some:
                if number in shuffled_in.get(extent.topic_id, ()):
                    extents[extent.topic_id].append(extent)
    found: list[FileGroup] = []
    cuts: _Cuts = {}
    for index, topic in enumerate(topics):
        if topic.topic_id not in extents:
            continue
        of_topic = extents[topic.topic_id]
        of_topic.sort(key=lambda extent: (extent.partition, extent.first_offset))
        places = cuts[topic.topic_id] = {}
        for part, size in _parts(of_topic, limits.group_bytes_max):
            group = groups.new(index, size, joining[index].pop(0) if joining[index] else ())
            found.append(group)
            places.update(((e.partition, e.first_offset), group.number) for e in part)
    return found, cuts


def _parts(extents: Sequence[Extent], bytes_max: int) -> Iterable[tuple[list[Extent], int]]:
    part: list[Extent] = []
    size = 0
    for extent in extents:
        if part and size + extent.byte_length > bytes_max:
            yield part, size
            part, size = [], 0
        part.append(extent)
        size += extent.byte_length
    yield part, size


def _joining_parts(
    files: Sequence[JoiningFile], limits: SplitLimits
) -> list[tuple[JoiningFile, ...]]:
    parts: list[list[JoiningFile]] = []
    size = 0
    for each in files:
        if not parts or size + each.l0_bytes > limits.group_bytes_max:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += each.l0_bytes
    return [tuple(part) for part in parts]


def _packed(
    groups: list[FileGroup], cores: int, limits: SplitLimits
) -> tuple[list[FileGroup], int]:
    """The groups with their reducers, and the number of reducers."""
    if not groups:
        return [], 0
    total = sum(group.bytes for group in groups)
    most = limits.split_bytes * 9 // 8 * cores
    count = min(len(groups), max(1, -(-total // most)) * cores)  # whole rounds over the cores
    loads = [(0, reducer) for reducer in range(count)]
    packed = []
    for group in sorted(groups, key=lambda group: (-group.bytes, group.number)):
        load, reducer = heapq.heappop(loads)
        heapq.heappush(loads, (load + group.bytes, reducer))
        packed.append(FileGroup(group.number, group.topic, group.bytes, group.joining, reducer))
    return packed, count


def _task_object(
    each: PlannedObject,
    extents: Sequence[Extent],
    of_split: dict[int, int],
    cuts: _Cuts,
    shared: bool,
) -> TaskObject:
    return TaskObject(
        each.key,
        each.locator,
        each.size_bytes,
        tuple(
            TaskExtent.of(
                e,
                of_split[e.topic_id]
                if e.topic_id in of_split
                else cuts[e.topic_id][e.partition, e.first_offset],
            )
            for e in sorted(extents, key=lambda e: e.byte_start)
        ),
        shared,
    )
