"""Every row is in the table once, whatever is killed and whatever others commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import ManifestContent

from compaction.run.small_files import files_to_rewrite
from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.errors import CommitConflict, LakeUnusable, RewriteConflict
from compaction.tables.lake import Lake, data_files_at
from compaction.tables.reconcile import reconcile
from tests.compaction.lakes import (
    Book,
    catalog_properties,
    commit_of,
    compacted,
    duckdb_rows,
    place_in,
    prepared,
    pyiceberg_rows,
    rows,
    topic,
    written,
)
from tests.long import examples

ORDERS = topic()
ROOT = Path(__file__).parents[3]


def run_and_kill(directory: Path, run: str, first: int, last: int, moment: str) -> int:
    command = [
        sys.executable, "-m", "tests.compaction.committing",
        str(directory), run, str(first), str(last), moment,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def made_up_for(lake: Lake, book: Book, run: str = "next") -> int:
    switches, failures = reconcile(lake, [ORDERS], book)
    assert not failures
    for switch in switches:
        book.switch(switch, run)
    return sum(len(switch.added) for switch in switches)


@pytest.fixture
def second(lake: Lake, tmp_path: Path) -> Iterator[Lake]:
    """Another process's view of the same lake."""
    with Lake(lake.place, catalog_properties(tmp_path)) as second:
        yield second


