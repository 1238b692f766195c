"""Edges, weights and credit of the bands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.scheduler.bands import (
    BANDS,
    EDGES,
    QUANTUM_BYTES,
    TOP,
    TURN_COST_MIN_BYTES,
    WEIGHTS,
    Credit,
    band_of,
)

ALL = [1] * BANDS
NONE = [0] * BANDS


@pytest.mark.parametrize(
    ("priority", "band"),
    [
        (2000, 4), (1000, 4), (750, 4), (749, 3), (500, 3), (499, 2), (250, 2), (249, 1), (1, 1),
        (0, 1), (-1, 0), (-1000, 0),
    ],
)  # fmt: skip
def test_each_priority_is_in_the_band_of_the_table(priority: int, band: int) -> None:
    assert band_of(priority) == band


def test_the_tables_have_a_value_for_each_band() -> None:
    assert (len(WEIGHTS), len(EDGES)) == (BANDS, BANDS - 1)
    assert WEIGHTS == (1, 1, 2, 4, 8)
    assert all(WEIGHTS[TOP] % weight == 0 for weight in WEIGHTS), "shares are integers"


def test_every_busy_band_is_served_in_every_round() -> None:
    credit = Credit()
    by_round: dict[int, set[int]] = {}
    for _ in range(400):
        band = credit.choose(ALL, NONE)
        by_round.setdefault(credit.rounds, set()).add(band)
        credit.charge(band, 50_000)
    served = [by_round[each] for each in sorted(by_round)][:-1]
    assert len(served) > 5
    assert all(bands == set(range(BANDS)) for bands in served)


def test_credit_that_a_band_does_not_use_is_not_kept() -> None:
    credit = Credit()
    alone = [1 if band == TOP else 0 for band in range(BANDS)]
    for _ in range(100):
        assert credit.choose(alone, NONE) == TOP, "a band that is alone is always served"
        credit.charge(TOP, QUANTUM_BYTES)
    served = dict.fromkeys(range(BANDS), 0)
    for _ in range(16 * 10):
        band = credit.choose(ALL, NONE)
        served[band] += QUANTUM_BYTES
        credit.charge(band, QUANTUM_BYTES)
    for band, weight in enumerate(WEIGHTS):
        assert abs(served[band] - 10 * weight * QUANTUM_BYTES) <= weight * QUANTUM_BYTES


def test_a_turn_that_wrote_nothing_costs_something() -> None:
    credit = Credit()
    credit.charge(0, 0)
    assert credit.left_bytes[0] == QUANTUM_BYTES - TURN_COST_MIN_BYTES


def test_no_band_is_served_when_none_is_busy() -> None:
    assert Credit().choose(NONE, NONE) == -1


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=BANDS, max_size=BANDS), st.integers(0, 50 << 20)
        ),
        max_size=60,
    )
)
def test_a_busy_band_is_chosen_and_none_has_more_than_a_rounds_credit(
    steps: list[tuple[list[int], int]],
) -> None:
    credit = Credit()
    for busy, cost in steps:
        band = credit.choose(busy, NONE)
        credit.check_invariants()
        if not any(busy):
            assert band == -1
            continue
        assert busy[band] and credit.left_bytes[band] > 0
        credit.charge(band, cost)
