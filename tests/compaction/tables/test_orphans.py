"""Orphans are found, and files of others are not touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compaction.inputs.place import Place
from compaction.tables.commit import TableCommit, commit_table
from compaction.tables.errors import TableDamaged, TableRefused
from compaction.tables.lake import Lake
from compaction.tables.lake_listing import LakeListing
from compaction.tables.orphans import Orphan, find_orphans, our_tables
from tests.compaction.lakes import (
    Book,
    catalog_properties,
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
from tests.minio import Bucket

ORDERS = topic()
OLD_MS = 1_000_000_000_000
NOW_MS = OLD_MS + 1_000_000


def age(lake: Lake, *keep_young: str) -> None:
    """All files of the lake become old, but for those."""
    for location in on_disk(lake.place.lake, ""):
        path = Path(location.removeprefix("file://"))
        if path.is_file() and location not in keep_young:
            os.utime(path, (OLD_MS / 1000, OLD_MS / 1000))


def found(
    lake: Lake,
    listing: LakeListing,
    older_than_ms: int = NOW_MS,
    active: frozenset[str] = frozenset(),
    book: Book | None = None,
) -> list[Orphan]:
    read = {file.path for file in (book or Book()).live_files(1)}
    orphans: list[Orphan] = []
    for name, table in our_tables(lake):
        assert not isinstance(table, TableRefused), name
        orphans += find_orphans(
            lake, listing, table, older_than_ms=older_than_ms, active_runs=active, read_files=read
        )
    return orphans


def test_what_a_killed_run_wrote_is_found_and_removed(
    lake: Lake, listing: LakeListing, book: Book
) -> None:
    location = compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))
    left = written(lake.place, prepared(lake, ORDERS, book), "run2", rows(0, 4, 6), task=3)
    age(lake)
    orphans = found(lake, listing)
    assert [(one.table, one.location, one.size_bytes) for one in orphans] == [
        ("headgate.orders", left[0][0].path, left[0][0].size_bytes)
    ]
    assert listing.remove([one.location for one in orphans]) == 1
    assert on_disk(lake.place.lake) == data_files(lake, "headgate.orders")
    assert found(lake, listing) == [] and duckdb_rows(location) == rows(0, 1, 3)
    assert listing.remove([one.location for one in orphans]) == 1


def test_young_files_and_those_of_the_active_run_and_of_the_ledger_stay(
    lake: Lake, listing: LakeListing, book: Book
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))
    table = prepared(lake, ORDERS, book)
    young, active, old = (
        written(lake.place, table, run, rows(0, 4, 6))[0][0].path
        for run in ("run2", "run3a", "run3")
    )
    age(lake, young)
    assert [one.location for one in found(lake, listing, active=frozenset({"run3a"}))] == [old]
    assert {one.location for one in found(lake, listing)} == {active, old}
    assert len(found(lake, listing, older_than_ms=OLD_MS)) == 0
    # The rows of a file that the ledger still reads were deleted by another engine.
    (live,) = data_files(lake, "headgate.orders")
    lake.catalog.load_table("headgate.orders").delete('"offset" <= 3')
    lake.catalog.load_table("headgate.orders").maintenance.expire_snapshots().older_than(
        datetime(2999, 1, 1, tzinfo=UTC)
    ).commit()
    age(lake)
    assert live not in {one.location for one in found(lake, listing, book=book)}
    assert live in {one.location for one in found(lake, listing)}


def test_files_of_former_snapshots_and_other_branches_stay(
    lake: Lake, listing: LakeListing, book: Book
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))
    (small,) = data_files(lake, "headgate.orders")
    table = prepared(lake, ORDERS, book)
    files = written(lake.place, table, "run2", rows(0, 1, 5))
    commit_table(lake, "run2", TableCommit(table, files, {0: 5}, [small]))
    age(lake)
    assert found(lake, listing) == []


def test_nothing_is_touched_that_is_not_named_like_ours_or_in_a_table_of_ours(
    lake: Lake, listing: LakeListing, book: Book
) -> None:
    from pyiceberg.schema import Schema

    compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))
    theirs = lake.catalog.create_table("headgate.theirs", Schema())
    folders = [f"{lake.place.lake}/orders-1/data", f"{theirs.location()}/data",
               f"{lake.place.lake}/other-7/data"]  # fmt: skip
    for folder in folders:
        path = Path(folder.removeprefix("file://"))
        path.mkdir(parents=True, exist_ok=True)
        for name in (
            "00000-0-01234567-0123-4567-0123-012345678901.parquet",  # pyiceberg
            "00000-0-01234567-0123-4567-0123-012345678901-00001.parquet",  # Spark
            "part.parquet", "run1-0-0.parquet.tmp", "x.txt",
        ):  # fmt: skip
            (path / name).write_text("theirs")
    for folder in folders[1:]:
        (Path(folder.removeprefix("file://")) / "run9-0-0.parquet").write_text("theirs")
    os.symlink("/", f"{lake.place.lake.removeprefix('file://')}/orders-1/data/loop")
    age(lake)
    assert found(lake, listing) == []
    assert [name for name, _ in our_tables(lake)] == ["headgate.orders"]


def test_a_table_whose_metadata_is_gone_is_named_and_its_files_stay(
    lake: Lake, listing: LakeListing, book: Book
) -> None:
    location = compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))
    compacted(lake, Book(), topic("others", 2), "run1", rows(0, 1, 3))
    Path(location.removeprefix("file://")).unlink()
    (orders, refused), (others, _) = our_tables(lake)
    assert (orders, others) == ("headgate.orders", "headgate.others")
    assert "is damaged" in str(refused)


def test_a_table_whose_manifests_are_gone_is_named_and_its_files_stay(
    lake: Lake, listing: LakeListing, book: Book
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))
    for manifest in on_disk(lake.place.lake, "-m0.avro"):
        Path(manifest.removeprefix("file://")).write_bytes(b"Obj torn")
    age(lake)
    with pytest.raises(TableDamaged):
        found(lake, listing)


def test_renamed_tables_are_ours_too(lake: Lake, listing: LakeListing) -> None:
    compacted(lake, Book(), ORDERS, "run1", rows(0, 1, 3))
    left = written(lake.place, prepared(lake, ORDERS), "run2", rows(0, 4, 6))
    prepared(lake, topic(topic_id=2))
    age(lake)
    assert [(o.table, o.location) for o in found(lake, listing)] == [
        ("headgate.orders__1", left[0][0].path)
    ]


def test_manifests_that_a_killed_commit_wrote_are_found(
    lake: Lake, listing: LakeListing, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(lake.catalog, "commit_table", killed)
    with pytest.raises(Killed):
        compacted(lake, book, ORDERS, "run2", rows(0, 4, 6))
    monkeypatch.undo()
    age(lake)
    orphans = [one.location for one in found(lake, listing)]
    assert sum(one.endswith(".avro") for one in orphans) == 2
    assert sum(one.endswith(".parquet") for one in orphans) == 1 and len(orphans) == 3
    listing.remove(orphans)
    assert duckdb_rows(location) == rows(0, 1, 3)


def test_a_file_that_is_committed_while_others_are_listed_stays(
    lake: Lake, book: Book, tmp_path: Path
) -> None:
    table = prepared(lake, ORDERS)
    files = written(lake.place, table, "run1", rows(0, 1, 3))
    age(lake)

    class Commits(LakeListing):
        def below(self, folder: str) -> Iterator[object]:  # type: ignore[override]  # only passes
            yield from list(super().below(folder))
            if folder.endswith("/metadata"):
                commit_table(lake, "run1", TableCommit(table, files, {0: 3}))

    listing = Commits(lake.place)
    assert found(lake, listing) == []
    listing.close()


def test_nothing_outside_the_lake_can_be_removed(lake: Lake, listing: LakeListing) -> None:
    for location in ("file:///etc/passwd", f"{lake.place.lake}/../l0/x", f"{lake.place.lake}x/y"):
        with pytest.raises(ValueError, match="not below the lake"):
            listing.remove([location])


def test_in_a_bucket_orphans_cost_one_listing_a_folder_and_one_delete(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, book: Book
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    place = Place(bucket.url, endpoint_url=bucket.endpoint_url, region=bucket.region)
    listing = LakeListing(place)
    with Lake(place, catalog_properties(tmp_path)) as lake:
        compacted(lake, book, ORDERS, "run1", rows(0, 1, 3))
        table = prepared(lake, ORDERS, book)
        left = [written(place, table, "run2", rows(0, 4, 6), task=n)[0][0].path for n in range(3)]
        orphans = found(lake, listing, older_than_ms=2**50)
        assert sorted(one.location for one in orphans) == sorted(left)
        assert listing.remove([one.location for one in orphans]) == 3
        assert found(lake, listing, older_than_ms=2**50) == []
        assert (listing.requests.lists, listing.requests.deletes) == (4, 1)
        assert pyiceberg_rows(lake, "headgate.orders") == rows(0, 1, 3)
    listing.close()