def test_a_run_that_was_killed_after_its_commit_is_made_up_for(
    lake: Lake, book: Book, tmp_path: Path
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    assert run_and_kill(tmp_path, "run2", 5, 9, "after") == -signal.SIGKILL
    assert made_up_for(lake, book) == 1
    assert book.compacted == {1: {0: 9}}
    assert made_up_for(lake, book) == 0
    location = compacted(lake, book, ORDERS, "run3", rows(0, 10, 11))
    assert duckdb_rows(location) == rows(0, 1, 11)


def test_a_run_that_was_killed_before_its_commit_never_was(
    lake: Lake, book: Book, tmp_path: Path
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    assert run_and_kill(tmp_path, "run2", 5, 9, "before") == -signal.SIGKILL
    assert made_up_for(lake, book) == 0 and book.compacted == {1: {0: 4}}
    location = compacted(lake, book, ORDERS, "run3", rows(0, 5, 9))
    assert duckdb_rows(location) == rows(0, 1, 9)


def test_the_same_run_finds_its_commit_after_a_kill(lake: Lake, book: Book, tmp_path: Path) -> None:
    commit = commit_of(lake.place, prepared(lake, ORDERS), "run1", rows(0, 1, 4), task=9)
    assert run_and_kill(tmp_path, "run1", 1, 4, "after") == -signal.SIGKILL
    location = commit_table(lake, "run1", commit)
    assert duckdb_rows(location) == rows(0, 1, 4)


def test_of_two_runs_that_planned_the_same_rows_one_commits(lake: Lake, second: Lake) -> None:
    mine = commit_of(lake.place, prepared(lake, ORDERS), "run1", rows(0, 1, 4))
    theirs = commit_of(lake.place, prepared(second, ORDERS), "run2", rows(0, 1, 6))
    location = commit_table(second, "run2", theirs)
    with pytest.raises(CommitConflict, match="the watermark of partition 0 is 6, not 0"):
        commit_table(lake, "run1", mine)
    assert duckdb_rows(location) == rows(0, 1, 6)


def test_two_runs_without_files_do_not_both_move_the_watermarks(lake: Lake, second: Lake) -> None:
    mine = TableCommit(prepared(lake, ORDERS), [], {0: 4})
    theirs = TableCommit(prepared(second, ORDERS), [], {0: 6})
    commit_table(second, "run2", theirs)
    with pytest.raises(CommitConflict):
        commit_table(lake, "run1", mine)
    assert prepared(lake, ORDERS).watermarks == {0: 6}


def test_rows_deleted_by_delete_files_do_not_come_back(
    lake: Lake, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that delete by merge-on-read leave our files and add delete files."""
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    table = prepared(lake, ORDERS, book)
    small = [file.path for file in book.live_files(1)]
    assert lake.rewritable(table.table, small) == small
    loaded = lake.catalog.load_table("headgate.orders")
    with loaded.transaction() as change:
        deletes = change.update_snapshot().fast_append()
        deletes.append_data_file(next(iter(data_files_at(loaded, small).values())))
        real = deletes._manifests

        def marked() -> Any:
            first, *others = real()
            first[3] = ManifestContent.DELETES
            return [first, *others]

        monkeypatch.setattr(deletes, "_manifests", marked)
        deletes.commit()
    assert lake.rewritable(table.table, small) == []
    files = written(lake.place, table, "run2", rows(0, 1, 6))
    with pytest.raises(RewriteConflict, match="another writer has deleted rows"):
        commit_table(lake, "run2", TableCommit(table, files, {0: 6}, small))


class Meddler:
    """Does something with the table just before the catalog is told of a commit, some times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lake: Lake, what: Any, times: int) -> None:
        self.left = times
        real = lake.catalog.commit_table

        def intercepted(*arguments: Any) -> Any:
            if self.left:
                self.left -= 1
                what()
            return real(*arguments)

        monkeypatch.setattr(lake.catalog, "commit_table", intercepted)


def test_a_commit_is_repeated_after_an_append_or_delete_by_others(
    lake: Lake, second: Lake, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    compacted(lake, book, ORDERS, "run2", rows(0, 5, 6))

    def delete() -> None:
        second.catalog.load_table("headgate.orders").delete('"offset" <= 4')

    Meddler(monkeypatch, lake, delete, 1)
    location = compacted(lake, book, ORDERS, "run3", rows(0, 7, 8))
    assert duckdb_rows(location) == rows(0, 5, 8) == pyiceberg_rows(lake, "headgate.orders")


def test_a_run_that_slips_in_front_is_not_doubled(
    lake: Lake, second: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = commit_of(lake.place, prepared(lake, ORDERS), "run1", rows(0, 1, 4))
    theirs = commit_of(lake.place, prepared(second, ORDERS), "run2", rows(0, 1, 4))
    Meddler(monkeypatch, lake, lambda: commit_table(second, "run2", theirs), 1)
    with pytest.raises(CommitConflict):
        commit_table(lake, "run1", mine)
    assert pyiceberg_rows(lake, "headgate.orders") == rows(0, 1, 4)


def test_a_table_that_never_rests_ends_in_a_sentence(
    lake: Lake, second: Lake, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))

    def append() -> None:
        with second.catalog.load_table("headgate.orders").transaction() as change:
            change.update_snapshot().fast_append().commit()

    Meddler(monkeypatch, lake, append, 100)
    with pytest.raises(LakeUnusable, match="8 times in a row"):
        compacted(lake, book, ORDERS, "run2", rows(0, 5, 6))


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("error", [OSError("reset"), CommitStateUnknownException("504")])
def test_an_answer_that_was_lost_is_looked_up(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, landed: bool, error: Exception
) -> None:
    commit = commit_of(lake.place, prepared(lake, ORDERS), "run1", rows(0, 1, 4))
    real = lake.catalog.commit_table

    def intercepted(*arguments: Any) -> Any:
        if landed:
            real(*arguments)
        raise error

    monkeypatch.setattr(lake.catalog, "commit_table", intercepted)
    if landed:
        location = commit_table(lake, "run1", commit)
        assert duckdb_rows(location) == rows(0, 1, 4)
    else:
        with pytest.raises(LakeUnusable, match="the table headgate"):
            commit_table(lake, "run1", commit)
    monkeypatch.undo()
    assert duckdb_rows(commit_table(lake, "run1", commit)) == rows(0, 1, 4)
    assert len(lake.catalog.load_table("headgate.orders").snapshots()) == 1


def test_pyicebergs_own_retry_stays_off_even_if_it_was_turned_on(
    lake: Lake, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(lake, book, ORDERS, "run1", rows(0, 1, 4))
    with lake.catalog.load_table("headgate.orders").transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4"})
    table = prepared(lake, ORDERS, book)
    calls = []
    real = lake.catalog.commit_table

    def intercepted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise CommitFailedException("another commit was quicker")
        return real(*arguments)

    # We name the table by a text, pyiceberg by a tuple when it looks again by itself.
    names: list[object] = []
    load = lake.catalog.load_table

    def load_table(name: Any) -> Any:
        names.append(name)
        return load(name)

    monkeypatch.setattr(lake.catalog, "commit_table", intercepted)
    monkeypatch.setattr(lake.catalog, "load_table", load_table)
    commit_table(lake, "run2", commit_of(lake.place, table, "run2", rows(0, 5, 6)))
    assert len(calls) == 2 and names.count("headgate.orders") == 2
    assert pyiceberg_rows(lake, "headgate.orders") == rows(0, 1, 6)


class Runs(RuleBasedStateMachine):
    """Runs of any kind, killed anywhere, on one table; the book follows only what it is told."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory(prefix="headgate-runs-")
        directory = Path(self.folder.name)
        self.lake = Lake(place_in(directory), catalog_properties(directory))
        self.book = Book()
        self.heads = {0: 0, 1: 0}
        self.runs = 0
        self.unswitched = False

    def teardown(self) -> None:
        self.lake.close()
        self.folder.cleanup()

    @rule(partition=st.integers(0, 1), count=st.integers(1, 5))
    def produce(self, partition: int, count: int) -> None:
        self.heads[partition] += count

    @precondition(lambda self: not self.unswitched)
    @rule(
        fate=st.sampled_from(["whole", "whole", "killed before", "killed after"]),
        gathered=st.integers(2, 4),
    )
    def run(self, fate: str, gathered: int) -> None:
        self.runs += 1
        run = f"run{self.runs}"
        table = prepared(self.lake, ORDERS, self.book)
        wanted = [
            row for p, head in self.heads.items()
            for row in rows(p, table.watermarks.get(p, 0) + 1, head)
        ]  # fmt: skip
        small = self.lake.rewritable(
            table.table, files_to_rewrite(self.book.live_files(1), gathered_min=gathered)
        )
        for path in small:
            file = self.book.files[1][path]
            for one in self.book.ranges[file.file_id]:
                wanted += rows(one.partition, one.first_offset, one.last_offset)
        if not wanted:
            return
        commit = TableCommit(
            table, written(self.lake.place, table, run, wanted), dict(self.heads), small
        )
        if fate == "killed before":
            return
        location = commit_table(self.lake, run, commit)
        if fate == "killed after":
            self.unswitched = True
        else:
            self.book.switch(switch_of(commit, location), run)

    @rule()
    def begin_again(self) -> None:
        made_up_for(self.lake, self.book, f"run{self.runs + 1}")
        self.unswitched = False

    @precondition(lambda self: self.runs > 0)
    @rule()
    def another_writer_sets_a_property(self) -> None:
        loaded = self.lake.load("headgate.orders")
        assert loaded is not None
        with loaded.transaction() as change:
            change.set_properties({"comment": str(self.runs)})

    @invariant()
    def the_table_has_every_row_up_to_its_watermarks_once(self) -> None:
        loaded = self.lake.load("headgate.orders")
        if loaded is None:
            return
        table = prepared(self.lake, ORDERS, self.book)
        wanted = [row for p, seq in sorted(table.watermarks.items()) for row in rows(p, 1, seq)]
        assert pyiceberg_rows(self.lake, "headgate.orders") == wanted

    @invariant()
    def the_ledgers_live_files_are_the_tables(self) -> None:
        if self.unswitched or self.lake.load("headgate.orders") is None:
            return
        live = {file.path for file in self.book.live_files(1)}
        loaded = self.lake.catalog.load_table("headgate.orders")
        assert live == {task.file.file_path for task in loaded.scan().plan_files()}


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=examples(15), stateful_step_count=12, deadline=None)
