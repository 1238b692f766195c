"""The lags of groups of Kafka's consumers, by pages of any size."""

from __future__ import annotations

import pytest

from ledger import cursors, topics
from ledger.delivery import group_commits, group_lags
from ledger.delivery.group_commits import GroupCommit
from ledger.delivery.group_lags import BEGINNING, LagPart
from ledger.ledger import Ledger
from ledger.space import retention
from ledger.types import Topic, TopicConfig
from tests.ledger.lakes import commit
from tests.ledger.requests import Request


def lags(ledger: Ledger, limit: int) -> dict[tuple[int, str], tuple[int, int]]:
    """Partitions and lag, by topic and group."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    after: group_lags.Place | None = BEGINNING
    while after is not None:
        parts: list[LagPart]
        parts, after = ledger.read(group_lags.page, after, limit)
        assert sum(each.partitions for each in parts) <= limit
        for each in parts:
            key = (each.topic_id, each.group)
            partitions, lag = found.get(key, (0, 0))
            found[key] = (partitions + each.partitions, lag + each.lag)
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_a_lag_is_what_is_there_and_follows_a_commit(
    ledger: Ledger, topic: Topic, limit: int
) -> None:
    other, _ = ledger.write(topics.create, "other", TopicConfig(), 1)
    commit(
        ledger, 1, Request(topic.topic_id, ((0, 10), (1, 5))), Request(other.topic_id, ((0, 7),))
    )
    ledger.write(cursors.create, "imported", "client", 5)
    ledger.write(cursors.set_positions, "imported", "client", [cursors.Setting(0, 3)])
    ledger.write(
        group_commits.put,
        [
            GroupCommit("g", topic.topic_id, 0, 4, ""), GroupCommit("g", topic.topic_id, 1, 5, ""),
            GroupCommit("g/h", topic.topic_id, 1, 0, ""),
            GroupCommit("h", topic.topic_id, 0, 1, ""),
            GroupCommit("g", other.topic_id, 0, 9, ""),
        ], 5, 5,
    )  # fmt: skip
    expected = {
        (topic.topic_id, "g"): (2, 6), (topic.topic_id, "g/h"): (1, 5),
        (topic.topic_id, "h"): (1, 9), (other.topic_id, "g"): (1, 0),
    }  # fmt: skip
    assert lags(ledger, limit) == expected
    state = ledger.read(group_lags.state)
    assert retention.trim(ledger, topic.name, 0, 9).earliest_seq == 9
    assert ledger.read(group_lags.state) != state
    expected |= {(topic.topic_id, "g"): (2, 2), (topic.topic_id, "h"): (1, 2)}
    assert lags(ledger, limit) == expected
    state = ledger.read(group_lags.state)
    commit(ledger, 2, Request(topic.topic_id, ((1, 1),)))
    assert ledger.read(group_lags.state) != state
    ledger.write(topics.delete, other.name, 5)
    expected |= {(topic.topic_id, "g"): (2, 3), (topic.topic_id, "g/h"): (1, 6)}
    del expected[other.topic_id, "g"]
    assert lags(ledger, limit) == expected
