"""The lake's part of a collection: real tables, a real ledger, entries into a second ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.lake import Lake
from daemon.config import Config, Override, load
from daemon.config.lake_settings import catalog_path, default_catalog, lake_settings
from daemon.upkeep.collection import lake_files as collection
from daemon.upkeep.collection.collector import Collector, look
from daemon.upkeep.collection.lake_files import LakeFiles, opened_lake
from daemon.upkeep.collection.report import CollectionReport
from daemon.upkeep.lake_catalog import register_tables
from ledger import epochs, topics
from ledger.checks import invariants
from ledger.lake import lake_files, lake_tables, readleases, runs
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.types import LeaseId, TopicConfig
from shards.clock import wall_ms
from tests.compaction.lakes import (
    data_files,
    duckdb_rows,
    on_disk,
    prepared,
    pyiceberg_rows,
    rows,
    written,
)
from tests.daemon.upkeep.collection.on_ledger import Killed, OnLedger
from tests.ledger.lakes import commit
from tests.ledger.requests import Request

TABLE = "headgate.orders"
HOUR_MS = 3_600_000


class World(OnLedger):
    """A data directory with a topic, its table, and the owner's log as a ledger of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = {"gc_grace_ms": "0", "snapshot_keep_ms": "0"}
        path = Path(self.config.ledger_path)
        path.parent.mkdir()
        self.ledger = Ledger(path, nullcontext())
        self.ledger.write(epochs.begin_incarnation, 1)
        self.topic = self.ledger.write(topics.create, "orders", TopicConfig(), 1)[0]
        for number in range(1, 11):
            commit(self.ledger, number, Request(self.topic.topic_id))
        self.told = Ledger(directory / "told.db", nullcontext())
        self.mark = Mark()
        self.default_catalog = default_catalog(self.config)
        self.lake = Lake(lake_settings(self.config).place, {"uri": self.config.catalog_uri})
        self.backups = 0

    @property
    def config(self) -> Config:
        given = [Override("data_dir", str(self.directory))]
        given += [Override(key, value) for key, value in self.settings.items()]
        return load(None, {}, given)

    def close(self) -> None:
        self.lake.close()
        self.ledger.read(invariants.check)
        self.ledger.close()
        self.told.close()

    def compact(self, run: str, first: int, last: int, *, rewrite: bool = False) -> None:
        """A run of one file, from the table's commit to the ledger's switch."""
        self.ledger.write(runs.begin, run, "test", wall_ms())
        table = prepared(self.lake, self.topic, self.ledger)  # type: ignore[arg-type]
        gone = sorted(data_files(self.lake, TABLE)) if rewrite else []
        files = written(self.lake.place, table, run, rows(0, 1 if rewrite else first, last))
        made = TableCommit(table, files, {0: last}, gone)
        switch = switch_of(made, commit_table(self.lake, run, made))
        self.ledger.write(lake_tables.switch, run, [switch], wall_ms())
        self.ledger.write(runs.end, run, wall_ms())

    def collect(self, *, dry_run: bool = False) -> CollectionReport:
        report = CollectionReport(dry_run)
        settings = lake_settings(self.config)
        with opened_lake(settings, self, report) as opened:
            if opened is not None:
                files = LakeFiles(settings, self, *opened, report, lambda: wall_ms() + 1)
                look(files) if dry_run else Collector(self.await_backup).collect(files)
        return report

    # The owner of the ledger

    def live_leases(self) -> list[LeaseId]:
        raise AssertionError("files of the lake have no leases")

    def settled_commits(self) -> int:
        raise AssertionError("files of the lake have no commits")

    def await_backup(self) -> None:
        self.backups += 1
        self.step()
        self.mark, changes = self.ledger.read(backup.changes_since, self.mark)
        self.told.write(backup.apply, changes)
        self.step()

    @property
    def files(self) -> set[str]:
        return on_disk(self.lake.place.lake)

    def known(self) -> set[str]:
        """Paths that the ledger knows, dropped ones too."""
        return {
            file.path for file in self.ledger.read(lake_files.of_topic, self.topic.topic_id, True)
        }

    def live(self) -> set[str]:
        return {file.path for file in self.ledger.read(lake_files.of_topic, self.topic.topic_id)}

    def check(self) -> None:
        """Ledger, table and disk hold the same rows, and the log's ledger reads them too."""
        assert self.live() == data_files(self.lake, TABLE) == self.files == self.known()
        table = self.ledger.read(lake_tables.find, self.topic.topic_id)
        assert table is not None
        wanted = rows(0, 1, self.ledger.read(lake_tables.compacted_seqs, self.topic.topic_id)[0])
        assert pyiceberg_rows(self.lake, TABLE) == wanted == duckdb_rows(table.metadata_location)
        assert table.metadata_location == self.lake.locations()[TABLE]
        assert self.told.read(lake_tables.find, self.topic.topic_id) == table
        assert self.told.read(lake_files.of_topic, self.topic.topic_id, True) == (
            self.ledger.read(lake_files.of_topic, self.topic.topic_id, True)
        )
        assert not self.ledger.read(lake_files.named)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.closing(World(tmp_path)) as made:
        yield made


