"""Recovery without daemons: what it takes, what it declares, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from daemon.upkeep.owner import OtherHistory
from daemon.upkeep.recover import lives, rebuild, settle, tell
from ledger import commits, cursors, reads, topics
from ledger.checks import invariants
from ledger.cursors import Setting
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import SubscriptionConfig
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Changes, Mark
from ledger.types import LeaseId, ProducerBatch, TopicConfig
from tests.daemon.upkeep.recovery_world import Request, Step, World
from tests.ledger.images import image_of
from uploader import l0
from uploader.ownership.ownerlog import Former


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A node with the topic ``a`` of two partitions, which its first entry lists."""
    made = World(tmp_path)
    made.node.ledger.write(topics.create, "a", TopicConfig(partitions=2), 1)
    made.node.tell()
    yield made
    made.check()
    made.close()


def test_the_gap_is_as_long_as_all_that_could_have_got_offsets(world: World) -> None:
    world.produce([Request("a", 0, 4)])
    world.node.tell()
    world.produce([Request("a", 0, 2)])
    world.build([Request("a", 0, 3), Request("a", 1, 1)], shard=1)
    report = world.recover()
    assert [(g.topic, g.partition, g.gap_from, g.gap_to) for g in report.gaps] == [
        ("a", 0, 5, 9),
        ("a", 1, 1, 1),
    ]
    assert (report.objects_listed, report.objects_taken, report.records_taken) == (1, 2, 6)
    assert report.records_may_be_doubled == 6
    state = world.node.ledger.read(reads.partition_states, 1)[0]
    assert (state.earliest_seq, state.count, state.head_seq) == (1, 9, 14)


def test_no_offset_that_a_reader_was_given_is_past_the_end_after_a_recovery(world: World) -> None:
    """A cursor at the head stays at or before it, so no reader is refused for what it was told."""

    def heads() -> list[int]:
        return [state.head_seq for state in world.node.ledger.read(reads.partition_states, 1)]

    world.produce([Request("a", 0, 4), Request("a", 1, 2, "k")])
    world.node.tell()
    before = heads()
    world.recover()
    assert heads() == before == [4, 2], "nothing was unlisted: nothing moves"
    world.node.tell()
    world.produce([Request("a", 0, 3), Request("a", 1, 1, "k"), Request("a", 1, 1, None, 0)])
    before = heads()
    world.recover()
    assert all(now >= then for now, then in zip(heads(), before, strict=True))
    assert before == [7, 2] and heads() == [10, 4]


def test_keys_that_are_listed_win(world: World) -> None:
    world.produce([Request("a", 0, 1, "listed")])
    world.node.tell()
    world.build([Request("a", 0, 1, "listed")], shard=1)  # the repeat, void before and now
    world.produce([Request("a", 0, 2, "unlisted")])
    report = world.recover()
    assert (world.node.ledger.read(reads.partition_states, 1)[0].count, report.records_taken) == (
        3,
        2,
    )
    assert report.records_may_be_doubled == 0
    # The key of the unlisted one is known again.
    draft, _ = world.build([Request("a", 0, 2, "unlisted")])
    commit = world.node.ledger.commit(draft, draft.created_ms, lambda _: None)
    assert [verdict.kind for verdict in commit.verdicts] == ["deduped"]


def test_of_two_appends_in_flight_with_the_same_expectation_a_recovery_stores_one(
    world: World,
) -> None:
    world.produce([Request("a", 0, 2)])
    world.node.tell()
    for shard in (0, 1):
        world.build([Request("a", 0, 1, None, 2)], shard=shard)
    report = world.recover()
    assert (report.objects_taken, report.records_taken, report.records_void) == (2, 1, 1)
    assert report.records_may_be_doubled == 0
    assert world.node.ledger.read(reads.partition_states, 1)[0].count == 3


def test_an_append_that_was_answered_412_is_void_after_a_rebuild(world: World) -> None:
    world.node.tell()
    world.produce([Request("a", 0, 1)], shard=1)
    world.produce([Request("a", 0, 1, None, 0)])  # 412: another append was faster
    world.produce([Request("a", 0, 1, "k", 1), Request("a", 0, 1, None, 2)])
    report = world.recover()
    assert (report.records_taken, report.records_void) == (3, 1)


