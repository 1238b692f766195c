"""The window of keys, case by case; ``test_windows.py`` has all orders of events."""

from __future__ import annotations

import tracemalloc

import pytest

from delivery.subscriptions.window.deliveries import SubscriptionWindow
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.key_shared import (
    MATCHED_NOW,
    MOVES_AT_ONCE,
    KeyRunsWindow,
    KeySharedWindow,
)
from delivery.subscriptions.window.look_ahead import MESSAGES_MAX
from delivery.subscriptions.window.members import HashRing
from delivery.subscriptions.window.messages import Place, QueueState
from delivery.subscriptions.window.unkeyed import SharedWindow

S = 1_000_000_000


def opened(policy: WindowPolicy | None = None) -> KeySharedWindow:
    """A window with one partition."""
    window = KeySharedWindow(policy or WindowPolicy())
    window.open(0, 0)
    return window


def take(window: KeySharedWindow, name: str, count: int = 100, now_ns: int = 0) -> list[int]:
    """Offsets of a batch, after keys have found their owners."""
    while window.settle():
        pass
    batch = window.take(name, count, now_ns)
    if batch is None:
        return []
    window.sent(batch.epoch, now_ns)
    return [m.offset for m in batch.messages if m is not None]


def test_one_message_of_a_key_is_out_at_a_time_and_other_keys_go_on() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["hot"] * 5 + ["other"])
    assert take(window, "a") == [1, 6]
    assert take(window, "a") == []
    assert window.ack("a", 1, 0, [(0, 1)]) == (1, 0, ())
    assert take(window, "a") == [2]
    assert (window.look_aheads[0].floor, window.in_flight) == (1, 2)


@pytest.mark.parametrize("window_of", [KeySharedWindow, KeyRunsWindow])
def test_a_key_that_comes_back_to_a_partition_waits_for_what_came_between(
    window_of: type[KeySharedWindow],
) -> None:
    window = window_of(WindowPolicy())
    for partition in range(3):
        window.open(partition, 0)
    window.join("a")
    for partition in (1, 2, 1, 0, 0, 1):  # the topic has grown before each
        window.growths += 1
        window.admit(partition, ["x"])
    window.admit(0, ["x"])
    window.admit(1, ["x"])  # of these two, neither was the first
    expected = [(1, 1), (2, 1), (1, 2), (0, 1), (0, 2), (1, 3), (1, 4), (0, 3)]
    found: list[Place] = []
    while len(found) < len(expected):
        batch = window.take("a", 1, 0)
        assert batch is not None
        window.sent(batch.epoch, 0)
        found += [each.place for each in batch.messages if each is not None]
        window.ack("a", batch.epoch, 0)
        window.check_invariants()
    assert found == expected and not window.keys


def test_a_member_that_leaves_loses_nothing_and_its_epoch_is_refused() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["x", "x", "y", None])
    assert take(window, "a") == [1, 3, 4]
    window.leave("a")
    window.join("b")
    assert window.ack("a", 1, 0)[:2] == (0, 1)
    assert sorted(take(window, "b")) == [1, 3, 4]
    assert window.ack("b", 2, 0, but=[(0, 3)]) == (2, 0, ())
    assert window.look_aheads[0].floor == 1
    assert take(window, "b") == [2]


@pytest.mark.parametrize(("poison", "floor"), [("block", 0), ("dead_letter", 0), ("drop", 1)])
def test_after_the_redeliveries_the_policy_decides(poison: str, floor: int) -> None:
    """K9, K19."""
    window = opened(WindowPolicy(poison=poison))  # type: ignore[arg-type]
    window.join("a")
    window.admit(0, ["x", "x", *(f"k{n}" for n in range(50))])
    now_ns = 0
    for delivery in range(6):
        batch = window.take("a", 1, now_ns)
        assert batch is not None and batch.messages[0] is not None
        assert (batch.messages[0].offset, batch.messages[0].attempts) == (1, delivery)
        window.nack("a", batch.epoch, now_ns)
        now_ns += 60 * S
        others = window.take("a", 100, now_ns)
        if others is not None:
            window.ack("a", others.epoch, now_ns)
        window.tick(now_ns)
    assert window.look_aheads[0].floor >= floor
    assert [(each.offset, each.attempts) for each in window.dead_letters.waiting.values()] == (
        [(1, 6)] if poison == "dead_letter" else []
    )
    if poison == "drop":
        assert window.look_aheads[0].floor == 52 or take(window, "a") == [2]
    else:
        assert [stuck.why for stuck in window.blocked.stuck.values()] == ["refused by the consumer"]
        assert window.keys["x"].state is QueueState.STUCK
        assert window.moved(0, 1) and take(window, "a") == [2]


