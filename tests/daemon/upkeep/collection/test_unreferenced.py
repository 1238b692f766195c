"""Unreferenced objects on random ledgers: what is needed never goes, what is not does.

Real ledger, real decisions; the store is a dict. Entries of the owner's log are applied to a second
ledger, as a recovery would, so that what was told is known; and a third is built from all of them,
which must read what the first reads. A collection may be killed at any step. Meanwhile leases live,
bulk readers come and go, and shards follow commits late.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.upkeep.collection.collector import Collector, look
from daemon.upkeep.collection.report import CollectionReport
from daemon.upkeep.collection.unreferenced import UnreferencedObjects
from ledger import commits as ledger_commits
from ledger import epochs, reads, topics
from ledger.checks import invariants
from ledger.errors import DraftInvalid
from ledger.lake import lake_tables, readleases, runs
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.space import deletions, retention, unreferenced
from ledger.space.unreferenced import Unreferenced
from ledger.tx import WriteTx
from ledger.types import LeaseId, Topic, TopicConfig
from tests.daemon.upkeep.collection.on_ledger import Killed, OnLedger, UnaskedStore
from tests.ledger.lakes import compact
from tests.ledger.requests import Request, draft_of
from tests.long import examples
from uploader.l0 import parse_key
from uploader.stores.base import StoreError
from uploader.stores.retry import COMMAND
from uploader.stores.retrying import RetryingStore

GRACE_MS = 100


class Shelf(UnaskedStore):
    """Locators in memory; a lost one is an assertion."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.locators: set[str] = set()
        self.busy = 0

    def delete(self, locators: Sequence[str]) -> None:
        if self.busy:
            self.busy -= 1
            raise StoreError("not now", retryable=True)
        for locator in locators:
            self.world.step()
            if locator in self.locators:
                self.world.check_deletable(locator)
                self.locators.remove(locator)


