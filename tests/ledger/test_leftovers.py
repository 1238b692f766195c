"""Rows that deleted topics, subscriptions and routers leave: they go, and nothing needs them."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import reads, topics
from ledger.checks import invariants
from ledger.delivery import progress, routers, subscriptions
from ledger.delivery.progress import SubscriptionFlush
from ledger.delivery.record_filter import NO_FILTER
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.errors import DraftInvalid
from ledger.lake import lake_tables, runs
from ledger.lake.types import TableSwitch
from ledger.ledger import Ledger
from ledger.log import backup, recovery
from ledger.log.backup import Mark
from ledger.log.recovery import TopicSeen
from ledger.space import deletions, leftovers, marking, unreferenced
from ledger.space.leftovers import Heard
from ledger.types import Advance, Commit, Topic, TopicConfig
from tests.ledger.images import image_of
from tests.ledger.lakes import compact
from tests.ledger.requests import Request, answers, draft_of, lease

EVERYTHING = Heard(1 << 62, 1 << 62)


def counts(ledger: Ledger) -> dict[str, int]:
    """Rows by table."""
    with closing(sqlite3.connect(ledger.path)) as look:
        tables = look.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = [row[0] for row in tables.fetchall()]
        return {
            name: look.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in names
            if name != "sqlite_sequence"
        }


def remove_all(ledger: Ledger, heard: Heard = EVERYTHING) -> None:
    while leftovers.remove_some(ledger, heard):
        pass
    ledger.read(invariants.check)


def collect(ledger: Ledger) -> None:
    """What a collection with no grace does to all that nothing needs."""
    while marking.mark_unreferenced(ledger, 20):
        pass
    marking.mark_void(ledger, 20)
    policy = ledger.read(deletions.policy, 30, 0, commits_to=1 << 62)
    found = ledger.read(unreferenced.page, policy, (-1, 0))
    named = ledger.write(unreferenced.name, policy, found)
    ledger.write(unreferenced.forget, [one.key for one in named], "l0/~")


def commit(ledger: Ledger, counter: int, *requests: Request) -> Commit:
    draft = draft_of(lease(counter), requests)
    return ledger.commit(draft, 10, lambda _: None)


def heard(ledger: Ledger) -> Heard:
    """By the owner's log: everything up to now."""
    mark = ledger.read(backup.mark)
    return Heard(mark.catalog_version, mark.change_number)


def subscribe(ledger: Ledger, name: str, dead_letter_topic: str | None = None) -> Subscription:
    config = SubscriptionConfig(dead_letter_topic=dead_letter_topic)
    return ledger.write(subscriptions.create, "t", name, config, "latest", 5)


def live_and_die(ledger: Ledger, counter: int) -> None:
    """A topic with all that may hang on it, used and deleted."""
    topic, _ = ledger.write(topics.create, "t", TopicConfig(partitions=3), 1)
    for name in ("copies", "dead"):
        ledger.write(topics.create, name, TopicConfig(), 1)
    subscription = subscribe(ledger, "s", "dead")
    ledger.write(routers.create, "r", "t", "copies", NO_FILTER, "now", False, 1)
    commit(ledger, counter, Request(topic.topic_id, ((0, 2), (1, 1)), key="k"))
    flush = SubscriptionFlush(
        subscription.subscription_id, subscription.generation, counter, [(0, 1)], []
    )
    assert ledger.write(progress.flush, [flush]) == set()
    ledger.write(subscriptions.seek, subscription.subscription_id, {0: 0}, 5)
    ledger.write(topics.alter, "t", TopicConfig(partitions=4))
    ledger.write(routers.delete, "r", 6)
    for name in ("t", "dead", "copies"):
        ledger.write(topics.delete, name, 6)
    commit(ledger, counter + 1, Request(topic.topic_id))  # void


def test_rows_of_what_is_made_and_deleted_in_a_loop_do_not_grow(
    ledger: Ledger, topic: Topic
) -> None:
    sizes = []
    for turn in range(1, 5):
        live_and_die(ledger, 10 * turn)
        commit(ledger, 10 * turn + 2, Request(topic.topic_id))  # the last object always stays
        collect(ledger)
        remove_all(ledger)
        there = counts(ledger)
        del there["dedupe"]  # by their window
        sizes.append(there)
    for name in ("extents", "objects", "deletions"):
        assert max(size.pop(name) for size in sizes) <= 4, name  # of the topic that lives
    assert all(size == sizes[0] for size in sizes), sizes
    assert sizes[0]["topics"] == 1
    assert sizes[0]["partitions"] == 2
    for name in ("cursors", "subscriptions", "subscription_epochs", "routers", "partition_growth"):
        assert sizes[0][name] == 0, name


def test_ids_and_batch_numbers_are_not_given_again(ledger: Ledger) -> None:
    live_and_die(ledger, 1)
    collect(ledger)
    remove_all(ledger)
    topic, _ = ledger.write(topics.create, "t", TopicConfig(), 1)
    ledger.write(topics.create, "copies", TopicConfig(), 1)
    assert topic.topic_id == 4
    made = subscribe(ledger, "s")
    assert made.subscription_id == 2
    assert made.cursor_id == 4  # of the subscription, of the router, after the seek
    router = ledger.write(routers.create, "r", "t", "copies", NO_FILTER, "now", False, 1)
    assert (router.router_id, router.cursor_id) == (2, 5)
    assert ledger.read(progress.epoch_of, made.subscription_id) == 1  # as the namesake's