def test_an_expectation_counts_what_was_listed_and_not_the_gap(world: World) -> None:
    world.produce([Request("a", 0, 5)])
    world.node.tell()
    world.build([Request("a", 0, 1, None, 4), Request("a", 0, 1, None, 5)])
    report = world.recover()
    assert (report.records_taken, report.records_void) == (1, 1)
    assert [(gap.gap_from, gap.gap_to) for gap in report.gaps] == [(6, 7)]
    assert world.node.ledger.read(reads.partition_states, 1)[0].head_seq == 8


def of_producer(first: int, count: int = 1) -> Request:
    return Request("a", 0, count, producer=ProducerBatch(7, 0, first, first + count - 1))


def kinds(world: World, *requests: Request) -> list[str | None]:
    """What a commit of these would say of them."""
    draft, _ = world.build(list(requests))
    commit = world.node.ledger.commit(draft, draft.created_ms, lambda _: None)
    found = {verdict.position: verdict.kind for verdict in commit.verdicts}
    return [found.get(condition.position) for condition in draft.conditions]


def test_batches_of_a_producer_that_no_entry_lists_are_judged_again(world: World) -> None:
    world.produce([of_producer(0, 2)])
    world.node.tell()
    world.produce([of_producer(2), of_producer(0, 2), of_producer(5), of_producer(3)])
    report = world.recover()
    assert (report.records_taken, report.records_void) == (2, 1)
    assert report.records_may_be_doubled == 0
    again = [of_producer(0, 2), of_producer(3), of_producer(5), of_producer(4)]
    assert kinds(world, *again) == ["deduped", "deduped", "out_of_order", None]


def test_what_a_damaged_object_had_of_a_producer_takes_no_later_batch_away(world: World) -> None:
    world.produce([of_producer(0)])
    world.node.tell()
    damaged, _ = world.build([of_producer(1)])
    world.node.ledger.commit(damaged, damaged.created_ms, lambda _: None)
    world.store.delete([damaged.locator])
    world.store.put(damaged.key, b"torn", crc32c(b"torn"))
    world.produce([of_producer(2), of_producer(2), of_producer(3)])
    report = world.recover()
    assert (report.records_taken, report.records_void) == (2, 0)
    assert kinds(world, of_producer(3), of_producer(4)) == ["deduped", None]


def at_cursor(*steps: tuple[str, int, int]) -> list[Request]:
    return [Request("a", 0, 1, step=Step(*each)) for each in steps]


def test_a_clients_cursor_that_no_entry_lists_comes_from_the_requests_that_moved_it(
    world: World,
) -> None:
    ledger = world.node.ledger
    ledger.write(cursors.create, "c", "client", 1)
    world.produce(at_cursor(("c", 0, 5), ("c", 5, 7), ("c", 5, 8)))
    ledger.write(cursors.set_positions, "c", "client", [Setting(0, 2)])
    world.produce(at_cursor(("c", 7, 9), ("c", 2, 3)))
    report = world.recover()
    assert (report.records_taken, report.records_void, report.records_copied_again) == (3, 2, 0)
    assert report.records_may_be_doubled == 0
    assert world.at("c") == 3
    # A request of before the setting, of a former history, does not count any more.
    ledger = world.node.ledger
    before = ledger.read(backup.mark).change_number
    ledger.write(cursors.set_positions, "c", "client", [Setting(0, 1)])
    world.produce(at_cursor(("c", 1, 4)))
    assert ledger.read(backup.mark).change_number > before
    world.recover()
    assert world.at("c") == 4


def test_what_a_router_copied_since_the_last_entry_is_void_and_its_cursor_as_listed(
    world: World,
) -> None:
    world.node.ledger.write(cursors.create, "router/r", "router", 1)
    world.produce(at_cursor(("router/r", 0, 5)))
    world.node.tell()
    world.produce(at_cursor(("router/r", 5, 9)))
    world.produce([Request("a", 0, 2)])
    report = world.recover()
    assert (report.records_taken, report.records_void, report.records_copied_again) == (2, 0, 1)
    assert world.at("router/r") == 5
    assert world.node.ledger.read(reads.partition_states, 1)[0].count == 3


