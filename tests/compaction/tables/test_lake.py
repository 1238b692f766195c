"""Tables are made, evolved, and committed to, and another engine reads the same rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compaction.tables.commit import (
    OneLookTransaction,
    TableCommit,
    commit_table,
    commit_tables,
    switch_of,
)
from compaction.tables.errors import (
    ForeignTable,
    LakeError,
    LakeUnusable,
    RewriteConflict,
    SchemaConflict,
    TableChanged,
    TableDamaged,
)
from compaction.tables.lake import UNUSABLE_MAX, Lake
from compaction.tables.prepare import prepare_tables
from compaction.tables.table_state import MANIFESTS_MAX
from ledger.lake.types import Hole
from ledger.table_names import TABLE_NAME_MAX
from tests.compaction.lakes import (
    DAY_MS,
    NOON_MS,
    Book,
    catalog_properties,
    commit_of,
    compacted,
    data_files,
    duckdb_rows,
    place_in,
    prepared,
    pyiceberg_rows,
    rows,
    topic,
    written,
)


def test_a_new_table_has_the_layout_that_the_documents_promise(lake: Lake) -> None:
    table = prepared(lake, topic("my.topic:of-mine", 7, columns={"price": "double"}))
    loaded = lake.catalog.load_table("headgate.my_topic_of_mine")
    assert table.table == "headgate.my_topic_of_mine" and table.made
    assert table.location == f"{lake.place.lake}/my_topic_of_mine-7" == loaded.location()
    assert [(f.name, f.field_id, f.required) for f in loaded.schema().fields] == [
        ("partition", 1, True), ("offset", 2, True), ("timestamp", 3, True), ("key", 4, False),
        ("tag", 5, False), ("node", 6, False), ("meta", 7, False), ("data", 8, True),
        ("data_is_base64", 9, True), ("price", 10, False),
    ]  # fmt: skip
    assert [(f.name, str(f.transform)) for f in loaded.spec().fields] == [("timestamp_day", "day")]
    assert [f.source_id for f in loaded.sort_order().fields] == [1, 2]
    assert loaded.format_version == 2
    assert loaded.properties["headgate.topic-id"] == "7"
    assert loaded.properties["commit.retry.num-retries"] == "0"
    mapping = loaded.name_mapping()
    assert mapping is not None and mapping == loaded.schema().name_mapping
    assert [(column.name, column.field_id) for column in table.columns] == [("price", 10)]


def test_rows_that_are_committed_are_what_two_engines_read(lake: Lake, book: Book) -> None:
    orders = topic()
    location = compacted(lake, book, orders, "run1", rows(0, 1, 5) + rows(1, 1, 3))
    assert duckdb_rows(location) == pyiceberg_rows(lake, "headgate.orders")
    location = compacted(lake, book, orders, "run2", rows(0, 6, 9), timestamp_ms=NOON_MS + DAY_MS)
    assert duckdb_rows(location) == rows(0, 1, 9) + rows(1, 1, 3)
    assert pyiceberg_rows(lake, "headgate.orders") == rows(0, 1, 9) + rows(1, 1, 3)
    properties = lake.catalog.load_table("headgate.orders").properties
    assert properties["headgate.watermarks"] == '{"0":9,"1":3}'
    assert properties["headgate.run"] == "run2"


def test_a_data_file_carries_exact_bounds_its_day_and_its_order(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(2, 10, 19))
    loaded = lake.catalog.load_table("headgate.orders")
    (task,) = loaded.scan().plan_files()
    file = task.file
    assert file.partition[0] == NOON_MS // DAY_MS
    assert file.record_count == 10 and file.sort_order_id == loaded.sort_order().order_id == 1
    assert file.split_offsets == [4]
    assert {i: int.from_bytes(file.lower_bounds[i], "little") for i in (1, 2)} == {1: 2, 2: 10}
    assert {i: int.from_bytes(file.upper_bounds[i], "little") for i in (1, 2)} == {1: 2, 2: 19}
    assert int.from_bytes(file.lower_bounds[3], "little") == NOON_MS * 1000
    assert 8 not in file.lower_bounds
    assert not list(loaded.scan(row_filter="partition = 2 and offset = 20").plan_files())


def test_a_repeated_commit_of_a_run_finds_what_is_there(lake: Lake) -> None:
    table = prepared(lake, topic())
    commit = commit_of(lake.place, table, "run1", rows(0, 1, 5))
    location = commit_table(lake, "run1", commit)
    assert commit_table(lake, "run1", commit) == location
    assert duckdb_rows(location) == rows(0, 1, 5)
    assert len(lake.catalog.load_table("headgate.orders").snapshots()) == 1


def test_a_column_that_is_added_later_is_null_in_older_files(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 2))
    wider = topic(columns={"price": "double", "paid": "boolean", "at": "timestamp"})
    location = compacted(
        lake, book, wider, "run2", rows(0, 3, 4),
        typed={"price": [1.5, None], "paid": [True, False], "at": [0, 1_000_000]},
    )  # fmt: skip
    assert duckdb_rows(location, '"offset", price, paid, epoch_ms("at")') == [
        (1, None, None, None),
        (2, None, None, None),
        (3, 1.5, True, 0),
        (4, None, False, 1000),
    ]
    # A column that the topic does not want any more stays, and is null from then on.
    location = compacted(lake, book, topic(columns={"paid": "boolean"}), "run3", rows(0, 5, 5))
    assert duckdb_rows(location, '"offset", price')[-1] == (5, None)


def test_another_type_for_a_column_is_refused_and_the_rest_goes_on(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(columns={"n": "long"}), "run1", rows(0, 1, 2), typed={"n": [1, 2]})
    changed, other = topic(columns={"n": "string"}), topic("others", 2)
    tables, failures = prepare_tables(lake, [changed, other], book)
    assert list(tables) == [2]
    assert [(one.topic, type(one.error)) for one in failures] == [("orders", SchemaConflict)]
    assert "wants the column n as string" in str(failures[0].error)


@pytest.mark.parametrize("name", ["a.b", "", "timestamp_day", "Timestamp_Day"])
def test_a_column_that_no_table_can_have_is_refused(lake: Lake, name: str) -> None:
    with pytest.raises(SchemaConflict, match="remove it"):
        prepared(lake, topic(columns={name: "long"}))


def test_columns_that_others_added_are_left_alone(lake: Lake, book: Book) -> None:
    from pyiceberg.types import StringType

    compacted(lake, book, topic(), "run1", rows(0, 1, 2))
    with lake.catalog.load_table("headgate.orders").update_schema() as update:
        update.add_column("theirs", StringType())
    location = compacted(lake, book, topic(), "run2", rows(0, 3, 4))
    assert duckdb_rows(location, '"offset", theirs') == [(n, None) for n in range(1, 5)]
    with lake.catalog.load_table("headgate.orders").update_schema() as update:
        update.rename_column("node", "host")
    with pytest.raises(TableChanged, match="its column 6 is host string, not node string"):
        prepared(lake, topic(), book)


def test_a_table_is_where_its_topic_says_whatever_the_topics_name(lake: Lake, book: Book) -> None:
    long = topic("n" * 255, 1)
    location = compacted(lake, book, long, "run1", rows(0, 1, 3))
    assert duckdb_rows(location) == rows(0, 1, 3)
    assert book.tables[1].name == f"headgate.{long.table}" and len(long.table) == TABLE_NAME_MAX
    second = msgspec.structs.replace(topic("a-b", 2), table="a_b_0123456789abcdef")
    compacted(lake, book, second, "run2", rows(0, 1, 2))
    assert pyiceberg_rows(lake, "headgate.a_b_0123456789abcdef") == rows(0, 1, 2)


def test_a_table_that_cannot_be_used_is_its_topics_failure_and_the_others_go_on(
    lake: Lake, book: Book
) -> None:
    # The place of one table is a file: nothing can be written below it.
    folder = Path(lake.place.path_of(lake.place.lake))
    folder.mkdir(parents=True)
    (folder / "broken-2").write_text("in the way")
    topics = [topic("orders", 1), topic("broken", 2), topic("others", 3)]
    tables, failures = prepare_tables(lake, topics, book)
    assert sorted(tables) == [1, 3]
    assert [(one.topic, type(one.error)) for one in failures] == [("broken", LakeUnusable)]
    # By itself it is the same while the catalog answers.
    tables, failures = prepare_tables(lake, topics[1:2], book)
    assert not tables and [one.topic for one in failures] == ["broken"]


def test_a_commit_that_fails_for_one_table_does_not_fail_others(lake: Lake, book: Book) -> None:
    commits = []
    for one in (topic("orders", 1), topic("broken", 2), topic("others", 3)):
        table = prepared(lake, one, book)
        commits.append(commit_of(lake.place, table, "run1", rows(0, 1, 2)))
    folder = Path(lake.place.path_of(commits[1].table.location)) / "metadata"
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("in the way")
    first, second, third = commit_tables(lake, "run1", commits)
    assert isinstance(first, str) and isinstance(third, str)
    assert isinstance(second, LakeError) and "headgate.broken" in second.problem


def test_the_lake_is_given_up_when_table_after_table_cannot_be_used(lake: Lake) -> None:
    tried: list[int] = []

    def no(number: int) -> int:
        tried.append(number)
        raise LakeUnusable(f"table {number} cannot be used", "see")

    with pytest.raises(LakeUnusable, match="table"):
        lake.attempt(no, range(10_000))
    assert len(tried) < 10 * UNUSABLE_MAX


def test_the_table_of_a_former_topic_is_renamed_and_keeps_its_rows(lake: Lake) -> None:
    first = compacted(lake, Book(), topic(topic_id=1), "run1", rows(0, 1, 3))
    second = compacted(lake, Book(), topic(topic_id=5), "run2", rows(0, 1, 2))
    assert pyiceberg_rows(lake, "headgate.orders__1") == rows(0, 1, 3) == duckdb_rows(first)
    assert pyiceberg_rows(lake, "headgate.orders") == rows(0, 1, 2) == duckdb_rows(second)
    old, new = (lake.catalog.load_table(f"headgate.{n}") for n in ("orders__1", "orders"))
    assert old.location() != new.location()


def test_a_table_that_headgate_never_made_is_not_touched(lake: Lake) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    schema = Schema(NestedField(field_id=1, name="x", field_type=LongType(), required=False))
    theirs = lake.catalog.create_table("headgate.orders", schema)
    with pytest.raises(ForeignTable, match="was not made by Headgate"):
        prepared(lake, topic())
    found = lake.catalog.load_table("headgate.orders")
    assert found.metadata_location == theirs.metadata_location


def test_a_table_of_another_lake_is_not_touched(lake: Lake, tmp_path: Path, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    other = place_in(tmp_path / "elsewhere")
    with (
        Lake(other, catalog_properties(tmp_path)) as second,
        pytest.raises(ForeignTable, match="another Headgate"),
    ):
        prepared(second, topic())


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"headgate.watermarks": "{"}, "cannot be read"),
        ({"headgate.watermarks": '{"0":"many"}'}, "cannot be read"),
        ({"headgate.watermarks": '{"0":-1}'}, "cannot be read"),
        ({"headgate.watermarks": '{"0":2}'}, "its watermark of partition 0 is 2"),
        ({"headgate.watermarks": None}, "cannot be read"),
        ({"headgate.topic-id": None}, "not made by"),
    ],
)
def test_changed_watermarks_stop_the_topic(
    lake: Lake, book: Book, properties: dict[str, str | None], said: str
) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    with lake.catalog.load_table("headgate.orders").transaction() as change:
        change.set_properties({k: v for k, v in properties.items() if v is not None})
        change.remove_properties(*(k for k, v in properties.items() if v is None))
    with pytest.raises((TableChanged, ForeignTable), match=said):
        prepared(lake, topic(), book)


def test_a_table_that_was_rolled_back_stops_the_topic(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    before = lake.catalog.load_table("headgate.orders").metadata.current_snapshot_id
    compacted(lake, book, topic(), "run2", rows(0, 4, 6))
    loaded = lake.catalog.load_table("headgate.orders")
    loaded.manage_snapshots().set_current_snapshot(before).commit()
    with pytest.raises(TableChanged, match="rolled back"):
        prepared(lake, topic(), book)


def test_a_table_that_is_rolled_back_during_a_run_takes_no_commit(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    before = lake.catalog.load_table("headgate.orders").metadata.current_snapshot_id
    compacted(lake, book, topic(), "run2", rows(0, 4, 6))
    commit = commit_of(lake.place, prepared(lake, topic(), book), "run3", rows(0, 7, 8))
    loaded = lake.catalog.load_table("headgate.orders")
    loaded.manage_snapshots().set_current_snapshot(before).commit()
    with pytest.raises(TableChanged, match="rolled back"):
        commit_table(lake, "run3", commit)


def test_a_transaction_shows_each_change_as_it_is_staged(lake: Lake) -> None:
    prepared(lake, topic())
    loaded = lake.catalog.load_table("headgate.orders")
    transaction = OneLookTransaction(loaded)
    assert transaction.table_metadata is loaded.metadata
    for value in ("1", "2"):
        transaction.set_properties({"x": value})
        seen = transaction.table_metadata
        assert seen.properties["x"] == value and transaction.table_metadata is seen
    assert "x" not in loaded.metadata.properties


def test_another_partitioning_stops_the_topic(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    with lake.catalog.load_table("headgate.orders").update_spec() as change:
        change.add_identity("partition")
    with pytest.raises(TableChanged, match="partitioned by"):
        prepared(lake, topic(), book)


def test_a_table_that_the_catalog_lost_is_registered_again(
    lake: Lake, book: Book, tmp_path: Path
) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    (tmp_path / "new").mkdir()
    with Lake(lake.place, catalog_properties(tmp_path / "new")) as found:
        assert prepared(found, topic(), book).registered
        location = compacted(found, book, topic(), "run2", rows(0, 4, 5))
    assert duckdb_rows(location) == rows(0, 1, 5)


def test_a_table_whose_metadata_is_gone_too_stops_the_topic(
    lake: Lake, book: Book, tmp_path: Path
) -> None:
    location = compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    lake.catalog.drop_table("headgate.orders")
    Path(location.removeprefix("file://")).unlink()
    with pytest.raises(TableChanged, match="is gone"):
        prepared(lake, topic(), book)


def test_small_files_are_replaced_by_what_they_were_rewritten_to(lake: Lake, book: Book) -> None:
    for n in range(1, 5):
        compacted(lake, book, topic(), f"run{n}", rows(0, n, n))
    small = sorted(data_files(lake, "headgate.orders"))
    table = prepared(lake, topic(), book)
    assert lake.rewritable(table.table, [*small[:3], "file:///elsewhere"]) == small[:3]
    files = written(lake.place, table, "run5", rows(0, 1, 3) + rows(0, 5, 9))
    location = commit_table(lake, "run5", TableCommit(table, files, {0: 9}, small[:3]))
    assert duckdb_rows(location) == rows(0, 1, 9) == pyiceberg_rows(lake, "headgate.orders")
    assert data_files(lake, "headgate.orders") == {small[3], files[0][0].path}
    summary = lake.catalog.load_table("headgate.orders").metadata.snapshots[-1].summary
    assert summary is not None and summary["total-records"] == "9"
    # Wider columns after a rewrite: old and new files together.
    book.switch(switch_of(TableCommit(table, files, {0: 9}, small[:3]), location), "run5")
    wider = topic(columns={"n": "long"})
    location = compacted(lake, book, wider, "run6", rows(0, 10, 11), typed={"n": [10, 11]})
    assert duckdb_rows(location, '"partition", "offset", n')[-3:] == [
        (0, 9, None), (0, 10, 10), (0, 11, 11),
    ]  # fmt: skip


def test_files_that_others_removed_are_not_rewritten(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 2))
    compacted(lake, book, topic(), "run2", rows(0, 3, 4))
    small = sorted(data_files(lake, "headgate.orders"))
    table = prepared(lake, topic(), book)
    files = written(lake.place, table, "run3", rows(0, 1, 5))
    lake.catalog.load_table("headgate.orders").delete('"offset" <= 2')
    with pytest.raises(RewriteConflict, match="another writer removed them"):
        commit_table(lake, "run3", TableCommit(table, files, {0: 5}, small))
    assert pyiceberg_rows(lake, "headgate.orders") == rows(0, 3, 4)
    assert lake.rewritable(table.table, small) == small[1:]
    appended = compacted(lake, book, topic(), "run4", rows(0, 5, 5))
    assert duckdb_rows(appended) == rows(0, 3, 5)


def test_holes_are_listed_and_carried_on(lake: Lake, book: Book) -> None:
    table = prepared(lake, topic())
    hole = Hole(1, 0, 4, 6, "l0/1/1-0-1", "torn")
    files = written(lake.place, table, "run1", rows(0, 1, 3))
    commit_table(lake, "run1", TableCommit(table, files, {0: 6}, holes=[hole]))
    location = compacted(lake, book, topic(), "run2", rows(0, 7, 8))
    properties = lake.catalog.load_table("headgate.orders").properties
    assert properties["headgate.holes"] == '[[0,4,6,"l0/1/1-0-1","torn"]]'
    assert duckdb_rows(location) == rows(0, 1, 3) + rows(0, 7, 8)


def test_a_commit_without_files_moves_the_watermarks(lake: Lake) -> None:
    table = prepared(lake, topic())
    first = commit_table(lake, "run1", TableCommit(table, [], {0: 6}))
    assert commit_table(lake, "run1", TableCommit(table, [], {0: 6})) == first
    assert prepared(lake, topic()).watermarks == {0: 6}
    assert duckdb_rows(first) == []


def test_files_beyond_the_watermarks_or_in_the_table_already_are_refused(
    lake: Lake, book: Book
) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    table = prepared(lake, topic(), book)
    files = written(lake.place, table, "run2", rows(0, 3, 5))
    with pytest.raises(ValueError, match="its watermark is 4"):
        commit_table(lake, "run2", TableCommit(table, files, {0: 4}))
    with pytest.raises(ValueError, match=r"headgate\.orders has already"):
        commit_table(lake, "run2", TableCommit(table, files, {0: 5}))
    with pytest.raises(ValueError, match="would fall"):
        commit_table(lake, "run2", TableCommit(table, [], {0: 2}))


def test_many_tables_are_committed_together_and_fail_alone(lake: Lake, book: Book) -> None:
    topics = [topic(f"t{n}", n) for n in range(1, 7)]
    tables, _ = prepare_tables(lake, topics, book)
    commits = [commit_of(lake.place, tables[n], "run1", rows(0, 1, n)) for n in range(1, 7)]
    lake.catalog.drop_table("headgate.t3")
    answers = commit_tables(lake, "run1", commits)
    assert [isinstance(answer, TableChanged) for answer in answers] == [n == 3 for n in range(1, 7)]
    for n, answer in enumerate(answers, 1):
        if isinstance(answer, str):
            assert duckdb_rows(answer) == rows(0, 1, n)


def test_manifests_are_merged_before_they_are_many(lake: Lake, book: Book) -> None:
    count = MANIFESTS_MAX + 2
    for n in range(1, count + 1):
        location = compacted(lake, book, topic(), f"run{n}", rows(0, n, n))
    loaded = lake.catalog.load_table("headgate.orders")
    snapshot = loaded.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(loaded.io)) <= MANIFESTS_MAX
    assert duckdb_rows(location) == rows(0, 1, count)


def test_a_table_whose_files_are_gone_fails_alone(lake: Lake, book: Book) -> None:
    location = compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    Path(location.removeprefix("file://")).unlink()
    topics = [topic(), topic("others", 2)]
    tables, failures = prepare_tables(lake, topics, book)
    assert list(tables) == [2]
    assert isinstance(failures[0].error, TableDamaged) and "metadata.json" in str(failures[0].error)


@pytest.mark.parametrize("left", [b"", b"{}", b"\xff", b'{"format-version":2}'])
def test_a_table_whose_metadata_is_torn_fails_alone(lake: Lake, book: Book, left: bytes) -> None:
    location = compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    Path(location.removeprefix("file://")).write_bytes(left)
    with pytest.raises(TableDamaged):
        prepared(lake, topic(), book)


@pytest.mark.parametrize("left", [b"", b"Obj", b"not Avro at all, and long enough for a header"])
def test_a_table_whose_manifest_list_is_torn_takes_no_commit(
    lake: Lake, book: Book, left: bytes
) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    before = lake.locations()
    for path in Path(lake.place.lake.removeprefix("file://")).rglob("snap-*.avro"):
        path.write_bytes(left)
    with pytest.raises(TableDamaged):
        compacted(lake, book, topic(), "run2", rows(0, 4, 5))
    assert lake.locations() == before
