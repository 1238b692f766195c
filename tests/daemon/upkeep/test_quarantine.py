"""Out of the quarantine: records come back once, whatever is killed, or are given up for good.

Real rings, ledger, store, files and tables; the compaction is one without Spark.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from compaction.inputs.objects import ExtentBytes, TaskExtent, TaskObject, fetch
from compaction.parquet.writer import Syncs
from compaction.run.file_groups import TopicWork, write_file_group
from compaction.run.run_lease import this_driver
from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.errors import TableChanged
from compaction.tables.lake import Lake
from compaction.tables.prepare import prepare_tables
from compaction.tables.table_state import state_of
from daemon.config import Override, load
from daemon.config.lake_settings import lake_settings
from daemon.upkeep import quarantine
from daemon.upkeep.exclusive import Exclusive
from daemon.upkeep.quarantine import QuarantineRetry, RetryOutcome
from daemon.upkeep.upkeep import clocks
from delivery.schemas import Tombstone
from ledger import ages, commits, reads
from ledger.checks import invariants
from ledger.lake import lake_tables, runs
from ledger.lake import quarantine as ledger_quarantine
from ledger.lake.types import Hole
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.space import retention, unreferenced
from tests.compaction.lakes import duckdb_rows, pyiceberg_rows, rows, written
from tests.delivery.node import ARRIVAL_MS, Node
from tests.delivery.reading.test_diff import data_of, rec, told_reader
from uploader.l0.records import Record

TABLE = "headgate.t"
EVERYTHING = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1)]


class World(Node):
    """A node with a lake, and an object whose bytes can be spoiled and mended."""

    def __init__(self, data: Path) -> None:
        (data / "ledger").mkdir()
        super().__init__(data / "ledger")
        self.arguments = ("--data", str(data), "--store", self.place.url)
        given = [Override("data_dir", str(data)), Override("store_url", self.place.url)]
        self.config = load(None, {}, given)
        self.access = Exclusive(self.ledger, self.config)
        self.lake = Lake(self.place, {}, owner=self.access)
        self.produce(0, {0: rec('"a"', '"b"')})
        self.commit(0)
        self.produce(0, {0: rec('"c"', '"d"'), 1: [Record('"e"', ARRIVAL_MS - 86_400_000)]})
        self.commit(0)
        self.produce(0, {0: rec('"f"')})
        self.commit(0)

    def flip(self) -> None:
        """Spoils the second object in the store, or mends it."""
        row = self.ledger.read(reads.objects)[1]
        extents = [
            self.ledger.read(reads.extents_from, *self.key(p), 3 - 2 * p, 1)[0] for p in (0, 1)
        ]
        segment, position, _ = row.locator.split(":")
        body = self.store.get(row.locator)
        (path,) = Path(self.store.directory).rglob(segment)
        data = bytearray(path.read_bytes())
        at = data.index(body, int(position))
        for extent in extents:
            data[at + extent.byte_start + extent.byte_length - 2] ^= 1
        path.write_bytes(data)

    def compact(self) -> None:
        """Everything, by one task."""
        planned = self.ledger.read(
            lake_tables.plan_objects, 0, self.ledger.read(commits.latest_number), 100, None
        )
        tables, _ = prepare_tables(self.lake, [self.topic], self.ledger)
        table = tables[self.topic.topic_id]
        found: list[ExtentBytes] = []
        holes: list[Hole] = []
        watermarks: dict[int, int] = {}
        for each in planned:
            wanted = tuple(
                TaskExtent.of(e, e.topic_id)
                for e in sorted(each.extents, key=lambda e: e.byte_start)
            )
            task = TaskObject(each.key, each.locator, each.size_bytes, wanted)
            for e, data in fetch(self.store, task).extents:
                watermarks[e.partition] = e.last_offset
                if isinstance(data, str):
                    holes.append(Hole(e.group, e.partition, e.first_offset, e.last_offset,
                                      each.key, data))  # fmt: skip
                else:
                    found.append(data)
        syncs = Syncs()
        result = write_file_group(
            self.place, syncs, TopicWork(table.topic_id, table.location, table.columns), found,
            (), f"compact{self.runs}", 1, 0,
        )  # fmt: skip
        syncs.wait()
        syncs.close()
        files = [(each.file, each.footer) for each in result.files]
        run = f"compact{self.runs}"
        self.runs += 1
        self.ledger.write(runs.begin, run, "test", 1)
        commit = TableCommit(table, files, watermarks, holes=holes)
        self.ledger.write(
            lake_tables.switch, run, [switch_of(commit, commit_table(self.lake, run, commit))], 77
        )
        self.ledger.write(runs.end, run, 1)

    def retry(self) -> list[RetryOutcome]:
        """All of the quarantine, as the command does it."""
        rows = self.ledger.read(ledger_quarantine.rows)
        work = QuarantineRetry(self.access, lake_settings(self.config), self.lake)
        work.compare()
        return work.retry(rows) if rows else []

    def read(self) -> tuple[list[str], list[Tombstone]]:
        """What ``diff`` gives of partition 0, page by page."""

        async def go() -> tuple[list[str], list[Tombstone]]:
            found: list[str] = []
            tombstones: list[Tombstone] = []
            with told_reader(self) as told:
                from_seq = 0
                while True:
                    answer = await told.diff(from_seq=from_seq)
                    found += data_of(answer)
                    tombstones += [answer.tombstone] if answer.tombstone else []
                    if answer.caught_up:
                        return found, tombstones
                    from_seq = answer.next_from_seq

        return asyncio.run(go())

    def property_holes(self) -> tuple[Hole, ...]:
        return state_of(self.lake.catalog.load_table(TABLE).properties, TABLE).holes

    def check_is_back(self) -> None:
        """Everything is there once for every reader, and nothing is in quarantine."""
        self.ledger.read(invariants.check)
        assert pyiceberg_rows(self.lake, TABLE) == EVERYTHING
        (table,) = self.ledger.read(lake_tables.every)
        assert duckdb_rows(table.metadata_location) == EVERYTHING
        assert self.ledger.read(ledger_quarantine.rows) == [] and self.property_holes() == ()
        assert self.read() == (['"a"', '"b"', '"c"', '"d"', '"f"'], [])
        assert self.ledger.read(unreferenced.count) == 2, "all but the last object may be collected"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three objects, compacted while the second could not be read."""
    made = World(tmp_path)
    try:
        with made.lake:
            made.flip()
            made.compact()
            yield made
    finally:
        made.close()


