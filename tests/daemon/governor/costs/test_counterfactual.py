"""Uploaders that share with nobody: their PUTs are those of groups of one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.governor.costs.counterfactual import LoneUploader
from tests.daemon.governor.plant import Plant, S, at_random, evenly

TICK_NS = 100_000_000
MIB = 1 << 20


def stepped(
    gap_ns: Callable[[], int], seconds: int, size: int, window_ms: float, target: int
) -> int:
    """The PUTs of a lone uploader for requests of ``size`` bytes."""
    uploader, next_ns = LoneUploader(), gap_ns()
    for to_ns in range(TICK_NS, seconds * S + 1, TICK_NS):
        requests = 0
        while next_ns < to_ns:
            requests += 1
            next_ns += gap_ns()
        uploader.step(
            to_ns - TICK_NS, to_ns, requests, requests * size, int(window_ms * 1e6), target
        )
    return uploader.puts


@pytest.mark.parametrize(
    ("per_s", "size", "window_ms", "target"),
    [
        (1, 1_000, 200, 4 * MIB),  # each alone
        (5, 1_000, 200, 4 * MIB),
        (50, 1_000, 200, 4 * MIB),  # a window each
        (3, 1_000, 1_000, 4 * MIB),
        (400, 100_000, 200, 4 * MIB),  # an object each
        (400, 1_000, 0.5, 4 * MIB),  # windows of a hundredth of a tick
        (4_000, 1_000, 0.5, 4 * MIB),
        (100, 9_000_000, 200, 4 * MIB),  # each larger than an object
        (500, 9_000, 10, 65_536),
    ],
)
def test_the_puts_are_those_of_the_shipped_rule(
    per_s: float, size: int, window_ms: float, target: int
) -> None:
    plant = Plant(1, size, at_random(per_s, random.Random(3)))
    plant.window_ms, plant.target_bytes = window_ms, target
    plant.run_until(10 * S)
    found = stepped(at_random(per_s, random.Random(3)), 10, size, window_ms, target)
    assert found == pytest.approx(plant.puts, rel=0.1, abs=2)


def test_a_lone_request_is_uploaded_immediately_and_once() -> None:
    uploader = LoneUploader()
    uploader.step(0, TICK_NS, 1, 1_000, 200_000_000, MIB)
    assert uploader.puts == 1
    for number in range(1, 50):
        uploader.step(number * TICK_NS, (number + 1) * TICK_NS, 0, 0, 200_000_000, MIB)
    assert uploader.puts == 1


def test_what_waits_for_its_window_is_uploaded_in_a_later_tick() -> None:
    uploader = LoneUploader()
    uploader.step(0, TICK_NS, 2, 2_000, 200_000_000, MIB)
    assert uploader.puts == 1  # the first one; the second waits
    uploader.step(TICK_NS, 2 * TICK_NS, 0, 0, 200_000_000, MIB)
    assert uploader.puts == 1
    uploader.step(2 * TICK_NS, 3 * TICK_NS, 0, 0, 200_000_000, MIB)
    assert uploader.puts == 2


def test_shards_for_themselves_need_as_many_times_more_as_there_are_shards() -> None:
    alone = sum(stepped(evenly(50), 10, 1_000, 200, 4 * MIB) for _ in range(8))
    together = stepped(evenly(400), 10, 1_000, 200, 4 * MIB)
    assert alone == pytest.approx(8 * together, rel=0.1)


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 1 << 24)), max_size=30),
    st.integers(1, 2_000_000_000),
    st.integers(1, 1 << 24),
)
def test_no_request_and_no_object_has_two_puts_and_everything_is_uploaded(
    ticks: list[tuple[int, int]], window_ns: int, target: int
) -> None:
    uploader = LoneUploader()
    for number, (requests, size_bytes) in enumerate(ticks):
        before = uploader.puts
        uploader.step(
            number * TICK_NS, (number + 1) * TICK_NS, requests, size_bytes, window_ns, target
        )
        assert before <= uploader.puts <= before + requests + 1
    end_ns = len(ticks) * TICK_NS + window_ns
    uploader.step(len(ticks) * TICK_NS, end_ns, 0, 0, window_ns, target)
    after = uploader.puts
    assert bool(after) == any(requests for requests, _ in ticks)
    uploader.step(end_ns, end_ns + 10 * window_ns, 0, 0, window_ns, target)
    assert uploader.puts == after
