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
    refused = ledger.write(group_commits.put, commits, 5)
    ledger.read(invariants.check)
    return refused


def seen(ledger: Ledger, group: str, topic: Topic) -> dict[int, tuple[int, str]]:
    found = ledger.read(group_commits.of_topics, group, [topic.topic_id])
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
