"""What subscriptions of a shard read ahead is limited, and none stops another."""

from __future__ import annotations

from delivery.subscriptions.budget import LITTLE_BYTES, LookAheadBudget


def test_above_the_limit_nobody_reads_ahead_but_a_little() -> None:
    budget = LookAheadBudget(1 << 20)
    budget.note(1, 1 << 19)
    assert budget.allows(1) and budget.allows(2)
    budget.note(1, 1 << 20)
    assert not budget.allows(1)
    assert budget.allows(2), "it has nothing yet"
    budget.note(2, LITTLE_BYTES)
    assert not budget.allows(2)
    budget.note(1, 1 << 19)
    assert budget.allows(1) and budget.allows(2)
    assert budget.taken == (1 << 19) + LITTLE_BYTES


def test_a_subscription_that_ends_gives_back_what_it_took() -> None:
    budget = LookAheadBudget(100)
    budget.note(1, 100)
    budget.forget(1)
    budget.forget(2)
    assert budget.taken == 0
