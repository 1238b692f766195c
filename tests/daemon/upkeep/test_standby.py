"""A standby's thread and its ledger on real stores and ledgers, next to a real owner's log."""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import msgspec
import pytest

import daemon.upkeep.standby
import uploader.ownership.standby
from daemon.upkeep.owner import OtherHistory
from daemon.upkeep.recover import rebuild, settle
from daemon.upkeep.standby import StandbyThread, WarmLedger
from ledger import epochs, topics
from ledger.errors import LedgerError, LedgerMissing
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.log.entry import Entry, Image, LogIncomplete, Owner, image_key
from ledger.types import TopicConfig
from shards.clock import boottime_ns
from tests.e2e.daemon import wait_until
from tests.ledger.requests import Request, draft_of, lease
from uploader.ownership import standby
from uploader.ownership.image import put_image
from uploader.ownership.ownerlog import OwnerLog, SealedLog, question_key
from uploader.ownership.standby import LogEnd
from uploader.stores.base import StoreRefused
from uploader.stores.file import FileStore

OWNER = Owner("host", 1, "boot", 1, 1, "/data")
STANDBY = msgspec.structs.replace(OWNER, host="other", inode=2)


class Rig:
    """An owner's ledger and log, and a standby's, on one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FileStore(str(folder / "store"))
        self.log = OwnerLog(self.store, OWNER, lambda _: None)
        self.ledger = Ledger(folder / "ledger.db", nullcontext())
        self.ledger.write(epochs.begin_incarnation, 1, 0)
        self.told = Mark()
        self.number = 0
        self.standby_log = OwnerLog(self.store, STANDBY, lambda _: None)
        self.warm = WarmLedger(folder / "theirs.db", nullcontext(), self.standby_log)

    def tell(self, *names: str, kind: str = "entry", image: Image | None = None) -> Entry:
        """Writes an entry with new topics, that names an image."""
        for name in names:
            self.ledger.write(topics.create, name, TopicConfig(), 1)
        self.number += 1
        mark, changes = self.ledger.read(backup.changes_since, self.told)
        entry = self.log.entry(1, self.number, kind, mark, changes, image)  # type: ignore[arg-type]
        assert self.log.put(entry)
        self.told = mark
        return entry

    def put_image(self) -> Image:
        """Puts an image of what was told."""
        path = self.folder / "image.db"
        with (
            closing(sqlite3.connect(self.ledger.path)) as ledger,
            closing(sqlite3.connect(path)) as copy,
        ):
            ledger.backup(copy)
        key = image_key(1, self.number, bytes(8))
        found = put_image(self.store.put_in_parts(key), path, lambda: None)
        return Image(key, *found, self.number, self.told.commit_number)

    def close(self) -> None:
        self.warm.close()
        self.ledger.close()
        self.store.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A standby looks often here: what is tested is what it does."""
    for name in ("LOOK_NS", "QUESTION_NS", "RETRY_NS"):
        monkeypatch.setattr(standby, name, getattr(standby, name) // 100)
    with closing(Rig(tmp_path)) as made:
        yield made


def names_in(path: Path) -> list[str]:
    with closing(Ledger(path, nullcontext())) as ledger:
        return [
            topic.name
            for topic_id in range(1, 10)
            if (topic := ledger.read(topics.by_id, topic_id)) is not None
        ]


def test_a_warm_ledger_follows_entry_by_entry_and_becomes_the_ledger(rig: Rig) -> None:
    rig.tell("a")
    assert rig.warm.catch_up() and rig.warm.place == (1, 1) and rig.warm.next() is None
    assert not rig.warm.catch_up(), "nothing is new"
    entry = rig.tell("b")
    found = rig.warm.next()
    assert found == entry
    rig.warm.apply(entry)
    last = rig.tell("c", kind="release")
    assert rig.warm.catch_up() and rig.warm.end is LogEnd.RELEASED and rig.warm.last == last
    taken = rig.standby_log.take_after(rig.warm.place, rig.warm.last)
    assert taken is not None
    rig.warm.close()
    path = rig.folder / "theirs.db"
    rebuild(path, nullcontext(), rig.store, taken, rig.standby_log, warm=rig.warm.path)
    assert names_in(path) == ["a", "b", "c"] and not rig.warm.path.exists()


def test_what_this_directory_released_for_a_standby_is_left_to_it(rig: Rig) -> None:
    rig.tell("a", kind="release")
    assert rig.warm.catch_up() and rig.warm.end is LogEnd.RELEASED
    ours = WarmLedger(rig.folder / "ours.db", nullcontext(), rig.log, gave_up=True)
    with closing(ours):
        assert ours.catch_up() and ours.end is LogEnd.SEALED


def test_a_warm_ledger_of_which_entries_are_missing_is_built_anew_or_says_so(rig: Rig) -> None:
    rig.tell("a")
    rig.warm.catch_up()
    rig.tell("b")
    rig.tell("c")
    rig.store.delete([head.locator for head in rig.store.list("ledger/000000000001/000000000002")])
    with pytest.raises(LogIncomplete, match="is incomplete"):
        rig.warm.catch_up()


def test_a_thread_takes_a_released_log_and_asks_an_owner_that_is_silent(rig: Rig) -> None:
    rig.tell("a")
    ended: list[bool] = []
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: ended.append(True))
    thread.start()
    wait_until(lambda: rig.log.question(1) is not None, "the standby to make itself known")
    rig.log.forget_question(1)
    rig.tell("b")
    wait_until(lambda: thread.view.entries == 2, "the entry to be applied")
    assert thread.view.owner == OWNER and not thread.view.trouble and not ended
    rig.tell(kind="release")
    wait_until(lambda: ended, "the standby to take the log")
    assert thread.error is None and thread.taken is not None
    assert thread.taken.last is not None and thread.taken.last.kind == "release"


