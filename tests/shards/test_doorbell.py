"""Doorbells: they wake, they coalesce, they never block."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from shards.doorbell import Doorbells
from tests.shards.peer import started


@pytest.fixture
def bells() -> Iterator[Doorbells]:
    made = Doorbells.create(3)
    yield made
    made.close()


def rung(bells: Doorbells) -> list[int]:
    ready, _, _ = select.select(bells.fds, [], [], 0)
    return [bells.fds.index(fd) for fd in ready]


def test_rings_coalesce_until_the_bell_is_cleared(bells: Doorbells) -> None:
    for _ in range(5):
        bells.ring(1)
    assert rung(bells) == [1]
    bells.clear(1)
    assert rung(bells) == []
    bells.ring(1)
    assert rung(bells) == [1]


def test_each_shard_has_its_own_bell(bells: Doorbells) -> None:
    bells.ring_all([0, 2])
    assert rung(bells) == [0, 2]


def test_clearing_a_silent_bell_does_not_wait(bells: Doorbells) -> None:
    bells.clear(0)
    assert rung(bells) == []


def test_a_full_bell_is_still_rung_and_does_not_block(
    bells: Doorbells,
) -> None:
    os.eventfd_write(bells.fds[0], 2**64 - 2)
    bells.ring(0)
    assert rung(bells) == [0]


def test_a_bell_wakes_a_selector_in_another_process(bells: Doorbells) -> None:
    with started("wait_for_bell", bells.fds[2], fds=[bells.fds[2]]) as peer:
        assert peer.line() == "waits"
        bells.ring(2)
        assert peer.line() == "woken"
