"""Each rule of the ledger is seen broken: one sound ledger with all there is, and one damage."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec
import pytest

from ledger import cursors, epochs, reads, topics
from ledger.checks import invariants, soundness
from ledger.checks.invariants import InvariantBroken
from ledger.cursors import Setting
from ledger.ledger import Ledger
from ledger.log import recovery
from ledger.log.backup import Mark
from ledger.space import marking, retention, unreferenced
from ledger.types import TopicConfig
from tests.ledger.lakes import commit, compact
from tests.ledger.requests import Request, key_of, lease


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partition 0 of topic 1: offsets 1 to 2 evicted, 3 to 4 in L1 with their object collected,
    5 to 6 in L1, 7 to 8 in quarantine, 9 to 11 a gap, 12 to 13 and 14 to 15 in L0."""
    path = tmp_path_factory.mktemp("sound") / "ledger.db"
    with closing(Ledger(path, nullcontext())) as ledger:
        ledger.write(epochs.begin_incarnation, 1)
        topic, _ = ledger.write(topics.create, "orders", TopicConfig(partitions=2), 1)
        t = topic.topic_id
        for counter in (1, 2, 3, 4):
            commit(ledger, counter, Request(t, ((0, 2),)))
        compact(ledger, "a", now_ms=20, to_commit=3)
        compact(ledger, "b", now_ms=30, bad_keys={key_of(lease(4))})
        retention.trim(ledger, "orders", 0, 3)
        ledger.write(recovery.prepare, Mark(), [], {(t, 0): 3}, 0, 1)
        commit(ledger, 5, Request(t, ((0, 2), (1, 2)), key="k"), Request(t, ((1, 1),), key="k"))
        commit(ledger, 6, Request(t, ((0, 2),)))
        ledger.write(unreferenced.forget, [key_of(lease(2))], "m")
        ledger.write(cursors.create, "c", "client", 1)
        ledger.write(cursors.set_positions, "c", "client", [Setting(0, 5)])
        ledger.read(invariants.check)
        assert ledger.read(soundness.problems, 9) == []
    return path


@pytest.fixture
def rich(sound: Path, tmp_path: Path) -> Iterator[Ledger]:
    """A copy of the sound ledger."""
    with closing(Ledger(Path(shutil.copy(sound, tmp_path)), nullcontext())) as ledger:
        yield ledger


def damage(ledger: Ledger, *statements: str) -> None:
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        for statement in statements:
            for part in statement.split(";"):
                connection.execute(part)


