"""Urgent requests: their group is due in time for them, by two words of their shard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import layout as at
from tests.uploader.crew import MS, WINDOW, Crew, crew
from uploader.groups.urgent import TIMEOUT_SHARE, WINDOW_MAY_GROW, UrgentRequests

NOW = 1_000_000 * MS
SHORT = TIMEOUT_SHARE * 50 * MS  # due 50 ms after its arrival


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Crew]:
    with crew(2, tmp_path) as made:
        made.groups.store(0, at.P_LAST_PULL_NS, NOW)
        yield made


def publish(made: Crew, shard: int, now_ns: int, timeout_ns: int) -> bool:
    made.publish(shard, now_ns)
    urgent = UrgentRequests(made.segment, shard)
    return urgent.published(now_ns, timeout_ns, made.writers[shard].head)


def test_a_request_with_time_for_a_window_is_not_urgent(two: Crew) -> None:
    enough = TIMEOUT_SHARE * WINDOW_MAY_GROW * WINDOW
    assert not publish(two, 0, NOW + MS, enough)
    assert two.puller(0).look(NOW + MS).again_at_ns == NOW + MS + WINDOW
    assert publish(two, 0, NOW + MS, enough - 1)


def test_an_urgent_request_takes_its_group_along_whoever_has_the_turn(two: Crew) -> None:
    two.publish(0, NOW + MS)
    assert publish(two, 1, NOW + 2 * MS, SHORT)
    holder, other = two.puller(0), two.puller(1)
    due = NOW + 52 * MS
    assert holder.look(due - 1).pulled == [] and holder.look(due - 1).again_at_ns == due
    assert other.look(due - 1).again_at_ns == due
    (pulled,) = holder.look(due).pulled
    assert {shard for shard, _ in pulled.requests} == {0, 1}


def test_what_was_pulled_is_not_urgent_any_more(two: Crew) -> None:
    publish(two, 0, NOW + MS, SHORT)
    assert two.puller(0).look(NOW + 51 * MS).pulled
    two.publish(0, NOW + 60 * MS)
    assert two.puller(0).look(NOW + 60 * MS).again_at_ns == NOW + 60 * MS + WINDOW


def test_the_first_of_several_urgent_requests_counts(two: Crew) -> None:
    publish(two, 0, NOW + MS, SHORT)
    publish(two, 0, NOW + 2 * MS, 3 * SHORT)
    assert two.puller(0).look(NOW + 2 * MS).again_at_ns == NOW + 51 * MS
    publish(two, 0, NOW + 3 * MS, SHORT // 10)
    assert two.puller(0).look(NOW + 3 * MS).again_at_ns == NOW + 8 * MS


def test_a_new_urgent_request_is_not_due_when_a_pulled_one_was(two: Crew) -> None:
    publish(two, 0, NOW + MS, SHORT)
    assert two.puller(0).look(NOW + 51 * MS).pulled
    publish(two, 0, NOW + 100 * MS, SHORT)
    # It is the turn of shard 1 now, which needs no bell for that.
    assert two.puller(1).look(NOW + 100 * MS).again_at_ns == NOW + 150 * MS
