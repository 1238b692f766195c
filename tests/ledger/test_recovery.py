"""Gaps and restored topics in the ledger, and what the invariants say of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from ledger import epochs, reads, topics
from ledger.checks import invariants
from ledger.checks.invariants import InvariantBroken
from ledger.errors import DraftInvalid
from ledger.ledger import Ledger
from ledger.log import backup, recovery
from ledger.log.backup import Mark
from ledger.log.recovery import IDS_SKIPPED, TopicSeen
from ledger.types import Commit, Gap, Topic, TopicConfig
from tests.ledger.requests import Request, draft_of, lease


def commit(ledger: Ledger, counter: int, *requests: Request) -> None:
    ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)


def extents(ledger: Ledger, topic: Topic, offset: int = 1) -> list[tuple[int, int]]:
    """Offsets of partition 0's extents from ``offset`` on."""
    found = ledger.read(reads.extents_from, topic.topic_id, 0, offset, 100)
    return [(extent.first_offset, extent.last_offset) for extent in found]


def test_records_after_a_gap_have_offsets_after_all_of_it(ledger: Ledger, topic: Topic) -> None:
    key = (topic.topic_id, 0)
    commit(ledger, 1, Request(*key[:1], ((0, 3),)))
    changed, gaps = ledger.write(recovery.prepare, Mark(), [], {key: 5}, 0, 1)
    assert changed == [] and gaps == [Gap(*key, 4, 8, "recovery")] == ledger.read(
        reads.gaps, topic.topic_id, 0
    )
    commit(ledger, 2, Request(topic.topic_id, ((0, 2), (1, 1))))
    assert extents(ledger, topic) == [(1, 3), (9, 10)]
    assert extents(ledger, topic, 5) == [(9, 10)]
    state = ledger.read(reads.partition_states, topic.topic_id)[0]
    assert (state.head_seq, state.earliest_seq, state.count) == (10, 1, 5)
    assert ledger.read(reads.partition_states, topic.topic_id)[1].head_seq == 1


def test_gaps_may_follow_each_other_and_stand_around_void_commits(
    ledger: Ledger, topic: Topic
) -> None:
    key = (topic.topic_id, 0)
    ledger.write(recovery.prepare, Mark(), [], {key: 2}, 0, 1)
    ledger.write(recovery.prepare, Mark(), [], {key: 3}, 0, 1)
    commit(ledger, 1, Request(topic.topic_id, expected_seq=99))  # void
    ledger.write(recovery.prepare, Mark(), [], {key: 1}, 0, 1)
    assert [(gap.gap_from, gap.gap_to) for gap in ledger.read(reads.gaps, topic.topic_id, 0)] == [
        (1, 2),
        (3, 5),
        (6, 6),
    ]
    ledger.read(invariants.check)
    commit(ledger, 2, Request(topic.topic_id))
    assert extents(ledger, topic) == [(7, 7)]


def test_a_gap_is_news_for_the_log_though_no_record_follows(ledger: Ledger, topic: Topic) -> None:
    told = ledger.read(backup.mark)
    ledger.write(recovery.prepare, Mark(), [], {(topic.topic_id, 0): 5}, 0, 1)
    assert ledger.read(backup.mark) != told
    _, changes = ledger.read(backup.changes_since, told)
    assert [row[:4] for row in changes.rows["partitions"] if row[1] == 0] == [[1, 0, 6, 1]]
    assert changes.rows["gaps"] == [[1, 0, 1, 5, "recovery"]]


def test_damage_skips_offsets_everywhere_and_topic_ids(ledger: Ledger, topic: Topic) -> None:
    dead, _ = ledger.write(topics.create, "dead", TopicConfig(), 1)
    ledger.write(topics.delete, "dead", 2)
    _, gaps = ledger.write(recovery.prepare, Mark(), [], {(topic.topic_id, 1): 3}, 10, 1)
    assert gaps == [Gap(1, 0, 1, 10, "recovery"), Gap(1, 1, 1, 13, "recovery")]
    later, _ = ledger.write(topics.create, "later", TopicConfig(), 3)
    assert later.topic_id == dead.topic_id + IDS_SKIPPED + 1


