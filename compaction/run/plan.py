"""Which task reads what, and who writes what: a pure function of the ledger's words.

Vocabulary: a *run* is what one task reads. A topic's *share* of a run is its bytes there. A
*group* is what is written together (``groups.py``): a *local* group by the task that has read it,
a *shuffled* group by a *reducer*, which gets its extents from several runs.

Runs are whole objects, consecutive in commit order, and shares that would be large files are
written where they are read. Topics with small shares in several runs would leave a small file in
each. Where tasks are few and objects large, the objects are *split by topics* instead: an object's
extents stand in the order of topics, so each task reads one range of each object, and writes its
topics whole. Else the small shares, and only these, are shuffled. A range more is a GET more;
a byte that is shuffled costs as much CPU time as decoding and writing it
(docs/decisions/0012-when-the-compaction-shuffles.md).

    runs       of about equal bytes, at most an eighth above ``run_bytes`` (what a task holds in
               memory), at least as many as there are cores while each keeps RUN_BYTES_MIN
    split      when more than SPLIT_FROM_SHARE would be shuffled, a range would have
               ``range_bytes_min`` on average, and no task more than SPLIT_SHARE_MAX of its share
    groups     a topic's shuffled extents by (partition, offset), cut at GROUP_BYTES_MAX
    joining    files go with the first group of their topic, as many as GROUP_BYTES_MAX allows,
               the others with groups of their own; each file with one group as a whole
    reducers   the largest group first, each to the reducer with the least so far

No byte is read twice: each extent is in one run and in one group.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from msgspec import Struct

from compaction.objects import TaskExtent, TaskObject
from compaction.run.file_groups import JoiningFile, TopicWork
from compaction.run.splits import Limits as Limits
from compaction.run.splits import Needed, cut, shares_of, small_runs, split_by_topics, to_shuffle
from ledger.lake.types import PlannedObject
from ledger.types import Extent

SPLIT_FROM_SHARE = 0.2  # less is shuffled rather than each object read in parts


class FileGroup(Struct, frozen=True, array_like=True):
    """What is written together. ``topic`` is an index into the plan's topics; ``reducer`` is None
    for a local group. ``bytes`` counts L0 and, of files that join, their rows' share of it."""

    number: int
    topic: int
    bytes: int
    joining: tuple[JoiningFile, ...] = ()
    reducer: int | None = None


class MapTask(Struct, frozen=True, array_like=True):
    """A run, and the local groups that are written from it."""

    number: int
    bytes: int
    objects: tuple[TaskObject, ...]
    local: tuple[FileGroup, ...]


class JobPlan(Struct, frozen=True):
    """What is done; ``shuffled`` is empty when there is no shuffle at all. ``reads`` counts
    objects once for each task that reads of them."""

    topics: tuple[TopicWork, ...]
    tasks: tuple[MapTask, ...]
    shuffled: tuple[FileGroup, ...]
    reducers: int
    objects: int
    reads: int
    bytes: int


