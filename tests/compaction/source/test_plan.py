"""Plans from a real ledger, and the tasks they are cut into: every offset once, whatever is
compacted, however small the pages, however fine the tasks.
"""

from __future__ import annotations

import tempfile
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.source.plan import Page, PlanInvalid, fill, finished, wanted
from compaction.source.planner import LedgerPlanner
from compaction.source.read_tasks import ReadTask, losses, tasks_of
from compaction.source.schemas import Offsets, Plan, PlanRequest, PlanStore
from ledger import commits, epochs, notes, reads, topics
from ledger.ages import NOTE, Aged, note_of
from ledger.lake import lake_files, lake_tables, runs
from ledger.lake.types import Hole, LakeRange, NewFile, TableSwitch
from ledger.ledger import Ledger
from ledger.types import Topic, TopicConfig
from shards.clock import boot_id, boottime_ms, wall_ms
from tests.ledger.requests import Request, draft_of, lease
from tests.long import examples

PARTITIONS = 3
Key = tuple[int, int]

COMMITS = st.lists(
    st.lists(st.tuples(st.integers(0, PARTITIONS - 1), st.integers(1, 4)), min_size=1, max_size=4),
    min_size=1, max_size=8,
)  # fmt: skip


def with_commits(ledger: Ledger, topic: Topic, commits: list[list[Key]]) -> None:
    for counter, parts in enumerate(commits, 1):
        wanted: dict[int, int] = {}
        for partition, count in parts:
            wanted[partition] = wanted.get(partition, 0) + count
        request = Request(topic.topic_id, tuple(sorted(wanted.items())))
        ledger.commit(draft_of(lease(counter), [request]), 1, lambda _: None)


def compacted(ledger: Ledger, topic: Topic, run: str, objects: int, files: int) -> None:
    """Switches the oldest objects; their rows are dealt to ``files`` files, which interleave."""
    planned = ledger.read(
        lake_tables.plan_objects,
        0,
        ledger.read(commits.latest_number),
        objects,
        frozenset({topic.topic_id}),
    )
    rows: dict[int, dict[int, list[int]]] = {}
    watermarks: dict[int, int] = {}
    for extent in (extent for each in planned for extent in each.extents):
        watermarks[extent.partition] = extent.last_offset
        for offset in range(extent.first_offset, extent.last_offset + 1):
            rows.setdefault(offset % files, {}).setdefault(extent.partition, []).append(offset)
    added = tuple(
        NewFile(
            f"file:///lake/{run}-{number}", 100, sum(map(len, parts.values())),
            tuple(
                LakeRange(partition, found[0], found[-1], len(found), 10 * len(found), 1, 1)
                for partition, found in sorted(parts.items())
            ),
        )
        for number, parts in rows.items()
    )  # fmt: skip
    ledger.write(runs.begin, run, "a test", 1)
    switch = TableSwitch(topic.topic_id, topic.name, "1.json", watermarks, added)
    ledger.write(lake_tables.switch, run, [switch], 1)
    ledger.write(runs.end, run, 1)


def planned(ledger: Ledger, request: PlanRequest) -> list[Plan]:
    """All pages."""
    pages: list[Plan] = []
    asked: PlanRequest | None = request
    while asked is not None:
        page = Page(asked.limit)
        for name in asked.topics:
            topic = ledger.read(topics.find, name)
            assert topic is not None
            states = ledger.read(reads.partition_states, topic.topic_id)
            starts, stops = asked.from_.get(name, {}), asked.to.get(name, {})
            for part in wanted(topic, states, starts, stops):
                ledger.read(fill, page, part)
        pages.append(finished(page, "plan", 1, PlanStore("file:///store")))
        asked = pages[-1].next
        if asked is not None:
            asked = PlanRequest(asked.topics, asked.from_, asked.to, asked.plan, request.limit)
        assert len(pages) < 1_000, "pages lead to an end"
    return pages