def test_a_blocked_key_stalls_alone_and_ten_thousand_others_go_on() -> None:
    """K11: whatever is finished after it."""
    window = opened(WindowPolicy(redeliveries_max=0))
    window.join("a")
    window.admit(0, ["poison"])
    assert take(window, "a") == [1]
    window.nack("a", 1, 0)
    keys = [f"k{n}" for n in range(10_000)]
    for turn in range(4):
        window.admit(0, ["poison", *keys])
        window.take_news()
        sent: list[int] = []
        while batch := take(window, "a", 1_000):
            sent += batch
            window.ack("a", window.epoch, 0)
        assert len(sent) == 10_000 and (0, 1) in window.blocked.stuck
        assert len(window.take_news()[0]) == 10_000
        look_ahead = window.look_aheads[0]
        assert (look_ahead.floor, look_ahead.unfinished, look_ahead.room) == (
            0,
            2 + turn,
            MESSAGES_MAX - 2 - turn,
        )
    assert window.memory_bytes < 40_000
    window.retry(0, 1)
    left = [1, *(2 + turn * 10_001 for turn in range(4))]
    for offset in left:
        assert take(window, "a") == [offset]
        window.ack("a", window.epoch, 0)
    assert look_ahead.floor == look_ahead.end
    window.check_invariants()


@pytest.mark.parametrize(
    ("attempts", "asked_s", "rest_s"),
    [(1, 0, 1), (2, 0, 2), (3, 0, 4), (4, 0, 8), (7, 0, 60), (99, 0, 60), (1, 30, 30), (1, 99, 60)],
)
def test_rests_double_to_their_maximum_and_the_longer_wish_counts(
    attempts: int, asked_s: int, rest_s: int
) -> None:
    """K18."""
    assert WindowPolicy().rest_ns(attempts, asked_s * S) == rest_s * S


def test_a_member_that_answers_nothing_is_gone_and_has_not_failed() -> None:
    window = opened()
    window.join("half-open")
    window.join("alive")
    window.admit(0, ["x"] * 3)
    owner = window.members.owner(window.keys["x"])
    assert owner is not None
    assert take(window, owner.name, now_ns=5 * S) == [1]
    assert window.tick(34 * S) == []
    assert window.tick(35 * S) == [owner.name]
    (left,) = window.members.by_name
    batch = window.take(left, 1, 35 * S)
    assert batch is not None and batch.messages[0] is not None
    assert batch.messages[0].attempts == 0


def test_a_million_messages_of_one_key_take_one_place_in_flight() -> None:
    """K12: in counts."""
    window = opened(WindowPolicy(in_flight_max=10))
    window.join("a")
    window.admit(0, ["hot"] * 100_000)
    window.admit(0, [f"k{n}" for n in range(9)])
    assert take(window, "a") == [1, *range(100_001, 100_010)]


def test_finished_offsets_survive_as_rows() -> None:
    window = opened()
    window.join("a")
    window.admit(0, [f"k{n}" for n in range(10_000)])
    batch = window.take("a", 1_000, 0)
    assert batch is not None
    window.ack("a", batch.epoch, 0, but=[(0, 3)])
    look_ahead = window.look_aheads[0]
    assert look_ahead.floor == 2 and look_ahead.changed_rows == {0}
    row = look_ahead.row(0)
    assert row is not None

    again = KeySharedWindow(WindowPolicy(), batch.epoch)
    look_ahead = again.open(0, 2)
    look_ahead.restore(0, row)
    assert look_ahead.finished_ahead == 997
    again.join("a")
    again.admit(0, [f"k{n}" for n in range(2, 502)])
    assert look_ahead.finished_ahead == 498, "what was admitted is not ahead"
    again.admit(0, [f"k{n}" for n in range(502, 10_000)])
    assert look_ahead.finished_ahead == 0
    assert take(again, "a", 3) == [3, 1_001, 1_002]
    again.check_invariants()


def test_a_batch_has_no_timeout_before_it_was_sent() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["x"])
    batch = window.take("a", 1, 0)
    assert batch is not None and window.next_due_ns() is None
    assert window.tick(1_000 * S) == [] and window.in_flight == 1
    window.sent(batch.epoch, 1_000 * S)
    window.sent(batch.epoch, 1_010 * S)
    assert window.counts.delivered == 1
    assert window.next_due_ns() == 1_030 * S
    assert window.tick(1_029 * S) == []
    assert window.tick(1_030 * S) == ["a"]


