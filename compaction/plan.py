"""Which task reads which objects, and who writes what: a pure function of the ledger's words.

Vocabulary: a *run of objects* is what one task reads, consecutive in commit order. A topic's
*share* of a run is its bytes there. A *group* is what is written together (``groups.py``): a
*local* group by the task that has read it, a *shuffled* group by a *reducer*, which gets its
extents from several runs. Only shares that would be small files are shuffled, and only where
there are several of them: a topic that stands in one run alone is local whatever its size.

    runs       of about equal bytes, at most an eighth above ``run_bytes`` (what a task holds in
               memory), at least as many as there are cores while each keeps RUN_BYTES_MIN
    groups     a topic's shuffled extents by (partition, offset), cut at GROUP_BYTES_MAX
    joining    files go with the first group of their topic, as many as GROUP_BYTES_MAX allows,
               the others with groups of their own; each file with one group as a whole
    reducers   the largest group first, each to the reducer with the least so far

No byte is read twice: each object is in one run, each extent in one group.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from msgspec import Struct

from compaction.fetch import TaskExtent, TaskObject
from compaction.groups import JoiningFile, TopicWork
from ledger.lake_types import PlannedObject
from ledger.types import Extent

MIB = 1 << 20
RUN_BYTES = 512 * MIB
RUN_BYTES_MIN = 32 * MIB
SMALL_BYTES = 32 * MIB  # a share below this would be a small file
GROUP_BYTES_MAX = 256 * MIB  # what a reducer holds in memory


class Limits(Struct, frozen=True):
    """Sizes that the plan keeps to; tests make them small."""

    run_bytes: int = RUN_BYTES
    run_bytes_min: int = RUN_BYTES_MIN
    small_bytes: int = SMALL_BYTES
    group_bytes_max: int = GROUP_BYTES_MAX


class Group(Struct, frozen=True, array_like=True):
    """What is written together. ``topic`` is an index into the plan's topics; ``reducer`` is None
    for a local group. ``bytes`` counts L0 and, of files that join, their rows' share of it."""

    number: int
    topic: int
    bytes: int
    joining: tuple[JoiningFile, ...] = ()
    reducer: int | None = None


class MapTask(Struct, frozen=True, array_like=True):
    """A run of objects, and the local groups that are written from it."""

    number: int
    bytes: int
    objects: tuple[TaskObject, ...]
    local: tuple[Group, ...]


class Plan(Struct, frozen=True):
    """What is done; ``shuffled`` is empty when there is no shuffle at all."""

    topics: tuple[TopicWork, ...]
    tasks: tuple[MapTask, ...]
    shuffled: tuple[Group, ...]
    reducers: int
    objects: int
    bytes: int


def plan(
    objects: Sequence[PlannedObject],
    topics: Sequence[TopicWork],
    cores: int,
    limits: Limits | None = None,
) -> Plan:
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
    runs = cut(sizes, cores, limits)
    shares: dict[int, dict[int, int]] = {}
    for number, (start, end) in enumerate(runs):
        for _, extents in needed[start:end]:
            for extent in extents:
                of_topic = shares.setdefault(extent.topic_id, {})
                of_topic[number] = of_topic.get(number, 0) + extent.byte_length
    groups = _Groups()
    local: list[list[Group]] = [[] for _ in runs] or [[]]
    group_in_run: dict[tuple[int, int], int] = {}
    shuffled_in: dict[int, set[int]] = {}
    joining = {index: _joining_parts(topic.joining, limits) for index, topic in enumerate(topics)}
    for index, topic in enumerate(topics):
        by_run = shares.get(topic.topic_id, {})
        small = {number for number, size in by_run.items() if size < limits.small_bytes}
        if len(small) > 1:
            shuffled_in[topic.topic_id] = small
        for number, size in by_run.items():
            if number not in small or len(small) == 1:
                # A topic that is shuffled as well keeps its files for the small shares.
                joins = joining[index] if len(small) < 2 else []
                group = groups.new(index, size, joins.pop(0) if joins else ())
                local[number].append(group)
                group_in_run[topic.topic_id, number] = group.number
    shuffled, cuts = _shuffled(groups, topics, needed, runs, shuffled_in, joining, limits)
    for index, parts in joining.items():
        for part in parts:
            lightest = min(local, key=lambda some: sum(group.bytes for group in some))
            lightest.append(groups.new(index, 0, part))
    reducers = _packed(shuffled, cores, limits)
    tasks = []
    for number in range(len(local)):
        start, end = runs[number] if runs else (0, 0)
        of_run = {t: g for (t, n), g in group_in_run.items() if n == number}
        tasks.append(
            MapTask(
                number,
                sum(sizes[start:end]),
                tuple(_task_object(each, ext, of_run, cuts) for each, ext in needed[start:end]),
                tuple(local[number]),
            )
        )
    return Plan(
        tuple(topics),
        tuple(task for task in tasks if task.objects or task.local),
        tuple(reducers[0]),
        reducers[1],
        len(needed),
        sum(sizes),
    )


