"""Orphans are named by the floor of that moment, and what is unsound in a ledger is placed."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import epochs, reads, topics
from ledger.checks import soundness
from ledger.errors import DraftInvalid
from ledger.ledger import Ledger
from ledger.log import backup, recovery
from ledger.log.backup import Mark
from ledger.space import deletions, orphans
from ledger.types import LeaseId, Topic, TopicConfig
from tests.ledger.requests import Request, draft_of, key_of, lease


def named(lease_id: LeaseId) -> tuple[str, str]:
    """Key and locator."""
    return key_of(lease_id), f"at {key_of(lease_id)}"


def commit(ledger: Ledger, topic: Topic, lease_id: LeaseId) -> None:
    ledger.commit(draft_of(lease_id, [Request(topic.topic_id)]), 10, lambda _: None)


def test_only_uncommitted_objects_are_named(ledger: Ledger, topic: Topic) -> None:
    committed, orphan = lease(1), lease(2)
    commit(ledger, topic, committed)
    keys = [key_of(committed), key_of(orphan)]
    assert ledger.write(orphans.name, [named(committed), named(orphan)]) == {key_of(orphan)}
    assert ledger.read(deletions.keys) == {key_of(orphan)}
    assert ledger.read(orphans.named) == [key_of(orphan)]
    assert ledger.read(deletions.named, keys) == {key_of(orphan)}
    assert ledger.read(reads.committed_keys, keys) == {key_of(committed)}


def test_what_is_named_cannot_commit_any_more(ledger: Ledger, topic: Topic) -> None:
    late = lease(1)
    ledger.write(orphans.name, [named(late)])
    with pytest.raises(DraftInvalid, match="it is named for deletion"):
        commit(ledger, topic, late)
    assert ledger.read(reads.committed_keys, [key_of(late)]) == set()


def test_a_name_is_one_row_until_it_is_forgotten(ledger: Ledger) -> None:
    ledger.write(epochs.begin_incarnation, 2)
    orphan = named(lease(1, epoch=1))
    for _ in range(2):
        assert ledger.write(orphans.name, [orphan]) == {orphan[0]}
    mark = ledger.read(backup.mark)
    assert ledger.read(orphans.named) == [orphan[0]]
    ledger.write(orphans.forget, [orphan[0], "l0/never-was"])
    assert ledger.read(orphans.named) == []
    assert ledger.read(backup.mark) == mark, "that a name has gone is not news for the owner's log"


def test_more_keys_than_one_statement_takes_are_looked_up(ledger: Ledger, topic: Topic) -> None:
    for counter in (1, 1_200):
        commit(ledger, topic, lease(counter, epoch=1))
    keys = [key_of(lease(counter, epoch=1)) for counter in range(1, 1_201)]
    assert ledger.read(reads.committed_keys, keys) == {keys[0], keys[-1]}


def test_a_key_that_is_named_again_can_be_recovered(ledger: Ledger, tmp_path: Path) -> None:
    """The object was deleted, put again by a slow uploader, and found by a later collection."""
    ledger.write(epochs.begin_incarnation, 2)
    orphan = named(lease(1, epoch=1))
    with closing(Ledger(tmp_path / "other.db", nullcontext())) as other:
        mark = Mark()
        for _ in range(2):
            ledger.write(orphans.name, [orphan])
            mark, changes = ledger.read(backup.changes_since, mark)
            other.write(backup.apply, changes)
            ledger.write(orphans.forget, [orphan[0]])
        assert other.read(orphans.named) == [orphan[0]]


def test_objects_come_in_the_order_of_their_keys(ledger: Ledger, topic: Topic) -> None:
    for counter in (10, 9, 2):
        commit(ledger, topic, lease(counter, epoch=1))
    keys = [row.key for row in ledger.read(reads.objects_by_key, limit=2)]
    keys += [row.key for row in ledger.read(reads.objects_by_key, keys[-1])]
    assert keys == sorted(key_of(lease(counter, epoch=1)) for counter in (10, 9, 2))


@pytest.mark.parametrize(
    ("damage", "kind", "counter", "words"),
    [
        ("DELETE FROM extents WHERE last_offset = 2", "gap", 3, "offsets 2 to 2"),
        ("UPDATE extents SET first_offset = 1 WHERE last_offset = 2", "overlap", 2, "before 2"),
        ("DELETE FROM extents WHERE last_offset = 3", "gap", None, "end before 3"),
        ("UPDATE extents SET byte_start = 99999 WHERE last_offset = 1", "extent", 1, "byte"),
        ("DELETE FROM objects WHERE commit_number = 1", "extent", None, "no row"),
        ("UPDATE partitions SET next_seq = 2 WHERE partition = 0", "overlap", None, "is 2"),
    ],
)
def test_a_place_that_is_unsound_is_named(
    tmp_path: Path, damage: str, kind: str, counter: int | None, words: str
) -> None:
    with closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger:
        ledger.write(epochs.begin_incarnation, 1)
        topic = ledger.write(topics.create, "orders", TopicConfig(partitions=2), 1)[0]
        for each in (1, 2, 3):
            commit(ledger, topic, lease(each, epoch=1))
        assert ledger.read(soundness.problems, 10) == []
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
            connection.execute(damage)
            connection.commit()
        (place,) = ledger.read(soundness.problems, 10)
    assert place.kind == kind
    assert place.key == ("" if counter is None else key_of(lease(counter, epoch=1)))
    assert (place.topic, place.partition) == ("orders", 0)
    assert words in place.problem


def test_a_declared_gap_is_sound(ledger: Ledger, topic: Topic) -> None:
    commit(ledger, topic, lease(1, epoch=1))
    ledger.write(recovery.prepare, Mark(), [], {(topic.topic_id, 0): 5}, 0, 1)
    commit(ledger, topic, lease(2, epoch=1))
    assert [(gap.gap_from, gap.gap_to) for gap in ledger.read(reads.gaps, topic.topic_id, 0)] == [
        (2, 6)
    ]
    assert ledger.read(soundness.problems, 10) == []
