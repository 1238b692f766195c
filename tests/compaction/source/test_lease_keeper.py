"""Leases are renewed while their process lives, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from compaction.source.errors import PlannerUnreachable
from compaction.source.lease_keeper import LeaseKeeper
from compaction.source.planner import TopicPartitions
from compaction.source.schemas import Plan, PlanRequest
from tests.e2e.daemon import wait_until


class Leases:
    """A planner that knows leases only; ``live`` are those that can be renewed."""

    def __init__(self, *live: str) -> None:
        self.live = set(live)
        self.renewed: list[str] = []
        self.failing = threading.Event()

    def renew(self, lease: str) -> bool:
        self.renewed.append(lease)
        if self.failing.is_set():
            raise PlannerUnreachable("no answer")
        return lease in self.live

    def end(self, lease: str) -> None:
        self.live.discard(lease)

    def state(self, topic: str) -> TopicPartitions:
        raise NotImplementedError

    def page(self, request: PlanRequest) -> Plan:
        raise NotImplementedError

    def extent_at(self, topic: TopicPartitions, partition: int, timestamp_ms: int) -> int:
        raise NotImplementedError


@pytest.fixture
def leases() -> Leases:
    return Leases("a", "b")


@pytest.fixture
def keeper(leases: Leases) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(leases, renew_s=0.005)
    yield keeper
    keeper.close()


def test_what_is_held_is_renewed_until_it_is_dropped(leases: Leases, keeper: LeaseKeeper) -> None:
    keeper.hold("a")
    keeper.hold("b")
    wait_until(lambda: {"a", "b"} <= set(leases.renewed), "both to be renewed")
    keeper.drop("a")
    assert leases.live == {"b"}
    leases.renewed.clear()
    wait_until(lambda: leases.renewed.count("b") > 3, "the other to be renewed on")
    assert leases.renewed.count("a") <= 1, "one renewal may have been under way"


def test_a_planner_that_does_not_answer_is_asked_again(leases: Leases, keeper: LeaseKeeper) -> None:
    leases.failing.set()
    keeper.hold("a")
    wait_until(lambda: len(leases.renewed) > 2, "several tries")
    leases.failing.clear()
    leases.renewed.clear()
    wait_until(lambda: leases.renewed, "the next try")


def test_a_lease_that_has_expired_and_one_whose_time_is_over_are_let_go(
    leases: Leases, keeper: LeaseKeeper
) -> None:
    keeper.hold("expired")
    keeper.hold("a", for_s=0.0)
    wait_until(lambda: "expired" in leases.renewed, "the lease to be found expired")
    wait_until(lambda: not is_renewing(keeper), "the thread to end, for it holds nothing")
    assert leases.renewed.count("expired") == 1
    assert "a" not in leases.renewed
    keeper.hold("b")
    wait_until(lambda: "b" in leases.renewed, "a new one to be kept by a new thread")


def test_closing_ends_everything(leases: Leases) -> None:
    keeper = LeaseKeeper(leases, renew_s=0.005)
    keeper.hold("a")
    keeper.hold("b")
    keeper.close()
    assert leases.live == set()
    assert not is_renewing(keeper)


def is_renewing(keeper: LeaseKeeper) -> bool:
    """Whether the thread of this keeper runs: that of a reader by Spark, whose leases are to
    expire, may outlive the test that read."""
    thread = keeper._thread
    return thread is not None and thread.is_alive()