def test_a_dead_letter_since_the_last_entry_is_void_and_its_origin_is_delivered_again(
    world: World,
) -> None:
    ledger = world.node.ledger
    ledger.write(topics.create, "dead", TopicConfig(), 1)
    made = ledger.write(subscriptions.create, "a", "s", SubscriptionConfig(), "earliest", 1)
    name = f"subscription/{made.topic_id}/s"
    world.produce([Request("a", 0, 4)])
    world.produce([Request("dead", 0, 1, step=Step(name, 2, 2))])
    world.node.tell()
    world.produce([Request("dead", 0, 1, step=Step(name, 3, 3))])
    report = world.recover()
    assert (report.records_taken, report.records_void, report.records_copied_again) == (0, 0, 1)
    assert world.settled(made.cursor_id) == [2]
    again = world.node.ledger.read(subscriptions.find, made.topic_id, "s")
    assert again == made
    world.produce([Request("dead", 0, 1, step=Step(name, offset, offset)) for offset in (2, 3)])
    assert world.settled(made.cursor_id) == [2, 3]


def test_a_cursor_made_again_under_its_name_is_not_moved_by_the_former_ones_requests(
    world: World,
) -> None:
    world.node.tell()
    ledger = world.node.ledger
    for end in (4, 6):
        ledger.write(cursors.create, "c", "client", 1)
        world.produce(at_cursor(("c", 0, end)))
        if end == 4:
            ledger.write(cursors.delete, "c", "client", 1)
    report = world.recover()
    assert (report.records_taken, report.records_void) == (2, 0)
    assert world.at("c") == 6
    assert world.node.ledger.write(cursors.create, "d", "client", 1)[0].cursor_id == 3


def test_beside_a_damaged_object_expectations_hold_once(world: World) -> None:
    world.node.tell()
    damaged, _ = world.build([Request("a", 0, 1)], shard=1)
    world.store.delete([damaged.locator])
    world.store.put(damaged.key, b"torn", crc32c(b"torn"))
    world.build([Request("a", 0, 1, None, 1)])
    world.build([Request("a", 0, 1, None, 1)])
    report = world.recover()
    assert [problem.key for problem in report.corrupt] == [damaged.key]
    assert (report.records_taken, report.records_void) == (1, 1)


def test_topics_that_no_entry_lists_come_from_footers_and_a_newer_id_wins_the_name(
    world: World,
) -> None:
    ledger = world.node.ledger
    ledger.write(topics.create, "new", TopicConfig(partitions=3), 1)
    world.produce([Request("new", 2, 1)])
    ledger.write(topics.delete, "a", 2)
    ledger.write(topics.create, "a", TopicConfig(partitions=2), 2)
    world.produce([Request("a", 1, 1)])
    report = world.recover()
    assert sorted(report.topics_restored) == ["a", "new"]
    ledger = world.node.ledger
    found = {
        topic.name: (topic.topic_id, topic.config.partitions) for topic in ledger.read(topics.page)
    }
    assert found == {"a": (3, 2), "new": (2, 3)}
    old = ledger.read(topics.by_id, 1)
    assert old is not None and old.deleted_ms is not None
    assert ledger.write(topics.create, "later", TopicConfig(), 3)[0].topic_id == 4


def test_what_a_former_owner_puts_behind_the_take_over_is_never_taken(world: World) -> None:
    """It wakes with the epoch that its successor also has, and its PUT was under way."""
    old = world.node
    old_epoch, old_incarnation = old.epoch + 5, old.incarnation
    world.recover()
    world.node.epoch, world.node.incarnation, kept = (
        old_epoch, old_incarnation, (world.node.epoch, world.node.incarnation),
    )  # fmt: skip
    world.build([Request("a", 0, 1)])
    world.node.epoch, world.node.incarnation = kept
    report = world.recover()
    assert (report.objects_taken, report.objects_orphan) == (0, 1)


