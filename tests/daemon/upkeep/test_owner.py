"""The owner's entries on a store whose answers get lost, or whose numbers another one takes."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Concatenate

import msgspec
import pytest

from daemon.upkeep.owner import LOCK_NAME, OtherHistory, OwnerThread, check_history, this_owner
from ledger import epochs, topics
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.log.entry import Entry, Owner, entry_key
from ledger.tx import P, ReadTx, T
from ledger.types import TopicConfig
from shards import layout as at
from shards.alarms import AlarmKind, raised
from shards.clock import boottime_ns
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.segment import Segment
from tests.e2e.daemon import wait_until
from tests.ledger.requests import Request, draft_of, lease
from uploader.ownership.ownerlog import (
    OwnedByAnother,
    OwnerLog,
    Question,
    SealedLog,
    question_key,
)
from uploader.ownership.ownership import LISTEN_NS, PERIOD_NS, RETRY_NS, STANDBY_LISTEN_NS
from uploader.stores.base import StoreError
from uploader.stores.file import FileStore

OWNER = Owner("host", 1, "boot", 1, 1, "/data")


class FailingStore(FileStore):
    """The real store; the next puts of entries fail, behind or in front of being kept."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.fail_kept = 0
        self.fail_lost = 0
        self.asks_when_kept = False
        self.before_a_question: Callable[[], object] = lambda: None

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        if locator == question_key(1):
            self.before_a_question()
        return super().get(locator, start, length)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        if self.fail_lost:
            self.fail_lost -= 1
            raise StoreError("lost", retryable=True, outcome_unknown=True)
        made = super().put_if_absent(key, body)
        if self.fail_kept:
            self.fail_kept -= 1
            if self.asks_when_kept:
                super().put_if_absent(question_key(1), b"?")
            raise StoreError("kept, but nobody says so", retryable=True, outcome_unknown=True)
        return made


class FailingLedger(Ledger):
    """The real ledger; while told so, it cannot say what an entry must tell.

    ``once``: is called before that is read, once."""

    error: LedgerError | None = None
    once: Callable[[], object] | None = None

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if function is backup.changes_since and self.error is not None:
            raise self.error
        if function is backup.changes_since and self.once is not None:
            once, self.once = self.once, None
            once()
        return super().read(function, *args, **kwargs)


