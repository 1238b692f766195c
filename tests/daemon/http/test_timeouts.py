"""When a wait is too long: decided from given times, without a clock. The wheel
shows every member once per revolution, and pieces of a body stay few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.http.body import Pieces
from daemon.http.limits import HttpLimits
from daemon.http.timeouts import Overdue, Waiting, WaitsFor, Wheel, overdue

MS = 1_000_000
LIMITS = HttpLimits(
    idle_timeout_ms=75_000,
    head_timeout_ms=20_000,
    body_timeout_ms=10_000,
    body_bytes_per_s_min=1000,
    write_timeout_ms=60_000,
    linger_ms=5_000,
)


@pytest.mark.parametrize(
    ("what", "limit_ms", "then"),
    [
        (WaitsFor.REQUEST, 75_000, Overdue.CLOSE),
        (WaitsFor.HEAD, 20_000, Overdue.REFUSE_HEAD),
        (WaitsFor.CLIENT_READS, 60_000, Overdue.ABORT),
        (WaitsFor.CLIENT_CLOSES, 5_000, Overdue.ABORT),
    ],
)
def test_a_wait_ends_after_its_limit_and_never_before(
    what: WaitsFor, limit_ms: int, then: Overdue
) -> None:
    start = 5_000 * MS
    waiting = Waiting(what, start, start)
    assert overdue(waiting, start + limit_ms * MS, LIMITS) is Overdue.NOTHING
    assert overdue(waiting, start + (limit_ms + 1) * MS, LIMITS) is then


def test_a_wait_for_the_application_has_no_limit_here() -> None:
    waiting = Waiting(WaitsFor.APPLICATION, 0, 0)
    assert overdue(waiting, 10**18, LIMITS) is Overdue.NOTHING


def test_a_silent_body_is_refused_however_much_has_come() -> None:
    waiting = Waiting(WaitsFor.BODY, 0, 50_000 * MS, received_bytes=10**9)
    assert overdue(waiting, 60_000 * MS, LIMITS) is Overdue.NOTHING
    assert overdue(waiting, 60_001 * MS, LIMITS) is Overdue.REFUSE_BODY


def test_a_dribbling_body_is_refused_below_the_lowest_rate() -> None:
    for received, allowed_ms in ((0, 10_000), (5_000, 15_000), (100_000, 110_000)):
        just = Waiting(WaitsFor.BODY, 0, allowed_ms * MS, received)
        assert overdue(just, allowed_ms * MS, LIMITS) is Overdue.NOTHING
        late = Waiting(WaitsFor.BODY, 0, (allowed_ms + 1) * MS, received)
        assert overdue(late, (allowed_ms + 1) * MS, LIMITS) is Overdue.REFUSE_BODY


def test_a_refused_body_that_stalls_ends_the_connection() -> None:
    waiting = Waiting(WaitsFor.REFUSED_BODY, 0, 0)
    assert overdue(waiting, 10_000 * MS, LIMITS) is Overdue.NOTHING
    assert overdue(waiting, 10_001 * MS, LIMITS) is Overdue.END


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
