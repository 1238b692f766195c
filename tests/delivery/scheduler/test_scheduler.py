"""What the scheduler promises: shares, bounds, age, deferral, delay."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delivery.ready import EntryKey, Kind, PriorityInputs, ReadySet, Turn
from delivery.scheduler import scheduler
from delivery.scheduler.bands import QUANTUM_BYTES, WEIGHTS
from delivery.scheduler.scheduler import COALESCE_NS_MAX, BandedReadySet

MS = 1_000_000
SECOND = 1000 * MS
NOW = 1000 * SECOND
BANDS_PRIORITIES = (-1000, 0, 250, 500, 1000)
PLAIN = PriorityInputs()


def push(topic_id: int) -> EntryKey:
    return (topic_id, Kind.WATCH)


def at(priority: int) -> PriorityInputs:
    return PriorityInputs(priority=priority)


def taken(ready: BandedReadySet, now_ns: int) -> Turn:
    turn = ready.take(now_ns)
    assert turn is not None
    return turn


def order(ready: BandedReadySet, now_ns: int) -> list[int]:
    """Topic ids in the order of their turns, which leave nothing."""
    found = []
    while (turn := ready.take(now_ns)) is not None:
        found.append(turn.key[0])
        ready.finish(turn, 1, False, now_ns)
    return found


def test_it_is_a_ready_set() -> None:
    ready: ReadySet = BandedReadySet()
    assert ready.take(NOW) is None and ready.next_due_ns() is None


def test_ten_thousand_writes_to_a_topic_are_one_entry() -> None:
    ready = BandedReadySet()
    marked = [ready.mark(push(1), PLAIN, NOW + n, NOW + n) for n in range(10_000)]
    assert (sum(marked), len(ready)) == (1, 1)
    turn = taken(ready, NOW + 10_000)
    assert (turn.published_ns, turn.enqueued_ns) == (NOW, NOW), "those of the first"
    assert ready.take(NOW + 10_000) is None


def test_a_topic_that_is_written_during_its_turn_has_another() -> None:
    ready = BandedReadySet()
    ready.mark(push(1), PLAIN, NOW, NOW)
    turn = taken(ready, NOW)
    assert ready.mark(push(1), PLAIN, NOW + 5, NOW + 6)
    assert not ready.mark(push(1), PLAIN, NOW + 7, NOW + 8)
    assert ready.take(NOW + 8) is None, "turns of a topic do not overlap"
    ready.finish(turn, 10, False, NOW + 9)
    assert taken(ready, NOW + 9).published_ns == NOW + 5


def test_push_and_route_of_a_topic_are_separate_entries() -> None:
    ready = BandedReadySet()
    assert ready.mark((1, Kind.WATCH), PLAIN, NOW, NOW)
    assert ready.mark((1, Kind.ROUTE), PLAIN, NOW, NOW)
    assert order(ready, NOW) == [1, 1]


def test_higher_bands_come_first_and_each_band_is_first_in_first_out() -> None:
    ready = BandedReadySet()
    for topic_id, priority in enumerate([-1, 0, 249, 250, 500, 750, 1000, 749]):
        ready.mark(push(topic_id), at(priority), NOW, NOW)
    assert order(ready, NOW) == [5, 4, 3, 1, 0, 6, 7, 2], "bands take turns within a round"


@pytest.mark.parametrize("costs", [(QUANTUM_BYTES, QUANTUM_BYTES), (1, 5000), (200, 3 << 20)])
def test_saturated_bands_share_bytes_8_4_2_1_1_within_2_percent(costs: tuple[int, int]) -> None:
    rng = random.Random(7)
    ready = BandedReadySet()
    band_of_topic = {}
    for topic_id in range(50):
        band_of_topic[topic_id] = topic_id % 5
        ready.mark(push(topic_id), at(BANDS_PRIORITIES[topic_id % 5]), NOW, NOW)
    shares = [0] * 5
    rounds = 1000 * max(1, costs[1] // QUANTUM_BYTES)
    total = rounds * 16 * QUANTUM_BYTES if costs[1] > 5000 else 6000 * 4096
    while sum(shares) < total:
        turn = taken(ready, NOW)
        cost = rng.randint(*costs)
        shares[band_of_topic[turn.key[0]]] += max(cost, 4096)
        ready.finish(turn, cost, True, NOW)
    for share, weight in zip(shares, WEIGHTS, strict=True):
        assert abs(share / sum(shares) / (weight / 16) - 1) < 0.02


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(1, 100))
def test_a_gibibyte_of_backlog_delays_another_topic_by_one_turn(
    large: int, other: int, turns: int
) -> None:
    """A band that was not served in this round has all its credit, so it is served next."""
    ready = BandedReadySet()
    ready.mark(push(1), at(large), NOW, NOW)
    for _ in range(turns):
        turn = taken(ready, NOW)
        assert turn.key == push(1)
        ready.finish(turn, turn.budget_bytes, True, NOW)
    turn = taken(ready, NOW)  # a record of the other topic comes during this turn
    ready.mark(push(2), at(other), NOW, NOW)
    ready.finish(turn, turn.budget_bytes, True, NOW)
    waited_bytes = turn.budget_bytes
    while (turn := taken(ready, NOW)).key == push(1):
        waited_bytes += turn.budget_bytes
        ready.finish(turn, turn.budget_bytes, True, NOW)
    assert waited_bytes <= QUANTUM_BYTES


@example(-1000, [1000] * 12, [(1000, 1 << 20, 0), (-1000, 1 << 20, 0)])
@example(-1000, [], [(1000, 1 << 20, 60)])
@given(
    st.integers(-1000, 1000),
    st.lists(st.integers(-1000, 1000), max_size=12),
    st.lists(
        st.tuples(st.integers(-1000, 1000), st.integers(0, 1 << 20), st.integers(0, 60)),
        min_size=1,
        max_size=8,
    ),
)
def test_the_waiting_bound_holds_for_every_manual_priority(
    priority: int, before: list[int], flood: list[tuple[int, int, int]]
) -> None:
    """Against entries that were there before, and topics that are written all the time."""
    most = 1 << 20
    ready = BandedReadySet()
    now_ns, served_bytes, topic_id = NOW, 0, 10
    for other in before:
        topic_id += 1
        ready.mark(push(topic_id), at(other), now_ns, now_ns)
    ready.mark(push(1), at(priority), now_ns, now_ns)
    bound = (16 * len(before) + 85) * most + 96 * QUANTUM_BYTES
    step = 0
    while True:
        other, cost, waited_ms = flood[step % len(flood)]
        step += 1
        ready.mark(push(100 + step), at(other), now_ns, now_ns)
        turn = taken(ready, now_ns)
        if turn.key == push(1):
            return
        served_bytes += max(cost, 4096)
        assert served_bytes <= bound
        now_ns += waited_ms * MS
        ready.finish(turn, cost, True, now_ns)


@pytest.mark.parametrize(
    ("priority", "bands"),
    [(0, [1, 2, 3, 4]), (-250, [0, 1, 2, 4]), (-251, [0, 0, 1, 3]), (-1000, [0, 0, 0, 1])],
)
def test_age_lifts_as_far_as_a_thousand_points_go(priority: int, bands: list[int]) -> None:
    """Below -250, the top band is never reached."""
    found = []
    for waited_s in (0, 2.5, 5, 10):
        ready = BandedReadySet()
        ready.mark(push(2), at(1000), NOW, NOW)
        ready.mark(push(1), at(priority), NOW, NOW)
        now_ns = NOW + round(waited_s * SECOND)
        ready.finish(taken(ready, now_ns), 1, False, now_ns)
        view = ready.view(push(1))
        assert view is not None and view.enqueued_ns == NOW
        found.append(view.band)
    assert found == bands


def test_a_negative_priority_that_age_has_lifted_keeps_its_place_in_line() -> None:
    ready = BandedReadySet()
    ready.mark(push(1), at(-1), NOW, NOW)
    ready.mark(push(2), at(0), NOW, NOW + 20 * MS)
    assert order(ready, NOW + 50 * MS) == [1, 2]


def test_a_topic_that_is_written_all_the_time_still_ages() -> None:
    ready = BandedReadySet()
    for tenth in range(76):
        ready.mark(push(1), at(0), NOW, NOW + tenth * 100 * MS)
    ready.mark(push(2), at(750), NOW, NOW + 7500 * MS)
    assert order(ready, NOW + 7500 * MS) == [1, 2], "both in the top band, and the first is older"


def test_age_begins_again_when_a_topic_is_served() -> None:
    ready = BandedReadySet()
    ready.mark(push(1), at(0), NOW, NOW)
    later_ns = NOW + 8 * SECOND
    turn = taken(ready, later_ns)
    ready.finish(turn, 10, True, later_ns)
    assert ready.view(push(1)) == (1, later_ns, False)
    again = taken(ready, later_ns)
    assert (again.enqueued_ns, again.published_ns) == (later_ns, NOW)


def test_deferral_goes_by_manual_priority_and_age_does_not_undo_it() -> None:
    ready = BandedReadySet()
    ready.mark(push(1), at(-1), NOW, NOW)
    ready.mark(push(2), at(-1000), NOW, NOW)
    ready.set_pressure(0, True, NOW + 2 * SECOND)
    ready.mark(push(3), at(0), NOW, NOW + 2 * SECOND)
    hour_ns = NOW + 3600 * SECOND
    assert order(ready, hour_ns) == [3]
    assert (ready.deferred(), ready.next_due_ns(), ready.oldest_wait_ns(hour_ns)) == (2, None, 0)
    assert ready.view(push(1)) == (0, NOW, True)
    ready.set_pressure(0, False, hour_ns)
    assert ready.depths() == [2, 0, 0, 0, 0]
    assert order(ready, hour_ns) == [1, 2]


def test_what_pressure_may_defer_is_never_part_of_the_sensors() -> None:
    """At the end of a deferral all of it is ready: that is not an overload."""
    ready = BandedReadySet()
    ready.set_pressure(0, True, NOW)
    ready.mark(push(1), at(-1), NOW, NOW)
    hour_ns = NOW + 3600 * SECOND
    ready.set_pressure(0, False, hour_ns)
    ready.mark(push(2), at(0), hour_ns - MS, hour_ns)
    assert ready.oldest_wait_ns(hour_ns) == MS
    waited = {
        turn.key[0]: turn.waited_ns for turn in (taken(ready, hour_ns), taken(ready, hour_ns))
    }
    assert waited == {1: None, 2: MS}


def test_a_raised_priority_does_not_turn_deferral_into_a_wait() -> None:
    ready = BandedReadySet()
    ready.set_pressure(0, True, NOW)
    ready.mark(push(1), at(-5), NOW, NOW)
    hour_ns = NOW + 3600 * SECOND
    ready.mark(push(1), at(5), NOW, hour_ns)
    assert ready.oldest_wait_ns(hour_ns + MS) == MS
    assert taken(ready, hour_ns + 2 * MS).waited_ns == 2 * MS


@pytest.mark.parametrize(("waited_ms", "band"), [(949, 0), (1050, 1)])
def test_age_stands_still_while_an_entry_is_deferred(waited_ms: int, band: int) -> None:
    ready = BandedReadySet()
    ready.mark(push(1), at(-100), NOW, NOW)
    ready.set_pressure(0, True, NOW + 900 * MS)
    ready.set_pressure(0, False, NOW + 900 * MS + 3600 * SECOND)
    now_ns = NOW + waited_ms * MS + 3600 * SECOND
    ready.mark(push(2), at(1000), NOW, now_ns)
    assert taken(ready, now_ns).key == push(2)
    view = ready.view(push(1))
    assert view is not None and view.band == band


def test_a_topic_whose_priority_is_raised_is_not_deferred_any_more() -> None:
    ready = BandedReadySet()
    ready.mark(push(1), at(-5), NOW, NOW)
    ready.set_pressure(0, True, NOW)
    assert ready.take(NOW) is None
    assert not ready.mark(push(1), at(5), NOW + 1, NOW + 1)
    assert taken(ready, NOW + 1).published_ns == NOW


def test_routes_that_become_ready_while_deferring_are_one_band_lower() -> None:
    ready = BandedReadySet()
    ready.mark((1, Kind.ROUTE), at(1000), NOW, NOW)
    ready.set_pressure(0, True, NOW)
    for topic_id, priority in ((2, 1000), (3, 250), (4, 0)):
        ready.mark((topic_id, Kind.ROUTE), at(priority), NOW, NOW)
    ready.mark((5, Kind.WATCH), at(1000), NOW, NOW)
    assert ready.depths() == [1, 1, 0, 1, 2]
    ready.set_pressure(0, False, NOW + 1)
    assert ready.depths() == [1, 1, 0, 1, 2], "where it is put, it stays until age lifts it"
    assert ready.take(NOW + 10 * SECOND) is not None
    assert ready.depths() == [0, 0, 0, 3, 1]


def test_the_coalescing_delay_is_neither_waiting_nor_age() -> None:
    ready = BandedReadySet()
    ready.set_pressure(20 * MS, False, NOW)
    ready.mark(push(1), PLAIN, NOW - MS, NOW)
    assert ready.take(NOW + 20 * MS - 1) is None
    assert ready.next_due_ns() == NOW + 20 * MS
    assert ready.oldest_wait_ns(NOW + 20 * MS - 1) == 0
    assert not ready.mark(push(1), PLAIN, NOW, NOW + 3 * MS), "one entry for both commits"
    ready.mark(push(2), PLAIN, NOW + 5 * MS, NOW + 5 * MS)
    turn = taken(ready, NOW + 22 * MS)
    assert (turn.published_ns, turn.enqueued_ns) == (NOW - MS, NOW + 20 * MS)
    assert turn.waited_ns == 3 * MS, "1 until it was marked, 2 after the delay"
    assert ready.next_due_ns() == NOW + 25 * MS
    ready.mark(push(3), PLAIN, NOW + 30 * MS, NOW + 30 * MS)
    assert ready.take(NOW + 30 * MS) is not None
    ready.mark(push(4), PLAIN, NOW + 30 * MS, NOW + 30 * MS)
    ready.set_pressure(0, False, NOW + 40 * MS)
    assert ready.oldest_wait_ns(NOW + 41 * MS) == MS, "of 11 ms, 10 were deliberate"


@pytest.mark.parametrize(("marked_ms", "expected"), [(4, [2, 1]), (6, [1, 2])])
def test_what_is_never_held_comes_before_what_is_held_and_after_what_was(
    marked_ms: int, expected: list[int]
) -> None:
    ready = BandedReadySet()
    ready.set_pressure(5 * MS, False, NOW)
    ready.mark(push(1), PLAIN, NOW, NOW)
    marked_ns = NOW + marked_ms * MS
    ready.mark((2, Kind.ROUTE), PLAIN, marked_ns, marked_ns)
    assert order(ready, NOW + 7 * MS) == expected
    ready.check_invariants()


@pytest.mark.parametrize("coalesce_ns", [-1, COALESCE_NS_MAX + 1])
def test_a_delay_beyond_the_limit_is_refused(coalesce_ns: int) -> None:
    with pytest.raises(ValueError, match=f"coalesce_ns is {coalesce_ns}; it must be 0 to 20000000"):
        BandedReadySet().set_pressure(coalesce_ns, False, NOW)


def test_a_forgotten_entry_has_no_turn_also_if_it_is_being_served() -> None:
    ready = BandedReadySet()
    ready.mark(push(1), PLAIN, NOW, NOW)
    ready.mark(push(2), PLAIN, NOW, NOW)
    turn = taken(ready, NOW)
    ready.forget(push(1))
    ready.forget(push(2))
    ready.forget(push(3))
    ready.finish(turn, 1, True, NOW)
    assert (ready.take(NOW), len(ready)) == (None, 0)


def test_the_number_of_entries_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "ENTRIES_MAX", 2)
    ready = BandedReadySet()
    ready.mark(push(1), PLAIN, NOW, NOW)
    ready.mark(push(2), PLAIN, NOW, NOW)
    with pytest.raises(RuntimeError, match="2 entries"):
        ready.mark(push(3), PLAIN, NOW, NOW)


def test_a_burst_that_crosses_simultaneously_is_moved_in_steps_and_loses_nobody() -> None:
    ready = BandedReadySet()
    for topic_id in range(1000):
        ready.mark(push(topic_id), at(0), NOW, NOW)
    now_ns = NOW + 10 * SECOND
    found = []
    while (turn := ready.take(now_ns)) is not None:
        found.append(turn.key[0])
        ready.finish(turn, 1, False, now_ns)
        if len(found) % 100 == 1:
            ready.check_invariants()
        if len(found) == 20:
            assert ready.depths() == [0, 0, 0, 0, 980], "the next takes move the others"
    assert sorted(found) == list(range(1000))