def test_the_quarantine_says_what_since_when_and_why(world: World) -> None:
    found = world.ledger.read(ledger_quarantine.rows)
    holes = [one.hole for one in found]
    assert [(h.partition, h.first_offset, h.last_offset) for h in holes] == [(0, 3, 4), (1, 1, 1)]
    assert {one.topic for one in found} == {"t"}
    for one in found:
        assert one.hole.key == world.ledger.read(reads.objects)[1].key
        assert one.hole.reason.startswith("damaged: ") and one.found_ms == 77 and one.readable
    assert world.read() == (['"a"', '"b"', '"f"'], [Tombstone(3, 4, "quarantined")])


def test_what_is_damaged_still_stays_in_quarantine(world: World) -> None:
    before = world.ledger.read(ledger_quarantine.rows)
    outcomes = world.retry()
    assert [one.outcome for one in outcomes] == ["kept", "kept"]
    assert all("CRC32C" in one.problem for one in outcomes)
    assert world.ledger.read(ledger_quarantine.rows) == before
    world.ledger.read(invariants.check)


def test_records_whose_object_is_whole_again_are_back_for_every_reader_once(world: World) -> None:
    world.flip()
    assert [(one.outcome, one.first_offset) for one in world.retry()] == [
        ("restored", 3), ("restored", 1),
    ]  # fmt: skip
    world.check_is_back()
    assert world.retry() == []


async def test_a_reader_that_was_told_of_the_hole_reads_it_when_it_is_back(world: World) -> None:
    with told_reader(world) as told:
        answer = await told.diff(from_seq=2)
        assert answer.tombstone == Tombstone(3, 4, "quarantined")
        world.flip()
        world.retry()
        answer = await told.diff(from_seq=2)
        assert answer.tombstone is None and data_of(answer) == ['"c"', '"d"', '"f"']


