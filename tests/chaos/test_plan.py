"""The plan of a chaos run follows from its seed and contains every kind of act."""

from __future__ import annotations

from itertools import islice

from tests.chaos.plan import PAUSE_MS, STOP_MS, WEIGHTS, steps


def test_one_seed_gives_one_plan() -> None:
    first, second = (list(islice(steps(5, 3), 100)) for _ in range(2))
    assert first == second
    assert first != list(islice(steps(6, 3), 100))


def test_a_plan_holds_every_act_within_its_limits() -> None:
    plan = list(islice(steps(1, 3), 500))
    assert {step.act for step in plan} == set(WEIGHTS)
    assert {step.shard for step in plan} == {0, 1, 2}
    for step in plan:
        assert PAUSE_MS[0] <= step.pause_ms <= PAUSE_MS[1]
        assert STOP_MS[0] <= step.stop_ms <= STOP_MS[1]
