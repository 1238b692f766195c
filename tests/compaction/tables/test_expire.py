"""Old snapshots are removed with their files; what readers may still need stays."""

from __future__ import annotations

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.expire import ExpiredSnapshots, expire
from compaction.tables.lake import Lake
from compaction.tables.lake_listing import LakeListing
from compaction.tables.orphans import find_orphans
from tests.compaction.lakes import (
    Book,
    compacted,
    data_files,
    duckdb_rows,
    on_disk,
    prepared,
    pyiceberg_rows,
    rows,
    topic,
    written,
)

ORDERS = topic()
TABLE = "headgate.orders"
LATER_MS = 2**50


@pytest.fixture
def rewritten(lake: Lake, book: Book) -> set[str]:
    """Three small files, rewritten into one by a fourth run; returns the three."""
    for n in range(1, 4):
        compacted(lake, book, ORDERS, f"run{n}", rows(0, n, n))
    small = data_files(lake, TABLE)
    table = prepared(lake, ORDERS, book)
    files = written(lake.place, table, "run4", rows(0, 1, 5))
    commit = TableCommit(table, files, {0: 5}, sorted(small))
    book.switch(switch_of(commit, commit_table(lake, "run4", commit)), "run4")
    return small


def loaded(lake: Lake) -> Table:
    return lake.catalog.load_table(TABLE)


def snapshots(lake: Lake) -> list[Snapshot]:
    return sorted(loaded(lake).metadata.snapshots, key=lambda each: each.sequence_number or 0)


def expired(
    lake: Lake, book: Book, older_than_ms: int = LATER_MS, **options: object
) -> ExpiredSnapshots:
    read = {file.path for file in book.live_files(1)}
    found = expire(lake, TABLE, older_than_ms=older_than_ms, read_files=read, **options)  # type: ignore[arg-type]  # keep, dry_run
    assert found is not None
    return found


def test_what_was_rewritten_goes_with_the_last_snapshot_that_names_it(
    lake: Lake, book: Book, listing: LakeListing, rewritten: set[str]
) -> None:
    found = expired(lake, book)
    assert found.snapshots == 3 and set(found.data) == rewritten
    assert found.metadata and all(one.endswith(".avro") for one in found.metadata)
    assert found.metadata_location == lake.locations()[TABLE]
    listing.remove([*found.data, *found.metadata])
    assert on_disk(lake.place.lake) == data_files(lake, TABLE)
    assert duckdb_rows(found.metadata_location) == rows(0, 1, 5) == pyiceberg_rows(lake, TABLE)
    again = expired(lake, book)
    assert (again.snapshots, again.data, again.metadata) == (0, (), ())
    # The properties stay, so the next run continues.
    location = compacted(lake, book, ORDERS, "run5", rows(0, 6, 7))
    assert duckdb_rows(location) == rows(0, 1, 7)


def test_a_dry_run_says_the_same_and_changes_nothing(
    lake: Lake, book: Book, rewritten: set[str]
) -> None:
    before = loaded(lake).metadata_location
    dry = expired(lake, book, dry_run=True)
    assert loaded(lake).metadata_location == before == dry.metadata_location
    wet = expired(lake, book)
    assert (dry.snapshots, dry.data, dry.metadata) == (wet.snapshots, wet.data, wet.metadata)
    assert set(dry.data) == rewritten


def test_a_snapshot_stays_while_who_planned_with_it_may_read(
    lake: Lake, book: Book, rewritten: set[str]
) -> None:
    """A reader may plan with a snapshot until the next one replaces it."""
    stamps = [each.timestamp_ms for each in snapshots(lake)]
    assert expired(lake, book, older_than_ms=stamps[1], dry_run=True).snapshots == 0
    assert expired(lake, book, older_than_ms=stamps[2] + 1, dry_run=True).snapshots >= 2
    # The third is the last that names the small files; it was replaced by the fourth.
    bound = stamps[3]
    if stamps[2] < stamps[3]:
        assert expired(lake, book, older_than_ms=bound).data == ()
    assert set(expired(lake, book, older_than_ms=bound + 1).data) == rewritten


@pytest.mark.parametrize(("keep", "gone"), [(0, 3), (1, 3), (2, 2), (4, 0), (9, 0)])
def test_the_newest_snapshots_stay(
    lake: Lake, book: Book, rewritten: set[str], keep: int, gone: int
) -> None:
    assert expired(lake, book, keep=keep).snapshots == gone
    assert len(snapshots(lake)) == 4 - gone and rewritten


def test_tags_and_branches_hold_their_snapshots_and_files(
    lake: Lake, book: Book, rewritten: set[str]
) -> None:
    first, second, *_ = (each.snapshot_id for each in snapshots(lake))
    loaded(lake).manage_snapshots().create_tag(first, "audit").commit()
    loaded(lake).manage_snapshots().create_branch(second, "work").commit()
    found = expired(lake, book)
    assert found.snapshots == 1
    held = {task.file.file_path for task in loaded(lake).scan(snapshot_id=second).plan_files()}
    assert len(held) == 2 and set(found.data) == rewritten - held


def test_files_that_the_ledger_reads_are_never_named(
    lake: Lake, book: Book, rewritten: set[str]
) -> None:
    live = data_files(lake, TABLE)
    loaded(lake).delete('"offset" <= 5')
    found = expired(lake, book)
    assert set(found.data) == rewritten and not live & set(found.data)


def test_a_killed_expiry_leaves_orphans_that_are_found(
    lake: Lake, book: Book, listing: LakeListing, rewritten: set[str]
) -> None:
    found = expired(lake, book)
    orphans = {
        one.location
        for one in find_orphans(
            lake,
            listing,
            lake.load_existing(TABLE),
            older_than_ms=LATER_MS,
            active_runs=frozenset(),
            read_files=frozenset(),
        )
    }
    assert orphans == {*found.data, *found.metadata} and rewritten <= orphans


def test_a_commit_in_between_is_looked_at_again(
    lake: Lake, book: Book, rewritten: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.exceptions import CommitFailedException

    real = lake.catalog.commit_table
    failures = iter([True])

    def intercepted(*arguments: object) -> object:
        if next(failures, False):
            raise CommitFailedException("another commit was quicker")
        return real(*arguments)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(lake.catalog, "commit_table", intercepted)
    assert set(expired(lake, book).data) == rewritten


def test_a_table_that_is_not_there_has_nothing_to_expire(lake: Lake) -> None:
    assert expire(lake, TABLE, older_than_ms=LATER_MS, read_files=frozenset()) is None
