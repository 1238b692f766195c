"""Lags of Kafka's groups in shared memory: told, kept in their slots, and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from daemon.upkeep import group_lags as module
from daemon.upkeep.group_lags import GroupLags
from ledger import topics
from ledger.delivery import group_commits
from ledger.delivery.group_commits import GroupCommit
from ledger.ledger import Ledger
from ledger.types import Topic, TopicConfig
from shards import layout as at
from shards.boards.rowboard import KafkaGroupRow, kafka_group_board
from shards.layout import Layout
from shards.segment import Segment
from tests.ledger.lakes import commit
from tests.ledger.requests import Request


class Lags:
    """A ledger with a topic of ten records in each of three partitions, and the writer."""

    def __init__(self, directory: Path, slots: int) -> None:
        self.ledger = Ledger(directory / "ledger.db", nullcontext())
        self.topic = self.ledger.write(topics.create, "t", TopicConfig(partitions=3), 1)[0]
        commit(self.ledger, 1, Request(self.topic.topic_id, ((0, 10), (1, 10), (2, 10))))
        self.segment = Segment.create(Layout(1, 4096))
        self.lags = GroupLags(self.segment, self.ledger, slots)

    def put(self, group: str, offset: int, topic: Topic | None = None) -> None:
        topic_id = (topic or self.topic).topic_id
        commits = [GroupCommit(group, topic_id, partition, offset, "") for partition in range(3)]
        self.ledger.write(group_commits.put, commits, 5, 5)

    def rows(self) -> dict[str, tuple[int, KafkaGroupRow]]:
        """Slots and rows by group, after a round."""
        assert any(self.lags.look() for _ in range(50)), "a round ends"
        found = kafka_group_board(self.segment).rows()
        return {each.row.group: (each.slot, each.row) for each in found}

    @property
    def unplaced(self) -> tuple[int, int]:
        words = self.segment.words
        return words[at.G_GROUPS_UNPLACED], words[at.G_GROUPS_UNPLACED_LAG]


@pytest.fixture
def lags(tmp_path: Path) -> Iterator[Lags]:
    made = Lags(tmp_path, 3)
    with closing(made.ledger):
        yield made
    made.segment.close()


@pytest.mark.parametrize("page", [1, 2, 3, 4, 100])
def test_lags_are_told_and_free_slots_are_given_again(
    lags: Lags, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", page)
    monkeypatch.setattr(module, "OFFSETS_A_LOOK", 2 * page)
    for number in range(5):
        lags.put(f"g{number}", number)
    rows = lags.rows()
    assert {group: row for group, (_, row) in rows.items()} == {
        f"g{number}": KafkaGroupRow(
            topic="t", group=f"g{number}", partitions=3, lag=30 - 3 * number
        )
        for number in range(3)
    }
    assert lags.unplaced == (2, 2 * 30 - 3 * 3 - 3 * 4)
    lags.ledger.write(group_commits.delete, "g1", 9)
    lags.put("g0", 10)
    lags.rows()
    after = lags.rows()
    assert after["g0"] == (rows["g0"][0], KafkaGroupRow(topic="t", group="g0", partitions=3, lag=0))
    assert after["g2"] == rows["g2"] and after["g3"][0] == rows["g1"][0]
    assert lags.unplaced == (1, 18) and set(after) == {"g0", "g2", "g3"}
    lags.ledger.write(topics.delete, "t", 9)
    assert not lags.rows() and lags.unplaced == (0, 0)


def test_nothing_is_read_while_nothing_changes(lags: Lags, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lags.lags.look(), "there are no groups"
    lags.put("g", 1)
    assert lags.rows()
    reads: list[object] = []
    read = lags.ledger.read

    def counted(question: Any, *args: Any) -> Any:
        reads.append(question)
        return read(question, *args)

    monkeypatch.setattr(lags.ledger, "read", counted)
    assert not lags.lags.look() and len(reads) == 1
    commit(lags.ledger, 2, Request(lags.topic.topic_id, ((0, 1),)))
    assert lags.lags.look() and len(reads) > 1


def test_a_look_reads_a_bounded_number_of_offsets(
    lags: Lags, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    monkeypatch.setattr(module, "OFFSETS_A_LOOK", 6)
    for number in range(7):
        lags.put(f"g{number}", number)
    assert [lags.lags.look() for _ in range(4)] == [False, False, False, True]
