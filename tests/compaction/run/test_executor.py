"""Tasks without Spark: what is planned is written once, in order, by day; holes are named."""

from __future__ import annotations

import operator
import pickle
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.inputs.place import Place
from compaction.parquet.row_builder import TimesSetAside
from compaction.parquet.writer import FileNames, Syncs, TopicWriter, WrittenFile
from compaction.run import executor
from compaction.run.driver import TaskFailed, outcome_of
from compaction.run.executor import (
    REPORT,
    MapFunction,
    ReduceFunction,
    Setup,
    TaskReport,
    chunk_bytes_for,
    decode_report,
    encode_task,
    reducer_of,
)
from compaction.run.file_groups import JoiningFile, TopicWork
from compaction.run.job_plan import JobPlan, plan_job
from compaction.run.splits import SplitLimits
from compaction.tables.schema import Column, typed_columns
from ledger.lake.types import Hole, PlannedObject
from tests.compaction.objects import (
    DAY_MS,
    NOON_MS,
    Draft,
    Heads,
    check_file,
    drafts,
    put,
    rows_in,
    rows_of,
    table_of,
)
from tests.compaction.parquet.test_writer import batch_of
from tests.long import examples
from uploader.l0.records import Record

NEVER = 1 << 40
LIMITS = SplitLimits(400, 100, 150, 300, range_bytes_min=NEVER)
SPLIT = SplitLimits(400, 100, 150, 300, range_bytes_min=1)


def place_in(folder: str | Path) -> Place:
    """A store in a folder."""
    return Place((Path(folder) / "store").as_uri())


def work(place: Place, topic_id: int, joining: Sequence[JoiningFile] = ()) -> TopicWork:
    """A topic without typed columns."""
    return TopicWork(topic_id, f"{place.lake}/t-{topic_id}", (), tuple(joining))


def run_by_hand(
    place: Place, objects: Sequence[PlannedObject], topics: Sequence[TopicWork], cores: int = 2,
    limits: SplitLimits = LIMITS,
) -> tuple[JobPlan, list[TaskReport]]:  # fmt: skip
    """What Spark does with the functions of a job: map, by reducer in any order, reduce."""
    what = plan_job(objects, topics, cores, limits)
    setup = Setup(place, "run-1", what.topics)
    counted: list[tuple[int, int]] = []
    count: Callable[[int, int], None] = lambda objects, size: counted.append((objects, size))  # noqa: E731
    mapped = MapFunction(setup, what.shuffled, count)
    pairs = [pair for task in what.tasks for pair in mapped([encode_task(task)])]
    if what.reducers:
        reduced = ReduceFunction(setup, what.shuffled, count)
        pairs = [
            done
            for reducer in range(what.reducers)
            for done in reduced(pair for pair in pairs[::-1] if reducer_of(pair[0]) == reducer)
        ]
    assert all(key[1] == REPORT for key, _ in pairs)
    reports = [decode_report(body) for _, body in pairs]
    assert sum(objects for objects, _ in counted) == what.reads
    lost = sum(1 for report in reports for _ in report.holes)
    if not lost:
        assert sum(size for _, size in counted) == what.bytes, "every byte is told once"
    return what, reports


def files_of(reports: Iterable[TaskReport], topic_id: int) -> list[WrittenFile]:
    """The files of a topic."""
    return [each for report in reports for each in report.files if each.topic_id == topic_id]


