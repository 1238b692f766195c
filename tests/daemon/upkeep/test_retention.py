"""When topics are looked at, and when the time is not trusted: under a virtual clock."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.upkeep.retention import (
    JUMP_MS,
    NOTE_MS,
    RELOOK_MAX_MS,
    Noted,
    Schedule,
    judge,
    note_of,
    noted_of,
)
from ledger.types import Topic, TopicConfig

HOUR_MS = 3_600_000


def at(boot_ms: int, off_ms: int = 0, boot_id: str = "b") -> Noted:
    """A moment of a machine whose wall clock is off by so much."""
    return Noted(boot_id, 1_000 * HOUR_MS + boot_ms + off_ms, boot_ms)


def topic(topic_id: int = 1, **settings: object) -> Topic:
    return Topic(topic_id, f"t{topic_id}", TopicConfig(**settings), 1)  # type: ignore[arg-type]


# The clock


@pytest.mark.parametrize("jump_ms", [JUMP_MS + 1, -JUMP_MS - 1, 400 * 24 * HOUR_MS])
def test_a_jump_of_more_than_an_hour_stops_time_until_the_note_is_gone(jump_ms: int) -> None:
    noted = judge(None, at(0))
    stopped = judge(noted, at(1_000, jump_ms))
    assert stopped == msgspec.structs.replace(noted, jump_ms=jump_ms)
    # It stays stopped: also when the clock is right again, and across a restart or a boot.
    for later in (at(2_000, jump_ms), at(3_000), at(0, jump_ms, "next boot")):
        assert judge(noted_of(note_of(stopped)), later) == stopped
    accepted = judge(noted_of(""), at(4_000, jump_ms))
    assert not accepted.jump_ms
    assert not judge(accepted, at(5_000, jump_ms)).jump_ms


@pytest.mark.parametrize("jump_ms", [JUMP_MS, -JUMP_MS])
def test_an_hour_is_no_jump(jump_ms: int) -> None:
    assert not judge(at(0), at(1_000, jump_ms)).jump_ms


def test_a_night_without_a_look_is_no_jump() -> None:
    """Both clocks went on: an idle daemon, or a suspended machine."""
    assert judge(at(0), at(12 * HOUR_MS)) == at(12 * HOUR_MS)


def test_small_steps_never_add_up_to_a_jump() -> None:
    noted = judge(None, at(0))
    for number in range(1, 200):
        noted = judge(noted, at(number * NOTE_MS, number * HOUR_MS // 2))
        assert not noted.jump_ms


def test_a_note_is_written_now_and_then_only() -> None:
    noted = judge(None, at(0))
    assert judge(noted, at(NOTE_MS - 1)) is noted
    assert judge(noted, at(NOTE_MS)) == at(NOTE_MS)


def test_behind_a_boot_only_a_clock_that_went_back_is_noticed() -> None:
    noted = at(10 * HOUR_MS)
    assert judge(noted, at(5, 50 * HOUR_MS, "c")) == at(5, 50 * HOUR_MS, "c")
    assert judge(noted, at(5, 9 * HOUR_MS, "c")).jump_ms == 0
    assert judge(noted, at(5, 8 * HOUR_MS, "c")).jump_ms == 5 - 2 * HOUR_MS


def test_a_note_that_cannot_be_read_is_none() -> None:
    assert noted_of("{") is None and noted_of(None) is None and noted_of("[1]") is None


# The schedule


def turn(schedule: Schedule, boot_ms: int, *, by_time: bool = True) -> dict[int, bool]:
    return {one.topic_id: timed for one, timed in schedule.turn(boot_ms, by_time=by_time)}


def test_only_topics_with_limits_are_looked_at() -> None:
    schedule = Schedule()
    schedule.changed(topic(1))
    schedule.changed(topic(2, cap_records=5))
    schedule.changed(topic(3, cap_bytes=5, discard="reject"))
    schedule.changed(topic(4, cap_bytes=5, ttl_ms=5, discard="reject"))
    assert turn(schedule, 100) == {2: False, 4: True}
    assert schedule.has_times
    schedule.changed(topic(2))
    schedule.changed(msgspec.structs.replace(topic(4, ttl_ms=5), deleted_ms=7))
    assert turn(schedule, 100) == {} and len(schedule) == 0 and not schedule.has_times


def test_without_a_trusted_time_caps_are_looked_at_all_the_same() -> None:
    schedule = Schedule()
    schedule.changed(topic(1, ttl_ms=5))
    schedule.changed(topic(2, ttl_ms=5, cap_records=9))
    assert turn(schedule, 100, by_time=False) == {2: False}


@given(
    ttl_ms=st.integers(1, 10**9),
    wait_ms=st.integers(-(10**6), 2**62),
    interval_ms=st.integers(100, 10_000),
)
def test_a_topic_is_looked_at_when_its_oldest_is_due_and_now_and_then_before(
    ttl_ms: int, wait_ms: int, interval_ms: int
) -> None:
    boot_ms = 10**9
    schedule = Schedule()
    schedule.changed(topic(1, ttl_ms=ttl_ms))
    schedule.looked(topic(1, ttl_ms=ttl_ms), boot_ms, wait_ms, interval_ms)
    next_ms = schedule.due_ms(1)
    assert next_ms is not None and boot_ms <= next_ms <= boot_ms + RELOOK_MAX_MS
    assert next_ms <= boot_ms + max(wait_ms, 0)
    if wait_ms > 0:
        assert next_ms > boot_ms
        assert turn(schedule, next_ms - 1) == {}
    assert turn(schedule, next_ms) == {1: True}


def test_a_topic_that_changed_is_looked_at_again() -> None:
    schedule = Schedule()
    schedule.changed(topic(1, ttl_ms=50_000))
    schedule.looked(topic(1, ttl_ms=50_000), 100, 10**9, 1_000)
    assert turn(schedule, 200) == {}
    schedule.changed(topic(1, ttl_ms=50))
    assert turn(schedule, 200) == {1: True}