def test_what_is_given_back_counts_as_no_failed_delivery_and_keeps_its_order() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["x", "x", "y", None, "z"])
    batch = window.take("a", 9, 0)
    assert batch is not None
    window.give_back(batch.epoch, [(0, 3)])
    assert window.in_flight == 3
    window.give_back(batch.epoch)
    window.give_back(batch.epoch)
    assert (window.in_flight, window.batches, window.counts.redelivered) == (0, {}, 0)
    again = window.take("a", 9, 0)
    assert again is not None
    assert [(m.offset, m.attempts) for m in again.messages if m] == [(1, 0), (5, 0), (3, 0), (4, 0)]
    assert window.ack("a", batch.epoch, 0, [(0, 3)]).refusals == (((0, 3), "epoch"),)


def test_a_refused_acknowledgment_tells_what_is_finished_from_what_was_sent_elsewhere() -> None:
    """K8."""
    window = opened()
    window.join("a")
    window.admit(0, ["x", "y"])
    assert take(window, "a") == [1, 2]
    assert window.ack("a", 1, 0, [(0, 1)]) == (1, 0, ())
    outcome = window.ack("a", 1, 0, [(0, 1), (0, 2), (0, 7), (5, 1)])
    assert outcome.accepted == 1
    assert outcome.refusals == (((0, 1), "finished"), ((0, 7), "epoch"), ((5, 1), "epoch"))
    assert window.ack("a", 1, 0, [(0, 2)]).refusals == (((0, 2), "finished"),)
    assert window.ack("a", 1, 0).refusals == ((None, "epoch"),)
    window.admit(0, ["z"])
    assert take(window, "a") == [3]
    assert window.ack("b", 2, 0)[:2] == window.nack("b", 2, 0)[:2] == (0, 1), "it is another's"


def test_what_a_decision_finished_is_told_once() -> None:
    window = opened(WindowPolicy(poison="drop", redeliveries_max=0))
    window.open(1, 10)
    window.join("a")
    window.admit(0, ["x", "y", "z"])
    window.admit(1, [None])
    assert take(window, "a") == [1, 2, 3, 11]
    window.ack("a", 1, 0, [(0, 1), (1, 11)])
    window.nack("a", 1, 0, [(0, 3)])
    assert window.take_news() == {0: [1, 3], 1: [11]}
    assert window.take_news() == {}


def test_evicted_messages_are_finished_in_lots_and_what_is_out_can_be_acknowledged() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["out", "hot", None, "out"] + ["hot"] * 10_000 + ["late"])
    assert take(window, "a", 1) == [1]
    window.evict(0, 10_004)
    ticks = 0
    while window.next_due_ns() == 0:
        window.tick(0)
        window.check_invariants()
        ticks += 1
    assert 0 <= ticks - 10_000 // MOVES_AT_ONCE <= 2
    assert (
        window.look_aheads[0].unfinished == 4
    )  # the one that is out, its follower, and two that stay
    assert sorted(take(window, "a")) == [10_004, 10_005]
    window.ack("a", 1, 0)
    assert (window.look_aheads[0].floor, window.counts.evicted) == (10_003, 10_002)
    window.check_invariants()


def test_what_was_out_when_it_was_evicted_is_not_sent_again() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["x", None, "y", None])
    assert take(window, "a") == [1, 3, 2, 4]
    window.evict(0, 5)
    window.nack("a", 1, 0, [(0, 1), (0, 2)])
    window.leave("a")
    assert (window.look_aheads[0].floor, window.counts.evicted, window.next_due_ns()) == (
        4,
        4,
        None,
    )


def test_evicted_messages_that_had_failed_are_forgotten() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["x", None, None, "x"])
    take(window, "a")
    window.nack("a", 1, 0)
    window.evict(0, 3)
    window.tick(S)
    assert not window.blocked.resting and window.look_aheads[0].unfinished == 2
    window.evict(0, 5)
    window.tick(S)
    assert (window.look_aheads[0].floor, window.keys, window.counts.evicted) == (4, {}, 4)
    window.check_invariants()


