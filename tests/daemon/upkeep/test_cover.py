"""Which entry of the owner's log counts for a command, and which only looks like it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from daemon.upkeep.cover import Alone, Beside, NotCovered
from daemon.upkeep.owner import LOCK_NAME, this_owner
from ledger import epochs, topics
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.log.entry import Owner
from ledger.space import orphans, settle
from ledger.space.orphans import Candidate
from ledger.space.settle import Settled
from ledger.types import TopicConfig
from shards import locks
from shards.locks import LockFile, SharedLock
from tests.ledger.lakes import commit
from tests.ledger.requests import Request, key_of, lease
from uploader.ownership.ownerlog import Former, OwnerLog, Taken
from uploader.stores.base import ObjectHead, StoreBusy, StoreError, StoreRefused
from uploader.stores.counted import CountedStore
from uploader.stores.file import FileStore

HOLD_A_LOCK = """
import sys
from pathlib import Path
from shards.locks import LockFile
file = LockFile(Path(sys.argv[1]))
assert file.try_lock(int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""
ROOT = Path(__file__).resolve().parents[3]


class Flaky(FileStore):
    """Keeps an entry and loses the answer, once; or does not list."""

    lose_answer = False
    list_errors: Sequence[StoreError] = ()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        if self.list_errors:
            error, *self.list_errors = self.list_errors
            raise error
        return super().list(prefix, start_after)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        made = super().put_if_absent(key, body)
        if self.lose_answer:
            self.lose_answer = False
            raise StoreError("timed out", retryable=True, outcome_unknown=True)
        return made


class Place:
    """A data directory whose lock another process holds, and a log in a store."""

    def __init__(self, directory: Path) -> None:
        self.file = LockFile(directory / LOCK_NAME)
        self.flaky = Flaky(directory / "store")
        self.store = CountedStore(self.flaky)
        self.ledger = Ledger(directory / "ledger.db", SharedLock(self.file, locks.LEDGER))
        self.incarnation, _ = self.ledger.write(epochs.begin_incarnation, 1)
        self.owner = this_owner(str(directory))
        self.log = OwnerLog(self.store, self.owner, lambda _: None)
        self.number = 0
        self.then: Callable[[], object] = lambda: None
        self.looks = 0

    def daemon_writes(self, owner: Owner | None = None, **mark: object) -> None:
        """An entry as the daemon of this directory, or another, would write it."""
        self.number += 1
        told = msgspec.structs.replace(self.ledger.read(backup.mark), **mark)
        log = OwnerLog(self.store, owner or self.owner, lambda _: None)
        assert log.put(log.entry(self.incarnation, self.number, "entry", told))

    def sleep(self, _: float) -> None:
        """What happens while the command waits."""
        self.looks += 1
        assert self.looks < 5, "it waits for what will not come"
        self.then()

    def beside(self, pid: int) -> Beside:
        return Beside(self.ledger, self.log, self.store, self.file, pid, self.sleep)

    def close(self) -> None:
        self.ledger.close()
        self.flaky.close()
        self.file.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def holder(place: Place) -> Iterator[subprocess.Popen[str]]:
    """The daemon, as far as the lock goes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_LOCK, str(place.file.path), str(locks.DIRECTORY)],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_an_entry_that_was_written_behind_the_asking_covers(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    place.daemon_writes()
    place.then = place.daemon_writes
    place.beside(holder.pid).cover()
    assert place.looks == 1, "the entry before the asking does not count"


def test_an_entry_of_another_directory_never_covers_whatever_it_says(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    another = msgspec.structs.replace(place.owner, inode=place.owner.inode + 1)
    place.daemon_writes(another, wanted=99)
    with pytest.raises(NotCovered, match="belongs to"):
        place.beside(holder.pid).cover()


def test_an_entry_of_another_history_never_covers(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    place.daemon_writes(wanted=99, history="recovered")
    with pytest.raises(NotCovered):
        place.beside(holder.pid).cover()


def test_a_store_that_is_not_the_daemons_is_refused_before_anything_is_asked(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(NotCovered, match="no owner's log, so it is not the store of the daemon"):
        place.beside(holder.pid).check_store()
    another = msgspec.structs.replace(place.owner, inode=place.owner.inode + 1)
    place.daemon_writes(another)
    with pytest.raises(NotCovered, match=r"belongs to .* give the --store"):
        place.beside(holder.pid).check_store()
    place.daemon_writes()
    place.beside(holder.pid).check_store()
    assert place.looks == 0 and place.ledger.read(backup.mark).wanted == 0


def test_who_waits_for_a_daemon_that_ended_is_told(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    place.daemon_writes()

    def end() -> None:
        holder.kill()
        holder.wait()

    place.then = end
    with pytest.raises(NotCovered, match="has ended"):
        place.beside(holder.pid).cover()
    assert place.looks == 1


def test_a_floor_that_an_entry_has_already_needs_no_other(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    place.daemon_writes()
    assert place.beside(holder.pid).raise_floor() == 1
    assert place.looks == 0
    for _ in range(2):
        place.ledger.write(epochs.advance)
    place.then = place.daemon_writes
    assert place.beside(holder.pid).raise_floor() == 2 == place.ledger.read(epochs.floor)
    assert place.looks == 1


def test_a_log_that_cannot_be_read_for_a_moment_is_looked_at_again(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    place.then = place.daemon_writes
    place.flaky.list_errors = [StoreBusy("slow down"), StoreBusy("slow down")]
    assert place.beside(holder.pid).raise_floor() == 1
    place.flaky.list_errors = [StoreRefused("forbidden")]
    with pytest.raises(StoreRefused):
        place.beside(holder.pid).cover()


def test_alone_each_entry_has_what_is_new_and_the_last_gives_the_store_back(place: Place) -> None:
    place.daemon_writes()
    alone = Alone(place.ledger, place.log, Taken(1, None, Former.OURS), place.sleep)
    assert alone.raise_floor() == place.ledger.read(epochs.current)
    orphan = Candidate(key_of(lease(1, epoch=1)), "there", lease(1, epoch=1))
    assert place.ledger.write(orphans.name, [orphan])
    place.flaky.lose_answer = True
    alone.cover()
    alone.release()
    told = list(place.log.chain())[1:]
    assert [entry.kind for entry in told] == ["entry", "entry", "release"]
    assert all(entry.incarnation == 2 and entry.changes is not None for entry in told)
    assert told[0].mark.epoch_floor == 2
    named = [entry.changes.rows.get("deletions", []) for entry in told if entry.changes]
    assert [[row[1] for row in rows] for rows in named] == [[], [orphan.key], []]


def test_alone_whose_log_another_start_sealed_gives_way_and_releases_nothing(place: Place) -> None:
    alone = Alone(place.ledger, place.log, Taken(1, None, Former.OURS), place.sleep)
    another = msgspec.structs.replace(place.owner, inode=place.owner.inode + 1)
    log = OwnerLog(place.store, another, lambda _: None)
    assert log.put(log.entry(2, 2, "seal", Mark()))
    with pytest.raises(NotCovered, match="gives way"):
        alone.cover()
    alone.release()
    assert place.log.keys() == [(2, 1), (2, 2)]


# How far commits are settled


def test_what_the_daemon_says_is_settled_raises_the_floor(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    place.ledger.write(settle.give, Settled(0, 1, 99))  # to an earlier question

    def answers() -> None:
        asked = place.ledger.read(settle.unanswered)
        assert asked is not None
        place.ledger.write(settle.give, Settled(asked, place.ledger.write(epochs.advance), 7))

    place.then = answers
    settled = place.beside(holder.pid).settle()
    assert (settled.epoch_floor, settled.commits_to) == (2, 7)
    assert place.ledger.read(epochs.floor) == 2 and place.looks == 1


def test_a_floor_that_is_higher_already_holds(place: Place, holder: subprocess.Popen[str]) -> None:
    place.ledger.write(epochs.begin_incarnation, 2)
    floor = place.ledger.read(epochs.floor)
    place.then = lambda: place.ledger.write(settle.give, Settled(1, floor - 1, 7))
    assert place.beside(holder.pid).settle().epoch_floor == floor == place.ledger.read(epochs.floor)


def test_a_daemon_that_ends_before_it_answers_is_not_waited_for(
    place: Place, holder: subprocess.Popen[str]
) -> None:
    def ends() -> None:
        holder.kill()
        holder.wait()

    place.then = ends
    with pytest.raises(NotCovered, match="ended before it answered"):
        place.beside(holder.pid).settle()


def test_alone_all_commits_are_settled(place: Place) -> None:
    topic, _ = place.ledger.write(topics.create, "t", TopicConfig(), 1)
    commit(place.ledger, 1, Request(topic.topic_id))
    alone = Alone(place.ledger, place.log, Taken(1, None, Former.NONE), place.sleep)
    assert alone.settle() == Settled(0, place.ledger.read(epochs.current), 1)