P0 = " WHERE topic_id = 1 AND partition = 0"
FREE = "UPDATE objects SET free_ms = 1 WHERE commit_number = 4"
LESS = f"UPDATE partitions SET bytes = bytes - 20{P0}"
DAMAGES = [
    ("DELETE FROM objects WHERE commit_number = 6", "the last commit's object stays"),
    ("DELETE FROM objects WHERE commit_number = 5", "each extent has its object"),
    ("DELETE FROM extents WHERE commit_number = 3", "an object has all its extents"),
    ("DELETE FROM extents WHERE commit_number = 5", "an object has all its extents"),
    ("UPDATE objects SET free_ms = 1 WHERE commit_number = 5", "in an unreferenced object"),
    ("UPDATE objects SET free_ms = 1 WHERE commit_number = 4", "in an unreferenced object"),
    ("UPDATE objects SET free_ms = NULL WHERE commit_number = 3", "is marked as unreferenced"),
    (f"UPDATE partitions SET earliest_seq = 17{P0}", "the earliest offset is at most the next"),
    (f"UPDATE partitions SET earliest_seq = 0{P0}", "the earliest offset is at most the next"),
    (f"UPDATE partitions SET next_seq = 8{P0}", "compacted offsets were given"),
    (f"UPDATE partitions SET lost_seq = 3, lost_reason = 'cap'{P0}", "lost offsets are evicted"),
    (f"UPDATE partitions SET lost_seq = 2{P0}", "a loss has its reason"),
    (f"UPDATE partitions SET lost_reason = 'ttl'{P0}", "a loss has its reason"),
    (f"UPDATE partitions SET freed_seq = 9{P0}", "the marking is at most at the bound"),
    (f"UPDATE partitions SET count = count - 1{P0}", "the count is that of the readable"),
    (f"UPDATE partitions SET bytes = bytes + 1{P0}", "the bytes are those of the readable"),
    ("UPDATE extents SET first_offset = 11 WHERE last_offset = 13", "offsets are dense"),
    ("UPDATE extents SET first_offset = 13 WHERE last_offset = 13", "offsets are dense"),
    ("UPDATE extents SET first_offset = 13 WHERE last_offset = 15", "offsets are dense"),
    (f"UPDATE partitions SET next_seq = 17{P0}", "the head agrees with the extents"),
    (f"UPDATE partitions SET next_seq = 15{P0}", "the head agrees with the extents"),
    ("UPDATE gaps SET gap_to = 12", "offsets are dense"),
    ("UPDATE gaps SET gap_from = 8", "no record is in a gap"),
    ("UPDATE gaps SET gap_from = 10", "offsets are dense"),
    ("INSERT INTO gaps VALUES (1, 0, 10, 10, 'x')", "gaps do not overlap"),
    (f"UPDATE partitions SET compacted_seq = 12{P0}", "an extent is compacted as a whole"),
    ("UPDATE extents SET voids = x'91920909' WHERE last_offset = 13", "voids lie in their extent"),
    ("UPDATE extents SET voids = x'91920000' WHERE last_offset = 13", "voids ascend"),
    ("UPDATE extents SET record_count = 3 WHERE last_offset = 13", "records that are not void"),
    ("UPDATE extents SET running_max_ms = 5 WHERE last_offset = 15", "running maximum"),
    ("UPDATE extents SET running_max_ms = 5 WHERE last_offset = 6", "running maximum"),
    (f"UPDATE partitions SET max_timestamp_ms = 9999{P0}", "the greatest timestamp agrees"),
    ("UPDATE lake_files SET rows = rows + 1", "a file has the rows of its ranges"),
    (f"DELETE FROM lake_files; UPDATE partitions SET bytes = 60{P0}", "each range has its file"),
    ("DELETE FROM lake_tables", "a topic with files has its table"),
    (f"UPDATE quarantine SET last_offset = 12; {LESS}", "a hole that can still be read"),
    (f"UPDATE quarantine SET key = 'x'; {FREE}", "a hole that can still be read is compacted"),
    (f"DELETE FROM quarantine; {FREE}; {LESS}", "L1 holds each compacted offset once"),
    (f"UPDATE partitions SET compacted_seq = 13, bytes = bytes - 20{P0}", "L1 holds each"),
    (f"UPDATE lake_files SET dropped_ms = 1; UPDATE partitions SET bytes = 60{P0}", "L1 holds"),
    ("UPDATE lake_ranges SET last_offset = 5, rows = 5 WHERE first_offset = 1", "a file has the"),
    ("UPDATE cursors SET cursor_id = 2", "ids of cursors and numbers of changes have been given"),
    ("UPDATE cursors SET changed = 9", "ids of cursors and numbers of changes have been given"),
    ("UPDATE cursors SET changed = 0", "ids of cursors and numbers of changes have been given"),
    ("DELETE FROM cursors", "a position is of a living cursor"),
    ("UPDATE cursors SET deleted_ms = 1", "a position is of a living cursor"),
    ("UPDATE cursor_positions SET changed = 9", "a position is of a living cursor"),
    ("UPDATE cursor_positions SET seq = -1", "a position is of a living cursor"),
    ("UPDATE cursor_positions SET set_change = 3", "a position is of a living cursor"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "rule"), DAMAGES)
def test_a_broken_rule_is_named(rich: Ledger, statement: str, rule: str) -> None:
    damage(rich, statement)
    with pytest.raises(InvariantBroken, match=rule):
        rich.read(invariants.check)