@pytest.fixture
def rewritten(world: World) -> set[str]:
    """Two files that a third run rewrote; their paths."""
    world.compact("r1", 1, 2)
    world.compact("r2", 3, 4)
    small = world.files
    world.compact("r3", 5, 6, rewrite=True)
    return small


def test_rewritten_files_go_with_their_snapshots_and_readers_notice_nothing(
    world: World, rewritten: set[str]
) -> None:
    assert rewritten < world.files
    world.await_backup()
    look = world.collect(dry_run=True)
    assert (look.lake_snapshots, rewritten < world.files) == (2, True)
    done = world.collect()
    assert done.problems == [] and done.lake_snapshots == 2
    assert look.lake_files == done.lake_files > 2 and look.lake_bytes == done.lake_bytes > 0
    assert not rewritten & world.files
    world.check()
    again = world.collect()
    assert (again.lake_files, again.lake_snapshots, world.backups) == (0, 0, 2)
    world.compact("r4", 7, 8)
    world.collect()
    world.check()


def test_snapshots_and_files_are_kept_as_long_as_they_are_asked_to(
    world: World, rewritten: set[str]
) -> None:
    world.settings["snapshot_keep_ms"] = str(HOUR_MS)
    done = world.collect()
    assert (done.lake_files, done.lake_snapshots) == (0, 0) and rewritten < world.files
    world.settings |= {"snapshot_keep_ms": "0", "gc_grace_ms": str(HOUR_MS)}
    assert world.collect().lake_snapshots == 0 and rewritten < world.files


def test_tables_without_anything_to_collect_cost_no_question_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.compact("r1", 1, 2)
    world.settings |= {"snapshot_keep_ms": str(HOUR_MS), "gc_grace_ms": str(HOUR_MS)}
    asked = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def one(*args: Any, **named: Any) -> Any:
            nonlocal asked
            asked += 1
            return call(*args, **named)

        return one

    def questions() -> int:
        nonlocal asked
        asked = 0
        assert world.collect().problems == []
        return asked

    for name in ("read", "catalog"):
        monkeypatch.setattr(world, name, counted(getattr(world, name)))
    of_one = questions()
    for name in ("a", "b", "c"):
        other = world.ledger.write(topics.create, name, TopicConfig(), 1)[0]
        prepared(world.lake, other, world.ledger)  # type: ignore[arg-type]
    assert questions() == of_one


def test_a_reader_that_planned_before_the_drop_keeps_its_files(
    world: World, rewritten: set[str]
) -> None:
    world.ledger.write(readleases.take, "old", "test", 5, wall_ms() + HOUR_MS)
    done = world.collect()
    assert (done.lake_files, done.lake_snapshots) == (0, 0) and rewritten < world.files
    world.ledger.write(readleases.end, "old")
    assert world.collect().lake_snapshots == 2
    world.check()


def test_a_reader_between_the_tables_commit_and_the_switch_keeps_its_files(
    world: World, rewritten: set[str]
) -> None:
    """By the table's snapshots alone they could go: it planned with the ledger."""
    dropped = [
        file.dropped_ms
        for file in world.ledger.read(lake_files.of_topic, 1, True)
        if file.dropped_ms is not None
    ]
    world.ledger.write(readleases.take, "late", "test", min(dropped), wall_ms() + HOUR_MS)
    done = world.collect()
    assert rewritten < world.files and done.kept_by_lease in (0, 2)
    world.ledger.write(readleases.end, "late")
    world.collect()
    world.check()


def test_files_of_a_run_that_died_go_and_those_of_one_that_lives_stay(world: World) -> None:
    world.compact("r1", 1, 2)
    world.ledger.write(runs.begin, "dead", "test", wall_ms())
    table = prepared(world.lake, world.topic, world.ledger)  # type: ignore[arg-type]
    written(world.lake.place, table, "dead", rows(0, 3, 4))
    (left,) = world.files - world.live()
    assert world.collect().lake_files == 0 and left in world.files
    world.ledger.write(readleases.end, "dead")  # as of one that expired
    assert world.collect().lake_files == 1 and left not in world.files
    world.check()