def test_a_topic_stays_until_the_owners_log_and_the_shards_have_heard(
    ledger: Ledger, topic: Topic
) -> None:
    before = heard(ledger)
    ledger.write(topics.delete, "orders", 6)
    assert not leftovers.remove_some(ledger, before)
    assert ledger.read(topics.row_of, topic.topic_id) is not None
    assert leftovers.remove_some(ledger, heard(ledger))
    assert ledger.read(topics.row_of, topic.topic_id) is None
    assert ledger.read(reads.partition_states, topic.topic_id) == []
    assert not leftovers.remove_some(ledger, EVERYTHING)


def test_a_subscription_and_its_topic_stay_until_the_change_was_heard(
    ledger: Ledger,
) -> None:
    ledger.write(topics.create, "t", TopicConfig(), 1)
    subscribe(ledger, "s")
    before = heard(ledger)
    ledger.write(topics.delete, "t", 6)
    remove_all(ledger, Heard(heard(ledger).catalog_version, before.change_number))
    there = counts(ledger)
    assert (there["topics"], there["subscriptions"], there["cursors"]) == (1, 1, 1)
    remove_all(ledger, heard(ledger))
    there = counts(ledger)
    assert (there["topics"], there["subscriptions"], there["cursors"]) == (0, 0, 0)


@pytest.mark.parametrize(
    "what", ["records", "table", "empty table", "hole", "router", "source", "dead letters"]
)
def test_a_topic_that_something_names_stays(ledger: Ledger, what: str) -> None:
    topic, _ = ledger.write(topics.create, "t", TopicConfig(), 1)
    other, _ = ledger.write(topics.create, "other", TopicConfig(), 1)
    named = topic
    if what == "records":
        commit(ledger, 1, Request(topic.topic_id))
    elif what in ("table", "hole"):
        commit(ledger, 1, Request(topic.topic_id))
        (row,) = ledger.read(reads.objects)
        compact(ledger, "run", bad_keys={row.key} if what == "hole" else set())
    elif what == "empty table":
        table = TableSwitch(topic.topic_id, "headgate.t", "file:///lake/t/metadata/1.json", {})
        ledger.write(runs.begin, "run", "a test", 2)
        ledger.write(lake_tables.switch, "run", [table], 3)
        ledger.write(runs.end, "run", 4)
    elif what == "router":
        ledger.write(routers.create, "r", "other", "t", NO_FILTER, "now", False, 1)
    elif what == "source":
        ledger.write(routers.create, "r", "t", "other", NO_FILTER, "now", False, 1)
    else:
        subscribe(ledger, "s", "other")
        named = other
    ledger.write(topics.delete, named.name, 6, force=True)
    remove_all(ledger)
    assert ledger.read(topics.row_of, named.topic_id) is not None
    if what == "records":
        commit(ledger, 2, Request(other.topic_id))
        collect(ledger)
    elif what == "dead letters":
        ledger.write(subscriptions.delete, "t", "s", 7)
    elif what in ("router", "source"):
        ledger.write(routers.delete, "r", 7)
    else:
        return
    remove_all(ledger)
    assert ledger.read(topics.row_of, named.topic_id) is None


def test_what_lives_stays(ledger: Ledger, topic: Topic) -> None:
    ledger.write(topics.create, "t", TopicConfig(), 1)
    subscribe(ledger, "s", "orders")
    ledger.write(routers.create, "r", "t", "orders", NO_FILTER, "now", False, 1)
    before = counts(ledger)
    remove_all(ledger)
    assert counts(ledger) == before


def test_records_that_come_for_a_topic_that_is_gone_are_void(ledger: Ledger) -> None:
    gone, _ = ledger.write(topics.create, "t", TopicConfig(partitions=2), 1)
    ledger.write(topics.create, "other", TopicConfig(), 1)
    subscription = subscribe(ledger, "s")
    ledger.write(topics.delete, "t", 6)
    remove_all(ledger)
    advance = Advance(subscription.cursor_id, 0, 0, 1)
    requests = [
        Request(gone.topic_id, ((0, 2), (1, 1))),
        Request(gone.topic_id, key="k"),
        Request(gone.topic_id, expected_seq=0),
        Request(gone.topic_id, advance=advance),
        Request(2, key="k"),
    ]
    made = commit(ledger, 1, *requests)
    kinds = [answer.kind for answer in answers(made, requests)]
    assert kinds == ["topic_deleted"] * 4 + ["stored"]
    assert [head.topic_id for head in made.heads] == [2]
    assert ledger.read(reads.extents_from, gone.topic_id, 0, 1, 9) == []
    again = ledger.commit(draft_of(lease(1), requests), 10, lambda _: None)
    assert again.repeated and again.verdicts == made.verdicts