def test_a_policy_changes_what_is_stuck_and_what_is_held() -> None:
    """K15."""
    window = opened(WindowPolicy(redeliveries_max=0))
    window.join("a", ["x*"])
    window.admit(0, ["x1", "x1", "held", "x2"])
    assert take(window, "a") == [1, 4]
    window.nack("a", 1, 0)
    assert set(window.blocked.stuck) == {(0, 1), (0, 4)}
    window.set_policy(WindowPolicy(redeliveries_max=0, poison="dead_letter"))
    assert list(window.dead_letters.waiting) == [(0, 1), (0, 4)]
    window.dead_letters.move_away((0, 1))
    window.dead_letters.move_away((0, 4))
    assert window.moved(0, 4)
    window.set_policy(WindowPolicy(redeliveries_max=0, poison="drop", unmatched="skip"))
    assert set(window.blocked.stuck) == {(0, 1)}, "it is being moved"
    window.tick(0)
    assert (window.counts.unmatched, window.counts.dropped) == (1, 0)
    assert not window.retry(0, 1)
    window.not_moved((0, 1))
    assert (window.counts.dropped, take(window, "a")) == (1, [2]), "as the policy is now"
    window.nack("a", 2, 0)
    window.admit(0, ["x3"])
    window.set_policy(WindowPolicy(redeliveries_max=0))
    assert take(window, "a") == [5]
    window.nack("a", 3, 0)
    assert set(window.blocked.stuck) == {(0, 5)}
    window.set_policy(WindowPolicy(redeliveries_max=1))
    assert take(window, "a") == [5], "it may fail once more"
    window.set_policy(WindowPolicy(ack_timeout_ns=S))
    assert window.next_due_ns() == S, "a new timeout holds for what is out"
    window.check_invariants()


def test_a_consumer_that_comes_back_gets_what_it_had() -> None:
    """K17."""
    window = opened()
    window.join("a")
    window.join("b")
    window.admit(0, [f"k{n}" for n in range(20)])
    had = take(window, "a")
    window.returned("a")
    assert take(window, "a") == had
    assert window.batches[2].messages[0] == (*window.batches[2].messages[0][:3], 0)  # type: ignore[index]


def attempts(window: KeySharedWindow, now_ns: int = 0) -> list[tuple[int, int]]:
    """Offsets of a batch, with how often each failed before."""
    batch = window.take("a", 100, now_ns)
    if batch is None:
        return []
    window.sent(batch.epoch, now_ns)
    return [(message.offset, message.attempts) for message in batch.messages if message]


def test_failures_count_for_one_message_and_not_for_the_next_of_its_key() -> None:
    window = opened()
    window.join("a")
    window.admit(0, ["x", "x", None])
    assert attempts(window) == [(1, 0), (3, 0)]
    window.nack("a", 1, 0)
    window.tick(S)
    assert attempts(window, S) == [(1, 1), (3, 1)]
    window.ack("a", 2, S)
    assert attempts(window, S) == [(2, 0)]


def test_a_refused_message_comes_after_the_delay_that_was_asked_for() -> None:
    """K18."""
    window = opened()
    window.join("a")
    window.admit(0, ["x"])
    take(window, "a")
    window.nack("a", 1, 0, delay_ns=20 * S)
    assert window.next_due_ns() == 20 * S
    window.tick(19 * S)
    assert take(window, "a") == []
    window.tick(20 * S)
    assert take(window, "a") == [1]


def test_a_retry_forgets_failures_and_ends_a_rest() -> None:
    window = opened(WindowPolicy(backoff_min_ns=10 * S))
    window.join("a")
    window.admit(0, ["x", None])
    take(window, "a")
    window.nack("a", 1, 0)
    assert window.retry(0, 1) and window.retry(0, 2)
    assert attempts(window, 5 * S) == [(1, 0), (2, 0)]
    window.nack("a", 2, 5 * S)
    window.tick(10 * S)
    assert attempts(window, 10 * S) == [], "the rest that was ended says nothing of the next one"
    window.tick(15 * S)
    assert attempts(window, 15 * S) == [(1, 1), (2, 1)]


def test_too_many_blocked_messages_stop_a_subscription_until_some_are_dealt_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delivery.subscriptions.window.failures.BLOCKED_MAX", 2)
    window = opened(WindowPolicy(redeliveries_max=0))
    window.join("a")
    window.admit(0, ["x", "y", "z"])
    assert take(window, "a", 2) == [1, 2]
    window.nack("a", 1, 0)
    assert take(window, "a") == [] and window.room("a") == 0
    assert window.blocked.why_held.startswith("2 messages are blocked after failed deliveries")
    assert window.moved(0, 1)
    assert take(window, "a") == [3] and not window.blocked.why_held


def test_the_longest_key_is_known() -> None:
    window = opened()
    assert window.longest_key() is None
    window.open(1, 0)
    window.admit(0, ["x", "y", "y"])
    window.admit(1, ["x", "x", "x"])
    assert window.longest_key() == ("x", 4)


def test_a_message_that_waits_costs_little_memory() -> None:
    """K21."""
    window = opened()
    window.join("a")
    keys = [f"k{n % 1_000}" for n in range(20_000)]
    tracemalloc.start()
    try:
        window.admit(0, keys)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / len(keys) <= 32
    assert 0.5 * taken <= window.memory_bytes <= 2 * taken