@pytest.mark.parametrize("steps", [0, 1])
def test_a_collection_that_is_killed_at_its_entry_is_made_up_for(
    world: World, rewritten: set[str], steps: int
) -> None:
    world.steps_left = steps
    with pytest.raises(Killed):
        world.collect()
    assert rewritten < world.files and set(world.ledger.read(lake_files.named)) == rewritten
    world.steps_left = None
    done = world.collect()
    assert done.problems == []
    world.check()


@pytest.mark.parametrize("call", ["remove", "forget"])
def test_a_collection_that_is_killed_among_the_files_is_made_up_for(
    world: World, rewritten: set[str], call: str
) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        if call == "remove":
            patch.setattr("os.unlink", killed)
        else:
            patch.setattr(lake_files, "forget", killed)
        with pytest.raises(Killed):
            world.collect()
    assert set(world.ledger.read(lake_files.named)) == rewritten
    assert bool(rewritten & world.files) == (call == "remove")
    assert world.collect().problems == []
    world.check()


def test_the_ledger_that_is_recovered_knows_nothing_of_what_was_named(
    world: World, rewritten: set[str]
) -> None:
    world.steps_left = 1
    with pytest.raises(Killed):
        world.collect()
    assert {file.path for file in world.told.read(lake_files.of_topic, 1, True)} == world.live()
    assert set(world.told.read(lake_files.named)) == rewritten
    world.steps_left = None
    lost, world.ledger = world.ledger, world.told
    assert world.collect().problems == [] and not rewritten & world.files
    world.ledger, world.told = lost, world.ledger
    world.collect()
    assert not world.told.read(lake_files.named)


def test_a_table_that_moved_on_is_not_moved_back(world: World, rewritten: set[str]) -> None:
    before = world.ledger.read(lake_tables.find, 1)
    assert before is not None
    world.compact("r4", 7, 7)
    after = world.ledger.read(lake_tables.find, 1)
    assert not world.ledger.write(lake_tables.move, before, "elsewhere")
    assert world.ledger.read(lake_tables.find, 1) == after


# What is not as it must be


def test_without_tables_nothing_is_opened(tmp_path: Path) -> None:
    world = World(tmp_path)
    with contextlib.closing(world), pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "util", None)
        assert world.collect() == CollectionReport(dry_run=False)


def test_without_pyiceberg_the_lake_is_left_alone(world: World, rewritten: set[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("daemon.upkeep.collection.lake_files.util.find_spec", lambda _: None)
        done = world.collect()
    assert done.sound and done.lake_skipped is not None and "pyiceberg" in done.lake_skipped
    assert rewritten < world.files


def test_a_missing_catalog_is_named_and_not_made(world: World, rewritten: set[str]) -> None:
    world.settings["catalog_uri"] = f"sqlite:///{world.directory}/nowhere.db"
    done = world.collect()
    assert not done.sound and "nowhere.db" in done.problems[0]
    assert rewritten < world.files and not (world.directory / "nowhere.db").exists()


def test_a_lost_catalog_is_made_again_and_a_collection_has_no_problem(
    world: World, rewritten: set[str]
) -> None:
    there = world.lake.locations()
    catalog_path(world.config).unlink()
    assert not world.collect().sound
    assert register_tables(world.config, world.ledger) == [TABLE]
    assert world.lake.locations() == there and world.collect().sound
    assert register_tables(world.config, world.ledger) == []


def test_a_catalog_that_cannot_be_read_stops_no_start(
    world: World, rewritten: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    catalog_path(world.config).write_bytes(b"not a database, but long enough for one" * 99)
    assert register_tables(world.config, world.ledger) == []
    assert "tables of the lake cannot be registered" in caplog.text


def test_a_table_that_somebody_dropped_is_named_and_its_files_stay(
    world: World, rewritten: set[str]
) -> None:
    world.lake.catalog.drop_table(TABLE)
    before = world.files
    done = world.collect()
    assert not done.sound and TABLE in done.problems[0]
    assert world.files == before


@pytest.mark.parametrize("suffix", [".avro", ".metadata.json"])
def test_a_damaged_table_is_named_and_nothing_of_it_goes(
    world: World, rewritten: set[str], suffix: str
) -> None:
    for path in on_disk(world.lake.place.lake, suffix):
        Path(path.removeprefix("file://")).write_bytes(b"torn")
    before = world.files
    done = world.collect()
    assert not done.sound and TABLE in done.problems[0]
    assert world.files == before
