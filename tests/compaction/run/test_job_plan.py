"""The plan: every extent once, nothing shuffled without need, sizes within their limits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.run.file_groups import JoiningFile, TopicWork
from compaction.run.job_plan import JobPlan, plan_job
from compaction.run.splits import SplitLimits, cut
from ledger.lake.types import LakeRange, PlannedObject
from ledger.types import Extent

LIMITS = SplitLimits(1000, 100, 100, 300, range_bytes_min=1 << 20)
SPLIT = SplitLimits(1000, 100, 100, 300, range_bytes_min=1)


def objects_of(sizes: list[dict[tuple[int, int], int]]) -> list[PlannedObject]:
    """Objects with extents of these bytes by (topic, partition); a record is a byte."""
    heads: dict[tuple[int, int], int] = {}
    found = []
    for number, by_place in enumerate(sizes, 1):
        start = 16
        extents = []
        for (topic_id, partition), size in sorted(by_place.items()):
            first = heads.get((topic_id, partition), 0) + 1
            heads[topic_id, partition] = first + size - 1
            extents.append(
                Extent(topic_id, partition, first, first + size - 1, size, str(number), 0, start,
                       size, 0, 1, 0, 0)
            )  # fmt: skip
            start += size
        found.append(PlannedObject(number, f"l0/{number}", str(number), start, tuple(extents)))
    return found


def topic(topic_id: int, *joining: int) -> TopicWork:
    """A topic with files that join, of these bytes."""
    files = tuple(
        JoiningFile(f"file:///{topic_id}-{at}", size, (LakeRange(0, at, at, 1, size, 0, 0),))
        for at, size in enumerate(joining)
    )
    return TopicWork(topic_id, f"file:///lake/{topic_id}", (), files)


def groups_of(what: JobPlan) -> dict[int, int]:
    """The topic of each group."""
    groups = [*what.shuffled, *(group for task in what.tasks for group in task.local)]
    assert len({group.number for group in groups}) == len(groups), "a group is in one place"
    return {group.number: what.topics[group.topic].topic_id for group in groups}


sizes = st.lists(
    st.dictionaries(
        st.tuples(st.integers(1, 4), st.integers(0, 2)), st.integers(1, 200), max_size=6
    ),
    max_size=25,
)


@given(
    sizes, st.integers(1, 5), st.lists(st.integers(1, 350), max_size=4),
    st.sampled_from([LIMITS, SPLIT]),
)  # fmt: skip
def test_every_extent_is_in_one_group_of_its_topic_and_in_one_task(
    some: list[dict[tuple[int, int], int]], cores: int, joining: list[int], limits: SplitLimits
) -> None:
    objects = objects_of(some)
    topics = [topic(1, *joining), topic(2), topic(3)]
    what = plan_job(objects, topics, cores, limits)
    topic_of = groups_of(what)
    planned = [each for task in what.tasks for each in task.objects]
    wanted = [each for each in objects if any(e.topic_id < 4 for e in each.extents)]
    assert {each.key for each in planned} == {each.key for each in wanted}
    assert what.objects == len(wanted) and what.reads == len(planned)
    for task in what.tasks:
        numbers = [int(each.locator) for each in task.objects]
        assert numbers == sorted(set(numbers)), "in commit order"
    for each in wanted:
        parts = [found for found in planned if found.key == each.key]
        assert {part.shared for part in parts} == {len(parts) > 1}
        assert sorted(
            (topic_of[e.group], e.partition, e.first_offset, e.last_offset, e.byte_start)
            for part in parts
            for e in part.extents
        ) == [
            (e.topic_id, e.partition, e.first_offset, e.last_offset, e.byte_start)
            for e in each.extents
            if e.topic_id < 4
        ]
        for part in parts:
            starts = [e.byte_start for e in part.extents]
            assert starts == sorted(starts), "in the order of their bytes"
    if limits is LIMITS:
        assert what.reads == what.objects, "every object is in one task"
    for task in what.tasks:
        own = {group.number for group in task.local}
        shuffled = {group.number for group in what.shuffled}
        assert {e.group for each in task.objects for e in each.extents} <= own | shuffled
    joins = [
        file.path
        for group in (*what.shuffled, *(group for task in what.tasks for group in task.local))
        for file in group.joining
    ]
    assert sorted(joins) == sorted(file.path for file in topics[0].joining), "each file joins once"


@given(sizes, st.integers(1, 5))
def test_reducers_hold_groups_within_the_limit_and_none_is_idle(
    some: list[dict[tuple[int, int], int]], cores: int
) -> None:
    what = plan_job(objects_of(some), [topic(1), topic(2), topic(3), topic(4)], cores, LIMITS)
    used = {group.reducer for group in what.shuffled}
    assert used == set(range(what.reducers))
    for group in what.shuffled:
        assert group.bytes <= max(LIMITS.group_bytes_max, 200), "or it is one extent"


@given(st.lists(st.integers(1, 400), max_size=60), st.integers(1, 6))
def test_runs_are_consecutive_whole_and_within_what_a_task_holds(
    some: list[int], cores: int
) -> None:
    runs = cut(some, cores, LIMITS)
    assert list(itertools.chain(*(range(*run) for run in runs))) == list(range(len(some)))
    for start, end in runs:
        assert sum(some[start:end]) <= LIMITS.split_bytes * 9 // 8 or end - start == 1


@pytest.mark.parametrize(
    ("objects", "cores", "runs"),
    [
        (10, 1, 1),  # within what a task holds
        (30, 2, 4),  # three would leave a core without work in the second round
        (10, 4, 4),  # as many as cores
        (3, 8, 3),  # unless they were too small
        (1, 4, 1),
        (46, 2, 6),
    ],
)
def test_runs_are_as_many_as_keep_all_cores_busy(objects: int, cores: int, runs: int) -> None:
    found = cut([100] * objects, cores, LIMITS)
    assert len(found) == runs
    sizes = [end - start for start, end in found]
    assert max(sizes) - min(sizes) <= 1


def test_a_little_too_much_for_a_round_makes_no_other_round() -> None:
    assert len(cut([100] * 21, 2, LIMITS)) == 2


def test_large_parts_are_written_by_the_task_that_reads_them() -> None:
    what = plan_job(objects_of([{(1, 0): 200, (2, 0): 200}] * 10), [topic(1), topic(2)], 2, LIMITS)
    assert len(what.tasks) > 1 and what.reducers == 0 and not what.shuffled
    assert [len(task.local) for task in what.tasks] == [2] * len(what.tasks)


def test_a_topic_that_is_small_in_several_splits_is_shuffled_and_no_other() -> None:
    some = [{(1, 0): 200, (2, 0): 5} for _ in range(10)]
    what = plan_job(objects_of(some), [topic(1), topic(2)], 2, LIMITS)
    assert {what.topics[group.topic].topic_id for group in what.shuffled} == {2}
    assert what.reducers == 1


def test_a_topic_that_is_small_in_one_split_only_is_not_shuffled() -> None:
    some = [{(1, 0): 200} for _ in range(9)] + [{(1, 0): 200, (2, 0): 5}]
    what = plan_job(objects_of(some), [topic(1), topic(2)], 2, LIMITS)
    assert len(what.tasks) > 1 and not what.shuffled


def test_objects_are_split_by_topics_where_that_spares_a_shuffle() -> None:
    some = [{(topic_id, 0): 10 for topic_id in range(1, 9)} for _ in range(10)]
    topics = [topic(topic_id) for topic_id in range(1, 9)]
    what = plan_job(objects_of(some), topics, 2, SPLIT)
    assert not what.shuffled and [len(task.local) for task in what.tasks] == [4, 4]
    assert what.reads == 20 and all(e.shared for task in what.tasks for e in task.objects)
    for task in what.tasks:
        own = {group.topic for group in task.local}
        assert own in ({0, 1, 2, 3}, {4, 5, 6, 7}), "a range of each object"
    assert plan_job(objects_of(some), topics, 2, LIMITS).shuffled, "but a range must be worth a GET"
    assert plan_job(objects_of(some), topics, 1, SPLIT).reads == 10, "one task reads them whole"


def test_objects_are_not_split_where_one_topic_outweighs_the_others() -> None:
    some = [{(1, 0): 60, (2, 0): 5, (3, 0): 5, (4, 0): 5} for _ in range(4)]
    what = plan_job(
        objects_of(some), [topic(at) for at in (1, 2, 3, 4)], 2, SplitLimits(1000, 100, 250, 300, 1)
    )
    assert what.shuffled and what.reads == 4


def test_objects_are_not_split_for_little_that_is_small() -> None:
    some = [{(1, 0): 50, (2, 0): 50, (3, 0): 5} for _ in range(10)]
    what = plan_job(objects_of(some), [topic(1), topic(2), topic(3)], 2, SPLIT)
    assert {what.topics[group.topic].topic_id for group in what.shuffled} == {3}


def test_shuffled_groups_are_cut_by_partition_and_offset() -> None:
    some = [{(1, partition): 9 for partition in range(4)} for _ in range(30)]
    what = plan_job(objects_of(some), [topic(1)], 12, SplitLimits(1000, 90, 200, 300, 1 << 20))
    assert len(what.shuffled) == 4 and what.reducers == 4
    places: dict[int, list[tuple[int, int]]] = {}
    for task in what.tasks:
        for each in task.objects:
            for e in each.extents:
                places.setdefault(e.group, []).append((e.partition, e.first_offset))
    bounds = sorted((min(some), max(some)) for some in places.values())
    assert all(one[1] < other[0] for one, other in itertools.pairwise(bounds))


def test_files_join_the_group_of_their_topic_as_far_as_memory_goes() -> None:
    what = plan_job(objects_of([{(1, 0): 50}]), [topic(1, 100, 100, 150)], 1, LIMITS)
    (task,) = what.tasks
    assert [len(group.joining) for group in task.local] == [2, 1]
    assert task.local[0].bytes == 250


def test_files_of_a_topic_without_new_records_are_written_too() -> None:
    what = plan_job([], [topic(1, 10, 10)], 2, LIMITS)
    (task,) = what.tasks
    assert not task.objects and [len(group.joining) for group in task.local] == [2]


def test_files_that_are_merged_have_tasks_of_their_own() -> None:
    merged = topic(1, 100, 100, 150, 20)
    merged = TopicWork(
        1, merged.location, (), merged.joining[:1], (merged.joining[1:3], merged.joining[3:])
    )
    what = plan_job(objects_of([{(1, 0): 50}]), [merged], 1, LIMITS)
    assert [len(task.objects) for task in what.tasks] == [1, 0, 0]
    assert [[len(group.joining) for group in task.local] for task in what.tasks] == [[1], [2], [1]]
    assert len({task.number for task in what.tasks}) == 3
    numbers = [group.number for task in what.tasks for group in task.local]
    assert len(set(numbers)) == 3


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert plan_job([], [topic(1)], 2).tasks == ()
    assert plan_job(objects_of([{(9, 0): 5}]), [topic(1)], 2).tasks == ()


def test_a_topic_given_twice_and_no_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        plan_job([], [topic(1), topic(1)], 1)
    with pytest.raises(ValueError, match="cores must be at least 1, got 0"):
        plan_job([], [topic(1)], 0)
