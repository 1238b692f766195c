"""What groups of Kafka's consumers have committed: kept as committed, and gone with its topic."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from ledger import cursors, topics
from ledger.checks import invariants
from ledger.delivery import group_commits
from ledger.delivery.group_commits import GroupCommit, RefusedCommits
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.backup import Mark
from ledger.space import leftovers
from ledger.types import Topic, TopicConfig


def put(ledger: Ledger, *commits: GroupCommit) -> RefusedCommits:
    refused = ledger.write(group_commits.put, commits, 5, 50)
    ledger.read(invariants.check)
    return refused


def seen(ledger: Ledger, group: str, topic: Topic) -> dict[int, tuple[int, str]]:
    found, _ = ledger.read(group_commits.of_topics, group, [topic.topic_id], 1 << 20)
    return {partition: said for (_, partition), said in found.items()}


@pytest.fixture
def other(ledger: Ledger) -> Topic:
    return ledger.write(topics.create, "other", TopicConfig(), 1)[0]


def test_the_last_commit_counts_also_backwards(ledger: Ledger, topic: Topic) -> None:
    put(ledger, GroupCommit("g", topic.topic_id, 0, 10, "ten"),
        GroupCommit("h", topic.topic_id, 0, 7, ""))  # fmt: skip
    put(ledger, GroupCommit("g", topic.topic_id, 0, 4, ""))
    assert seen(ledger, "g", topic) == {0: (4, "")}
    assert seen(ledger, "h", topic) == {0: (7, "")}
    assert seen(ledger, "nobody", topic) == {}


def test_groups_whose_names_contain_one_another_are_apart(
    ledger: Ledger, topic: Topic, other: Topic
) -> None:
    names = ["g", "g/h", f"{topic.topic_id}/g", "%", "g0", "/"]
    for at, name in enumerate(names):
        put(ledger, GroupCommit(name, topic.topic_id, 0, at, name))
    assert ledger.read(group_commits.groups) == set(names)
    for at, name in enumerate(names):
        assert seen(ledger, name, topic) == {0: (at, name)}
    assert ledger.write(group_commits.delete, "g", 9)
    assert ledger.read(group_commits.groups) == set(names) - {"g"}
    assert not ledger.write(group_commits.delete, "g", 9)
    assert ledger.read(group_commits.topics_of, "g/h") == [(topic.name, topic.topic_id)]


def test_a_topic_takes_its_commits_with_it_and_its_successor_has_none(
    ledger: Ledger, topic: Topic, other: Topic
) -> None:
    put(ledger, GroupCommit("g", topic.topic_id, 0, 3, ""),
        GroupCommit("g", other.topic_id, 0, 8, ""))  # fmt: skip
    ledger.write(topics.delete, topic.name, 6)
    ledger.read(invariants.check)
    again, _ = ledger.write(topics.create, topic.name, TopicConfig(), 7)
    assert seen(ledger, "g", again) == seen(ledger, "g", topic) == {}
    assert ledger.read(group_commits.topics_of, "g") == [("other", other.topic_id)]
    late = GroupCommit("g", topic.topic_id, 0, 4, "")
    assert put(ledger, late) == RefusedCommits({topic.topic_id}, set())
    while leftovers.remove_some(ledger, leftovers.Heard(1 << 62, 1 << 62)):
        pass
    ledger.read(invariants.check)
    assert [each.name for each in ledger.read(cursors.page)] == [f"kafka/{other.topic_id}/g"]


def test_the_owners_log_carries_them(ledger: Ledger, topic: Topic, tmp_path: Path) -> None:
    put(ledger, GroupCommit("g", topic.topic_id, 0, 3, "text"),
        GroupCommit("h", topic.topic_id, 0, 3, ""))  # fmt: skip
    mark, first = ledger.read(backup.changes_since, Mark())
    ledger.write(group_commits.delete, "h", 6)
    put(ledger, GroupCommit("g", topic.topic_id, 0, 2, "back"))
    _, second = ledger.read(backup.changes_since, mark)
    with closing(Ledger(tmp_path / "copy.db", nullcontext())) as copy:
        for each in (first, second):
            copy.write(backup.apply, each)
        copy.read(invariants.check)
        assert seen(copy, "g", topic) == {0: (2, "back")}
        assert copy.read(group_commits.groups) == {"g"}


def test_groups_leave_room_for_other_cursors(
    ledger: Ledger, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commits, "GROUP_CURSORS_MAX", 1)
    first, second = (GroupCommit(each, topic.topic_id, 0, 1, "") for each in "gh")
    assert put(ledger, first, second) == RefusedCommits(set(), {("h", topic.topic_id)})
    assert put(ledger, first) == RefusedCommits(set(), set())
    ledger.write(cursors.create, "client", "client", 1)
    monkeypatch.setattr(group_commits, "GROUP_CURSORS_MAX", 10)
    monkeypatch.setattr(cursors, "CURSORS_MAX", 2)
    assert put(ledger, second).full


def test_a_part_of_what_was_committed_ends_and_the_rest_stays_also_in_the_owners_log(
    ledger: Ledger, topic: Topic, other: Topic, tmp_path: Path
) -> None:
    put(ledger, GroupCommit("g", topic.topic_id, 0, 10, "ten"),
        GroupCommit("g", topic.topic_id, 1, 11, "eleven"),
        GroupCommit("g", other.topic_id, 0, 12, ""))  # fmt: skip
    with closing(Ledger(tmp_path / "copy.db", nullcontext())) as copy:
        mark, first = ledger.read(backup.changes_since, Mark())
        copy.write(backup.apply, first)
        places = {topic.topic_id: {0, 7}, other.topic_id: {0}, 99: {0}}
        assert ledger.write(group_commits.delete_places, "g", places, 9, 60)
        copy.write(backup.apply, ledger.read(backup.changes_since, mark)[1])
        for each in (ledger, copy):
            assert seen(each, "g", topic) == {1: (11, "eleven")}
            assert seen(each, "g", other) == {}
            assert each.read(group_commits.topics_of, "g") == [(topic.name, topic.topic_id)]
            (left,) = each.read(group_commits.idle, "", 51, 9)
            assert left.used_ms == 50, "it is as old as it was"
    before = left.cursor_id
    assert ledger.write(group_commits.delete_places, "g", {topic.topic_id: {5}}, 9, 60)
    assert ledger.read(group_commits.idle, "", 51, 9)[0].cursor_id == before
    assert not ledger.write(group_commits.delete_places, "nobody", places, 9, 60)
    ledger.read(invariants.check)


def test_the_rest_of_what_a_former_version_committed_begins_to_age(
    ledger: Ledger, topic: Topic
) -> None:
    put(ledger, *(GroupCommit("g", topic.topic_id, each, 10, "") for each in (0, 1)))
    ledger._connection.execute("UPDATE cursors SET used_ms = NULL")
    assert ledger.write(group_commits.delete_places, "g", {topic.topic_id: {0}}, 9, 60)
    (left,) = ledger.read(group_commits.idle, "", 61, 9)
    assert left.used_ms == 60


def test_when_a_group_was_used_is_noted_once_a_day(ledger: Ledger, topic: Topic) -> None:
    commit = GroupCommit("g", topic.topic_id, 0, 10, "")
    day_ms = group_commits.USED_STEP_MS

    def used_ms() -> int | None:
        (one,) = ledger.read(group_commits.idle, "", 100 * day_ms, 9)
        assert one.group == "g"
        return one.used_ms

    for at_ms, noted_ms in ((5, 5), (5 + day_ms, 5), (6 + day_ms, 6 + day_ms), (7, 6 + day_ms)):
        ledger.write(group_commits.put, [commit], 5, at_ms)
        assert used_ms() == noted_ms


def test_what_is_not_used_ends_unless_it_was_used_meanwhile(ledger: Ledger, topic: Topic) -> None:
    for number in range(4):
        ledger.write(
            group_commits.put, [GroupCommit(f"g{number}", topic.topic_id, 0, 1, "")], 5, 10 * number
        )
    page = ledger.read(group_commits.idle, "", 30, 9)
    assert [(each.group, each.used_ms) for each in page] == [("g0", 0), ("g1", 10), ("g2", 20)]
    assert ledger.read(group_commits.idle, page[0].name, 30, 1) == page[1:2]
    ids = [each.cursor_id for each in page]
    # g2 has committed since the page was read.
    assert ledger.write(group_commits.settle_idle, ids[:1], ids[1:], 20, 40, 9) == 1
    assert ledger.read(group_commits.groups) == {"g0", "g2", "g3"}
    assert [each.used_ms for each in ledger.read(group_commits.idle, "", 99, 9)] == [40, 20, 30]
    assert ledger.write(group_commits.settle_idle, ids, ids, 20, 99, 9) == 0, "it has ended"