def test_topics_are_restored_and_a_newer_id_has_the_name(ledger: Ledger, topic: Topic) -> None:
    changed, _ = ledger.write(recovery.prepare, Mark(),
        [
            TopicSeen(topic.topic_id, "orders", 4, 1),  # grew after the last entry
            TopicSeen(9, "orders", 2, 50),  # was created again after it
            TopicSeen(7, "orders", 1, 40),  # and once in between
            TopicSeen(8, "other", 3, 45),
        ],
        {}, 0, 1,
    )  # fmt: skip
    assert changed == ["orders", "orders", "other", "orders"]
    assert {t.name: t.topic_id for t in ledger.read(topics.page)} == {"orders": 9, "other": 8}
    for gone in (topic.topic_id, 7):
        deleted = ledger.read(topics.by_id, gone)
        assert deleted is not None and deleted.deleted_ms is not None
    assert len(ledger.read(reads.partition_states, topic.topic_id)) == 4
    assert ledger.write(topics.create, "next", TopicConfig(), 60)[0].topic_id == 10


def test_an_older_id_does_not_take_the_name_back(ledger: Ledger) -> None:
    for name in ("x", "orders"):
        ledger.write(topics.create, name, TopicConfig(), 1)
    newer = ledger.read(topics.find, "orders")
    assert newer is not None and newer.topic_id == 2
    ledger.write(topics.delete, "x", 1)
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("DELETE FROM topics WHERE topic_id = 1")
        connection.execute("DELETE FROM partitions WHERE topic_id = 1")
    ledger.write(recovery.prepare, Mark(), [TopicSeen(1, "orders", 1, 1)], {}, 0, 1)
    assert ledger.read(topics.find, "orders") == newer
    older = ledger.read(topics.by_id, 1)
    assert older is not None and older.deleted_ms is not None
    commit(ledger, 1, Request(1))
    assert ledger.read(reads.partition_states, 1)[0].count == 0


def test_epochs_go_on_above_all_that_were_seen(ledger: Ledger) -> None:
    ledger.write(recovery.prepare, Mark(), [], {}, 0, 40)
    assert ledger.write(epochs.begin_incarnation, 2, 1) == (2, 41)
    ledger.write(recovery.prepare, Mark(), [], {}, 0, 3)
    assert ledger.read(epochs.current) == ledger.read(epochs.floor) == 41


def test_a_start_takes_the_number_after_the_logs_whatever_failed_before(ledger: Ledger) -> None:
    # The fixture began 1; three more starts never wrote their first entry.
    for _ in range(3):
        assert ledger.write(epochs.begin_incarnation, 2, 1)[0] == 2
    assert ledger.write(epochs.begin_incarnation, 3, 2)[0] == 3
    assert ledger.read(epochs.incarnations) == [1, 2, 3]


def test_a_draft_that_contradicts_itself_hinders_no_other(ledger: Ledger, topic: Topic) -> None:
    good = [draft_of(lease(n), [Request(topic.topic_id)]) for n in (1, 3)]
    bad = draft_of(lease(2), [Request(topic.topic_id, ((5, 1),))])
    results: list[Commit | DraftInvalid] = []
    ledger.write(recovery.take, [good[0], bad, good[1]], results.append, ledger.dedupe_limits)
    first, refused, second = results
    assert isinstance(refused, DraftInvalid)
    assert not isinstance(first, DraftInvalid) and not isinstance(second, DraftInvalid)
    assert (first.number, second.number) == (1, 2)


def test_an_object_is_taken_as_of_its_own_time(ledger: Ledger, topic: Topic) -> None:
    # Its repeat came within the window then; now it is long over.
    request = Request(topic.topic_id, key="k")
    commit(ledger, 1, request)
    results: list[Commit | DraftInvalid] = []
    ledger.write(
        recovery.take, [draft_of(lease(2), [request])], results.append, ledger.dedupe_limits
    )
    (taken,) = results
    assert not isinstance(taken, DraftInvalid)
    assert [verdict.kind for verdict in taken.verdicts] == ["deduped"]


def test_missing_offsets_without_a_declared_gap_break_the_invariants(
    ledger: Ledger, topic: Topic
) -> None:
    commit(ledger, 1, Request(topic.topic_id))
    ledger.write(recovery.prepare, Mark(), [], {(topic.topic_id, 0): 2}, 0, 1)
    with closing(sqlite3.connect(ledger.path)) as connection:
        with connection:
            connection.execute("UPDATE gaps SET gap_to = 2")
        with pytest.raises(InvariantBroken, match="the head agrees"):
            ledger.read(invariants.check)
        with connection:
            connection.execute("UPDATE gaps SET gap_to = 3")