class World(OnLedger):
    """A ledger, its store, what accepted entries told, and the daemon that settles."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = Ledger(directory / "ledger.db", nullcontext())
        self.told = Ledger(directory / "told.db", nullcontext())
        self.mark = Mark()
        self.shelf = Shelf(self)
        self.store = RetryingStore(self.shelf, COMMAND, random.Random(1), lambda _: None)
        self.now_ms = 1_000_000
        self.ledger.write(epochs.begin_incarnation, 1)
        self.topics = [self.topic(name) for name in "ab"]
        self.runs = 0
        self.counter = 0
        self.live: list[LeaseId] = []  # committed or not, their slots are not free
        self.followed: int | None = None  # by the slowest shard; None: all
        self.readers: dict[str, tuple[int, set[str]]] = {}  # until when, what they planned with
        self.deleted: dict[str, int] = {}  # epochs of objects that were deleted, by key
        self.between: list[tuple[str, int]] = []  # what happens while the collection waits

    def close(self) -> None:
        self.ledger.close()
        self.told.close()

    def topic(self, name: str) -> Topic:
        return self.ledger.write(topics.create, name, TopicConfig(), 1)[0]

    def do(self, action: str, number: int) -> None:
        topic = self.topics[number % 2]
        if action in ("commit", "late commit"):
            self.counter += 1
            lease = LeaseId(1, self.ledger.read(epochs.current), 0, self.counter)
            requests = [Request(topic.topic_id, ((0, 1 + number),))]
            if number == 3:
                requests.append(Request(self.topics[0].topic_id))
            draft = draft_of(lease, requests)
            self.shelf.locators.add(draft.locator)
            self.ledger.commit(draft, 1, lambda _: None)
            if action == "late commit":
                self.live.append(lease)
                if self.followed is None:
                    self.followed = self.ledger.read(ledger_commits.latest_number) - 1
        elif action == "finish" and self.live:
            self.live.pop(0)
        elif action == "follow":
            self.followed = None
        elif action == "compact":
            self.runs += 1
            rows = self.ledger.read(reads.objects, limit=10_000)
            bad = {rows[0].key} if number == 3 and rows else set()
            compact(self.ledger, f"r{self.runs}", self.now_ms, bad_keys=bad)
        elif action == "trim":
            state = self.ledger.read(reads.partition_states, topic.topic_id)[0]
            retention.trim(
                self.ledger, topic.name, 0, min(state.next_seq, state.earliest_seq + number)
            )
        elif action == "delete":
            self.ledger.write(topics.delete, topic.name, self.now_ms)
            self.topics[number % 2] = self.topic(topic.name)
        elif action == "read":
            name = f"reader {len(self.readers)}"
            self.ledger.write(readleases.take, name, "test", self.now_ms, self.now_ms + 40 * number)
            planned = self.ledger.read(lake_tables.plan_objects, 0, 1 << 60)
            self.readers[name] = (
                self.now_ms + 40 * number, {one.locator for one in planned}
            )  # fmt: skip
        elif action == "wait":
            self.now_ms += 40 * number
        elif action == "epoch":
            self.raise_floor()

    # The owner of the ledger

    def meanwhile(self) -> None:
        while self.between:
            self.do(*self.between.pop())

    def live_leases(self) -> list[LeaseId]:
        raise AssertionError("what is committed is asked for by its number")

    def settled_commits(self) -> int:
        self.step()
        last = self.ledger.read(ledger_commits.latest_number)
        numbers = [self.ledger.read(ledger_commits.number_of, lease) for lease in self.live]
        return min(
            last if self.followed is None else self.followed,
            *(number - 1 for number in numbers if number is not None),
            last,
        )

    def raise_floor(self) -> None:
        """The daemon's part, every ten minutes."""
        self.ledger.write(epochs.advance)
        oldest = min([lease.epoch for lease in self.live], default=self.ledger.read(epochs.current))
        self.ledger.write(epochs.raise_floor, oldest)

    def await_backup(self) -> None:
        self.step()
        self.meanwhile()
        self.mark, changes = self.ledger.read(backup.changes_since, self.mark)
        self.told.write(backup.apply, changes)
        self.step()

    def check_deletable(self, locator: str) -> None:
        """What may be deleted at this moment."""
        row = next(
            (
                one
                for one in self.ledger.read(reads.objects, limit=10_000)
                if one.locator == locator
            ),
            None,
        )
        assert row is not None, "its row goes with it"
        assert row.key in self.told.read(deletions.keys), "no accepted entry names it"
        assert self.told.read(reads.object_by_key, row.key) is None, "who recovers takes it as gone"
        needed = {
            one.locator
            for topic_id in range(1, 50)
            for state in self.ledger.read(reads.partition_states, topic_id)
            if self.ledger.read(topics.by_id, topic_id) in self.topics
            for one in self.ledger.read(
                reads.extents_from,
                topic_id,
                0,
                max(state.earliest_seq, state.compacted_seq + 1),
                10_000,
            )
        }
        assert locator not in needed, "its records are read from it"
        for until_ms, planned in self.readers.values():
            assert until_ms <= self.now_ms or locator not in planned, "a reader planned with it"
        commit = self.ledger.read(ledger_commits.by_number, row.commit_number)
        assert commit.lease_id not in self.live, "its lease may ask for its commit"
        last = self.ledger.read(ledger_commits.latest_number)
        followed = last if self.followed is None else self.followed
        assert row.commit_number <= followed, "a shard has not followed its commit"
        assert row.commit_number < last
        self.deleted[row.key] = commit.lease_id.epoch
        quarantined = {
            hole.key for one in range(1, 50) for hole in self.ledger.read(lake_tables.holes, one)
        }
        assert row.key not in quarantined

    def objects(self, report: CollectionReport, grace_ms: int = GRACE_MS) -> UnreferencedObjects:
        return UnreferencedObjects(self, self.store, report, grace_ms, lambda: self.now_ms)

    def collect(self, grace_ms: int = GRACE_MS) -> CollectionReport:
        report = CollectionReport(dry_run=False)
        Collector(self.await_backup).collect(self.objects(report, grace_ms))
        return report

    def look(self, grace_ms: int = GRACE_MS) -> CollectionReport:
        report = CollectionReport(dry_run=True)
        look(self.objects(report, grace_ms))
        return report

    def rows(self) -> set[str]:
        return {row.locator for row in self.ledger.read(reads.objects, limit=10_000)}

    def check_recovered(self) -> None:
        """Whoever recovers from the entries reads what is read here, and finishes what is left."""
        self.await_backup()
        for topic in self.topics:
            for here, there in zip(
                self.ledger.read(reads.partition_states, topic.topic_id),
                self.told.read(reads.partition_states, topic.topic_id),
                strict=True,
            ):
                assert here == there
            state = self.ledger.read(reads.partition_states, topic.topic_id)[0]
            first = max(state.earliest_seq, state.compacted_seq + 1)
            assert self.ledger.read(reads.extents_from, topic.topic_id, 0, first, 10_000) == (
                self.told.read(reads.extents_from, topic.topic_id, 0, first, 10_000)
            )
        self.told.read(invariants.check)
        # An upload that arrives late now is an orphan to whoever recovers from an image.
        names = self.ledger.read(deletions.keys)
        floor = self.ledger.read(epochs.floor)
        assert all(key in names or epoch < floor for key, epoch in self.deleted.items())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.closing(World(tmp_path)) as made:
        yield made