def plan(
    objects: Sequence[PlannedObject],
    topics: Sequence[TopicWork],
    cores: int,
    limits: Limits | None = None,
) -> JobPlan:
    """The plan for objects in commit order. Extents of topics that are not given are left out.

    Raises ValueError for a topic that is given twice and for cores below 1.
    """
    limits = limits or Limits()
    if cores < 1:
        raise ValueError(f"cores must be at least 1, not {cores}")
    index_of = {topic.topic_id: index for index, topic in enumerate(topics)}
    if len(index_of) != len(topics):
        raise ValueError("a topic is given twice")
    needed = [
        (each, [extent for extent in each.extents if extent.topic_id in index_of])
        for each in objects
    ]
    needed = [(each, extents) for each, extents in needed if extents]
    sizes = [sum(extent.byte_length for extent in extents) for _, extents in needed]
    runs: Sequence[Needed] = [needed[start:end] for start, end in cut(sizes, cores, limits)]
    shares = shares_of(runs)
    if to_shuffle(shares, limits) > SPLIT_FROM_SHARE * sum(sizes):
        split = split_by_topics(needed, shares, cores, limits)
        if split is not None:
            runs, shares = split, shares_of(split)
    counts: dict[str, int] = {}
    for run in runs:
        for each, _ in run:
            counts[each.key] = counts.get(each.key, 0) + 1
    groups = _Groups()
    local: list[list[FileGroup]] = [[] for _ in runs] or [[]]
    group_in_run: dict[tuple[int, int], int] = {}
    shuffled_in: dict[int, set[int]] = {}
    joining = {index: _joining_parts(topic.joining, limits) for index, topic in enumerate(topics)}
    for index, topic in enumerate(topics):
        by_run = shares.get(topic.topic_id, {})
        small = small_runs(by_run, limits)
        if len(small) > 1:
            shuffled_in[topic.topic_id] = small
        for number, size in by_run.items():
            if number not in small or len(small) == 1:
                # A topic that is shuffled as well keeps its files for the small shares.
                joins = joining[index] if len(small) < 2 else []
                group = groups.new(index, size, joins.pop(0) if joins else ())
                local[number].append(group)
                group_in_run[topic.topic_id, number] = group.number
    shuffled, cuts = _shuffled(groups, topics, runs, shuffled_in, joining, limits)
    for index, parts in joining.items():
        for part in parts:
            lightest = min(local, key=lambda some: sum(group.bytes for group in some))
            lightest.append(groups.new(index, 0, part))
    packed, reducers = _packed(shuffled, cores, limits)
    tasks = []
    for number, of_task in enumerate(local):
        run = runs[number] if runs else []
        of_run = {t: g for (t, n), g in group_in_run.items() if n == number}
        found = tuple(
            _task_object(each, extents, of_run, cuts, counts[each.key] > 1) for each, extents in run
        )
        size = sum(e.byte_length for each in found for e in each.extents)
        if found or of_task:
            tasks.append(MapTask(number, size, found, tuple(of_task)))
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


# Where a topic's shuffled extents are cut: (first (partition, offset) of the group, its number).
_Cuts = dict[int, dict[tuple[int, int], int]]


def _shuffled(
    groups: _Groups,
    topics: Sequence[TopicWork],
    runs: Sequence[Needed],
    shuffled_in: dict[int, set[int]],
    joining: dict[int, list[tuple[JoiningFile, ...]]],
    limits: Limits,
) -> tuple[list[FileGroup], _Cuts]:
    """The shuffled groups, and by topic the group of each extent, by (partition, first offset)."""
    extents: dict[int, list[Extent]] = {topic_id: [] for topic_id in shuffled_in}
    for number, run in enumerate(runs):
        for _, some in run:
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


def _joining_parts(files: Sequence[JoiningFile], limits: Limits) -> list[tuple[JoiningFile, ...]]:
    parts: list[list[JoiningFile]] = []
    size = 0
    for each in files:
        if not parts or size + each.l0_bytes > limits.group_bytes_max:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += each.l0_bytes
    return [tuple(part) for part in parts]


def _packed(groups: list[FileGroup], cores: int, limits: Limits) -> tuple[list[FileGroup], int]:
    """The groups with their reducers, and how many of these there are."""
    if not groups:
        return [], 0
    total = sum(group.bytes for group in groups)
    most = limits.run_bytes * 9 // 8 * cores
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
    of_run: dict[int, int],
    cuts: _Cuts,
    split: bool,
) -> TaskObject:
    return TaskObject(
        each.key,
        each.locator,
        each.size_bytes,
        tuple(
            TaskExtent.of(
                e,
                of_run[e.topic_id]
                if e.topic_id in of_run
                else cuts[e.topic_id][e.partition, e.first_offset],
            )
            for e in sorted(extents, key=lambda e: e.byte_start)
        ),
        split,
    )
