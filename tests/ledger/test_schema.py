"""The file: made, migrated, refused, and named when it is damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import epochs, notes, schema, topics
from ledger.checks import invariants
from ledger.errors import (
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerFault,
    LedgerFromFuture,
    LedgerInterrupted,
    LedgerMemory,
    LedgerMissing,
    LedgerUnusable,
    translated,
)
from ledger.ledger import Ledger
from ledger.types import TopicConfig
from tests.ledger.requests import Request, draft_of, lease

PRIMARY = (
    "ERROR INTERNAL PERM ABORT BUSY LOCKED NOMEM READONLY INTERRUPT IOERR CORRUPT NOTFOUND FULL"
    " CANTOPEN PROTOCOL EMPTY SCHEMA TOOBIG CONSTRAINT MISMATCH MISUSE NOLFS AUTH FORMAT RANGE"
    " NOTADB"
)


def opened(path: Path) -> Ledger:
    return Ledger(path, nullcontext())


def test_a_commit_is_synced_before_it_returns(tmp_path: Path) -> None:
    with closing(schema.connect(tmp_path / "ledger.db", must_exist=False)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert connection.execute("PRAGMA busy_timeout").fetchone()[0] == schema.BUSY_TIMEOUT_MS


def test_each_start_is_a_higher_incarnation_with_a_higher_epoch_and_the_floor_at_it(
    tmp_path: Path,
) -> None:
    starts = []
    for start in range(3):
        ledger = opened(tmp_path / "ledger.db")
        starts.append(ledger.write(epochs.begin_incarnation, start))
        assert ledger.read(epochs.floor) == ledger.read(epochs.current) == starts[-1][1]
        assert ledger.write(epochs.advance) == starts[-1][1] + 1
        ledger.close()
    assert starts == [(1, 1), (2, 3), (3, 5)]
    again = opened(tmp_path / "ledger.db")
    assert again.read(epochs.incarnations) == [1, 2, 3]
    again.close()


def test_the_epoch_floor_never_falls_and_never_passes_the_epoch(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.db")
    ledger.write(epochs.begin_incarnation, 1)
    ledger.write(epochs.advance)
    assert ledger.write(epochs.raise_floor, 2) == 2
    assert ledger.write(epochs.raise_floor, 1) == 2
    with pytest.raises(ValueError, match="floor 3 is above the epoch 2"):
        ledger.write(epochs.raise_floor, 3)
    ledger.close()


def test_notes_are_kept_over_a_restart(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.db")
    assert ledger.read(notes.get, "store") is None
    ledger.write(notes.put, "store", "file:///a")
    ledger.write(notes.put, "store", "file:///b")
    ledger.close()
    again = opened(tmp_path / "ledger.db")
    assert again.read(notes.get, "store") == "file:///b"
    again.close()


def test_a_missing_file_is_made_unless_it_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerMissing, match=str(path)):
        Ledger(path, nullcontext(), must_exist=True)
    assert not path.exists()
    opened(path).close()
    Ledger(path, nullcontext(), must_exist=True).close()


def test_a_later_migration_is_applied_once_and_keeps_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = opened(path)
    made, _ = ledger.write(topics.create, "a", TopicConfig(), 1)
    ledger.close()
    later: schema.Migration = (
        "ALTER TABLE topics ADD COLUMN color TEXT",
        "UPDATE topics SET color = 'red'",
    )
    migrations = (*schema.MIGRATIONS, later)
    with closing(schema.connect(path, must_exist=True)) as connection:
        assert schema.migrate(connection, path, migrations) == len(migrations)
        assert schema.migrate(connection, path, migrations) == len(migrations)
        rows = connection.execute("SELECT topic_id, name, color FROM topics").fetchall()
    assert rows == [(made.topic_id, "a", "red")]


def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    opened(path).close()
    broken: schema.Migration = ("CREATE TABLE half (id INTEGER)", "CREATE NONSENSE")
    with closing(schema.connect(path, must_exist=True)) as connection:
        with pytest.raises(sqlite3.Error, match="NONSENSE"):
            schema.migrate(connection, path, (*schema.MIGRATIONS, broken))
        tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'half'")
        assert tables.fetchall() == []
    opened(path).close()


def test_a_file_of_a_newer_headgate_is_refused_naming_both_versions_and_the_way_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    opened(path).close()
    known = len(schema.MIGRATIONS)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {known + 6}")
    pattern = f"version {known + 6}, but this headgate knows only versions up to {known}; start"
    with pytest.raises(LedgerFromFuture, match=pattern):
        opened(path)


@pytest.mark.parametrize("content", [b"this is not a database " * 500, b"\x00" * 8192])
def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(LedgerCorrupt, match=str(path)) as caught:
        opened(path)
    assert "headgate recover" in str(caught.value)


def test_a_database_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(LedgerCorrupt, match="another program"):
        opened(path)
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert names == [("songs",)]


def test_damage_in_the_middle_of_the_file_is_named_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = opened(path)
    made, _ = ledger.write(topics.create, "a", TopicConfig(partitions=500), 1)
    for counter in range(20):
        requests = [Request(made.topic_id, tuple((number, 1) for number in range(500)))]
        ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)
    ledger.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with (
        pytest.raises(LedgerCorrupt, match=str(path)),
        closing(opened(path)) as damaged,
    ):
        damaged.read(invariants.check)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnusable, match="no directory"):
        opened(tmp_path / "nowhere" / "ledger.db")


def test_a_path_that_sqlite_cannot_open_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(LedgerUnusable, match=r"ledger\.db"):
        opened(tmp_path / "ledger.db")


def test_a_full_disk_is_an_error_that_can_be_tried_again_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    ledger = opened(path)
    made, _ = ledger.write(topics.create, "a", TopicConfig(partitions=500), 1)
    draft = draft_of(lease(1), [Request(made.topic_id, tuple((p, 1) for p in range(500)))])
    with ledger.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerUnusable, match="full") as caught:
        ledger.commit(draft, 10, lambda _: None)
    assert caught.value.retryable
    with ledger.reading() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    assert ledger.commit(draft, 10, lambda _: None).number == 1
    ledger.read(invariants.check)
    ledger.close()


def sqlite_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (sqlite_error(sqlite3.SQLITE_BUSY), LedgerBusy, True),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), LedgerBusy, True),
        (sqlite_error(sqlite3.SQLITE_PROTOCOL), LedgerBusy, True),
        (sqlite_error(sqlite3.SQLITE_SCHEMA), LedgerInterrupted, True),
        (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), LedgerUnusable, True),
        (sqlite_error(sqlite3.SQLITE_FULL), LedgerUnusable, True),
        (MemoryError(), LedgerMemory, True),
        (sqlite_error(sqlite3.SQLITE_NOTADB), LedgerCorrupt, False),
        (sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE), LedgerFault, False),
        (sqlite_error(250), LedgerFault, False),  # no code that any SQLite has
        (sqlite3.ProgrammingError("without a code"), LedgerFault, False),
    ],
)
def test_every_error_of_sqlite_has_a_kind_that_names_the_file_and_says_whether_it_may_pass(
    tmp_path: Path, error: sqlite3.Error | MemoryError, kind: type[LedgerError], retryable: bool
) -> None:
    found = translated(error, tmp_path / "l.db", 1)
    assert type(found) is kind
    assert found.retryable == retryable
    assert "l.db" in str(found)


def test_every_primary_code_of_sqlite_that_may_pass_is_known() -> None:
    standing = "ERROR INTERNAL NOTFOUND EMPTY TOOBIG CONSTRAINT MISMATCH MISUSE AUTH RANGE NOMEM"
    for name in PRIMARY.split(" "):
        error = sqlite_error(getattr(sqlite3, f"SQLITE_{name}"))
        kind = type(translated(error, Path("l.db"), 1))
        assert (kind is LedgerFault) == (name in standing.split(" ")), name


def test_no_memory_within_a_transaction_is_an_error_of_the_ledger_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    ledger = opened(tmp_path / "ledger.db")

    def call() -> None:
        with ledger.writing() as connection:
            connection.execute("INSERT INTO meta (name, value) VALUES ('a', 'b')")
            raise MemoryError  # as sqlite3 does for SQLITE_NOMEM

    with pytest.raises(LedgerMemory):
        call()
    assert ledger.read(notes.get, "a") is None
    ledger.close()
