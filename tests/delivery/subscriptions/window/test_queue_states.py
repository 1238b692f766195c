"""The states of a key's queue: what its table says, and that a window goes all of its ways."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.key_shared import KeySharedWindow
from delivery.subscriptions.window.look_ahead import LookAhead
from delivery.subscriptions.window.messages import STATES, KeyQueue, QueueEvent, QueueState

S = 1_000_000_000


@pytest.mark.parametrize(("state", "event"), [*product(QueueState, QueueEvent)])
def test_a_queue_changes_as_its_table_says_and_in_no_other_way(
    state: QueueState, event: QueueEvent
) -> None:
    queue = KeyQueue("x", LookAhead(0, 0), 1)
    queue.state = state
    if (state, event) in STATES:
        queue.change(event)
        assert queue.state is STATES[state, event]
    else:
        with pytest.raises(KeyError):
            queue.change(event)
        assert queue.state is state


def test_each_state_is_reached_and_left_again() -> None:
    into = {after for (before, _), after in STATES.items() if before is not after}
    out_of = {before for (before, _), after in STATES.items() if before is not after}
    assert into == out_of == set(QueueState)


def test_a_window_takes_a_queue_through_the_whole_table() -> None:
    window = KeySharedWindow(WindowPolicy(redeliveries_max=1))
    window.open(0, 0)
    window.admit(0, ["x", "x"])
    queue, seen = window.keys["x"], []

    def then(state: QueueState) -> None:
        window.check_invariants()
        assert queue.state is state
        seen.append(state)

    def take(name: str) -> int:
        batch = window.take(name, 9, 0)
        assert batch is not None
        window.sent(batch.epoch, 0)
        then(QueueState.SENT)
        return batch.epoch

    then(QueueState.UNMATCHED)
    window.join("a")
    window.settle()
    then(QueueState.READY)
    window.join("b")
    window.settle()
    then(QueueState.READY)
    owner, other = ("a", "b") if window.members.owner_of("x") == "a" else ("b", "a")
    window.leave(other)
    window.settle()
    window.give_back(take(owner))
    then(QueueState.READY)
    window.nack(owner, take(owner), 0)
    then(QueueState.RESTING)
    window.tick(100 * S)
    then(QueueState.READY)
    window.nack(owner, take(owner), 0)
    then(QueueState.STUCK)
    assert window.retry(0, 1)
    then(QueueState.READY)
    window.ack(owner, take(owner), 0)
    then(QueueState.READY)
    window.leave(owner)
    window.settle()
    then(QueueState.UNMATCHED)
    changes = {(before, after) for (before, _), after in STATES.items()}
    assert set(pairwise(seen)) == changes