ACTIONS = (
    "commit", "commit", "late commit", "finish", "follow", "compact", "compact", "trim", "delete",
    "read", "wait", "wait", "epoch",
)  # fmt: skip
HISTORY = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 3)), max_size=25)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=HISTORY, later=HISTORY, between=HISTORY, kills=st.lists(st.integers(0, 10), max_size=3),
    grace_ms=st.sampled_from([0, GRACE_MS]), busy=st.integers(0, 2), seed=st.integers(0, 9),
)  # fmt: skip
def test_what_is_needed_never_goes_and_what_is_not_does_whatever_is_killed(
    history: list[tuple[str, int]],
    later: list[tuple[str, int]],
    between: list[tuple[str, int]],
    kills: list[int],
    grace_ms: int,
    busy: int,
    seed: int,
) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        with contextlib.closing(world), pytest.MonkeyPatch.context() as patch:
            for module, name in (
                ("collector", "ROUND"), ("collector", "NAMES_MAX"), ("collector", "PAGE"),
                ("unreferenced", "PAGE"), ("unreferenced", "ROWS_MAX"),
            ):  # fmt: skip
                patch.setattr(f"daemon.upkeep.collection.{module}.{name}", rng.randint(1, 4))
            for action in history:
                world.do(*action)
            world.between = list(between)
            world.shelf.busy = busy
            for steps in kills:
                world.steps_left = steps
                with contextlib.suppress(Killed):
                    world.collect(grace_ms)
                for action in later[:4]:
                    world.do(*action)
                later = later[4:]
            world.steps_left = None
            world.collect(grace_ms)
            world.check_recovered()

            # Nothing hinders any more: all that nothing needs goes, and rows tell what is there.
            world.between = []
            world.live, world.followed, world.readers = [], None, {}
            world.now_ms += 1_000_000
            world.collect(grace_ms)
            world.now_ms += grace_ms
            world.raise_floor()
            report = world.collect(grace_ms)
            assert (report.waiting, report.kept_by_lease) == (0, 0)
            assert world.rows() == world.shelf.locators
            needed = {
                one.commit_number for one in world.ledger.read(lake_tables.plan_objects, 0, 1 << 60)
            }
            last = world.ledger.read(ledger_commits.latest_number)
            holes = {
                hole.key
                for one in range(1, 50)
                for hole in world.ledger.read(lake_tables.holes, one)
            }
            for row in world.ledger.read(reads.objects, limit=10_000):
                assert row.commit_number in needed | {last} or row.key in holes
            assert not [key for key in world.ledger.read(deletions.keys) if key.startswith("l0/")]
            world.ledger.read(invariants.check)
            world.check_recovered()


def unreferenced_world(world: World, objects: int = 4) -> None:
    """Some compacted objects, and the last commit's."""
    for _ in range(objects):
        world.do("commit", 0)
    world.do("compact", 0)
    world.do("commit", 0)