def test_an_object_that_is_named_for_deletion_is_gone(world: World) -> None:
    draft, _ = world.build([Request("a", 0, 1)], shard=1)
    with closing(sqlite3.connect(world.node.path)) as connection, connection:
        connection.execute(
            "INSERT INTO deletions (key, locator, reason) VALUES (?, ?, 'orphan')",
            (draft.key, draft.locator),
        )
    world.node.tell()
    report = world.recover()
    assert (report.objects_taken, report.objects_named_for_deletion) == (0, 1)


def test_an_object_that_the_log_lists_and_the_store_has_not_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.node.ledger.write(topics.create, "a", TopicConfig(partitions=2), 1)
    world.produce([Request("a", 0, 1)])
    world.node.tell()
    (head,) = world.store.list("l0/")
    world.store.delete([head.locator])
    report = world.recover()
    assert report.missing == [head.key] and not report.sound
    world.close()


def test_without_a_log_everything_comes_from_the_objects(world: World) -> None:
    for number in range(5):
        world.produce([Request("a", number % 2, 2)])
    world.node.tell()
    world.store.delete([head.locator for head in world.store.list("ledger/")])
    report = world.recover()
    assert (report.entries, report.objects_listed, report.objects_taken) == (0, 0, 5)
    assert report.topics_restored == ["a"]


def test_a_log_whose_entries_do_not_add_up_is_not_believed(world: World) -> None:
    """An older image's log was restored: no entry is missing, but commits are."""
    world.produce([Request("a", 0, 2)])
    world.node.tell()
    world.produce([Request("a", 0, 1)])
    mark = world.node.ledger.read(backup.mark)
    empty = Changes(
        dict.fromkeys(world.node.ledger.read(backup.changes_since, mark)[1].state, 0), {}
    )
    node = world.node
    assert world.node.log.put(
        node.log.entry(node.incarnation, node.number + 1, "entry", mark, empty)
    )
    log = world.log()
    taken = log.take(take_over=True)
    path = world.root / f"data-{world.starts}" / "ledger.db"
    with pytest.raises(OtherHistory, match="hold 1 commits, but the last one says 2"):
        rebuild(path, nullcontext(), world.store, taken, log)
    assert not path.exists()


def test_an_object_under_the_key_of_another_is_named_and_not_taken(world: World) -> None:
    draft, _ = world.build([Request("a", 0, 1)])
    body = world.store.get(draft.locator)
    other = l0.object_key(LeaseId(world.node.incarnation, world.node.epoch, 0, 99))
    world.store.put(other, body, crc32c(body))
    report = world.recover()
    assert [problem.key for problem in report.corrupt] == [other]
    assert (report.objects_taken, report.records_taken) == (1, 1)


def test_a_recovery_that_was_broken_off_is_begun_again(world: World) -> None:
    world.produce([Request("a", 0, 2)])
    log = world.log()
    taken = log.take(take_over=True)
    path = world.root / f"data-{world.starts}" / "ledger.db"
    aside = path.with_name("ledger.db.recovering")
    aside.write_bytes(b"half of it")
    aside.with_name(aside.name + "-wal").write_bytes(b"and its log")
    report = rebuild(path, nullcontext(), world.store, taken, log)
    assert report.objects_taken == 1 and path.exists() and not aside.exists()


def test_the_former_ledger_is_kept_with_what_only_its_wal_has(world: World) -> None:
    # A killed daemon leaves a WAL: what was committed last stands there alone.
    world.produce([Request("a", 0, 2)])
    log = world.log()
    taken = log.take(take_over=True)
    path = world.root / f"data-{world.starts}" / "ledger.db"
    for suffix in ("", "-wal"):
        shutil.copy(f"{world.node.path}{suffix}", f"{path}{suffix}")
    report = rebuild(path, nullcontext(), world.store, taken, log)
    assert report.kept_ledger is not None
    with closing(Ledger(Path(report.kept_ledger), nullcontext())) as kept:
        assert kept.read(commits.latest_number) == 1
        kept.read(invariants.check)


