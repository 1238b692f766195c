"""Windows of the modes shared and exclusive, and those that do not track."""

from __future__ import annotations

from typing import get_args

import pytest

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.windows import window_for
from ledger.delivery.subscription_rules import MODES, Mode

S = 1_000_000_000

IN_ALL_MODES = pytest.mark.parametrize("mode", get_args(Mode))


def opened(
    mode: Mode, policy: WindowPolicy | None = None, *, reliable: bool = True
) -> SubscriptionWindow:
    """A window with two partitions."""
    window = window_for(mode, policy or WindowPolicy(), reliable=reliable)
    window.open(0, 0)
    window.open(1, 0)
    return window


def take(
    window: SubscriptionWindow, name: str, count: int = 100, now_ns: int = 0
) -> list[tuple[int, int]]:
    """Places of a batch that is sent."""
    batch = window.take(name, count, now_ns)
    if batch is None:
        return []
    places = [message.place for message in batch.messages if message is not None]
    window.sent(batch.epoch, now_ns)
    window.check_invariants()
    return places


@IN_ALL_MODES
@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("is_pushed", [True, False])
def test_the_windows_of_a_mode_do_what_its_facts_say(
    mode: Mode, reliable: bool, is_pushed: bool
) -> None:
    facts = MODES[mode]
    window = window_for(mode, WindowPolicy(), reliable=reliable, is_pushed=is_pushed)
    window.open(0, 0)
    for name in "ab":
        window.join(name)
    assert window.is_active("a")
    assert window.is_active("b") is not facts.one_consumer
    keys = [f"k{number}" for number in range(50)]
    for _ in range(2):  # the second message of each key follows its first
        window.admit(0, keys)
    window.settle()
    taken = {name: take(window, name) for name in "ab"}
    assert bool(taken["a"]) and bool(taken["b"]) is not facts.one_consumer
    mine = {name: {keys[(offset - 1) % 50] for _, offset in taken[name]} for name in "ab"}
    assert bool(mine["a"] & mine["b"]) == (facts.order == "none")


def test_consumers_of_a_shared_subscription_get_equal_parts_as_far_as_they_have_room() -> None:
    window = opened("shared", WindowPolicy(member_max=7))
    for name in "abc":
        window.join(name)
    window.admit(0, ["same"] * 9 + [None] * 3)
    assert [len(take(window, name)) for name in "abc"] == [4, 4, 4], "not parts of what is left"
    window.admit(0, ["same"] * 30)
    for _ in range(10):
        for name in "abc":
            take(window, name)
    assert window.in_flight == 21


def test_a_backlog_of_one_partition_does_not_keep_the_others_waiting() -> None:
    window = opened("shared")
    window.join("a")
    window.admit_loose(0, 100)
    window.admit_loose(1, 100)
    assert {place[0] for _ in range(2) for place in take(window, "a", 10)} == {0, 1}


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
@pytest.mark.parametrize("reliable", [True, False])
def test_filters_of_a_former_mode_mean_nothing(mode: Mode, reliable: bool) -> None:
    window = opened(mode, reliable=reliable)
    window.join("a", ["k*"])
    window.admit(0, ["x"])
    assert take(window, "a") == [(0, 1)]


def test_an_exclusive_subscription_sends_everything_in_order_to_the_first_consumer() -> None:
    window = opened("exclusive")
    for name in "abc":
        window.join(name)
    window.admit(0, ["x", "y", "x", None])
    assert [window.is_active(name) for name in "abcd"] == [True, False, False, False]
    assert (window.room("a"), window.room("b")) == (1_000, 0)
    assert take(window, "b") == take(window, "c") == []
    assert take(window, "a", 3) == [(0, 1), (0, 2), (0, 3)]
    assert window.ack("a", 1, 0, [(0, 2)])[0] == 1
    window.leave("a")
    window.join("a")
    assert take(window, "a") == take(window, "c") == []
    assert take(window, "b") == [(0, 1), (0, 3), (0, 4)]


