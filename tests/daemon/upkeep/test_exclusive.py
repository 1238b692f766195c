"""The entries of a command that has the directory to itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compaction.access.ledger_access import NotBackedUp
from compaction.access.operations import NOW
from daemon.config import Override, load
from daemon.upkeep.exclusive import EntryWriter, Exclusive
from daemon.upkeep.owner import LOCK_NAME, this_owner
from ledger import epochs, topics
from ledger.lake import runs
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.space import orphans
from shards import locks
from shards.locks import LockFile, SharedLock
from tests.ledger.requests import key_of, lease
from uploader.ownership.ownerlog import Former, OwnerLog, SealedLog
from uploader.stores.base import StoreError
from uploader.stores.file import FileStore


class Flaky(FileStore):
    """Keeps an entry and loses the answer, once."""

    lose_answer = False

    def put_if_absent(self, key: str, body: bytes) -> bool:
        made = super().put_if_absent(key, body)
        if self.lose_answer:
            self.lose_answer = False
            raise StoreError("timed out", retryable=True, outcome_unknown=True)
        return made


class Place:
    """A data directory and a log in a store, in which incarnation 1 wrote an entry."""

    def __init__(self, directory: Path) -> None:
        self.file = LockFile(directory / LOCK_NAME)
        self.store = Flaky(directory / "store")
        self.ledger = Ledger(directory / "ledger.db", SharedLock(self.file, locks.LEDGER))
        self.ledger.write(epochs.begin_incarnation, 1)
        self.owner = this_owner(str(directory))
        self.log = OwnerLog(self.store, self.owner, lambda _: None)
        assert self.log.put(self.log.entry(1, 1, "entry", self.ledger.read(backup.mark)))
        taken = SealedLog(1, None, Former.OURS)
        self.entries = EntryWriter(self.ledger, self.log, taken, lambda _: None)

    def close(self) -> None:
        self.ledger.close()
        self.store.close()
        self.file.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def test_each_entry_has_what_is_new_and_the_last_gives_the_store_back(place: Place) -> None:
    orphan = key_of(lease(1, epoch=1))
    assert place.ledger.write(orphans.name, [(orphan, "there")])
    place.store.lose_answer = True
    place.entries.write("entry")
    place.entries.release()
    told = list(place.log.chain())[1:]
    assert [entry.kind for entry in told] == ["entry", "entry", "release"]
    assert all(entry.incarnation == 2 and entry.changes is not None for entry in told)
    assert told[0].mark.epoch_floor == 2
    named = [entry.changes.rows.get("deletions", []) for entry in told if entry.changes]
    assert [[row[1] for row in rows] for rows in named] == [[], [orphan], []]


def test_each_kind_of_change_has_a_line_in_the_audit_log(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "audit.log"
    config = load(None, {}, [Override("data_dir", str(tmp_path)), Override("audit_log", str(path))])

    def lines() -> list[dict[str, object]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    access = Exclusive(place.ledger, config)
    access.read(topics.page)
    assert not path.exists(), "it changes nothing"
    for topic in ("a", "b"):
        access.write(orphans.name, [(key_of(lease(1, epoch=1)), topic)])
    access.write(runs.begin, "a run", "a test", NOW)
    told = lines()
    assert [(line["event"], line["operation"]) for line in told] == [
        ("command", "space.orphans.name"), ("command", "lake.runs.begin"),
    ]  # fmt: skip
    assert {(line["process"], line["user"]) for line in told} == {
        (f"command {os.getpid()}", os.geteuid())
    }
    numbers = [line["n"] for line in told]
    assert numbers[1] == numbers[0] + 1  # type: ignore[operator]
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    Exclusive(place.ledger, config).write(orphans.name, [(key_of(lease(1, epoch=1)), "c")])
    assert lines() == told and "no line of command" in caplog.text


def test_a_command_whose_log_another_start_sealed_gives_way_and_releases_nothing(
    place: Place,
) -> None:
    another = msgspec.structs.replace(place.owner, inode=place.owner.inode + 1)
    log = OwnerLog(place.store, another, lambda _: None)
    assert log.put(log.entry(2, 2, "seal", Mark()))
    with pytest.raises(NotBackedUp, match="gives way"):
        place.entries.write("entry")
    place.entries.release()
    assert place.log.keys() == [(1, 1), (2, 1), (2, 2)]