def test_an_owner_that_a_survey_found_before_it_failed_has_not_answered_yet(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tell("a")
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: None)
    fails = threading.Event()
    apply, look = rig.warm.apply, rig.warm.next

    def apply_and_fail(entry: Entry) -> None:
        apply(entry)
        if fails.is_set() and entry.kind == "entry":
            fails.clear()
            raise StoreRefused("not now")

    def next_or_lost() -> Entry | None:
        if fails.is_set():
            thread._standby.not_taken(boottime_ns())  # it surveys
            raise StoreRefused("not now")
        return look()

    monkeypatch.setattr(rig.warm, "apply", apply_and_fail)
    monkeypatch.setattr(rig.warm, "next", next_or_lost)
    thread.start()
    wait_until(lambda: rig.log.question(1) is not None, "a question")
    rig.log.forget_question(1)
    wait_until(lambda: thread.view.answered_ns, "its answer to be seen")
    fails.set()
    taken = OwnerLog(rig.store, msgspec.structs.replace(OWNER, inode=3), lambda _: None)
    sealed = taken.take(take_over=True)
    assert taken.put(taken.entry(2, 1, "entry", sealed.told))
    wait_until(lambda: rig.warm.place == (2, 1) and not thread.view.trouble, "the other owner")
    assert not thread.view.answered_ns
    thread.stop()


def test_a_thread_whose_ledger_cannot_be_closed_ends_and_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tell("a", kind="release")

    ended: list[bool] = []
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: ended.append(True))
    close = rig.warm.close

    def fail() -> None:
        close()
        if thread.taken is not None:
            raise LedgerError("the disk is full")

    monkeypatch.setattr(rig.warm, "close", fail)
    thread.start()
    wait_until(lambda: ended, "whoever waits to be told")
    assert isinstance(thread.error, LedgerError)
    monkeypatch.undo()


def test_a_standby_without_space_for_an_image_says_so_and_tries_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tell("a")

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rig.warm, "_begin", fail)
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: None)
    thread.start()
    wait_until(lambda: "No space left" in thread.view.trouble, "the trouble to be told")
    monkeypatch.undo()
    wait_until(lambda: thread.view.entries == 1, "the entry to be applied")
    thread.stop()
    assert thread.error is None and not thread.view.trouble