@pytest.mark.parametrize(("topic_id", "partition"), [(9, 0), (1, 7)])
def test_records_for_what_never_was_are_refused(
    ledger: Ledger, topic: Topic, topic_id: int, partition: int
) -> None:
    with pytest.raises(DraftInvalid, match="a partition that never was"):
        commit(ledger, 1, Request(topic_id, ((partition, 1),)))


def test_a_subscription_that_is_made_again_numbers_its_batches_after_all_that_are_gone(
    ledger: Ledger,
) -> None:
    """Consumers of the former one may still acknowledge batches."""
    for epoch in (70, 50):
        ledger.write(topics.create, "t", TopicConfig(), 1)
        made = subscribe(ledger, "s")
        flush = SubscriptionFlush(made.subscription_id, made.generation, epoch + 100, (), ())
        ledger.write(progress.flush, [flush])
        ledger.write(topics.delete, "t", 6)
        remove_all(ledger)
    ledger.write(topics.create, "t", TopicConfig(), 1)
    assert ledger.read(progress.epoch_of, subscribe(ledger, "s").subscription_id) == 170


def recovered(path: Path, told: Mark, *changes: backup.Changes, image: bytes = b"") -> Ledger:
    """What a recovery makes of an image and the entries after it."""
    if image:
        path.write_bytes(image)
    ledger = Ledger(path, nullcontext())
    for each in changes:
        ledger.write(backup.apply, each)
    ledger.write(recovery.begin_history, "copied", told)
    return ledger


def test_a_recovery_does_not_bring_a_topic_that_is_gone_back_to_life(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    live_and_die(ledger, 1)
    told, before = ledger.read(backup.changes_since, Mark())
    commit(ledger, 3, Request(topic.topic_id))
    collect(ledger)
    remove_all(ledger)
    told, after = ledger.read(backup.changes_since, told)
    seen = [TopicSeen(2, "t", 3, 1), TopicSeen(9, "new", 1, 1)]
    for number, copy in enumerate(
        (
            recovered(tmp_path / "entries.db", told, before, after),
            recovered(tmp_path / "image.db", told, after, image=image_of(ledger)),
            # The entry was read before the image was copied, and put after it.
            recovered(tmp_path / "both.db", told, before, after, image=image_of(ledger)),
        )
    ):
        with closing(copy):
            assert copy.write(recovery.prepare, told, seen, {(2, 0): 4}, 0, 1)[0] == ["new"]
            assert [each.name for each in copy.read(topics.page)] == ["new", "orders"]
            requests = [Request(2, ((2, 1),)), Request(9)]
            results: list[Commit | DraftInvalid] = []
            draft = draft_of(lease(99 + number), requests)
            copy.write(recovery.take, [draft], results.append, copy.dedupe_limits)
            (taken,) = results
            assert not isinstance(taken, DraftInvalid)
            kinds = [answer.kind for answer in answers(taken, requests)]
            assert kinds == ["topic_deleted", "stored"]
            collect(copy)
            remove_all(copy)
            there = counts(copy)
            assert (there["topics"], there["partitions"], there["gaps"]) == (2, 3, 0)
            assert there["subscriptions"] == there["routers"] == there["cursors"] == 0
            made, _ = copy.write(topics.create, "t", TopicConfig(), 1)
            assert made.topic_id == 10
            assert subscribe(copy, "s").subscription_id == 2


def test_gaps_that_a_late_entry_brings_of_a_topic_that_is_gone_go_too(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    """Entries carry all gaps, and this one was read before the image was copied."""
    ledger.write(recovery.prepare, Mark(), [], {(topic.topic_id, 0): 3}, 0, 1)
    ledger.write(topics.delete, "orders", 6)
    told, _ = ledger.read(backup.changes_since, Mark())
    told, late = ledger.read(backup.changes_since, told)
    assert late.rows["gaps"] and "topics" not in late.rows
    remove_all(ledger)
    told, last = ledger.read(backup.changes_since, told)
    with closing(recovered(tmp_path / "copy", told, late, last, image=image_of(ledger))) as copy:
        assert counts(copy)["gaps"] == 0


def test_a_topic_that_the_log_does_not_have_is_restored_though_a_later_id_is_there(
    ledger: Ledger, topic: Topic
) -> None:
    """A recovery was broken off, and now an object can be read that could not be before."""
    told = ledger.read(backup.mark)
    ledger.write(recovery.prepare, told, [TopicSeen(3, "late", 1, 1)], {}, 9, 1)
    names, _ = ledger.write(recovery.prepare, told, [TopicSeen(2, "read", 1, 1)], {}, 0, 1)
    assert names == ["read"]


def test_more_rows_than_one_transaction_removes_go_in_several(ledger: Ledger) -> None:
    for number in range(5):
        ledger.write(topics.create, f"t{number}", TopicConfig(partitions=200), 1)
        ledger.write(topics.delete, f"t{number}", 2)
    assert len(ledger.write(leftovers.remove, EVERYTHING).topics) == 2
    remove_all(ledger)
    assert counts(ledger)["partitions"] == 0