def test_a_look_changes_nothing_and_says_what_a_collection_does(world: World) -> None:
    unreferenced_world(world)
    retention.trim(world.ledger, "a", 0, 6)
    world.do("commit", 1)
    before, mark = world.rows(), world.ledger.read(backup.mark)
    seen = world.look(0)
    assert (world.rows(), world.ledger.read(backup.mark)) == (before, mark)
    done = world.collect(0)
    assert (seen.collected, seen.waiting, set(seen.keys)) == (5, 0, set(done.keys))
    assert done.collected == 5 and done.collected_bytes == seen.collected_bytes > 0


def test_an_object_waits_for_its_grace(world: World) -> None:
    unreferenced_world(world)
    report = world.collect()
    assert (report.collected, report.waiting) == (0, 4)
    seen = world.look()
    assert (seen.collected, seen.waiting) == (0, 4)
    world.now_ms += GRACE_MS
    report = world.collect()
    assert (report.collected, report.waiting) == (4, 0)


def test_without_a_grace_time_one_call_marks_and_deletes(world: World) -> None:
    for _ in range(3):
        world.do("commit", 0)
    world.do("delete", 0)
    world.do("commit", 1)
    report = world.collect(0)
    assert report.collected == 3 and world.shelf.locators == world.rows()
    assert len(world.shelf.locators) == 1


def test_what_may_still_be_asked_for_stays(world: World) -> None:
    world.do("commit", 0)
    world.do("late commit", 0)
    world.do("delete", 0)
    world.do("commit", 1)
    report = world.collect(0)
    assert (report.collected, report.waiting) == (1, 1), "the lease lives, and a shard is behind"
    world.do("finish", 0)
    assert world.collect(0).collected == 0, "a shard is behind"
    world.do("follow", 0)
    assert world.collect(0).collected == 1


def test_objects_of_void_records_alone_go(world: World) -> None:
    for _ in range(3):
        world.counter += 1
        request = Request(world.topics[0].topic_id, key="same")
        draft = draft_of(LeaseId(1, 1, 0, world.counter), [request])
        world.shelf.locators.add(draft.locator)
        world.ledger.commit(draft, 1, lambda _: None)
    world.do("commit", 0)
    seen = world.look(0)
    assert seen.collected == 2 == world.collect(0).collected


def test_a_reader_that_planned_before_keeps_what_it_planned_with(world: World) -> None:
    for _ in range(3):
        world.do("commit", 0)
    world.ledger.write(readleases.take, "l", "test", world.now_ms, world.now_ms + 500)
    world.now_ms += 1
    world.do("compact", 0)
    world.do("commit", 0)
    report = world.collect(0)
    assert (report.collected, report.kept_by_lease, report.waiting) == (0, 3, 0)
    seen = world.look(0)
    assert (seen.collected, seen.kept_by_lease) == (0, 3)
    # One that comes later planned with the table.
    world.ledger.write(readleases.take, "m", "test", world.now_ms + 1, world.now_ms + 500)
    world.ledger.write(readleases.end, "l")
    world.now_ms += 1
    assert world.collect(0).collected == 3


def test_a_reader_that_comes_between_the_name_and_the_delete_is_seen(world: World) -> None:
    unreferenced_world(world)
    cover = world.await_backup

    def renewed() -> None:
        cover()
        world.ledger.write(readleases.take, "l", "test", 0, world.now_ms + 500)

    world.await_backup = renewed  # type: ignore[method-assign]
    report = world.collect(0)
    assert (report.collected, report.kept_by_lease) == (0, 4)
    world.await_backup = cover  # type: ignore[method-assign]
    world.ledger.write(readleases.end, "l")
    assert world.collect(0).collected == 4, "what was named before goes"


def test_a_compaction_at_work_is_a_reader(world: World) -> None:
    for _ in range(3):
        world.do("commit", 0)
    world.ledger.write(runs.begin, "r", "test", world.now_ms)
    world.now_ms += 10
    world.do("delete", 0)
    world.do("commit", 1)
    assert world.collect(0).kept_by_lease == 3
    world.now_ms += runs.LEASE_MS  # it died: the row says that it has not ended
    assert world.collect(0).collected == 3