class Killed(BaseException):
    """The process ends here."""


def killed_at(world: World, module: ModuleType, function: str) -> None:
    """A retry whose process ends there."""
    world.flip()

    def killed(*_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, function, killed)
        with pytest.raises(Killed):
            world.retry()


def test_a_retry_that_is_killed_behind_its_commit_is_made_up_for(world: World) -> None:
    killed_at(world, lake_tables, "switch")
    assert pyiceberg_rows(world.lake, TABLE) == EVERYTHING and world.ledger.read(
        ledger_quarantine.rows
    )
    assert [one.outcome for one in world.retry()] == ["restored", "restored"]
    world.check_is_back()


def test_a_retry_that_is_killed_before_its_commit_has_done_nothing(world: World) -> None:
    killed_at(world, quarantine, "commit_table")
    assert len(pyiceberg_rows(world.lake, TABLE)) == 3
    assert [one.outcome for one in world.retry()] == ["restored", "restored"]
    world.check_is_back()


def test_a_retry_on_a_table_that_has_moved_since_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another retry, which nobody knows of, commits between this one's look and its commit."""
    world.flip()

    def late(lake: Lake, run: str, what: TableCommit) -> str:
        transaction = world.lake.catalog.load_table(TABLE).transaction()
        transaction.set_properties({"comment": "another writer"})
        transaction.commit_transaction()
        return commit_table(lake, run, what)

    with monkeypatch.context() as patch:
        patch.setattr(quarantine, "commit_table", late)
        outcomes = world.retry()
    assert [one.outcome for one in outcomes] == ["kept", "kept"]
    assert "run it again" in outcomes[0].problem
    assert len(pyiceberg_rows(world.lake, TABLE)) == 3
    assert [one.outcome for one in world.retry()] == ["restored", "restored"]
    world.check_is_back()


def test_a_ledger_that_was_rebuilt_from_before_the_retry_finds_the_rows_in_the_table(
    world: World, tmp_path: Path
) -> None:
    before = world.ledger.read(ledger_quarantine.rows)
    world.flip()
    world.retry()
    # What a recovery from an older entry leaves: the hole is back, the new files are unknown.
    with world.ledger.writing() as connection:
        connection.executemany(
            "INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(*(getattr(q.hole, name) for name in q.hole.__struct_fields__), 77) for q in before],
        )
        new = "SELECT file_id FROM lake_files WHERE run NOT LIKE 'compact%'"
        connection.execute(f"DELETE FROM lake_ranges WHERE file_id IN ({new})")
        connection.execute("DELETE FROM lake_files WHERE run NOT LIKE 'compact%'")
        connection.execute("UPDATE lake_tables SET metadata_location = 'older'")
    assert [one.outcome for one in world.retry()] == ["restored", "restored"]
    world.check_is_back()


def test_holes_that_are_evicted_are_only_forgotten(world: World) -> None:
    retention.trim(world.ledger, "t", 0, 5)
    world.flip()
    assert {(one.partition, one.outcome) for one in world.retry()} == {
        (0, "evicted"), (1, "restored"),
    }  # fmt: skip
    assert world.ledger.read(ledger_quarantine.rows) == []
    world.ledger.read(invariants.check)


def test_records_that_are_given_up_stay_declared_and_free_their_object(world: World) -> None:
    holes = [one.hole for one in world.ledger.read(ledger_quarantine.rows)]
    assert world.ledger.read(unreferenced.count) == 1
    world.ledger.write(ledger_quarantine.accept, holes, 99)
    world.ledger.read(invariants.check)
    assert (
        world.ledger.read(ledger_quarantine.rows) == []
        and world.ledger.read(unreferenced.count) == 2
    )
    assert world.read() == (['"a"', '"b"', '"f"'], [Tombstone(3, 4, "lost")])
    assert (
        world.ledger.read(lake_tables.holes, world.topic.topic_id)
        == holes
        == list(world.property_holes())
    )
    world.ledger.write(unreferenced.forget, [holes[0].key], "m")
    world.ledger.read(invariants.check)
    assert world.read() == (['"a"', '"b"', '"f"'], [Tombstone(3, 4, "lost")])


