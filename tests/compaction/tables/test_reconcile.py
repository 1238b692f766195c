"""A run that died after its Iceberg commit is completed, and nothing else is changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.errors import TableChanged
from compaction.tables.lake import Lake
from compaction.tables.prepare import prepare_tables
from compaction.tables.reconcile import covered, reconcile, register_lost
from ledger import epochs, topics
from ledger.checks import invariants
from ledger.lake import lake_files, lake_tables, runs
from ledger.lake.types import Hole, LakeFile, LakeRange, NewFile
from ledger.ledger import Ledger
from ledger.types import Topic, TopicConfig
from tests.compaction.lakes import (
    Book,
    commit_of,
    compacted,
    data_files,
    duckdb_rows,
    prepared,
    rows,
    topic,
    written,
)
from tests.ledger.lakes import commit as ingest
from tests.ledger.requests import Request

ORDERS = topic()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    ledger.write(epochs.begin_incarnation, 1)
    yield ledger
    ledger.read(invariants.check)
    ledger.close()


def test_a_real_ledger_takes_what_was_made_up_for(lake: Lake, ledger: Ledger) -> None:
    orders, _ = ledger.write(topics.create, "orders", TopicConfig(partitions=2), 1)
    counter = itertools.count(1)
    for count in (4, 3):
        ingest(ledger, next(counter), Request(orders.topic_id, ((0, count), (1, 2))))
    ledger.write(runs.begin, "run1", "test", 10)
    table = prepare_tables(lake, [orders], ledger)[0][orders.topic_id]
    first = commit_of(lake.place, table, "run1", rows(0, 1, 4) + rows(1, 1, 2))
    ledger.write(
        lake_tables.switch, "run1", [switch_of(first, commit_table(lake, "run1", first))], 20
    )
    # The next run is killed before its switch.
    table = prepare_tables(lake, [orders], ledger)[0][orders.topic_id]
    (old,) = ledger.read(lake_files.of_topic, orders.topic_id)
    files = written(lake.place, table, "run2", rows(0, 1, 7) + rows(1, 1, 4))
    location = commit_table(lake, "run2", TableCommit(table, files, {0: 7, 1: 4}, [old.path]))

    switches, failures = reconcile(lake, [orders], ledger)
    assert not failures
    ledger.write(runs.end, "run1", 30)
    ledger.write(runs.begin, "run3", "test", 30)
    ledger.write(lake_tables.switch, "run3", switches, 40)
    assert ledger.read(lake_tables.compacted_seqs, orders.topic_id) == {0: 7, 1: 4}
    assert [file.path for file in ledger.read(lake_files.of_topic, orders.topic_id)] == [
        files[0][0].path
    ]
    found = ledger.read(lake_tables.find, orders.topic_id)
    assert found is not None and found.metadata_location == location
    assert reconcile(lake, [orders], ledger) == ([], [])


def test_a_first_run_that_was_killed_is_made_up_for_with_its_holes(lake: Lake, book: Book) -> None:
    table = prepared(lake, ORDERS)
    hole = Hole(1, 0, 5, 6, "l0/1/1-0-1", "torn")
    commit = TableCommit(
        table, written(lake.place, table, "run1", rows(0, 1, 4)), {0: 6}, (), [hole]
    )
    location = commit_table(lake, "run1", commit)
    assert reconcile(lake, [ORDERS], book) == ([switch_of(commit, location)], [])


def test_only_the_holes_that_the_ledger_lacks_are_told(lake: Lake, book: Book) -> None:
    old, new = (Hole(1, 0, n, n, f"l0/1/1-0-{n}", "torn") for n in (3, 6))
    table = prepared(lake, ORDERS)
    commit = TableCommit(table, [], {0: 3}, (), [old])
    book.switch(switch_of(commit, commit_table(lake, "run1", commit)), "run1")
    table = prepared(lake, ORDERS, book)
    commit_table(lake, "run2", TableCommit(table, [], {0: 6}, (), [new]))
    ((switch,), _) = reconcile(lake, [ORDERS], book)
    assert switch.holes == (new,)


def test_tables_that_are_where_the_ledger_left_them_are_not_read(
    lake: Lake, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    prepared(lake, topic("others", 2))
    monkeypatch.setattr(lake.catalog, "load_table", lambda name: pytest.fail(f"{name} is read"))
    assert reconcile(lake, [ORDERS], book) == ([], [])


def test_a_table_that_is_only_made_tells_nothing(lake: Lake, book: Book) -> None:
    prepared(lake, ORDERS)
    assert reconcile(lake, [ORDERS], book) == ([], [])


def test_a_commit_by_others_only_moves_the_location(lake: Lake, book: Book) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    compacted(lake, book, ORDERS, "run2", rows(0, 5, 6))
    lake.catalog.load_table("headgate.orders").delete('"offset" <= 4')
    ((switch,), _) = reconcile(lake, [ORDERS], book)
    assert not switch.added and not switch.dropped
    assert switch.metadata_location == lake.locations()["headgate.orders"]
    book.switch(switch, "run3")
    location = compacted(lake, book, ORDERS, "run4", rows(0, 7, 7))
    assert duckdb_rows(location) == rows(0, 5, 7)


def test_a_broken_table_is_named_and_the_others_are_reconciled(lake: Lake, book: Book) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    with lake.catalog.load_table("headgate.orders").transaction() as change:
        change.set_properties({"headgate.watermarks": "gone"})
    others = topic("others", 2)
    commit = commit_of(lake.place, prepared(lake, others), "run2", rows(0, 1, 2))
    commit_table(lake, "run2", commit)
    switches, failures = reconcile(lake, [ORDERS, others], book)
    assert [one.topic for one in failures] == ["orders"]
    assert isinstance(failures[0].error, TableChanged)
    assert [one.topic_id for one in switches] == [2]


def test_a_table_that_is_behind_the_ledger_is_named(lake: Lake, book: Book) -> None:
    """As when an operator registers an older version of its metadata."""
    older = compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    compacted(lake, book, ORDERS, "run2", rows(0, 5, 6))
    lake.catalog.drop_table("headgate.orders")
    lake.catalog.register_table("headgate.orders", older)
    switches, (failure,) = reconcile(lake, [ORDERS], book)
    assert not switches and "its watermark of partition 0 is 4" in str(failure.error)


def test_tables_of_others_are_passed_over(lake: Lake, book: Book) -> None:
    from pyiceberg.schema import Schema

    compacted(lake, Book(), topic(topic_id=9), "run1", rows(0, 1, 4))
    lake.catalog.create_table("headgate.theirs", Schema())
    topics: list[Topic] = [ORDERS, topic("theirs", 2), topic("none", 3)]
    assert reconcile(lake, topics, book) == ([], [])


def test_files_that_a_killed_run_rewrote_are_dropped_and_no_others(lake: Lake, book: Book) -> None:
    for n in range(1, 5):
        compacted(lake, book, ORDERS, f"run{n}", rows(0, n, n) + rows(1, n, n))
    small = sorted(data_files(lake, "headgate.orders"))
    table = prepared(lake, ORDERS, book)
    files = written(lake.place, table, "run5", rows(0, 1, 3) + rows(1, 1, 3) + rows(0, 5, 6))
    commit_table(lake, "run5", TableCommit(table, files, {0: 6, 1: 4}, small[:3]))
    ((switch,), _) = reconcile(lake, [ORDERS], book)
    assert sorted(switch.dropped) == small[:3]
    assert switch.added == (files[0][0],)


days = st.sampled_from(["2023-11-14", "2023-11-15"])
ranges = st.builds(
    lambda partition, first, count: LakeRange(
        partition, first, first + count, count + 1, 1, 0, 0
    ),
    st.integers(0, 1), st.integers(1, 30), st.integers(0, 8),
)  # fmt: skip


@given(st.lists(st.tuples(days, ranges), max_size=8), st.lists(st.tuples(days, ranges), max_size=4))
def test_a_file_is_covered_when_files_of_its_day_reach_around_it(
    known: list[tuple[str, LakeRange]], added: list[tuple[str, LakeRange]]
) -> None:
    files = [
        LakeFile(number, 1, f"file:///t/data/timestamp_day={day}/r-0-{number}.parquet", 1, 1, "r")
        for number, (day, _) in enumerate(known)
    ]
    new = [
        NewFile(f"file:///t/data/timestamp_day={day}/s-0-{number}.parquet", 1, 1, (one,))
        for number, (day, one) in enumerate(added)
    ]
    found = covered(files, {n: (one,) for n, (_, one) in enumerate(known)}, new)
    for file, (day, one) in zip(files, known, strict=True):
        around = [each for other, each in added if other == day and each.partition == one.partition]
        reaches = bool(around) and (
            min(each.first_offset for each in around) <= one.first_offset
            and one.last_offset <= max(each.last_offset for each in around)
        )
        assert (file.path in found) == reaches


def forget_tables(lake: Lake, *names: str) -> None:
    for name in names:
        lake.catalog.drop_table(f"headgate.{name}")


def test_every_table_that_the_ledger_knows_is_registered_in_a_catalog_that_lost_all(
    lake: Lake, ledger: Ledger
) -> None:
    counter = itertools.count(1)

    def run(name: str) -> Topic:
        made, _ = ledger.write(topics.create, name, TopicConfig(), 1)
        ingest(ledger, next(counter), Request(made.topic_id, ((0, 3),)))
        ledger.write(runs.begin, f"r{made.topic_id}", "test", 10)
        table = prepare_tables(lake, [made], ledger)[0][made.topic_id]
        commit = commit_of(lake.place, table, f"r{made.topic_id}", rows(0, 1, 3))
        switch = switch_of(commit, commit_table(lake, f"r{made.topic_id}", commit))
        ledger.write(lake_tables.switch, f"r{made.topic_id}", [switch], 20)
        ledger.write(runs.end, f"r{made.topic_id}", 30)
        return made

    run("orders")
    ledger.write(topics.delete, "orders", 40)
    live = [run("orders"), run("clicks")]
    there = lake.locations()
    assert set(there) == {"headgate.orders", "headgate.orders__1", "headgate.clicks"}
    forget_tables(lake, "orders", "orders__1", "clicks")
    registered, failures = register_lost(lake, live, ledger)
    assert sorted(registered) == sorted(there) and lake.locations() == there and not failures
    assert reconcile(lake, live, ledger) == ([], [])
    # A table of a deleted topic that an operator dropped does not come back; one that lives does.
    forget_tables(lake, "orders", "orders__1")
    assert register_lost(lake, live, ledger) == (["headgate.orders"], [])
    assert register_lost(lake, live, ledger) == ([], [])


def test_a_lost_table_without_metadata_is_its_topics_failure_and_no_others(
    lake: Lake, book: Book
) -> None:
    other = topic("clicks", 2)
    for each in (ORDERS, other):
        compacted(lake, book, each, "run1", rows(0, 1, 3))
    Path(book.tables[1].metadata_location.removeprefix("file://")).unlink()
    forget_tables(lake, "orders", "clicks")
    registered, failures = register_lost(lake, [ORDERS, other], book)
    assert registered == ["headgate.clicks"] and [f.topic for f in failures] == ["orders"]
    assert isinstance(failures[0].error, TableChanged)
