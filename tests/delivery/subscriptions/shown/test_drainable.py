"""Drainable lag: only what more consumers would help with."""

from __future__ import annotations

import pytest

from delivery.subscriptions.shown.inspection import consumers_wanted, drainable_part


@pytest.mark.parametrize("found", [0, 1, 10_000])
def test_what_a_window_knows_completely_counts_as_it_says(found: int) -> None:
    assert drainable_part(found, 20_000, 0, held=False) == found


@pytest.mark.parametrize(
    ("drainable", "unfinished", "unseen", "counts"),
    [
        (0, 0, 1_000_000, 1),  # a consumer is needed to find out
        (0, 9, 1_000_000, 1),
        (1_000, 1_000, 1_000_000, 2_000),
        (1_000, 1_000, 30, 1_030),
        (500, 1_000, 30, 515),
        (1, 1_000, 30, 1),  # one hot key
    ],
)
def test_what_nobody_has_looked_at_counts_as_what_was_looked_at_and_at_most_as_much(
    drainable: int, unfinished: int, unseen: int, counts: int
) -> None:
    assert drainable_part(drainable, unfinished, unseen, held=False) == counts


def test_while_nothing_can_be_delivered_no_consumer_would_help() -> None:
    assert drainable_part(10_000, 20_000, 9, held=True) == 0


@pytest.mark.parametrize(
    ("drainable", "consumers", "consumer_max", "wanted"),
    [
        (0, 0, 1_000, 0),
        (0, 8, 1_000, 0),
        (1, 0, 1_000, 100),  # the first consumer
        (1, 1, 1_000, 0),
        (1_000, 1, 1_000, 0),
        (1_001, 1, 1_000, 1),  # rounded up
        (2_000, 1, 1_000, 50),
        (10_000, 1, 1_000, 90),
        (2_000_000, 1, 1_000, 100),
        (10_000, 10, 1_000, 0),
    ],
)
def test_more_consumers_are_wanted_for_what_those_present_cannot_hold(
    drainable: int, consumers: int, consumer_max: int, wanted: int
) -> None:
    assert consumers_wanted(drainable, consumers, consumer_max) == wanted