def test_after_a_failure_all_later_messages_of_the_partition_come_back_in_order() -> None:
    window = opened("exclusive")
    window.join("a")
    window.admit_loose(0, 6)
    window.admit_loose(1, 2)
    assert take(window, "a", 4) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert len(take(window, "a")) == 4
    assert window.nack("a", 1, 0, [(0, 4), (0, 2)])[0] == 2
    assert set(window.blocked.resting) == {(0, 2)}
    assert window.ack("a", 1, 0, [(0, 1), (0, 3)]).refusals == (((0, 3), "epoch"),)
    assert window.in_flight == 2, "the other partition goes on"
    assert take(window, "a") == []
    window.tick(S)
    batch = window.take("a", 100, S)
    assert batch is not None
    assert [(m.offset, m.attempts) for m in batch.messages if m] == [
        (2, 1), (3, 0), (4, 0), (5, 0), (6, 0)
    ]  # fmt: skip
    window.check_invariants()


@pytest.mark.parametrize(("poison", "goes_on"), [("block", False), ("drop", True)])
def test_a_poisoned_message_of_an_exclusive_subscription(poison: str, goes_on: bool) -> None:
    """K9, K11: whatever follows waits for the policy."""
    policy = WindowPolicy(redeliveries_max=0, poison=poison)  # type: ignore[arg-type]
    window = opened("exclusive", policy)
    window.join("a")
    window.admit_loose(0, 3)
    assert len(take(window, "a")) == 3
    window.nack("a", 1, 0, [(0, 1)])
    assert window.in_flight == 0, "what follows comes back, whatever becomes of the first"
    assert take(window, "a") == ([(0, 2), (0, 3)] if goes_on else [])
    assert window.moved(0, 1) is not goes_on
    assert window.is_finished(0, 1)
    assert take(window, "a") == ([] if goes_on else [(0, 2), (0, 3)])


@IN_ALL_MODES
def test_a_failure_of_the_receiver_counts_as_no_failed_delivery(mode: Mode) -> None:
    window = opened(mode, WindowPolicy(redeliveries_max=0, backoff_max_ns=1 * S))
    window.join("a")
    window.admit(0, ["x"])
    now_ns = 0
    for epoch in range(1, 100):
        assert take(window, "a", now_ns=now_ns) == [(0, 1)]
        window.nack("a", epoch, now_ns, is_counted=False)
        window.check_invariants()
        window.tick(now_ns + 1 * S - 1)
        assert set(window.blocked.resting) == {(0, 1)}
        now_ns += 1 * S
        window.tick(now_ns)
    batch = window.take("a", 1, now_ns)
    assert batch is not None and batch.messages[0] is not None
    assert batch.messages[0].attempts == 0


def test_what_rests_because_its_receiver_failed_counts_as_in_flight() -> None:
    window = opened("shared", WindowPolicy(in_flight_max=3))
    window.join("a")
    window.admit_loose(0, 9)
    assert len(take(window, "a")) == 3
    window.nack("a", 1, 0, [(0, 1), (0, 2)], (), 5 * S, "503", False)
    assert window.is_full and window.room("a") == 0
    window.ack("a", 1, 0)
    assert window.room("a") == 1
    window.evict(0, 2)
    assert window.room("a") == 2
    window.tick(5 * S)
    assert window.room("a") == 3
    window.check_invariants()


@IN_ALL_MODES
def test_rests_double_with_each_failure_whether_it_counts_or_not(mode: Mode) -> None:
    window = opened(mode, WindowPolicy(redeliveries_max=100))
    window.join("a")
    window.admit(0, ["k"])
    now_ns, rests = 0, []
    for is_counted in [False, False, True, False, True, False, True, False]:
        ((partition, offset),) = take(window, "a", now_ns=now_ns)
        window.nack("a", window.epoch, now_ns, [(partition, offset)], is_counted=is_counted)
        (rest,) = window.blocked.resting.values()
        assert rest.due_ns is not None
        rests.append((rest.due_ns - now_ns) // S)
        now_ns = rest.due_ns
        window.tick(now_ns)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]
    assert rest.attempts == 3, "of those that count"
    window.set_policy(WindowPolicy(redeliveries_max=100))  # perhaps there is another receiver
    take(window, "a", now_ns=now_ns)
    window.nack("a", window.epoch, now_ns, is_counted=False)
    (rest,) = window.blocked.resting.values()
    assert rest.due_ns == now_ns + 8 * S


def test_what_a_sender_cannot_deliver_of_an_unreliable_subscription_is_dropped_and_counted() -> (
    None
):
    window = opened("shared", reliable=False)
    window.join("a")
    window.admit_loose(0, 3)
    assert len(take(window, "a")) == 3
    outcome = window.nack("a", 1, 0, [(0, 1), (0, 3), (0, 9)], (), 0, "503", False)
    assert (outcome.accepted, outcome.refused) == (2, 1)
    assert window.counts.dropped == 2
    assert window.nack("a", 1, 0, [(0, 2)]).accepted == 0, "of other consumers nothing is expected"
    assert window.counts.dropped == 2


