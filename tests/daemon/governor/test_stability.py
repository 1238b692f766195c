"""The window settles under clients that wait: it neither swings nor stays up without a cause."""

from __future__ import annotations

import statistics

import pytest

from tests.daemon.governor.closed_loop import ClosedLoop

S3 = {"cost_ms": 0.1, "put_ms": 40.0, "window_min_ms": 200.0, "window_max_ms": 1000.0}
WIDE = S3 | {"window_min_ms": 50.0}
DISK = {"cost_ms": 0.1, "put_ms": 1.0, "window_min_ms": 0.5, "window_max_ms": 10.0}
SLOW_STORE = S3 | {"put_ms": 1500.0, "cost_ms": 0.01}


@pytest.mark.parametrize(
    ("clients", "machine", "swing"),
    [
        pytest.param(3000, S3, 0.15, marks=pytest.mark.slow), (6000, S3, 0.15),
        (2000, WIDE, 0.15), (45, DISK, 0.15),
        # Four slots are a coarse measure: one more or less is a quarter.
        (500, SLOW_STORE, 0.3),
    ],
)  # fmt: skip
def test_the_window_settles_between_its_limits_and_does_not_swing(
    clients: int, machine: dict[str, float], swing: float
) -> None:
    loop = ClosedLoop(clients, **machine)
    loop.run(40)
    settled = loop.windows[len(loop.windows) // 2 :]
    mean = statistics.mean(settled)
    assert 1.05 * machine["window_min_ms"] < mean < 0.95 * machine["window_max_ms"]
    assert max(settled) - min(settled) <= swing * mean


def test_a_load_that_fits_leaves_the_window_alone() -> None:
    loop = ClosedLoop(500, **S3)
    loop.run(20)
    assert set(loop.windows) == {200.0}


def test_the_window_goes_back_to_its_minimum_when_the_load_is_gone() -> None:
    loop = ClosedLoop(5000, **S3)
    loop.run(30)
    assert loop.window_ms > 400
    loop._to_serve = loop._pending = 0
    loop._puts.clear()
    loop.run(10)
    assert loop.window_ms == 200
