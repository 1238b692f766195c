"""When a shard counts as stuck: ticks of the supervisor without a new heartbeat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.process.heartbeat import MISSING_TICKS, HeartbeatVerdict, Pulse


def verdicts(pulse: Pulse, ticks: int, *, holding: bool) -> dict[HeartbeatVerdict, int]:
    """The tick at which each verdict came, for a heartbeat that stays at 7."""
    came: dict[HeartbeatVerdict, int] = {}
    assert pulse.tick(7, ready=True, holding=holding) is HeartbeatVerdict.LEAVE
    for tick in range(1, ticks + 1):
        verdict = pulse.tick(7, ready=True, holding=holding)
        if verdict is not HeartbeatVerdict.LEAVE:
            assert verdict not in came, "each verdict is given once"
            came[verdict] = tick
    return came


def test_a_stuck_shard_with_a_lease_is_aborted_and_two_seconds_of_ticks_later_at_most_killed() -> (
    None
):
    assert verdicts(Pulse(), 500, holding=True) == {
        HeartbeatVerdict.ABORT: 15,
        HeartbeatVerdict.KILL: 20,
    }


def test_a_stuck_shard_that_holds_nothing_has_five_seconds_of_ticks() -> None:
    assert verdicts(Pulse(), 500, holding=False) == {
        HeartbeatVerdict.ABORT: 45,
        HeartbeatVerdict.KILL: 50,
    }


def test_a_shard_that_is_found_to_hold_a_lease_late_is_still_aborted_before_it_is_killed() -> None:
    pulse = Pulse()
    assert verdicts(pulse, 30, holding=False) == {}
    assert pulse.tick(7, ready=True, holding=True) is HeartbeatVerdict.ABORT
    later = [pulse.tick(7, ready=True, holding=True) for _ in range(5)]
    assert later == [HeartbeatVerdict.LEAVE] * 4 + [HeartbeatVerdict.KILL]


def test_a_loop_that_turns_again_starts_from_nothing() -> None:
    pulse = Pulse()
    for heartbeat in range(1, 4):
        for _ in range(15):
            assert pulse.tick(heartbeat, ready=True, holding=True) is HeartbeatVerdict.LEAVE
        assert pulse.stalled_ticks == 14


def test_a_shard_that_starts_is_left_alone_and_does_not_count_as_moving() -> None:
    pulse = Pulse()
    for _ in range(1000):
        assert pulse.tick(0, ready=False, holding=True) is HeartbeatVerdict.LEAVE
        assert not pulse.moving
    pulse.tick(1, ready=True, holding=False)
    assert pulse.moving


@given(st.lists(st.booleans(), max_size=200))
def test_it_moves_exactly_while_the_last_heartbeat_is_less_than_a_second_of_ticks_old(
    beats: list[bool],
) -> None:
    pulse = Pulse()
    heartbeat, age = 1, 0
    pulse.tick(heartbeat, ready=True, holding=False)
    for beat in beats:
        heartbeat, age = (heartbeat + 1, 0) if beat else (heartbeat, age + 1)
        pulse.tick(heartbeat, ready=True, holding=False)
        assert pulse.moving == (age < MISSING_TICKS)


def test_ticks_for_which_the_shard_starved_are_not_counted() -> None:
    pulse = Pulse()
    pulse.tick(7, ready=True, holding=True)
    for tick in range(100):
        verdict = pulse.tick(7, ready=True, holding=True, starves=lambda: True)
        assert (verdict, pulse.starved_ticks) == (HeartbeatVerdict.LEAVE, tick + 1)
    assert pulse.moving and pulse.stalled_ticks == 0
    stuck = [pulse.tick(7, ready=True, holding=True) for _ in range(20)]
    assert (stuck.index(HeartbeatVerdict.ABORT), stuck.index(HeartbeatVerdict.KILL)) == (14, 19)
    pulse.tick(8, ready=True, holding=True)
    assert pulse.starved_ticks == 0


def test_a_shard_that_was_aborted_is_killed_even_if_it_starves_then() -> None:
    pulse = Pulse()
    pulse.tick(7, ready=True, holding=True)
    for _ in range(15):
        pulse.tick(7, ready=True, holding=True)
    later = [pulse.tick(7, ready=True, holding=True, starves=lambda: True) for _ in range(5)]
    assert later[-1] is HeartbeatVerdict.KILL