def test_who_stands_by_takes_over_from_one_that_answers_nothing() -> None:
    """K7."""
    window = opened("exclusive")
    window.join("a")
    window.join("b")
    window.admit_loose(0, 2)
    assert len(take(window, "a")) == 2
    assert window.tick(30 * S) == ["a"]
    assert take(window, "b") == [(0, 1), (0, 2)]
    assert not window.blocked.resting and not window.blocked.stuck


def test_an_unreliable_subscription_drops_what_a_full_consumer_cannot_take() -> None:
    window = opened("key_shared", WindowPolicy(member_max=3), reliable=False)
    window.join("all")
    window.admit(0, ["x", None, "x", "y", "z", None, None, None])
    assert window.look_aheads[0].floor == 8
    assert (window.counts.dropped, window.counts.delivered) == (2, 0)
    assert take(window, "all") == [(0, 1), (0, 3), (0, 4), (0, 2), (0, 6), (0, 7)]
    assert window.counts.delivered == 6
    window.admit(0, ["x"])
    assert take(window, "all") == [(0, 9)]
    assert window.ack("all", 2, 0, [(0, 9), (0, 10)]).refusals == (
        ((0, 9), "finished"), ((0, 10), "epoch"),
    )  # fmt: skip
    assert window.tick(1_000 * S) == [] and window.next_due_ns() is None


def test_an_unreliable_subscription_routes_by_key_and_counts_what_nobody_accepts() -> None:
    window = opened("key_shared", reliable=False)
    reliable = opened("key_shared")
    window.admit(0, ["early"])
    for name, patterns in (("a", []), ("b", []), ("picky", ["k1*"])):
        window.join(name, patterns)
        reliable.join(name, patterns)
    keys = [f"k{n}" for n in range(200)]
    window.admit(0, keys)
    reliable.admit(1, keys)
    for name in ("a", "b", "picky"):
        got = sorted(offset - 1 for _, offset in take(window, name, 1_000))
        assert got == sorted(offset for _, offset in take(reliable, name, 1_000))
    window.leave("a")
    window.leave("b")
    window.admit(0, ["k1", "x", None])
    assert window.counts.unmatched == 3
    window.leave("picky")
    assert window.counts.dropped == 1


def test_an_unreliable_batch_that_cannot_be_written_is_dropped() -> None:
    window = opened("shared", reliable=False)
    window.join("a")
    window.join("b")
    window.admit(0, ["x"] * 10)
    batch = window.take("a", 100, 0)
    assert batch is not None and len(batch.messages) == 5
    window.missing(batch.epoch, [(0, 1)])
    window.give_back(batch.epoch, [(0, 4), (0, 3)])
    window.give_back(batch.epoch)
    window.sent(batch.epoch, 0)
    assert (window.counts.evicted, window.counts.dropped, window.counts.delivered) == (1, 2, 0)
    assert take(window, "a", 2) == [(0, 3), (0, 4)], "what did not fit into a write comes next"
    assert take(window, "b") == [(0, 6), (0, 7), (0, 8)]
    window.check_invariants()


def test_an_unreliable_exclusive_subscription_sends_to_the_first_consumer_only() -> None:
    window = opened("exclusive", WindowPolicy(member_max=4), reliable=False)
    window.join("a")
    window.join("b")
    window.admit(0, ["x"] * 6)
    assert take(window, "b") == []
    window.leave("a")
    assert len(take(window, "b")) == 4
    assert window.counts.dropped == 2


def test_of_an_unreliable_subscription_a_consumer_that_returns_has_lost_what_was_not_written() -> (
    None
):
    window = opened("key_shared", reliable=False)
    window.join("a")
    window.admit(0, ["x"] * 5)
    batch = window.take("a", 3, 0)
    assert batch is not None
    assert window.ack("a", batch.epoch, 0).refusals == ((None, "finished"),), "nothing is awaited"
    window.returned("a")
    assert (window.counts.dropped, window.in_flight, window.batches) == (3, 0, {})
    assert take(window, "a") == [(0, 4), (0, 5)]
    assert window.memory_bytes == 0
