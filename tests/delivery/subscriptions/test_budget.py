"""What subscriptions of a shard take together is limited, and none stops another."""

from __future__ import annotations

from delivery.subscriptions.budget import (
    LITTLE_QUEUED_BYTES,
    LookAheadBudget,
    MembersBudget,
    QueuedBudget,
)


def test_above_the_limit_nobody_queues_but_a_little() -> None:
    budget = QueuedBudget(1 << 20)
    budget.note(1, 1 << 19)
    assert budget.allows(1) and budget.allows(2)
    budget.note(1, 1 << 20)
    assert not budget.allows(1)
    assert budget.allows(2), "it has nothing yet"
    budget.note(2, LITTLE_QUEUED_BYTES)
    assert not budget.allows(2)
    budget.note(1, 1 << 19)
    assert budget.allows(1) and budget.allows(2)
    assert budget.taken == (1 << 19) + LITTLE_QUEUED_BYTES


def test_consumers_have_room_up_to_the_limit() -> None:
    budget = MembersBudget(100)
    budget.note(1, 60)
    assert budget.allows(40) and not budget.allows(41)


def test_a_subscription_that_ends_gives_back_what_it_took() -> None:
    budget = LookAheadBudget(100)
    budget.note(1, 100)
    assert budget.is_full
    budget.forget(1)
    budget.forget(2)
    assert budget.taken == 0 and not budget.is_full
