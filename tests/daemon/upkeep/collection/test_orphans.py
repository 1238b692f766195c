"""Collections on random ledgers and stores: all orphans go, nothing else ever does.

Real ledger, real decisions; the store is a dict, so that it can be looked into. Entries of the
owner's log are applied to a second ledger, as a recovery would: only what it names may go. At every
question that a collection asks, leases go on: they come to life, put and commit.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.upkeep.collection.collector import Collector, look
from daemon.upkeep.collection.orphans import OrphanObjects, TakenAtStart
from daemon.upkeep.collection.report import CollectionReport
from ledger import epochs, reads, topics
from ledger.checks import invariants
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.space import deletions, orphans
from ledger.types import LeaseId, TopicConfig
from tests.daemon.upkeep.collection.on_ledger import Killed, OnLedger, UnaskedStore
from tests.ledger.requests import Request, draft_of, key_of
from tests.long import examples
from uploader.l0 import L0Error, parse_key
from uploader.stores.base import ObjectHead, StoreError
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore

NOW_MS = 1_000_000
GRACE_MS = 1_000
STRANGERS = ("l0/readme", "l0/000000000000000000/x", "l0/000000000000000001/01-0-1", "lake/a")


class Shelf(UnaskedStore):
    """A store in memory. Equal copies of a key have locators of their own, as on file://."""

    def __init__(self) -> None:
        self.heads: dict[str, ObjectHead] = {}
        self.world: World | None = None
        self.failures = 0

    def keep(self, key: str, age_ms: int, copies: int = 1) -> None:
        for _ in range(copies):
            locator = f"{key}#{len(self.heads)}"
            self.heads[locator] = ObjectHead(key, locator, 10, NOW_MS - age_ms)

    def present(self) -> set[str]:
        return {head.key for head in self.heads.values()}

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        found = sorted(self.heads.values(), key=lambda head: (head.key, head.locator))
        for count, head in enumerate(found):
            if head.key.startswith(prefix) and head.key > start_after:
                if self.failures and count % 3 == 2:
                    self.failures -= 1
                    raise StoreError("a reset in the middle of a LIST", retryable=True)
                yield head

    def delete(self, locators: Sequence[str]) -> None:
        assert self.world is not None
        for locator in locators:
            self.world.step()
            if locator in self.heads:
                self.world.check_deletable(self.heads[locator])
                del self.heads[locator]


class World(OnLedger):
    """A ledger, its store, and what an accepted entry has told; also the way to all of them."""

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger(directory / "ledger.db", nullcontext())
        self.told = Ledger(directory / "told.db", nullcontext())
        self.mark = Mark()
        self.shelf = Shelf()
        self.store = RetryingStore(self.shelf, COMMAND, random.Random(1), lambda _: None)
        self.shelf.world = self
        self.counter = 0
        self.live: list[LeaseId] = []  # put, or about to be; their holders go on
        self.ledger.write(epochs.begin_incarnation, 1)
        self.topic_id = self.ledger.write(topics.create, "t", TopicConfig(), 1)[0].topic_id

    def close(self) -> None:
        self.ledger.close()
        self.told.close()

    def lease(self, back: int = 0, incarnation: int | None = None) -> LeaseId:
        """A new lease of an epoch ``back`` before the present one."""
        self.counter += 1
        epoch = max(0, self.ledger.read(epochs.current) - back)
        mine = self.ledger.read(epochs.incarnations)[-1]
        return LeaseId(mine if incarnation is None else incarnation, epoch, 0, self.counter)

    def do(self, action: str, number: int) -> None:
        """One thing that happens to the store or the ledger before or during a collection."""
        age_ms = GRACE_MS + number - 2  # of 0 to 3: some are too young
        if action == "commit":
            lease_id = self.lease()
            self.shelf.keep(key_of(lease_id), age_ms, copies=1 + number % 2)
            self.commit(lease_id)
        elif action == "orphan":
            self.shelf.keep(key_of(self.lease(back=number)), age_ms, copies=1 + number % 2)
        elif action == "foreign":
            self.shelf.keep(key_of(self.lease(back=number, incarnation=900 + number)), age_ms)
        elif action == "stranger":
            self.shelf.keep(STRANGERS[number], age_ms)
        elif action == "live":
            self.live.append(self.lease())
            if number:
                self.shelf.keep(key_of(self.live[-1]), age_ms)
        elif action == "epoch":
            self.ledger.write(epochs.advance)
        elif action == "restart":
            self.live.clear()  # their holders are dead: what was put is orphan now
            self.ledger.write(epochs.begin_incarnation, 1)
        elif action == "go on":
            self.go_on()

    def go_on(self) -> None:
        """The oldest live lease puts and commits."""
        if not self.live:
            return
        lease_id = self.live.pop(0)
        if key_of(lease_id) not in self.shelf.present():
            self.shelf.keep(key_of(lease_id), GRACE_MS)
        self.commit(lease_id)

    def commit(self, lease_id: LeaseId) -> None:
        self.ledger.commit(draft_of(lease_id, [Request(self.topic_id)]), 1, lambda _: None)

    def live_leases(self) -> list[LeaseId]:
        live = list(self.live)
        self.go_on()
        return live

    def settled_commits(self) -> int:
        raise AssertionError("orphans have no commits")

    def await_backup(self) -> None:
        self.step()
        self.go_on()
        self.mark, changes = self.ledger.read(backup.changes_since, self.mark)
        self.told.write(backup.apply, changes)
        self.step()
        self.go_on()

    def check_deletable(self, head: ObjectHead) -> None:
        """What may be deleted at this moment."""
        assert head.key in self.told.read(deletions.keys), "no accepted entry names it"
        lease_id = parse_key(head.key)
        assert lease_id not in self.live, "it may still commit"
        assert lease_id.incarnation in self.ledger.read(epochs.incarnations)
        assert self.ledger.read(reads.object_by_key, head.key) is None, "it is committed"
        assert NOW_MS - head.modified_ms >= GRACE_MS

    def is_orphan(self, head: ObjectHead) -> bool:
        """Whether a complete collection must have removed it."""
        try:
            lease_id = parse_key(head.key)
        except L0Error:
            return False
        return (
            lease_id not in self.live
            and lease_id.incarnation in self.ledger.read(epochs.incarnations)
            and self.ledger.read(reads.object_by_key, head.key) is None
            and NOW_MS - head.modified_ms >= GRACE_MS
        )

    def orphans(self, report: CollectionReport) -> OrphanObjects:
        return OrphanObjects(self, self.store, report, GRACE_MS, lambda: NOW_MS, self.live_leases)

    def collect(self) -> CollectionReport:
        report = CollectionReport(dry_run=False)
        Collector(self.await_backup).collect(self.orphans(report))
        return report


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.closing(World(tmp_path)) as made:
        yield made