def test_a_start_trusts_its_own_ledger_only_where_nobody_else_can_have_written(
    world: World, tmp_path: Path
) -> None:
    world.produce([Request("a", 0, 1)])
    world.node.tell()
    log = world.node.log
    copy = tmp_path / "copy.db"
    copy.write_bytes(image_of(world.node.ledger))
    world.produce([Request("a", 0, 2)])  # the copy has not got this one, and no entry lists it
    own = log.take(take_over=False)
    path = str(world.node.path)
    assert own.former is Former.OURS
    assert settle(path, nullcontext(), world.store, own, log, take_over=False) is None
    # After another boot it may be another disk: what the store has and it has not is taken.
    rebooted = msgspec.structs.replace(own, former=Former.REBOOTED)
    report = settle(str(copy), nullcontext(), world.store, rebooted, log, take_over=False)
    assert report is not None and report.objects_taken == 1 and report.gaps
    again = settle(str(copy), nullcontext(), world.store, rebooted, log, take_over=False)
    assert again is not None and again.objects_taken == 0 and not again.gaps
    # After another owner it is not even looked at.
    another = msgspec.structs.replace(own, former=Former.ANOTHER)
    report = settle(str(copy), nullcontext(), world.store, another, log, take_over=True)
    assert report is not None and report.kept_ledger is not None


def test_a_start_after_a_reboot_that_takes_objects_in_copies_again_what_routers_had(
    world: World, tmp_path: Path
) -> None:
    log = world.node.log
    world.node.ledger.write(cursors.create, "router/r", "router", 1)
    world.node.ledger.write(cursors.create, "c", "client", 1)
    world.produce(at_cursor(("router/r", 0, 5), ("c", 0, 5)))
    world.node.tell()
    copy = tmp_path / "copy.db"
    copy.write_bytes(image_of(world.node.ledger))
    world.produce(at_cursor(("router/r", 5, 9), ("c", 5, 8)))
    own = log.take(take_over=False)
    rebooted = msgspec.structs.replace(own, former=Former.REBOOTED)
    report = settle(str(copy), nullcontext(), world.store, rebooted, log, take_over=False)
    assert report is not None
    assert (report.records_taken, report.records_copied_again, report.records_void) == (1, 1, 0)
    with closing(Ledger(copy, nullcontext())) as ledger:
        assert ledger.read(cursors.positions_of, [(1, 0), (2, 0)]) == {(1, 0): 5, (2, 0): 8}


def test_a_ledger_that_lacks_changes_of_cursors_is_an_old_copy(
    world: World, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(image_of(world.node.ledger))
    world.node.ledger.write(cursors.create, "c", "client", 1)
    world.node.tell()
    own = world.node.log.take(take_over=False)
    with pytest.raises(OtherHistory, match="old copy"):
        settle(str(copy), nullcontext(), world.store, own, world.node.log, take_over=False)


def test_a_recovery_that_another_start_was_faster_than_is_not_believed(world: World) -> None:
    world.produce([Request("a", 0, 1)])
    log = world.log()
    taken = log.take(take_over=True)
    path = world.root / f"data-{world.starts}" / "ledger.db"
    rebuild(path, nullcontext(), world.store, taken, log)
    faster = world.log()
    assert faster.put(faster.entry(taken.incarnation + 1, 1, "entry", Mark()))
    with (
        closing(Ledger(path, nullcontext())) as ledger,
        pytest.raises(OtherHistory, match="at the same moment"),
    ):
        tell(ledger, log, taken)


def test_each_recovery_begins_a_history_of_its_own(world: World) -> None:
    # Else a ledger from before it, with as many commits, would pass for this one.
    world.produce([Request("a", 0, 1)])
    names = {world.node.ledger.read(backup.mark).history}
    for _ in range(2):
        world.recover()
        world.node.tell()
        names.add(world.node.ledger.read(backup.mark).history)
    assert len(names) == 3
    last = world.node.log.last()
    assert last is not None and last.mark.history == world.node.ledger.read(backup.mark).history


def test_who_lives_is_asked_of_the_kernel() -> None:
    assert lives(os.getpid())
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(child.pid), "it has ended, though nobody has asked for its exit code"
    child.wait()
    assert not lives(child.pid)