def read(tasks: list[ReadTask], files: int) -> dict[Key, list[int]]:
    """What the tasks read, in their order; of files, the rows that were dealt to them."""
    found: dict[Key, list[int]] = {}
    for task in tasks:
        for compacted in task.compacted:
            wanted = compacted.offsets
            dealt = {int(file.path.rpartition("-")[2]) for file in compacted.files}
            held = [
                offset
                for offset in range(wanted.start, wanted.stop)
                if offset % files in dealt
                and any(
                    file.range.first_offset <= offset <= file.range.last_offset
                    for file in compacted.files
                    if int(file.path.rpartition("-")[2]) == offset % files
                )
            ]
            found.setdefault((wanted.topic_id, wanted.partition), []).extend(held)
        ranges = {(each.topic_id, each.partition): each for each in task.uncompacted}
        for each in task.objects:
            for extent in each.extents:
                within = ranges[extent.group, extent.partition]
                found.setdefault((extent.group, extent.partition), []).extend(
                    offset
                    for offset in range(extent.first_offset, extent.last_offset + 1)
                    if within.start <= offset < within.stop
                )
        for page in task.through_diff:
            key = (page.topic_id, page.partition)
            found.setdefault(key, []).extend(range(page.start, page.stop))
    return found


@given(
    commits=COMMITS, objects=st.integers(0, 8), files=st.integers(1, 3), limit=st.integers(1, 6),
    bytes_max=st.sampled_from([1, 30, 100, 10_000]), tasks_min=st.integers(1, 4),
    through_diff=st.booleans(), data=st.data(),
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_tasks_read_every_offset_once_and_in_order(
    commits: list[list[Key]], objects: int, files: int, limit: int, bytes_max: int,
    tasks_min: int, through_diff: bool, data: st.DataObject,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.db", nullcontext())
        ledger.write(epochs.begin_incarnation, 1)
        topic, _ = ledger.write(topics.create, "orders", TopicConfig(partitions=PARTITIONS), 1)
        with_commits(ledger, topic, commits)
        if objects:
            compacted(ledger, topic, "run", objects, files)
        starts: dict[int, int] = {}
        stops: dict[int, int] = {}
        for state in ledger.read(reads.partition_states, topic.topic_id):
            starts[state.partition] = data.draw(st.integers(1, state.next_seq))
            stops[state.partition] = data.draw(st.integers(starts[state.partition], state.next_seq))
        request = PlanRequest(["orders"], {"orders": starts}, {"orders": stops}, None, limit)
        pages = planned(ledger, request)
        ledger.close()
    assert [loss for page in pages for loss in losses(page)] == []
    tasks = [
        task
        for page in pages
        for task in tasks_of(
            page, bytes_max=bytes_max, tasks_min=tasks_min, through_diff=through_diff
        )
    ]
    expected = {
        (topic.topic_id, partition): list(range(starts[partition], stops[partition]))
        for partition in starts
        if starts[partition] < stops[partition]
    }
    assert read(tasks, files) == expected


@pytest.fixture
def orders(tmp_path: Path) -> tuple[Ledger, Topic]:
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    ledger.write(epochs.begin_incarnation, 1)
    topic, _ = ledger.write(topics.create, "orders", TopicConfig(partitions=2), 1)
    with_commits(ledger, topic, [[(0, 3), (1, 1)], [(0, 2)], [(0, 4), (1, 5)]])
    return ledger, topic


def whole(ledger: Ledger, **asked: Offsets) -> Plan:
    (page,) = planned(ledger, PlanRequest(["orders"], asked.get("starts", {})))
    ledger.close()
    return page


def test_a_switch_between_two_looks_neither_doubles_nor_hides(
    orders: tuple[Ledger, Topic],
) -> None:
    """The states were read before it: L0 is taken above their bound, and files up to it."""
    ledger, topic = orders
    compacted(ledger, topic, "first", 1, 2)
    states = ledger.read(reads.partition_states, topic.topic_id)
    compacted(ledger, topic, "second", 2, 2)
    page = Page(100)
    for part in wanted(topic, states, {}, {}):
        ledger.read(fill, page, part)
    ledger.close()
    plan = finished(page, "plan", 1, PlanStore("file:///store"))
    assert losses(plan) == []
    assert read(tasks_of(plan, bytes_max=1 << 30), 2) == {
        (topic.topic_id, 0): list(range(1, 10)), (topic.topic_id, 1): list(range(1, 7)),
    }  # fmt: skip


def test_a_rewriting_between_two_looks_neither_doubles_nor_hides(
    orders: tuple[Ledger, Topic],
) -> None:
    """Its file holds what was compacted before and after the states were read."""
    ledger, topic = orders
    compacted(ledger, topic, "first", 1, 1)
    states = ledger.read(reads.partition_states, topic.topic_id)
    before = tuple(file.path for file in ledger.read(lake_files.of_topic, topic.topic_id))
    rows = (LakeRange(0, 1, 9, 9, 90, 1, 1), LakeRange(1, 1, 6, 6, 60, 1, 1))
    file = NewFile("file:///lake/second-0", 100, 15, rows)
    ledger.write(runs.begin, "second", "a test", 1)
    switch = TableSwitch(topic.topic_id, "orders", "2.json", {0: 9, 1: 6}, (file,), before)
    ledger.write(lake_tables.switch, "second", [switch], 1)
    page = Page(100)
    for part in wanted(topic, states, {}, {}):
        ledger.read(fill, page, part)
    ledger.close()
    plan = finished(page, "plan", 1, PlanStore("file:///store"))
    assert losses(plan) == []
    tasks = tasks_of(plan, bytes_max=1 << 30)
    assert [each.files[0].path for task in tasks for each in task.compacted] == [file.path] * 2
    assert read(tasks, 1) == {
        (topic.topic_id, 0): list(range(1, 10)), (topic.topic_id, 1): list(range(1, 7)),
    }  # fmt: skip


def test_objects_of_several_partitions_are_one_read_each(orders: tuple[Ledger, Topic]) -> None:
    ledger, _ = orders
    plan = whole(ledger)
    assert [len(each.extents) for each in plan.objects] == [2, 1, 2]
    (task,) = tasks_of(plan, bytes_max=1 << 30)
    assert [each.key for each in task.objects] == sorted(each.key for each in task.objects)


def test_quarantined_offsets_are_holes_and_losses(orders: tuple[Ledger, Topic]) -> None:
    ledger, topic = orders
    hole = Hole(topic.topic_id, 0, 1, 3, "l0/key", "torn")
    ledger.write(runs.begin, "run", "a test", 1)
    switch = TableSwitch(topic.topic_id, "orders", "1.json", {0: 3}, holes=(hole,))
    ledger.write(lake_tables.switch, "run", [switch], 1)
    (loss,) = losses(whole(ledger))
    assert (loss.partition, loss.first, loss.last) == (0, 1, 3)
    assert "quarantine" in loss.reason


def test_what_no_extent_holds_is_a_loss_that_the_ledger_is_blamed_for(
    orders: tuple[Ledger, Topic],
) -> None:
    plan = whole(orders[0])
    del plan.objects[1]
    (loss,) = losses(plan)
    assert (loss.partition, loss.first, loss.last) == (0, 4, 5)
    assert "headgate check" in loss.reason


@pytest.mark.parametrize(
    ("starts", "stops", "field"),
    [
        ({2: 1}, {}, "from.orders.2"), ({0: 0}, {}, "from.orders.0"),
        ({0: 11}, {}, "from.orders.0"), ({}, {1: 8}, "to.orders.1"),
        ({0: 5}, {0: 4}, "from.orders.0"),
    ],
)  # fmt: skip
def test_what_is_asked_must_lie_within_the_partition(
    orders: tuple[Ledger, Topic], starts: dict[int, int], stops: dict[int, int], field: str
) -> None:
    ledger, topic = orders
    states = ledger.read(reads.partition_states, topic.topic_id)
    ledger.close()
    with pytest.raises(PlanInvalid) as raised:
        wanted(topic, states, starts, stops)
    assert raised.value.field == field


def test_a_step_of_the_wall_clock_ends_no_lease_of_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger").mkdir()
    with closing(Ledger(tmp_path / "ledger" / "ledger.db", nullcontext())) as ledger:
        ledger.write(topics.create, "t", TopicConfig(), 1)
        note = Aged(boot_id(), wall_ms(), boottime_ms(), wall_ms())
        ledger.write(notes.put, NOTE, note_of(note))
    planner = LedgerPlanner(str(tmp_path), PlanStore("file:///store"))
    lease = planner.page(PlanRequest(["t"])).plan
    stepped_ns = (wall_ms() + 3_600_000) * 10**6
    monkeypatch.setattr("time.time_ns", lambda: stepped_ns)
    assert planner.renew(lease)
