"""An owner and two standbys under stops, cuts, clocks, kills and handovers; rules that are broken
on purpose are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from unittest.mock import patch

import pytest

from tests.sim.schedule import Violation
from tests.sim.standbys import simulate_standbys
from uploader.ownership import ownerlog, standby
from uploader.ownership.ownership import SECOND_NS
from uploader.ownership.standby import LogEnd, Standby


def test_of_an_owner_and_its_standbys_never_two_acknowledge() -> None:
    outcome = simulate_standbys(1, 12_000)
    assert outcome.owners >= 4 and outcome.kills and outcome.cuts and outcome.commits > 50


def test_an_owner_that_lives_keeps_its_prefix() -> None:
    outcome = simulate_standbys(1, 12_000, calm=True)
    assert outcome.owners == 3 and outcome.cuts and outcome.commits > 15


@pytest.mark.slow
def test_a_long_run_of_standbys_finds_nothing() -> None:
    """A million steps are ``make sim SIM=--standbys STEPS=1000000``."""
    outcome = simulate_standbys(1, 200_000)
    assert outcome.owners > 100 and outcome.released > 4 and outcome.kills > 60


@pytest.mark.slow
def test_a_long_run_of_an_owner_that_lives_finds_nothing() -> None:
    assert simulate_standbys(1, 60_000, calm=True).commits > 60


def found(run: Callable[[int], object], said: str, from_seed: int = 1) -> None:
    """The broken rule, by one of a few seeds."""
    for seed in range(from_seed, from_seed + 20):
        try:
            run(seed)
        except Violation as violation:
            if not re.search(said, str(violation)):
                raise
            return
    raise AssertionError(f"nobody noticed: {said}")


def test_a_standby_that_waits_less_than_an_ownership_lasts_is_found() -> None:
    with (
        patch.object(standby, "TAKE_OVER_NS", 6 * SECOND_NS),
        patch.object(standby, "KNOWN_ANSWER_NS", SECOND_NS),
        patch.object(standby, "ANSWER_NS", SECOND_NS),
    ):
        found(lambda seed: simulate_standbys(seed, 60_000), "next owner", from_seed=2)


def test_a_take_over_without_a_seal_is_found() -> None:
    with patch.object(ownerlog.OwnerLog, "_seal", lambda *_: True):
        found(lambda seed: simulate_standbys(seed, 60_000), "next owner|is whole", from_seed=5)


@pytest.mark.slow
def test_a_standby_that_counts_time_in_which_it_saw_nothing_is_found() -> None:
    with patch.object(standby, "LOOK_GAP_NS", 10**15):
        found(lambda seed: simulate_standbys(seed, 100_000, calm=True), "keeps its prefix")


@pytest.mark.slow
def test_a_standby_that_does_not_ask_an_idle_owner_is_found() -> None:
    real = Standby._may_take

    def unasked(self: Standby) -> bool:
        return real(self) or (self.end is LogEnd.OWNED and self.silent_ns >= 20 * SECOND_NS)

    with patch.object(Standby, "_may_take", unasked):
        found(lambda seed: simulate_standbys(seed, 60_000, calm=True), "keeps its prefix")
