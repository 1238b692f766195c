"""What others write into a table's metadata names no code that we run and no file that we touch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from compaction.tables.commit import commit_tables
from compaction.tables.errors import ForeignTable, TableChanged
from compaction.tables.fileio import LakeFileIO, OutsideLake, properties_of
from compaction.tables.lake import Lake, live_files
from compaction.tables.orphans import our_tables
from compaction.tables.prepare import prepare_tables
from compaction.tables.reconcile import reconcile
from tests.compaction.lakes import (
    Book,
    commit_of,
    compacted,
    place_in,
    prepared,
    pyiceberg_rows,
    rows,
    topic,
)
from tests.compaction.named_code import CALLS

NAME = "headgate.orders"
CODE = "tests.compaction.named_code.called"
PROPERTIES = [
    ("py-io-impl", CODE),
    ("write.py-location-provider.impl", CODE),
    ("write.location-provider.impl", "com.example.Provider"),
    ("io-impl", "com.example.FileIO"),
    ("s3.endpoint", "http://127.0.0.1:1"),
    ("s3.retry-strategy-impl", CODE),
    ("client.region", "elsewhere"),
    ("write.data.path", "file:///tmp"),
    ("write.metadata.path", "file:///tmp"),
    ("uri", "http://127.0.0.1:1"),
    ("warehouse", "file:///tmp"),
    ("headgate.store-url", "file:///tmp"),
]


@pytest.fixture(autouse=True)
def nothing_is_called() -> Iterator[None]:
    CALLS.clear()
    yield
    assert not CALLS


def plant(lake: Lake, name: str, value: str, table: str = NAME) -> None:
    """Sets a property in the store and in the catalog, where other writers can."""
    from pyiceberg.catalog.sql import SqlCatalog

    assert isinstance(lake.catalog, SqlCatalog)
    location = lake.locations()[table]
    assert location is not None
    path = Path(location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["properties"][name] = value
    planted = path.with_name(f"00099-{path.name[6:]}")
    planted.write_text(json.dumps(metadata))
    with lake.catalog.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?",
            (f"file://{planted}", location),
        )


@pytest.mark.parametrize(("name", "value"), PROPERTIES)
def test_a_property_that_names_code_or_a_place_stops_its_topic_and_no_other(
    lake: Lake, book: Book, name: str, value: str
) -> None:
    ours, other = topic(), topic("payments", 2)
    compacted(lake, book, ours, "run1", rows(0, 1, 3))
    plant(lake, name, value)
    _, failures = reconcile(lake, [ours, other], book)
    assert [failure.topic for failure in failures] == ["orders"]
    tables, failures = prepare_tables(lake, [ours, other], book)
    assert list(tables) == [2] and isinstance(failures[0].error, TableChanged)
    assert f"credentials, {name!r}" in str(failures[0].error)
    (orders, refused), (payments, _) = our_tables(lake)
    assert (orders, payments) == (NAME, "headgate.payments")
    assert isinstance(refused, TableChanged)


@pytest.mark.parametrize(("name", "value"), PROPERTIES[:2])
def test_a_property_that_is_set_during_a_run_takes_no_commit(
    lake: Lake, book: Book, name: str, value: str
) -> None:
    ours, other = topic(), topic("payments", 2)
    commits = [
        commit_of(lake.place, prepared(lake, one, book), "run1", rows(0, 1, 3))
        for one in (ours, other)
    ]
    plant(lake, name, value)
    refused, location = commit_tables(lake, "run1", commits)
    assert isinstance(refused, TableChanged) and isinstance(location, str)
    assert pyiceberg_rows(lake, "headgate.payments") == rows(0, 1, 3)


@pytest.mark.parametrize(("name", "value"), PROPERTIES[:2])
def test_a_property_that_is_set_between_look_and_commit_takes_no_commit(
    lake: Lake, book: Book, name: str, value: str
) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    seen = lake.load_existing(NAME)
    plant(lake, name, value)
    with pytest.raises(TableChanged), seen.transaction() as transaction:
        transaction.set_properties({"comment": "x"})


def test_properties_that_engines_set_are_left_alone(lake: Lake, book: Book) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    with lake.catalog.load_table(NAME).transaction() as change:
        change.set_properties({
            "owner": "me", "comment": "of the shop", "write.target-file-size-bytes": "1048576",
            "write.metadata.metrics.column.path": "full", "history.expire.min-snapshots-to-keep":
            "3", "write.delete.mode": "merge-on-read"})  # fmt: skip
    compacted(lake, book, topic(), "run2", rows(0, 4, 5))
    assert pyiceberg_rows(lake, NAME) == rows(0, 1, 5)


def test_metadata_outside_the_lake_is_not_read(lake: Lake, book: Book, tmp_path: Path) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    location = lake.locations()[NAME]
    assert location is not None
    for planted in (tmp_path / "x.json", tmp_path / "store" / "lake" / ".." / "x.json"):
        planted.write_bytes(Path(location.removeprefix("file://")).read_bytes())
        pointed = f"file://{planted}"
        lake.catalog.drop_table(NAME)
        with pytest.raises(OutsideLake):
            lake.catalog.register_table(NAME, pointed)
        with pytest.raises(ForeignTable, match=r"the table headgate.orders belongs to another"):
            prepared(lake, topic(), book)
        assert list(our_tables(lake)) == []


def test_no_file_outside_the_lake_is_read_written_or_removed(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    files = LakeFileIO(properties_of(place))
    secret = tmp_path / "store" / "secret"
    secret.parent.mkdir()
    secret.write_text("kept")
    for location in (
        f"file://{secret}", f"{place.lake}/../secret", f"{place.lake}/a/../../secret", str(secret),
        f"{place.lake}-2/x", place.lake, "s3://store/lake/x",
    ):  # fmt: skip
        for call in (files.new_input, files.new_output, files.delete):
            with pytest.raises(OutsideLake):
                call(location)
    assert secret.read_text() == "kept"


def test_a_data_file_outside_the_lake_is_not_read(lake: Lake, book: Book, tmp_path: Path) -> None:
    """Another writer of a shared catalog added it; readers would read it as ours."""
    from pyiceberg.catalog.sql import SqlCatalog

    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    (path,) = [file.file_path for file in live_files(lake.load_existing(NAME))]
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(Path(path.removeprefix("file://")).read_bytes())
    assert isinstance(lake.catalog, SqlCatalog)
    with closing(SqlCatalog(lake.catalog.name, uri=lake.catalog.properties["uri"])) as other:
        other.load_table(NAME).add_files([f"file://{outside}"])
    switches, (failure,) = reconcile(lake, [topic()], book)
    assert switches == [] and isinstance(failure.error, ForeignTable)
    assert f"{outside} is not below {lake.place.lake}/" in str(failure.error)
