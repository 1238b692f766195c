"""Requests that wait for a commit window, such as routers' copies: how many pulls they cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import layout as at
from shards.frame import FLAG_WAITS
from tests.uploader.crew import MS, WINDOW, Crew, crew
from tests.uploader.groups.test_puller import NOW, positions
from uploader.groups.puller import Look


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Crew]:
    with crew(2, tmp_path) as made:
        yield made


def test_a_waiting_request_in_an_idle_group_is_pulled_after_its_window_in_one_pull_with_the_rest(
    two: Crew,
) -> None:
    puller = two.puller(0)
    wanted = [(0, two.publish(0, NOW + n * MS, flags=FLAG_WAITS)) for n in range(3)]
    assert puller.look(NOW + 3 * MS) == Look([], NOW + WINDOW)
    wanted.append((0, two.publish(0, NOW + 4 * MS, flags=FLAG_WAITS)))
    assert puller.look(NOW + WINDOW - 1).pulled == []
    assert positions(puller.look(NOW + WINDOW).pulled) == wanted
    two.check()


def test_a_request_that_does_not_wait_is_pulled_immediately_and_takes_waiting_ones_along(
    two: Crew,
) -> None:
    # The copies of a producer's request come before its next request, which is answered as soon
    # as without them, and there is one pull for both.
    puller = two.puller(0)
    wanted = [(0, two.publish(0, NOW + n * MS, flags=FLAG_WAITS)) for n in range(3)]
    assert puller.look(NOW + 3 * MS).quiet_bytes == 0
    wanted.append((0, two.publish(0, NOW + 4 * MS)))
    wanted.append((0, two.publish(0, NOW + 4 * MS, flags=FLAG_WAITS)))
    assert positions(puller.look(NOW + 4 * MS).pulled) == wanted


def test_copies_of_a_steady_producer_cost_no_pulls_of_their_own(two: Crew) -> None:
    """A producer sends the next request when it has the answer; each commit is copied."""
    puller = two.puller(0)
    pulls = 0
    now = NOW
    for _ in range(20):
        two.publish(0, now)
        look = puller.look(now)
        while not look.pulled:
            now = look.again_at_ns
            two.groups.store(0, at.P_UPLOAD_TURN, 0)
            look = puller.look(now)
        pulls += 1
        now += WINDOW // 4  # the PUT and the commit
        two.commit_all()
        two.groups.store(0, at.P_UPLOAD_TURN, 0)
        two.publish(0, now, flags=FLAG_WAITS)
        assert puller.look(now).pulled == []
    assert pulls == 20