def test_a_standby_with_another_stores_ledger_does_not_begin_on_a_new_one(rig: Rig) -> None:
    path = rig.folder / "theirs.db"
    with closing(Ledger(path, nullcontext())) as ledger:
        topic, _ = ledger.write(topics.create, "t", TopicConfig(), 1)
        ledger.commit(draft_of(lease(1, epoch=0), [Request(topic.topic_id)]), 1, lambda _: None)
    assert rig.warm.catch_up() is False
    taken = rig.standby_log.take_after(rig.warm.place, rig.warm.last)
    assert taken is not None
    rig.warm.close()
    settled = partial(
        settle, str(path), nullcontext(), rig.store, taken, rig.standby_log, warm=rig.warm.path
    )
    with pytest.raises(OtherHistory, match="has never been owned"):
        settled(take_over=False)
    assert names_in(path) == ["t"]
    assert settled(take_over=True) is not None and names_in(path) == []


def test_a_take_over_has_what_only_the_warm_ledgers_wal_has(rig: Rig) -> None:
    last = rig.tell("a")
    rig.warm.catch_up()
    names = [rig.warm.path.name + suffix for suffix in ("", "-wal")]
    kept = {name: (rig.folder / name).read_bytes() for name in names}
    rig.warm.close()
    for name, data in kept.items():  # as of a close that could not copy the one into the other
        (rig.folder / name).write_bytes(data)
    taken = rig.standby_log.take_after((1, 1), last)
    assert taken is not None
    path = rig.folder / "theirs.db"
    rebuild(path, nullcontext(), rig.store, taken, rig.standby_log, warm=rig.warm.path)
    assert names_in(path) == ["a"]


def test_of_the_ledgers_that_take_overs_replaced_the_last_one_is_kept(rig: Rig) -> None:
    last = rig.tell("a")
    path = rig.folder / "data" / "ledger.db"
    path.parent.mkdir()
    for _ in range(3):
        with closing(WarmLedger(path, nullcontext(), rig.standby_log)) as warm:
            warm.catch_up()
        taken = SealedLog(1, last)
        report = rebuild(path, nullcontext(), rig.store, taken, rig.standby_log, warm=warm.path)
    files = sorted(each.name for each in path.parent.iterdir())
    assert files == ["ledger.db", "ledger.db.before-standby"]
    assert report.kept_ledger is not None and names_in(Path(report.kept_ledger)) == ["a"]


def test_a_warm_ledger_that_fell_behind_an_image_has_it_and_what_followed(rig: Rig) -> None:
    rig.tell("a")
    rig.warm.catch_up()
    rig.tell("b")
    image = rig.put_image()
    rig.tell("c", image=image)
    rig.log.forget_before(image)
    assert rig.log.keys() == [(1, 1), (1, 3)], "what it would need next is gone"
    assert rig.warm.catch_up() and rig.warm.place == (1, 3)
    rig.warm.close()
    assert names_in(rig.warm.path) == ["a", "b", "c"]


def test_a_standby_that_may_not_put_its_question_says_so_until_it_may(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tell("a")
    put = rig.store.put_if_absent

    def refuse(key: str, body: bytes) -> bool:
        if key == question_key(1):
            raise StoreRefused("s3:PutObject is missing")
        return put(key, body)

    monkeypatch.setattr(rig.store, "put_if_absent", refuse)
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: None)
    thread.start()
    wait_until(lambda: "it cannot write to the store" in thread.view.trouble, "the trouble")
    monkeypatch.undo()
    wait_until(lambda: not thread.view.trouble, "the trouble to end")
    thread.stop()


def test_a_store_that_is_too_slow_to_count_silence_is_named_as_long_as_it_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tell("a")
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: None)
    with monkeypatch.context() as slow:
        slow.setattr(uploader.ownership.standby, "LOOK_GAP_NS", 0)
        thread.start()
        wait_until(lambda: "a store as slow as this" in thread.view.trouble, "the trouble")
    wait_until(lambda: not thread.view.trouble, "the trouble to end")
    thread.stop()