def test_the_owners_log_tells_of_both_ways_out(world: World, tmp_path: Path) -> None:
    first, second = world.ledger.read(ledger_quarantine.rows)
    (tmp_path / "copy").mkdir()
    with closing(Ledger(tmp_path / "copy" / "ledger.db", nullcontext())) as copy:
        told = backup.Mark()
        for change in ("holes", "accept", "drop"):
            if change == "accept":
                world.ledger.write(ledger_quarantine.accept, [first.hole], 99)
            elif change == "drop":
                world.ledger.write(ledger_quarantine.drop, [second.hole], 99)
            told, changes = world.ledger.read(backup.changes_since, told)
            copy.write(backup.apply, changes)
            assert copy.read(ledger_quarantine.rows) == world.ledger.read(ledger_quarantine.rows)
            topic_id = world.topic.topic_id
            assert copy.read(lake_tables.holes, topic_id) == world.ledger.read(
                lake_tables.holes, topic_id
            )


def test_a_restoring_commit_takes_no_other_rows(world: World) -> None:
    tables, _ = prepare_tables(world.lake, [world.topic], world.ledger)
    table = tables[world.topic.topic_id]
    hole = world.ledger.read(ledger_quarantine.rows)[0].hole
    files = written(world.place, table, "run9", rows(0, 2, 4))
    with pytest.raises(ValueError, match="which are not offsets of the holes"):
        commit_table(world.lake, "run9", TableCommit(table, files, {}, restored=[hole]))
    moved = table.__class__(**{**table.__dict__, "metadata_location": "elsewhere"})
    files = written(world.place, moved, "run9", rows(0, 3, 4))
    with pytest.raises(TableChanged, match="another writer committed"):
        commit_table(world.lake, "run9", TableCommit(moved, files, {}, restored=[hole]))


def run(world: World, *arguments: str) -> Result:
    return CliRunner().invoke(cli.headgate, ["quarantine", *arguments, *world.arguments])


def test_the_command_lists_retries_and_gives_up(world: World) -> None:
    key = world.ledger.read(reads.objects)[1].key
    listed = run(world, "ls")
    assert key in listed.stdout and "3-4" in listed.stdout and "CRC32C" in listed.stdout
    rows = json.loads(run(world, "ls", "-o", "json").stdout)
    assert [(row["topic"], row["first_offset"], row["found_ms"]) for row in rows] == [
        ("t", 3, 77), ("t", 1, 77),
    ]  # fmt: skip

    failed = run(world, "retry")
    assert failed.exit_code == 1 and "KEPT offsets 3 to 4 of t, partition 0" in failed.stdout
    world.flip()
    done = run(world, "retry", key, "-o", "json")
    assert done.exit_code == 0, done.output
    assert {one["outcome"] for one in json.loads(done.stdout)} == {"restored"}
    world.check_is_back()
    assert run(world, "retry").stdout == run(world, "ls").stdout == "nothing is in quarantine\n"
    unknown = run(world, "accept", "--yes", key)
    assert unknown.exit_code == 1 and f"not in quarantine: {key}" in unknown.stderr


def test_the_command_gives_records_up(world: World) -> None:
    key = world.ledger.read(reads.objects)[1].key
    done = run(world, "accept", key)
    assert done.exit_code == 0 and done.stdout == "3 records of 1 objects are given up\n"
    assert world.read()[1] == [Tombstone(3, 4, "lost")]


def test_the_command_gives_nothing_up_during_a_compaction(world: World) -> None:
    before = world.ledger.read(ledger_quarantine.rows)
    now_ms = world.ledger.read(ages.now_ms, clocks())
    world.ledger.write(runs.begin, "other", this_driver(), now_ms)
    refused = run(world, "accept", before[0].hole.key)
    assert refused.exit_code == 1 and "another compaction is at work: run other" in refused.stderr
    assert world.ledger.read(ledger_quarantine.rows) == before
    world.ledger.write(runs.end, "other", now_ms)
    assert run(world, "accept", before[0].hole.key).exit_code == 0