@pytest.mark.parametrize(
    ("statement", "kind", "words"),
    [
        ("DELETE FROM extents WHERE last_offset = 13", "gap", "offsets 12 to 13 of orders"),
        (f"UPDATE partitions SET next_seq = 17{P0}", "gap", "is 17, but its objects end before 16"),
        ("DELETE FROM quarantine", "gap", "at most 4 rows of the 6 offsets from 3 to 8"),
        ("UPDATE lake_files SET dropped_ms = 1", "gap", "L1 holds at most 0 rows"),
        (f"UPDATE partitions SET compacted_seq = 5{P0}", "overlap", "L1 holds offset 6"),
        ("UPDATE gaps SET gap_to = 10", "gap", "offsets 11 to 11"),
    ],
)  # fmt: skip
def test_a_place_in_what_the_lake_holds_is_named(
    rich: Ledger, statement: str, kind: str, words: str
) -> None:
    damage(rich, statement)
    (place,) = rich.read(soundness.problems, 9)
    assert (place.kind, place.topic, place.partition) == (kind, "orders", 0)
    assert words in place.problem


def test_the_rows_of_a_deleted_topic_may_all_be_gone_but_the_last_commits(rich: Ledger) -> None:
    rich.write(topics.delete, "orders", 50)
    assert not marking.mark_unreferenced(rich, 51)
    rich.write(unreferenced.forget, [key_of(lease(counter)) for counter in (1, 3, 5)], "m")
    rich.read(invariants.check)
    assert rich.read(soundness.problems, 9) == []
    assert [row.commit_number for row in rich.read(reads.objects)] == [4, 6]


def change_head(ledger: Ledger, number: int, head_seq: int | None) -> None:
    """The head of partition 0 in what a commit was answered; None: it says nothing of it."""
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        sql = "SELECT result FROM objects WHERE commit_number = ?"
        (blob,) = connection.execute(sql, (number,)).fetchone()
        result = msgspec.msgpack.decode(blob)
        heads = [head for head in result[2] if head[1] != 0]
        result[2] = heads if head_seq is None else [[1, 0, head_seq], *heads]
        sql = "UPDATE objects SET result = ? WHERE commit_number = ?"
        connection.execute(sql, (msgspec.msgpack.encode(result), number))


@pytest.mark.parametrize(
    ("number", "head_seq", "rule"),
    [
        (3, 5, "a commit's heads are its extents' ends"),  # after a commit that is gone
        (3, 7, "a commit's heads are its extents' ends"),
        (5, 12, "a commit's heads are its extents' ends"),
        (6, None, "the last commit gave the head"),
    ],
)
def test_an_answer_that_is_not_what_the_extents_say_is_named(
    rich: Ledger, number: int, head_seq: int | None, rule: str
) -> None:
    change_head(rich, number, head_seq)
    with pytest.raises(InvariantBroken, match=rule):
        rich.read(invariants.check)


@pytest.mark.parametrize(("void", "head_seq"), [(True, 1), (False, 5), (False, 7)])
def test_a_head_between_commits_that_are_gone_is_held_to_what_is_left(
    tmp_path: Path, void: bool, head_seq: int
) -> None:
    with closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger:
        topic, _ = ledger.write(topics.create, "orders", TopicConfig(partitions=2), 1)
        t = topic.topic_id
        for counter in (1, 2):
            commit(ledger, counter, Request(t, ((0, 2),)))
        commit(ledger, 3, Request(t, ((0, 2),), expected_seq=99 if void else None))
        commit(ledger, 4, Request(t, ((0, 2),)))
        commit(ledger, 5, Request(t, ((1, 1),)))
        retention.trim(ledger, "orders", 0, ledger.read(reads.partition_states, t)[0].next_seq)
        ledger.write(unreferenced.forget, [key_of(lease(2)), key_of(lease(4))], "m")
        ledger.read(invariants.check)
        assert [row.commit_number for row in ledger.read(reads.objects)] == [1, 3, 5]
        change_head(ledger, 3, head_seq)
        with pytest.raises(InvariantBroken, match="a commit's heads are its extents' ends"):
            ledger.read(invariants.check)
