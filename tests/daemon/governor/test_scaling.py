"""The scaling signal: only what more CPU would drain, over the last seconds."""

from __future__ import annotations

import pytest

from daemon.config.sensors import BY_NAME, SENSORS, Reading
from daemon.governor.governor import Governed, Governor, wanted

MS = 1_000_000


def pressed(seconds: int, *names: str, weights: dict[str, float] | None = None) -> Governed:
    """What a governor says after these sensors were full for a time."""
    governor = Governor(weights or {})
    readings = [Reading(each.full if each.name in names else 0.0) for each in SENSORS]
    governor.sample([Reading(0.0)] * len(SENSORS), 0.5, 10, 0)
    for tick in range(1, seconds * 10 + 1):
        governed = governor.sample(readings, 0.5, 10, tick * 100 * MS)
    return governed


@pytest.mark.parametrize("name", [sensor.name for sensor in SENSORS])
def test_it_counts_exactly_what_more_cpu_would_drain(name: str) -> None:
    counts = float(name in {"ready", "scheduling", "busy"})
    pressures = [float(sensor.name == name) for sensor in SENSORS]
    assert wanted(pressures) == counts
    assert pressed(120, name).scaling == pytest.approx(counts, abs=0.01)


def test_a_store_that_is_down_with_full_rings_does_not_ask_for_machines() -> None:
    governed = pressed(60, "store", "ring", "uploads", "ledger", "memory", "disk")
    assert governed.level == pytest.approx(1) and governed.scaling == 0


def test_it_follows_the_last_15_seconds_and_not_a_moment() -> None:
    assert pressed(1, "ready").scaling < 0.1
    assert pressed(15, "ready").scaling == pytest.approx(0.63, abs=0.02)


def test_weights_say_how_the_daemon_reacts_and_do_not_change_it() -> None:
    assert BY_NAME["busy"].by_cpu
    governed = pressed(120, "busy", weights={"busy": 0.0})
    assert governed.level == 0 and governed.scaling > 0.99
