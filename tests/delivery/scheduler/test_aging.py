"""The wheel hands out each member once, when its tick has come."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.scheduler.aging import SLOTS, TickWheel

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.integers(1, SLOTS - 1)),
        st.tuples(st.just("remove"), st.integers(0, 50)),
        st.tuples(st.just("advance"), st.sampled_from([1, 2, 40, SLOTS - 1, SLOTS, 3 * SLOTS])),
    ),
    max_size=60,
)


@given(STEPS)
def test_members_are_due_at_their_tick(steps: list[tuple[str, int]]) -> None:
    wheel: TickWheel[int] = TickWheel()
    placed: dict[int, int] = {}
    for number, (step, value) in enumerate(steps):
        if step == "place":
            placed[number] = wheel.tick + value
            wheel.place(number, placed[number])
        elif step == "remove" and placed:
            member = sorted(placed)[value % len(placed)]
            wheel.remove(member, placed.pop(member))
        elif step == "advance":
            due: deque[int] = deque()
            wheel.advance(wheel.tick + value, due)
            assert sorted(due) == [each for each in sorted(placed) if placed[each] <= wheel.tick]
            placed = {each: tick for each, tick in placed.items() if tick > wheel.tick}
        assert len(wheel) == len(placed)
        assert all(wheel.holds(member, tick) for member, tick in placed.items())


@pytest.mark.parametrize("tick", [5, 4, 5 + SLOTS])
def test_a_tick_that_is_over_or_too_far_away_is_refused(tick: int) -> None:
    wheel: TickWheel[int] = TickWheel()
    wheel.advance(5, deque())
    with pytest.raises(ValueError, match=f"tick {tick} is not within the 255 ticks after 5"):
        wheel.place(1, tick)