def test_nothing_is_asked_of_the_daemon_when_nothing_is_unreferenced(world: World) -> None:
    world.do("commit", 0)
    world.steps_left = 0
    assert world.collect(0).collected == 0


def test_the_last_commits_object_stays_until_there_is_another(world: World) -> None:
    world.do("commit", 0)
    world.do("delete", 0)
    assert world.collect(0).collected == 0
    world.do("commit", 1)
    assert world.collect(0).collected == 1


def test_an_upload_that_arrives_after_the_deletion_is_nobodys_commit(world: World) -> None:
    unreferenced_world(world, 2)
    lease = LeaseId(1, world.ledger.read(epochs.current), 0, 77)
    world.live.append(lease)
    late = {row.key: row.locator for row in world.ledger.read(reads.objects)[:2]}
    assert world.collect(0).collected == 2
    world.raise_floor()
    assert world.collect(0).collected == 0
    assert world.ledger.read(deletions.keys) == set(late), "a lease of their epoch lives"
    draft = draft_of(parse_key(next(iter(late))), [Request(world.topics[0].topic_id)])
    with pytest.raises(DraftInvalid, match="named for deletion"):
        world.ledger.commit(draft, 1, lambda _: None)
    world.check_recovered()
    world.shelf.locators.update(late.values())
    world.live.clear()
    world.raise_floor()
    world.check_deletable = lambda locator: None  # type: ignore[method-assign]
    assert world.collect(0).collected == 0, "it is not counted twice"
    assert not set(late.values()) & world.shelf.locators
    assert world.ledger.read(deletions.keys) == set()
    world.check_recovered()


def test_names_that_a_recovery_found_are_finished(world: World, tmp_path: Path) -> None:
    unreferenced_world(world)
    world.steps_left = 4  # settled commits, two of the entry, one DELETE
    with pytest.raises(Killed):
        world.collect(0)
    world.steps_left = None
    locators = {row.key: row.locator for row in world.ledger.read(reads.objects)}
    named = set(world.told.read(deletions.keys))
    assert len(named) == 4 and len(world.shelf.locators & set(locators.values())) == 4
    # The ledger is lost; the one from the entries knows names, and no rows.
    assert {key for key, _ in world.told.read(unreferenced.without_rows, "m", "", 10)} == named
    lost, world.ledger = world.ledger, world.told
    world.ledger.write(epochs.begin_incarnation, 1)
    world.check_deletable = lambda locator: None  # type: ignore[method-assign]
    world.collect(0)
    assert world.ledger.read(deletions.keys) == set() and world.shelf.locators == world.rows()
    lost.close()
    world.told = Ledger(tmp_path / "other.db", nullcontext())


def test_rows_go_in_short_transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.upkeep.collection.unreferenced.ROWS_MAX", 2)
    unreferenced_world(world, 5)
    forgotten: list[int] = []
    forget = unreferenced.forget

    def counted(tx: WriteTx, keys: list[str], before_key: str) -> None:
        forgotten.append(len(keys))
        forget(tx, keys, before_key)

    monkeypatch.setattr(unreferenced, "forget", counted)
    world.collect(0)
    assert forgotten == [2, 2, 1]


def test_what_the_policy_does_not_give_is_not_named(world: World) -> None:
    unreferenced_world(world)
    policy = world.ledger.read(deletions.policy, world.now_ms, 0, 1 << 60)
    some = world.ledger.read(unreferenced.page, policy, (0, 0), 1)
    assert len(some) == 1 and isinstance(some[0], Unreferenced)
    for other in (
        world.ledger.read(deletions.policy, world.now_ms, 1, 1 << 60),
        world.ledger.read(deletions.policy, world.now_ms, 0, 0),
    ):
        assert world.ledger.write(unreferenced.name, other, some) == []
        assert world.ledger.read(unreferenced.page, other, (0, 0)) == []
    assert world.ledger.read(deletions.keys) == set()