def test_a_standby_that_was_too_slow_waits_for_the_faster_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = rig.tell("a", kind="release")
    faster = OwnerLog(rig.store, msgspec.structs.replace(STANDBY, inode=3), lambda _: None)
    take_after, results = rig.standby_log.take_after, []

    def is_late(end: tuple[int, int] | None, last: Entry | None) -> SealedLog | None:
        faster.take_after(end, last)
        results.append(take_after(end, last))
        return results[-1]

    monkeypatch.setattr(rig.standby_log, "take_after", is_late)
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: None)
    thread.start()
    wait_until(lambda: rig.warm.end is LogEnd.SEALED, "the seal to be found")
    thread.stop()
    assert results == [None] and rig.warm.place == (1, 2)
    assert rig.warm.last == last, "a seal is not an entry of an owner"


def test_the_seal_of_an_earlier_start_on_this_directory_is_known(rig: Rig) -> None:
    last = rig.tell("a")
    assert rig.standby_log.take_after((1, 1), last) is not None
    for log, end in (
        (OwnerLog(rig.store, STANDBY, lambda _: None), LogEnd.SEALED_HERE),
        (rig.log, LogEnd.SEALED),
    ):
        with closing(WarmLedger(rig.folder / f"{end.name}.db", nullcontext(), log)) as warm:
            assert warm.catch_up() and warm.end is end and warm.last == last


def test_a_question_that_cannot_be_read_is_not_said_to_be_unwritable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tell("a")

    def refuse(incarnation: int) -> bytes | None:
        raise StoreRefused("s3:GetObject is missing")

    monkeypatch.setattr(rig.standby_log, "question", refuse)
    thread = StandbyThread(rig.standby_log, rig.warm, lambda: None)
    thread.start()
    wait_until(lambda: "s3:GetObject" in thread.view.trouble, "the trouble")
    assert thread.view.trouble == "s3:GetObject is missing"
    thread.stop()


def test_a_store_that_does_not_answer_holds_up_no_stop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tell("a")
    asked, answered, ended = threading.Event(), threading.Event(), threading.Event()
    look = rig.warm.next

    def hang() -> Entry | None:
        asked.set()
        answered.wait()
        return look()

    monkeypatch.setattr(rig.warm, "next", hang)
    monkeypatch.setattr(daemon.upkeep.standby, "STOP_S", 0.05)
    thread = StandbyThread(rig.standby_log, rig.warm, ended.set)
    thread.start()
    wait_until(asked.is_set, "a look")
    thread.stop()
    assert not ended.is_set() and thread.taken is None and thread.error is None
    answered.set()
    wait_until(ended.is_set, "the call to be answered, and the thread to end")


def test_a_warm_ledger_is_read_between_two_entries_and_not_before_it_is_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerMissing):
        rig.warm.read(topics.find, "a")
    rig.tell("a")
    rig.warm.catch_up()
    found: list[Exception | str] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            try:
                topic = rig.warm.read(topics.find, "a")
                found.append("" if topic is None else topic.name)
            except Exception as error:
                found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: found, "the first read")
    for number in range(30):
        rig.tell(f"t{number}")
        rig.warm.catch_up()
    ended.set()
    thread.join()
    assert set(map(repr, found)) == {"'a'"}
    # While it is built anew, what it has is older than what it had.
    rig.tell("b")
    image = rig.put_image()
    rig.tell("c", image=image)
    rig.log.forget_before(image)
    apply = rig.warm.apply

    def half(entry: Entry) -> None:
        apply(entry)
        with pytest.raises(LedgerMissing):
            rig.warm.read(topics.find, "a")

    monkeypatch.setattr(rig.warm, "apply", half)
    assert rig.warm.catch_up()
    assert rig.warm.read(topics.find, "c") is not None
    rig.warm.close()
    with pytest.raises(LedgerMissing):
        rig.warm.read(topics.find, "a")
