"""Cursors in the ledger: moved with the records of a commit or not at all."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import msgspec
import pytest

from ledger import changes, cursors, topics
from ledger.cursors import RECORDS_SCHEME, SOURCE_KNOWN_MS, ImportLag, Setting, SourceTold
from ledger.errors import CursorMissing, CursorMoved, CursorOwned, CursorsFull
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.types import Advance, CursorMove, CursorPosition, Topic, TopicConfig
from tests.ledger.requests import Answer, Request, answers, draft_of, lease


def commit(ledger: Ledger, counter: int, *requests: Request) -> list[Answer]:
    made = ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)
    return answers(made, requests)


def created(ledger: Ledger, name: str = "sink") -> int:
    return ledger.write(cursors.create, name, "client", 1)[0].cursor_id


def step(topic: Topic, cursor_id: int, expected: int, following: int, **more: object) -> Request:
    advance = Advance(cursor_id, 0, expected, following)
    return Request(topic.topic_id, advance=advance, **more)  # type: ignore[arg-type]


def test_pipelined_requests_of_one_commit_each_expect_what_the_one_before_gives(
    ledger: Ledger, topic: Topic
) -> None:
    cursor = created(ledger)
    found = commit(
        ledger, 1, step(topic, cursor, 0, 5), step(topic, cursor, 5, 9), step(topic, cursor, 5, 7)
    )
    assert [answer.kind for answer in found] == ["stored", "stored", "cursor_moved"]
    assert found[2].cursor_seq == 9
    assert ledger.read(cursors.positions, cursor) == [CursorPosition(0, 9)]


def test_a_request_that_is_void_for_another_reason_does_not_move_its_cursor(
    ledger: Ledger, topic: Topic
) -> None:
    cursor = created(ledger)
    assert commit(ledger, 1, step(topic, cursor, 0, 5, expected_seq=3))[0].kind == (
        "sequence_mismatch"
    )
    ledger.write(topics.delete, topic.name, 2)
    assert commit(ledger, 2, step(topic, cursor, 0, 5))[0].kind == "topic_deleted"
    assert ledger.read(cursors.positions, cursor) == []


def test_a_repeat_of_a_key_gets_the_first_answer_although_its_cursor_has_moved_on(
    ledger: Ledger, topic: Topic
) -> None:
    cursor = created(ledger)
    first, second = step(topic, cursor, 0, 5, key="a"), step(topic, cursor, 5, 9)
    assert [answer.kind for answer in commit(ledger, 1, first, second)] == ["stored", "stored"]
    assert commit(ledger, 2, first) == [Answer("deduped", ((0, 1, 1),), 2)]
    assert ledger.read(cursors.positions, cursor) == [CursorPosition(0, 9)]


def test_a_request_under_way_does_not_meet_a_later_cursor_of_the_same_name(
    ledger: Ledger, topic: Topic
) -> None:
    former = created(ledger)
    ledger.write(cursors.delete, "sink", "client", 2)
    latter = created(ledger)
    assert latter > former
    assert commit(ledger, 1, step(topic, former, 0, 5))[0].kind == "cursor_unknown"
    assert ledger.read(cursors.positions, latter) == []
    with pytest.raises(CursorMissing):
        ledger.write(cursors.delete, "other", "client", 3)


def test_a_commit_that_moves_no_cursor_makes_no_change(ledger: Ledger, topic: Topic) -> None:
    cursor = created(ledger)
    before = ledger.read(changes.latest)
    commit(ledger, 1, Request(topic.topic_id, key="a"), step(topic, cursor, 3, 5))
    assert ledger.read(changes.latest) == before
    commit(ledger, 2, step(topic, cursor, 0, 5))
    assert ledger.read(changes.latest) == before + 1


def test_cursors_change_without_touching_the_version_of_topics(ledger: Ledger) -> None:
    before = ledger.read(topics.catalog_version)
    cursor = created(ledger)
    ledger.write(cursors.set_positions, "sink", "client", [Setting(0, 7)])
    ledger.write(cursors.flush, [CursorMove(cursor, 0, 7, 8)])
    assert ledger.read(topics.catalog_version) == before


def test_positions_are_set_all_or_none_and_only_from_where_they_are_expected(
    ledger: Ledger,
) -> None:
    created(ledger)
    there = ledger.write(
        cursors.set_positions, "sink", "client", [Setting(3, 7, expected=0), Setting(1, 2)]
    )
    assert there == [CursorPosition(1, 2), CursorPosition(3, 7)]
    with pytest.raises(CursorMoved) as refused:
        ledger.write(
            cursors.set_positions, "sink", "client", [Setting(1, 9), Setting(3, 9, expected=6)]
        )
    assert (refused.value.partition, refused.value.position) == (3, 7)
    cursor = ledger.read(cursors.find, "sink")
    assert cursor is not None
    assert ledger.read(cursors.positions, cursor.cursor_id) == there


def test_a_cursor_of_a_router_is_not_a_clients(ledger: Ledger) -> None:
    ledger.write(cursors.create, "router/r", "router", 1)
    for refused in (
        lambda: ledger.write(cursors.create, "router/r", "client", 1),
        lambda: ledger.write(cursors.set_positions, "router/r", "client", [Setting(0, 1)]),
        lambda: ledger.write(cursors.delete, "router/r", "client", 1),
    ):
        with pytest.raises(CursorOwned):
            refused()


def test_cursors_have_a_limit_and_a_deleted_one_makes_room(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "CURSORS_MAX", 2)
    created(ledger, "a")
    created(ledger, "b")
    with pytest.raises(CursorsFull):
        created(ledger, "c")
    created(ledger, "a")  # it is there
    ledger.write(cursors.delete, "b", "client", 1)
    created(ledger, "c")
    assert [each.name for each in ledger.read(cursors.page)] == ["a", "c"]
    assert [each.name for each in ledger.read(cursors.page, "a", 1)] == ["c"]


def test_more_cursors_than_one_statement_looks_up_are_found(ledger: Ledger) -> None:
    cursor = created(ledger)
    partitions = 2_500
    moves = [CursorMove(cursor, partition, 0, partition + 1) for partition in range(partitions)]
    assert ledger.write(cursors.flush, moves) == {}
    keys = [(cursor, partition) for partition in range(partitions)]
    there = ledger.read(cursors.positions_of, [*keys, (cursor + 1, 0)])
    assert there == {key: key[1] + 1 for key in keys}


def told(
    ledger: Ledger, name: str, topic: Topic, size: int | None, at_ms: int = 1_000, scheme: str = ""
) -> None:
    ledger.write(cursors.create, name, "client", 1)
    source = SourceTold(f"{scheme}/{name}", topic.topic_id, size)
    ledger.write(cursors.tell, name, "client", source, at_ms)


def test_what_a_cursor_follows_stays_until_it_is_told_anew_or_the_cursor_is_deleted(
    ledger: Ledger, topic: Topic
) -> None:
    told(ledger, "c", topic, 9)
    cursor = ledger.read(cursors.find, "c")
    assert cursor is not None
    assert (cursor.source, cursor.source_topic_id) == ("/c", topic.topic_id)
    assert (cursor.source_bytes, cursor.told_ms) == (9, 1_000)
    ledger.write(cursors.set_positions, "c", "client", [Setting(0, 5)])
    told(ledger, "c", topic, None, at_ms=2_000)
    assert ledger.read(cursors.page) == [
        msgspec.structs.replace(cursor, source_bytes=None, told_ms=2_000)
    ]
    ledger.write(cursors.delete, "c", "client", 5)
    deleted = ledger.read(cursors.by_id, cursor.cursor_id)
    assert deleted is not None and (deleted.source, deleted.told_ms) == (None, None)
    with pytest.raises(CursorMissing):
        ledger.write(cursors.tell, "c", "client", SourceTold("", 1, 1), 1)


def test_the_owners_log_carries_what_cursors_follow_and_older_rows_are_read(
    ledger: Ledger, topic: Topic, tmp_path: Path
) -> None:
    told(ledger, "c", topic, 9)
    _, found = ledger.read(backup.changes_since, backup.Mark())
    older = msgspec.structs.replace(
        found, rows={**found.rows, "cursors": [row[:6] for row in found.rows["cursors"]]}
    )
    for changes_, source in ((found, "/c"), (older, None)):
        with closing(Ledger(tmp_path / f"{source is None}.db", nullcontext())) as other:
            other.write(backup.apply, changes_)
            cursor = other.read(cursors.find, "c")
            assert cursor is not None and cursor.source == source


def test_the_lag_of_imports_is_what_is_left_of_sizes_that_were_told_lately(
    ledger: Ledger, topic: Topic
) -> None:
    now = 10 * SOURCE_KNOWN_MS
    assert ledger.read(cursors.imports, now) == []
    for name, size, at, told_ms in (
        ("half", 100, 60, now - 5),
        ("begun", 30, 0, now),
        ("finished", 7, 7, now),
        ("further", 7, 9, now),
        ("packed", None, 3, now),
        ("old", 50, 1, now - SOURCE_KNOWN_MS - 1),
        ("deleted", 50, 1, now),
    ):
        told(ledger, name, topic, size, told_ms)
        ledger.write(cursors.set_positions, name, "client", [Setting(0, at), Setting(1, 99)])
    told(ledger, "kafka", topic, 8, now, RECORDS_SCHEME)
    ledger.write(cursors.delete, "deleted", "client", now)
    created(ledger, "silent")
    other = ledger.write(topics.create, "other", TopicConfig(), 1)[0]
    told(ledger, "elsewhere", other, 1, now)
    name = topic.name
    assert sorted(ledger.read(cursors.imports, now)) == sorted(
        [ImportLag(name, 5, 2, 70, 8, now - 5), ImportLag("other", 1, 0, 1, 0, now)]
    )
    ledger.write(topics.delete, "other", now)
    assert ledger.read(cursors.imports, now + SOURCE_KNOWN_MS + 9) == [
        ImportLag(name, 5, 5, 0, 0, None)
    ]