ACTIONS = ("commit", "orphan", "foreign", "stranger", "live", "epoch", "restart", "go on")
HISTORY = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3)), max_size=25)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=HISTORY, kills=st.lists(st.integers(0, 8), max_size=3), failures=st.integers(0, 2))
def test_all_orphans_go_and_nothing_else_whatever_is_killed(
    history: list[tuple[str, int]], kills: list[int], failures: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        with contextlib.closing(world):
            for action, number in history:
                world.do(action, number)
            world.shelf.failures = failures
            for steps in kills:
                world.steps_left = steps
                with contextlib.suppress(Killed):
                    world.collect()
            world.steps_left = None
            world.collect()
            world.live.clear()
            before = dict(world.shelf.heads)
            report = world.collect()

            left = set(before) - set(world.shelf.heads)
            assert all(world.is_orphan(before[locator]) for locator in left)
            assert not [head for head in world.shelf.heads.values() if world.is_orphan(head)]
            committed = {row.key for row in world.ledger.read(reads.objects, limit=10_000)}
            assert committed <= world.shelf.present()
            assert set(STRANGERS) & world.shelf.present() == {
                STRANGERS[number] for action, number in history if action == "stranger"
            }
            young = report.orphans - report.deleted
            assert report.young == young
            assert set(world.ledger.read(orphans.named)) <= world.shelf.present()
            world.ledger.read(invariants.check)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=HISTORY)
def test_a_look_changes_nothing_and_says_what_a_collection_does(
    history: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        with contextlib.closing(world):
            for action, number in history:
                world.do(action, number)
            world.live.clear()
            before, mark = dict(world.shelf.heads), world.ledger.read(backup.mark)
            seen = CollectionReport(dry_run=True)
            look(world.orphans(seen))
            assert (world.shelf.heads, world.ledger.read(backup.mark)) == (before, mark)

            done = world.collect()
            assert (seen.keys, seen.orphans, seen.young, seen.foreign, seen.objects) == (
                done.keys, done.orphans, done.young, done.foreign, done.objects,
            )  # fmt: skip


def test_a_look_after_a_boot_leaves_out_what_a_start_takes() -> None:
    taken = TakenAtStart(incarnation=3, epoch_floor=7)
    assert LeaseId(3, 7, 0, 1) in taken and LeaseId(3, 9, 1, 2) in taken
    assert LeaseId(3, 6, 0, 1) not in taken, "below the floor"
    assert LeaseId(2, 7, 0, 1) not in taken, "of an earlier start"


def test_a_name_whose_object_is_gone_is_forgotten(world: World) -> None:
    world.do("orphan", 2)
    world.do("restart", 0)
    world.shelf.keep("l0/000000000000000000/1-0-77", GRACE_MS)
    world.steps_left = 3  # two of the entry, one DELETE
    with pytest.raises(Killed):
        world.collect()
    world.steps_left = None
    named = set(world.ledger.read(orphans.named))
    assert named > named & world.shelf.present(), "the kill came before the first DELETE"
    world.collect()
    assert world.ledger.read(orphans.named) == []


def test_orphans_of_many_rounds_all_go(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("daemon.upkeep.collection.orphans.PAGE", 3)
    monkeypatch.setattr("daemon.upkeep.collection.collector.ROUND", 4)
    for number in range(40):
        world.do("orphan", 2 + number % 2)
        world.do("commit", number % 4)
    world.do("restart", 0)
    report = world.collect()
    assert (report.orphans, report.deleted, report.objects) == (40, 40, 80)
    assert world.shelf.present() == {row.key for row in world.ledger.read(reads.objects)}