@settings(max_examples=examples(40))
@given(
    st.lists(drafts(), min_size=1, max_size=8), st.integers(1, 3), st.sampled_from([LIMITS, SPLIT])
)
def test_rows_in_files_are_what_records_of_reads(
    some: list[list[Draft]], cores: int, limits: SplitLimits
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = place_in(folder)
        heads = Heads()
        objects = [put(place.store(), heads, each) for each in some]
        expected = rows_of(place.store(), objects)
        topics = [work(place, topic_id) for topic_id in range(1, 4)]
        what, reports = run_by_hand(place, objects, topics, cores, limits)
        for topic_id in range(1, 4):
            files = files_of(reports, topic_id)
            for written in files:
                check_file(place, written)
            assert rows_in(place, files) == expected.get(topic_id, [])
        place.store().close()
        assert not any(report.holes for report in reports)
        read = sum(report.bytes_read for report in reports)
        if what.reads == what.objects:
            assert read == sum(each.size_bytes for each in objects if each.extents)
        else:
            assert read < sum(each.size_bytes for each in objects)


def small_objects(
    place: Place, count: int, heads: Heads | None = None, topics: int = 2
) -> list[PlannedObject]:
    """Objects of some topics in two partitions each, a few records an extent."""
    heads = heads or Heads()
    return [
        put(
            place.store(),
            heads,
            [
                Draft(topic_id, partition, [(NOON_MS + at, [Record(f'"{at}"'), Record("{}")])])
                for topic_id in range(1, topics + 1)
                for partition in (0, 1)
            ],
        )
        for at in range(count)
    ]


def test_what_is_shuffled_is_one_file_for_each_topic_and_day(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    objects = small_objects(place, 20, topics=4)
    topics = [work(place, topic_id) for topic_id in range(1, 5)]
    limits = SplitLimits(5000, 100, 10_000, 100_000, NEVER)
    what, reports = run_by_hand(place, objects, topics, 2, limits)
    assert len(what.tasks) > 1 and what.reducers == 2, "so a reducer has several groups"
    for topic in topics:
        assert len(files_of(reports, topic.topic_id)) == 1
    place.store().close()


def test_damage_is_a_hole_by_name_wherever_it_is_found(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    store = place.store()
    heads = Heads()
    good = small_objects(place, 4, heads)
    gone, broken = small_objects(place, 2, heads)
    store.delete([gone.locator])
    # What only decoding finds: the ledger says one record more than the extent has.
    first = broken.extents[0]
    longer = msgspec.structs.replace(first, last_offset=first.last_offset + 1)
    broken = msgspec.structs.replace(broken, extents=(longer, *broken.extents[1:]))
    objects = [*good, gone, broken]
    for cores in (1, 3):
        what, reports = run_by_hand(place, objects, [work(place, 1), work(place, 2)], cores,
                                    SplitLimits(1000, 100, 10_000, 100_000, NEVER))  # fmt: skip
        assert bool(what.shuffled) == (cores > 1)
        holes = sorted(
            (hole for report in reports for hole in report.holes),
            key=lambda hole: (hole.topic_id, hole.partition, hole.first_offset),
        )
        assert [msgspec.structs.replace(hole, reason="") for hole in holes] == sorted(
            (
                Hole(e.topic_id, e.partition, e.first_offset, e.last_offset, each.key, "")
                for each, some in ((gone, gone.extents), (broken, broken.extents[:1]))
                for e in some
            ),
            key=lambda hole: (hole.topic_id, hole.partition, hole.first_offset),
        )
        assert {hole.reason.partition(":")[0] for hole in holes} == {"missing", "damaged"}
        rest = [*good, msgspec.structs.replace(broken, extents=broken.extents[1:])]
        expected = rows_of(store, rest)
        for topic_id in (1, 2):
            assert rows_in(place, files_of(reports, topic_id)) == expected[topic_id]
    store.close()


def written(
    place: Place,
    rows: list[tuple[int, int, int]],
    columns: tuple[Column, ...] = (),
    number: int = 0,
) -> JoiningFile:
    """A file that an earlier run has left in topic 1's table."""
    syncs = Syncs()
    names = FileNames(f"{place.lake}/t-1", 1, "earlier", number)
    writer = TopicWriter(place, names, syncs, columns)
    writer.write(*batch_of(rows, columns, '"old"'))
    (file,) = writer.close()
    syncs.wait()
    return JoiningFile(file.file.path, file.file.size_bytes, file.file.ranges)


@pytest.mark.parametrize("cores", [1, 3])
def test_small_files_join_in_their_place(tmp_path: Path, cores: int) -> None:
    place = place_in(tmp_path)
    heads = Heads()
    heads.give(1, 0, 5)
    objects = small_objects(place, 8, heads)
    joining = [
        written(place, [(0, 2, NOON_MS), (0, 4, NOON_MS)], number=1),
        written(place, [(0, 1, NOON_MS), (0, 3, NOON_MS), (7, 1, NOON_MS)], number=2),
        written(place, [(0, 5, NOON_MS + DAY_MS)], number=3),
    ]
    what, reports = run_by_hand(place, objects, [work(place, 1, joining), work(place, 2)], cores,
                                SplitLimits(2000, 100, 10_000, 100_000, NEVER))  # fmt: skip
    assert bool(what.shuffled) == (cores > 1)
    files = files_of(reports, 1)
    for each in files:
        check_file(place, each)
    assert len(files) == 2, "a file for each day"
    found = rows_in(place, files)
    expected = rows_of(place.store(), objects)[1]
    old = [row for row in found if row[7] == '"old"']
    assert [row[:2] for row in old] == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (7, 1)]
    assert sorted(set(found) - set(old)) == expected
    l0_bytes = sum(e.byte_length for each in objects for e in each.extents if e.topic_id == 1)
    assert sum(part.bytes for each in files for part in each.file.ranges) == l0_bytes + 60
    joined = sorted(path for report in reports for path in report.joined)
    assert joined == sorted(file.path for file in joining)
    place.store().close()


def test_rows_from_between_new_ones_are_put_in_between(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    heads = Heads()
    first = put(place.store(), heads, [Draft(1, 0, [(NOON_MS, [Record("1"), Record("2")])])])
    heads.give(1, 0, 2)
    second = put(place.store(), heads, [Draft(1, 0, [(NOON_MS, [Record("5")])])])
    old = written(place, [(0, 3, NOON_MS), (0, 4, NOON_MS)])
    _, reports = run_by_hand(place, [first, second], [work(place, 1, [old])], 1)
    (file,) = files_of(reports, 1)
    check_file(place, file)
    assert [row[7] for row in rows_in(place, [file])] == ["1", "2", '"old"', '"old"', "5"]
    place.store().close()


def test_a_small_file_that_cannot_be_read_stays_and_says_why(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    good = written(place, [(0, 1, NOON_MS)], number=1)
    torn = written(place, [(0, 2, NOON_MS)], number=2)
    Path(place.path_of(torn.path)).write_bytes(b"PAR1")
    gone = written(place, [(0, 3, NOON_MS)], number=3)
    Path(place.path_of(gone.path)).unlink()
    short = written(place, [(0, 4, NOON_MS)], number=4)
    short = msgspec.structs.replace(
        short, ranges=(msgspec.structs.replace(short.ranges[0], rows=2),)
    )
    other = typed_columns({"price": "double"})
    more = written(place, [(0, 5, NOON_MS)], other, number=5)
    files = [good, torn, gone, short, more]
    _, reports = run_by_hand(place, [], [work(place, 1, files)], 1, SplitLimits())
    assert [row[:2] for row in rows_in(place, files_of(reports, 1))] == [(0, 1)]
    kept = dict(pair for report in reports for pair in report.kept)
    assert list(kept) == [torn.path, gone.path, short.path, more.path]
    assert "2" in kept[short.path] and "1000" in kept[more.path]
    assert [path for report in reports for path in report.joined] == [good.path]


def test_rows_of_files_from_before_a_column_have_null_in_it(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    old = written(place, [(0, 1, NOON_MS)])
    columns = typed_columns({"price": "double"})
    heads = Heads()
    heads.give(1, 0, 1)
    new = put(place.store(), heads, [Draft(1, 0, [(NOON_MS, [Record('{"price":2}')])])])
    topic = TopicWork(1, f"{place.lake}/t-1", columns, (old,))
    _, reports = run_by_hand(place, [new], [topic], 1, SplitLimits())
    (file,) = files_of(reports, 1)
    assert table_of(place, file).column("price").to_pylist() == [None, 2.0]
    place.store().close()


def test_a_repeated_attempt_writes_files_of_its_own(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    objects = small_objects(place, 2)
    runs = [run_by_hand(place, objects, [work(place, 1)], 1, SplitLimits())[1] for _ in range(2)]
    paths = [files_of(reports, 1)[0].file.path for reports in runs]
    assert paths[0] != paths[1]
    assert rows_in(place, files_of(runs[0], 1)) == rows_in(place, files_of(runs[1], 1))
    place.store().close()


def test_reports_with_a_row_twice_or_missing_fail_the_job(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    objects = small_objects(place, 3)
    place.store().delete([objects[0].locator])
    what, reports = run_by_hand(place, objects, [work(place, 1), work(place, 2)], 1, SplitLimits())
    outcome = outcome_of(what, reports)
    assert outcome.rows == 16 and len(outcome.topics[1].holes) == 2
    (report,) = reports
    hole, *others = report.holes
    for spoiled in (
        msgspec.structs.replace(report, files=report.files[1:]),
        msgspec.structs.replace(report, files=(*report.files, report.files[0])),
        msgspec.structs.replace(report, holes=tuple(others)),
        msgspec.structs.replace(report, holes=(hole, *report.holes)),
    ):
        with pytest.raises(TaskFailed, match=r"of topic 1 should have 6 rows .* wrote \d+: Spark"):
            outcome_of(what, [spoiled])
    place.store().close()


def test_a_topic_that_cannot_be_written_fails_alone_and_leaves_nothing(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    objects = small_objects(place, 3)
    folder = Path(place.path_of(place.lake))
    folder.mkdir(parents=True)
    (folder / "t-1").write_text("in the way")
    for limits in (SplitLimits(), LIMITS):  # written where they are read; shuffled
        what, reports = run_by_hand(place, objects, [work(place, 1), work(place, 2)], 2, limits)
        outcome = outcome_of(what, reports)
        failed, written_one = outcome.topics[1], outcome.topics[2]
        assert "t-1" in failed.failed and not failed.files and not failed.holes
        assert not written_one.failed
        expected = rows_of(place.store(), objects)
        assert rows_in(place, written_one.files) == expected[2]
    place.store().close()


def test_times_that_no_table_can_hold_are_set_aside_named_and_counted(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    heads = Heads()
    micros = NOON_MS * 1000
    objects = [
        put(
            place.store(), heads,
            [
                Draft(1, 0, [(NOON_MS, [Record("0"), Record("1", micros + at)])]),
                Draft(2, 0, [(NOON_MS, [Record("2", NOON_MS)])]),
            ],
        )
        for at in range(3)
    ]  # fmt: skip
    what, reports = run_by_hand(place, objects, [work(place, 1), work(place, 2)], 1, SplitLimits())
    outcome = outcome_of(what, reports)
    assert outcome.topics[1].set_aside == (TimesSetAside(0, 2, 6, 3, micros),)
    assert outcome.topics[2].set_aside == ()
    rows = rows_in(place, outcome.topics[1].files)
    assert [(row[1], row[2], row[7]) for row in rows] == [
        (offset, NOON_MS * 1000, str(1 - offset % 2)) for offset in range(1, 7)
    ]
    place.store().close()


def test_nothing_is_left_in_a_lake_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_in(tmp_path)
    objects = small_objects(place, 2)

    def full(self: pq.ParquetWriter, table: pa.Table, row_group_size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    _, (report,) = run_by_hand(place, objects, [work(place, 1)], 1, SplitLimits())
    assert [topic_id for topic_id, _ in report.failed] == [1]
    assert "No space left" in report.failed[0][1]
    assert not list(Path(place.path_of(place.lake)).rglob("*.parquet"))
    place.store().close()


def test_chunks_bound_what_pyspark_gathers() -> None:
    assert chunk_bytes_for(1) == executor.CHUNK_BYTES_MAX
    for reducers in (1, 10, 50, 99, 10_000):
        gathered = min(10 * reducers, 1000) * chunk_bytes_for(reducers)
        assert gathered <= executor.GATHERED_BYTES_MAX


def test_functions_travel_by_name_with_little_in_them(tmp_path: Path) -> None:
    setup = Setup(place_in(tmp_path), "run", ())
    for made in (MapFunction(setup, (), operator.add), ReduceFunction(setup, (), operator.add)):
        assert len(pickle.dumps(made)) < 1000