class Rig:
    """An owner's thread that owns an incarnation, without a daemon around it."""

    def __init__(self, directory: Path) -> None:
        self.segment = Segment.create(Layout(shards=1, ring_bytes=4096))
        self.bells = Doorbells.create(1)
        self.store = FailingStore(str(directory / "store"))
        self.log = OwnerLog(self.store, OWNER, lambda _: None)
        self.ledger = Ledger(directory / "ledger.db", nullcontext())
        self.told = FailingLedger(directory / "ledger.db", nullcontext())
        self.owner = OwnerThread(self.segment, self.bells, self.log, self.told)
        self.words = self.segment.words

    def own(self) -> None:
        incarnation, _ = self.ledger.write(epochs.begin_incarnation, 1, 0)
        self.owner.own(incarnation, SealedLog(0, None))
        self.owner.start()

    def news(self, name: str) -> Mark:
        """Something that an entry must tell; the bell spares a second of looking."""
        self.ledger.write(topics.create, name, TopicConfig(), 1)
        self.bells.ring(self.bells.owner)
        return self.ledger.read(backup.mark)

    def entries(self) -> list[Entry]:
        return list(self.log.chain())

    def alarms(self) -> list[tuple[AlarmKind, str]]:
        return [(alarm.kind, alarm.text) for alarm in raised(self.segment)]

    def close(self) -> None:
        self.ledger.close()
        self.told.close()
        self.store.close()
        self.bells.close()
        self.segment.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Periods are short here, also those at which the owner listens for questions: what is tested
    is their order."""
    monkeypatch.setattr("uploader.ownership.ownership.PERIOD_NS", PERIOD_NS // 100)
    monkeypatch.setattr("uploader.ownership.ownership.RETRY_NS", RETRY_NS // 100)
    for name in ("uploader.ownership.ownership", "daemon.upkeep.owner"):
        monkeypatch.setattr(f"{name}.LISTEN_NS", LISTEN_NS // 100)
        monkeypatch.setattr(f"{name}.STANDBY_LISTEN_NS", STANDBY_LISTEN_NS // 100)
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def test_an_entry_whose_answer_was_lost_is_ours_and_its_age_counts_from_the_first_sending(
    rig: Rig,
) -> None:
    rig.own()
    sent_ns = rig.words[at.G_OWNED_SENT_NS]
    rig.store.fail_kept = 1
    mark = rig.news("a")
    wait_until(lambda: rig.words[at.G_ENTRY_NUMBER] == 2, "the lost answer to be found out")
    assert not rig.owner.superseded and rig.words[at.G_SUPERSEDED] == 0
    assert rig.words[at.G_OWNED_SENT_NS] > sent_ns
    assert rig.entries()[-1].mark == mark
    last = rig.news("b")
    wait_until(lambda: rig.words[at.G_ENTRY_NUMBER] == 3, "the next entry")
    rig.owner.release()
    kinds = [(e.number, e.kind) for e in rig.entries()]
    assert kinds == [(1, "entry"), (2, "entry"), (3, "entry"), (4, "release")]
    assert rig.entries()[2].mark == last


def test_an_idle_owner_answers_a_start_that_asks_whether_it_lives(rig: Rig) -> None:
    rig.own()
    asker = msgspec.structs.replace(OWNER, boot_id="a later boot")

    def wait(_: float) -> None:
        wait_until(lambda: len(rig.log.keys()) > 1, "the answer of the owner")

    with pytest.raises(OwnedByAnother, match="its log grows"):
        OwnerLog(rig.store, asker, wait).take(take_over=False)
    wait_until(lambda: rig.words[at.G_ENTRY_NUMBER] == 2, "the owner to know of its answer")
    assert not rig.owner.superseded and not list(rig.store.list("probe"))
    rig.owner.release()
    assert [(e.number, e.kind) for e in rig.entries()] == [
        (1, "entry"), (2, "entry"), (3, "release"),
    ]  # fmt: skip


def test_an_entry_that_was_sent_before_a_start_asked_does_not_answer_it(rig: Rig) -> None:
    rig.own()
    rig.store.fail_kept = 1
    rig.store.asks_when_kept = True
    rig.news("a")  # kept as number 2, with the question right after it
    wait_until(lambda: rig.words[at.G_ENTRY_NUMBER] == 3, "an entry of its own for the answer")
    wait_until(lambda: rig.log.question(1) is None, "the question to be removed")
    rig.owner.release()


def test_an_entry_that_never_arrived_is_sent_again_until_it_does(rig: Rig) -> None:
    rig.own()
    rig.store.fail_lost = 3
    mark = rig.news("a")
    wait_until(lambda: rig.words[at.G_ENTRY_NUMBER] == 2, "the entry to arrive")
    assert rig.store.fail_lost == 0
    assert rig.entries()[-1].mark == mark
    rig.owner.release()


def test_a_ledger_that_cannot_be_told_of_is_an_alarm_as_nothing_is_committed_without_entries(
    rig: Rig,
) -> None:
    rig.own()
    rig.told.error = LedgerError("page 7 is damaged")
    rig.news("a")
    wait_until(rig.alarms, "the alarm")
    assert rig.alarms() == [(AlarmKind.LEDGER_FAILING, str(rig.told.error))]
    rig.told.error = None
    wait_until(lambda: rig.words[at.G_ENTRY_NUMBER] == 2, "the entry")
    assert rig.alarms() == []
    rig.owner.release()


def test_a_foreign_object_in_place_of_the_next_entry_is_an_alarm_until_it_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.pipeline.outage.DOWN_AFTER_NS", RETRY_NS // 10)
    rig.own()
    rig.store.put_if_absent(entry_key(1, 2), b"no entry")
    rig.news("a")
    wait_until(rig.alarms, "the alarm")
    ((kind, text),) = rig.alarms()
    assert kind is AlarmKind.STORE_FAILING and entry_key(1, 2) in text
    rig.store.delete([entry_key(1, 2)])
    wait_until(lambda: rig.words[at.G_ENTRY_NUMBER] == 2, "the entry")
    wait_until(lambda: not rig.alarms(), "the alarm to end")
    rig.owner.release()


def test_a_release_stands_behind_an_entry_whose_fate_was_unknown(rig: Rig) -> None:
    rig.own()
    rig.store.fail_lost = 10**9
    rig.news("a")
    wait_until(lambda: rig.store.fail_lost < 10**9, "an entry to fail")
    rig.store.fail_lost = 0
    rig.owner.release()
    last = rig.entries()[-1]
    assert last.kind == "release" and last.mark == rig.ledger.read(backup.mark)


def test_a_number_that_another_took_ends_the_ownership_for_good(rig: Rig) -> None:
    rig.own()
    other = OwnerLog(rig.store, msgspec.structs.replace(OWNER, inode=2), lambda _: None)
    taken = other.take(take_over=True)
    assert taken.last is not None
    rig.news("a")
    wait_until(lambda: rig.words[at.G_SUPERSEDED], "the take-over to be noticed")
    wait_until(lambda: not rig.owner.alive, "the owner's thread to end")
    rig.owner.release()
    assert [e.kind for e in rig.entries()] == ["entry", "seal"]


def test_a_start_whose_first_number_another_took_gives_way(rig: Rig) -> None:
    faster = rig.log.entry(1, 1, "entry", Mark())
    assert rig.log.put(faster)
    with pytest.raises(OtherHistory, match="at the same moment"):
        rig.owner.own(1, SealedLog(0, None))


def test_a_release_stands_behind_an_entry_that_was_kept_though_nobody_said_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "uploader.ownership.ownership.RETRY_NS", 3600 * RETRY_NS
    )  # it is not sent again
    rig.own()
    rig.store.fail_kept = 1
    rig.news("a")
    wait_until(lambda: not rig.store.fail_kept, "an entry to be kept and its answer lost")
    rig.owner.release()
    assert not rig.owner.superseded
    kinds = [(e.number, e.kind) for e in rig.entries()]
    assert kinds == [(1, "entry"), (2, "entry"), (3, "release")]


def test_histories_are_told_apart(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    topic, _ = ledger.write(topics.create, "t", TopicConfig(), 1)
    ledger.commit(draft_of(lease(1, epoch=0), [Request(topic.topic_id)]), 1, lambda _: None)
    there = ledger.read(backup.mark)
    log = OwnerLog(FileStore(str(tmp_path / "store")), OWNER, lambda _: None)

    def check(mark: Mark) -> None:
        check_history(ledger, log.entry(1, 1, "entry", mark), "file:///s")

    check(Mark())
    check(there)
    assert there.lease is not None
    for other in (
        msgspec.structs.replace(there, commit_number=2),
        msgspec.structs.replace(there, catalog_version=there.catalog_version + 1),
        msgspec.structs.replace(there, epoch_floor=1),
        msgspec.structs.replace(there, history="recovered"),
        msgspec.structs.replace(there, lease=msgspec.structs.replace(there.lease, counter=2)),
    ):
        with pytest.raises(OtherHistory, match="headgate recover"):
            check(other)
    with pytest.raises(OtherHistory, match="has never been owned"):
        check_history(ledger, None, "file:///s")
    ledger.close()


def test_a_copy_of_a_directory_is_another_owner(tmp_path: Path) -> None:
    for name in ("data", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOCK_NAME).touch()
    mine = this_owner(str(tmp_path / "data"))
    assert this_owner(str(tmp_path / "data")).same_directory(mine)
    copy = this_owner(str(tmp_path / "copy"))
    assert not copy.same_directory(mine) and not copy.before_a_boot(mine)


def test_who_waits_for_a_backup_gets_an_entry_that_covers_what_was_written_before(
    rig: Rig,
) -> None:
    rig.own()
    first_ns = rig.words[at.G_BACKED_UP_NS]
    assert first_ns > 0, "the first entry covers what was there"
    mark = rig.ledger.read(
        backup.mark
    )  # nothing new is to be told, and the waiter gets an entry all the same
    asked_ns = boottime_ns()
    rig.words[rig.segment.layout.shard(0) + at.S_BACKUP_WANTED_NS] = asked_ns
    rig.bells.ring(rig.bells.owner)
    wait_until(lambda: rig.words[at.G_BACKED_UP_NS] >= asked_ns, "the entry")
    assert rig.entries()[-1].mark == mark and len(rig.entries()) == 2
    wait_until(
        lambda: select.select([rig.bells.fds[0]], [], [], 0)[0], "the shard that waits to be rung"
    )
    rig.owner.release()


def test_an_entry_that_was_read_before_the_waiter_asked_does_not_cover_it(rig: Rig) -> None:
    rig.own()
    rig.store.fail_lost = 10**9
    rig.news("a")
    wait_until(lambda: rig.store.fail_lost < 10**9, "an entry to be sent")
    asked_ns = boottime_ns()
    mark = rig.news("b")
    rig.words[rig.segment.layout.shard(0) + at.S_BACKUP_WANTED_NS] = asked_ns
    rig.store.fail_lost = 0
    wait_until(lambda: rig.words[at.G_BACKED_UP_NS] >= asked_ns, "an entry that covers")
    assert rig.entries()[-1].mark == mark and rig.words[at.G_ENTRY_NUMBER] == 3
    rig.owner.release()


def question_from(standby: Owner, *, is_ready: bool = False) -> Question:
    return Question("00", standby, 3, is_ready)


STANDBY = msgspec.structs.replace(OWNER, host="other", inode=2)


def test_a_standby_that_asks_is_answered_without_an_entry_and_known(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.own()
    assert rig.log.ask(1, question_from(STANDBY))
    wait_until(lambda: rig.log.question(1) is None, "the question to be removed")
    wait_until(lambda: rig.words[at.G_STANDBYS] == 1, "the standby to be known")
    wait_until(lambda: rig.words[at.G_STANDBY_COMMITS] == 3, "what it has, which is told next")
    assert rig.words[at.G_STANDBY_SEEN_NS]
    assert len(rig.entries()) == 1
    monkeypatch.setattr("daemon.upkeep.owner.KNOWN_STANDBY_NS", 0)
    wait_until(lambda: rig.words[at.G_STANDBYS] == 0, "the standby to be forgotten")
    rig.owner.release()


def test_a_handover_is_told_by_an_entry_and_begins_when_a_standby_is_ready(rig: Rig) -> None:
    rig.own()
    assert rig.log.ask(1, question_from(STANDBY, is_ready=True))
    wait_until(lambda: rig.log.question(1) is None, "the question to be removed")
    assert not rig.words[at.G_HANDED_OVER_NS], "nobody has asked for a handover"
    rig.words[rig.segment.layout.shard(0) + at.S_HANDOVER_WANTED_NS] = boottime_ns()
    rig.bells.ring(rig.bells.owner)
    wait_until(lambda: rig.entries()[-1].hands_over, "the entry that tells")
    assert rig.log.ask(1, question_from(STANDBY))
    wait_until(lambda: rig.log.question(1) is None, "the question to be removed")
    assert not rig.words[at.G_HANDED_OVER_NS], "the standby has not seen that entry yet"
    assert rig.log.ask(1, question_from(STANDBY, is_ready=True))
    wait_until(lambda: rig.words[at.G_HANDED_OVER_NS], "the handover")
    rig.owner.release()
    assert [(e.kind, e.hands_over) for e in rig.entries()] == [
        ("entry", False), ("entry", True), ("release", False)
    ]  # fmt: skip


def test_a_handover_that_is_wanted_while_an_entry_is_made_is_told_by_the_next_one(
    rig: Rig,
) -> None:
    rig.own()

    def want() -> None:
        rig.words[rig.segment.layout.shard(0) + at.S_HANDOVER_WANTED_NS] = boottime_ns()

    rig.told.once = want
    rig.news("a")
    wait_until(lambda: len(rig.entries()) == 3, "the entry that tells")
    rig.owner.release()
    assert [e.hands_over for e in rig.entries()] == [False, False, True, False]


def test_a_standby_that_is_ready_when_its_time_is_over_gets_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.own()
    rig.words[rig.segment.layout.shard(0) + at.S_HANDOVER_WANTED_NS] = boottime_ns()
    rig.bells.ring(rig.bells.owner)
    wait_until(lambda: rig.entries()[-1].hands_over, "the entry that tells")

    def takes_long() -> None:
        monkeypatch.setattr("daemon.upkeep.owner.HANDOVER_NS", 0)

    rig.store.before_a_question = takes_long
    assert rig.log.ask(1, question_from(STANDBY, is_ready=True))
    wait_until(lambda: rig.words[at.G_STANDBYS] == 1, "the standby to be known")
    rig.owner.release()
    assert not rig.words[at.G_HANDED_OVER_NS], "whoever wanted it was told that we go on"


def test_an_idle_owner_that_was_stopped_for_long_finds_out_that_it_is_superseded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.own()
    other = OwnerLog(rig.store, STANDBY, lambda _: None)
    last = other.last()
    assert last is not None and other.take_after((1, 1), last) is not None
    monkeypatch.setattr("daemon.upkeep.owner.may_commit", lambda *_: False)  # time has passed
    wait_until(lambda: rig.words[at.G_SUPERSEDED], "the seal to be found")


@pytest.mark.parametrize(
    "body", [b"", b'{"x": ' + b"[" * 10_000, msgspec.json.encode(Question("00", STANDBY, -1))],
    ids=["empty", "nested", "negative"],
)  # fmt: skip
def test_an_owner_outlives_whatever_is_put_for_a_question(rig: Rig, body: bytes) -> None:
    rig.own()
    assert rig.store.put_if_absent(question_key(1), body)
    wait_until(lambda: rig.log.question(1) is None, "the question to be removed")
    assert rig.owner.alive and not rig.words[at.G_STANDBYS]
    rig.owner.release()
