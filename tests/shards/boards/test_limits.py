"""Rates that shards share hold over all of them, and refuse nothing while there is room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import example, given
from hypothesis import strategies as st

from shards.boards.limits import CLAIM_NS, SECOND_NS, SharedCount, SharedRate, room_ns
from shards.layout import Layout
from shards.segment import Segment

SLOT = 7


@contextmanager
def segment(shards: int) -> Iterator[Segment]:
    made = Segment.create(Layout(shards, 4096, commit_log_bytes=1 << 19))
    try:
        yield made
    finally:
        made.close()


class Clock:
    def __init__(self) -> None:
        self.now_ns = 5 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


STEP = st.tuples(
    st.integers(0, 3),  # the shard
    st.one_of(st.just(0), st.integers(0, 50_000_000), st.integers(0, 4 * SECOND_NS)),
    st.one_of(st.just(1), st.integers(1, 3_000)),
)


@given(
    st.sampled_from([0.2, 1.0, 10.0, 1000.0, 1e6]),
    st.lists(STEP, min_size=1, max_size=200),
)
@example(1000.0, [(0, 0, 1), (1, 6_000_001, 1040), (0, 0, 1)])
@example(1000.0, [(0, 0, 1), (1, 6_000_001, 3000), (0, 0, 1), (0, 0, 1)])
def test_the_limit_holds_over_all_shards_and_nothing_is_refused_while_there_is_room(
    per_second: float, steps: list[tuple[int, int, int]]
) -> None:
    clock = Clock()
    burst_ns = max(SECOND_NS, round(SECOND_NS / per_second))
    # What may lie in claims, on both sides, and a nanosecond for each rounding.
    slack_ns = 2 * CLAIM_NS + len(steps)
    with segment(4) as shared:
        rates = [SharedRate(shared, shard, SLOT, 1, per_second, clock) for shard in range(4)]
        room: float = burst_ns
        claimed_ns = 0.0
        for shard, later_ns, units in steps:
            clock.now_ns += later_ns
            room = min(burst_ns, room + later_ns)
            cost_ns = units * SECOND_NS / per_second
            wanted_ns = min(cost_ns, burst_ns)
            wait_ns = rates[shard].take(units)
            if wait_ns:
                assert room < wanted_ns + slack_ns
                assert wait_ns <= wanted_ns - room + slack_ns
            else:
                if room >= wanted_ns - slack_ns:
                    claimed_ns = 0.0
                else:
                    # One that is larger than the burst has made a debt: what shards had claimed
                    # before is still theirs, and no more.
                    claimed_ns += cost_ns
                    assert claimed_ns <= CLAIM_NS
                room -= cost_ns


def test_one_busy_shard_gets_what_all_may_use() -> None:
    clock = Clock()
    with segment(4) as shared:
        rates = [SharedRate(shared, shard, SLOT, 0, 1000.0, clock) for shard in range(4)]
        assert [rate.take(1) for rate in rates] == [0] * 4
        taken = sum(rates[2].take(1) == 0 for _ in range(2000))
        assert 980 <= 4 + taken <= 1000
        clock.now_ns += SECOND_NS // 2
        assert 480 <= sum(rates[0].take(1) == 0 for _ in range(2000)) <= 520


def test_who_has_not_looked_for_long_finds_what_others_used_just_now() -> None:
    clock = Clock()
    with segment(2) as shared:
        idle, busy = (SharedRate(shared, shard, SLOT, 0, 100.0, clock) for shard in range(2))
        assert idle.take(1) == 0
        clock.now_ns += 600 * SECOND_NS
        while not busy.take(1):
            pass
        assert idle.take(5), "a second's worth was used by the other in this moment"


def test_a_debt_is_paid_before_anything_else_is_taken() -> None:
    clock = Clock()
    with segment(2) as shared:
        first, second = (SharedRate(shared, shard, SLOT, 2, 100.0, clock) for shard in range(2))
        assert first.charge(50) == 0
        assert 2 * SECOND_NS <= first.charge(250) <= 2 * SECOND_NS + 2
        assert second.take(1) >= 2 * SECOND_NS
        assert second.take(1000) >= 3 * SECOND_NS, "more than the burst waits for all of it"
        clock.now_ns += 3 * SECOND_NS + 2
        assert second.take(1000) == 0 and first.take(1) >= 9 * SECOND_NS


def test_what_is_given_back_can_be_taken_again() -> None:
    clock = Clock()
    with segment(1) as shared:
        rate = SharedRate(shared, 0, SLOT, 0, 1.0, clock)
        assert rate.take(1) == 0 and rate.take(1)
        rate.give_back(1)
        assert rate.take(1) == 0 and rate.take(1)


def test_words_that_have_wrapped_count_as_before() -> None:
    top = 1 << 64
    assert room_ns(10, 100, 95, [top - 5]) == 0
    assert room_ns(10, 100, 3, [top - 90, 0]) == 7
    assert room_ns(10, 100, 203, [top - 90]) == -193


def test_counts_are_over_all_shards_and_a_successor_begins_anew() -> None:
    with segment(3) as shared:
        counts = [SharedCount(shared, shard, SLOT, 1) for shard in range(3)]
        for count in counts:
            count.add(2)
        counts[0].add(-1)
        assert {count.total() for count in counts} == {5}
        assert SharedCount(shared, 1, SLOT, 0).total() == 0
        counts[2].clear()
        assert counts[0].total() == 3


def test_what_is_given_back_is_for_all_shards() -> None:
    clock = Clock()
    with segment(4) as shared:
        first, second = (SharedRate(shared, shard, SLOT, 1, 1000.0, clock) for shard in range(2))
        assert first.take(50_000) == 0  # more than the burst, which is refused by another limit
        first.give_back(50_000)
        assert second.take(900) == 0
        assert first.take(1_000) > 0, "it is used"
        clock.now_ns += SECOND_NS
        assert first.take(900) == 0