def cut(sizes: Sequence[int], cores: int, limits: Limits) -> list[tuple[int, int]]:
    """Runs [start, end) of consecutive objects of about equal bytes; one object at least each."""
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


class _Groups:
    def __init__(self) -> None:
        self._count = 0

    def new(self, topic: int, size: int, joining: tuple[JoiningFile, ...] = ()) -> Group:
        number = self._count
        self._count += 1
        return Group(number, topic, size + sum(each.l0_bytes for each in joining), joining)


# Where a topic's shuffled extents are cut: (first (partition, offset) of the group, its number).
_Cuts = dict[int, dict[tuple[int, int], int]]


def _shuffled(
    groups: _Groups,
    topics: Sequence[TopicWork],
    needed: Sequence[tuple[PlannedObject, list[Extent]]],
    runs: Sequence[tuple[int, int]],
    shuffled_in: dict[int, set[int]],
    joining: dict[int, list[tuple[JoiningFile, ...]]],
    limits: Limits,
) -> tuple[list[Group], _Cuts]:
    """The shuffled groups, and by topic the group of each extent, by (partition, first offset)."""
    extents: dict[int, list[Extent]] = {topic_id: [] for topic_id in shuffled_in}
    for number, (start, end) in enumerate(runs):
        for _, some in needed[start:end]:
            for extent in some:
                if number in shuffled_in.get(extent.topic_id, ()):
                    extents[extent.topic_id].append(extent)
    found: list[Group] = []
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


def _packed(groups: list[Group], cores: int, limits: Limits) -> tuple[list[Group], int]:
    """The groups with their reducers, and how many of these there are."""
    if not groups:
        return [], 0
    total = sum(group.bytes for group in groups)
    count = min(len(groups), max(cores, -(-total // limits.run_bytes)))
    loads = [(0, reducer) for reducer in range(count)]
    packed = []
    for group in sorted(groups, key=lambda group: (-group.bytes, group.number)):
        load, reducer = heapq.heappop(loads)
        heapq.heappush(loads, (load + group.bytes, reducer))
        packed.append(Group(group.number, group.topic, group.bytes, group.joining, reducer))
    packed.sort(key=lambda group: group.number)
    return packed, count


def _task_object(
    each: PlannedObject, extents: Sequence[Extent], of_run: dict[int, int], cuts: _Cuts
) -> TaskObject:
    return TaskObject(
        each.key,
        each.locator,
        each.size_bytes,
        tuple(
            TaskExtent(
                of_run[e.topic_id]
                if e.topic_id in of_run
                else cuts[e.topic_id][e.partition, e.first_offset],
                e.partition,
                e.first_offset,
                e.last_offset,
                e.byte_start,
                e.byte_length,
                e.crc32c,
                e.voids,
            )
            for e in sorted(extents, key=lambda e: e.byte_start)
        ),
    )
