"""The wheel shows every member once per revolution, and pieces of a body stay few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.http.body import Pieces
from daemon.http.wheel import Wheel


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from(["add", "remove", "turn"]), st.integers(0, 20))),
)
def test_every_member_comes_up_once_per_revolution(
    slots: int, steps: list[tuple[str, int]]
) -> None:
    wheel: Wheel[int] = Wheel(slots)
    members: set[int] = set()
    for what, number in steps:
        if what == "add" and number not in members:
            wheel.add(number)
            members.add(number)
        elif what == "remove":
            wheel.remove(number)
            members.discard(number)
        elif what == "turn":
            assert set(wheel.turn()) <= members
        assert (len(wheel), set(wheel)) == (len(members), members)
    revolution = [member for _ in range(slots) for member in wheel.turn()]
    assert sorted(revolution) == sorted(members)


def test_members_are_spread_evenly() -> None:
    wheel: Wheel[int] = Wheel(4)
    for member in range(10):
        wheel.add(member)
    assert sorted(len(wheel.turn()) for _ in range(4)) == [2, 2, 3, 3]


def test_a_member_is_added_once_and_a_wheel_has_slots() -> None:
    wheel: Wheel[str] = Wheel(1)
    wheel.add("a")
    with pytest.raises(ValueError, match="already"):
        wheel.add("a")
    with pytest.raises(ValueError, match="got 0"):
        Wheel(0)


@given(st.lists(st.binary(max_size=5), max_size=1500))
def test_pieces_come_out_joined_in_order(parts: list[bytes]) -> None:
    pieces = Pieces()
    for part in parts:
        pieces.add(part)
    assert pieces.size == sum(map(len, parts))
    assert pieces.take() == b"".join(parts)


def test_single_bytes_do_not_pile_up_as_objects() -> None:
    pieces = Pieces()
    for _ in range(100_000):
        pieces.add(b"x")
    assert len(pieces._fresh) + len(pieces._joined) < 256 + 100_000 // 256 + 1