@pytest.mark.parametrize("text", ["x" * 130, "x" * 1_000, "\U0001f600" * 1_000])
def test_what_keys_take_is_counted_however_long_they_are(text: str) -> None:
    window = opened(WindowPolicy(redeliveries_max=0, in_flight_max=1_000, member_max=1_000))
    window.join("a")
    tracemalloc.start()
    try:
        window.admit(0, [f"{n}{text}" for n in range(1_000)])
        waiting, counted_waiting = tracemalloc.get_traced_memory()[0], window.memory_bytes
        assert len(take(window, "a", 1_000)) == 1_000
        window.nack("a", 1, 0)
        blocked = tracemalloc.get_traced_memory()[0]
        counted_blocked = window.memory_bytes + window.sent_bytes
    finally:
        tracemalloc.stop()
    assert len(window.blocked.stuck) == 1_000
    assert 0.7 * waiting <= counted_waiting <= 2 * waiting
    assert blocked <= counted_blocked <= 4 * blocked
    for place in list(window.blocked.stuck):
        window.moved(*place)
    assert not window.keys and window.memory_bytes < 20_000 and not window.sent_bytes
    window.check_invariants()


@pytest.mark.parametrize("characters", [0, 255])
@pytest.mark.parametrize("redeliveries_max", [0, 9], ids=["stuck", "resting"])
@pytest.mark.parametrize("window_type", [KeySharedWindow, SharedWindow])
def test_what_is_sent_or_blocked_takes_no_more_than_is_counted(
    window_type: type[SubscriptionWindow], redeliveries_max: int, characters: int
) -> None:
    """Each message is in a batch of its own, and has a reason of its own."""
    count = 500
    window = window_type(
        WindowPolicy(redeliveries_max=redeliveries_max, in_flight_max=count, member_max=count,
                     poison="dead_letter")
    )  # fmt: skip
    window.open(0, 0)
    window.join("a")
    window.admit(0, [f"k{n}" for n in range(count)])
    tracemalloc.start()
    try:
        batches = [window.take("a", 1, 0) for _ in range(count)]
        for batch in batches:
            assert batch is not None
            window.sent(batch.epoch, 0)
        sent, counted_sent = tracemalloc.get_traced_memory()[0], window.sent_bytes
        for number in range(count):
            window.nack("a", number + 1, 0, why=f"{number:04}".ljust(characters, "\U0001f600"))
        del batches, batch
        blocked, counted_blocked = tracemalloc.get_traced_memory()[0], window.sent_bytes
    finally:
        tracemalloc.stop()
    assert window.held_count == count
    assert 0.3 * counted_sent <= sent <= counted_sent
    assert 0.4 * counted_blocked <= blocked <= counted_blocked
    window.check_invariants()
    for place in [*window.blocked.stuck, *window.blocked.resting]:
        assert window.moved(*place)
    assert window.sent_bytes == 0


def test_keys_find_their_owners_in_lots_of_work_not_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    accepts = HashRing.accepts

    def counted(ring: HashRing, consumer: str, key: str) -> bool:
        compared.append(key)
        return accepts(ring, consumer, key)

    monkeypatch.setattr(HashRing, "accepts", counted)
    count = 40
    window, keys = (
        opened(WindowPolicy(in_flight_max=1_000)),
        [f"{n}" + "y" * 1_000 for n in range(count)],
    )
    for n in range(10):
        window.join(f"c{n}", [f"*y?y{n}{m}*" for m in range(10, 74)])
    each = window.members.matching_of(keys[0])
    assert each > MATCHED_NOW
    most = 1 + MOVES_AT_ONCE // each  # keys of a lot

    def settle() -> int:
        """How many lots are needed; each takes its work and no more."""
        lots = 0
        while work := window.settle():
            window.check_invariants()
            assert len(set(compared)) <= most and each < work <= MOVES_AT_ONCE + each
            compared.clear()
            lots += 1
        return lots

    def nothing_was_compared() -> bool:
        window.check_invariants()
        return not compared

    window.admit(0, keys)
    assert nothing_was_compared()
    assert settle() >= count * each // (MOVES_AT_ONCE + each)
    window.join("any")
    assert nothing_was_compared()
    assert settle() >= count * each // (MOVES_AT_ONCE + each)
    assert len(take(window, "any", 1_000)) == count
    window.join("more", ["z"])
    window.give_back(window.epoch)
    assert nothing_was_compared()
    assert settle() > 1
    assert len(take(window, "any", 1_000)) == count
    window.leave("any")
    assert nothing_was_compared()
    assert settle() > 1
    assert take(window, "more") == []
