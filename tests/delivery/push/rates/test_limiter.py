"""The mode machine of a sender, period by period, and the rates that it puts in force."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from delivery.push.rates.limiter import (
    MODES,
    USE_UNKNOWN,
    Failed,
    Limiter,
    LimiterSettings,
)
from delivery.push.rates.pacer import BURST_S, LATE_S, NEVER_NS
from ledger.delivery.push_rates import LearnedRate
from shards.boards.pushboard import LimiterMode
from tests.long import examples

SECOND = 1_000_000_000
SETTINGS = LimiterSettings()
PERIOD = 30 * SECOND
SLOW = 1 / 60


class Periods:
    """A limiter and the time; each call of ``end`` ends a period with these answers."""

    def __init__(self, maximum: float = 100.0, state: LearnedRate | None = None) -> None:
        self.now = 0
        self.limiter = Limiter(SETTINGS, maximum, 0, state)

    def end(self, succeeded: int, failed: int = 0, *, is_last: bool = False) -> Limiter:
        limiter = self.limiter
        answers = succeeded + failed
        for number in range(answers):  # failures last, or among the successes
            fails = failed * (number + 1) // answers > failed * number // answers
            if number >= succeeded if is_last else fails:
                limiter.failed(self.now)
            else:
                limiter.succeeded(self.now)
        # Everything that came is taken: the sender is busy.
        end = self.now + PERIOD
        while (due := limiter.next_ns(self.now)) < end:
            self.now = due
            limiter.attempted(due)
        self.now = end
        limiter.tick(end)
        limiter.check_invariants()
        return limiter


def _at(rate: float, maximum: float = 100.0, ceiling: float | None = None) -> Periods:
    return Periods(maximum, LearnedRate(LimiterMode.NORMAL, rate, ceiling))


def _in(mode: LimiterMode, ceiling: float | None = None) -> Periods:
    return Periods(100.0, LearnedRate(mode, SLOW, ceiling))


def test_a_new_limiter_has_climbed_once_and_covers_a_fifth_of_the_gap_in_each_clean_period() -> (
    None
):
    periods, expected = Periods(), 20.0
    assert periods.limiter.rate == expected
    for _ in range(12):
        expected += 0.2 * (100 - expected)
        assert periods.end(50).rate == pytest.approx(expected)
    assert periods.limiter.ceiling is None


def test_a_limiter_that_is_restarted_does_as_a_new_one() -> None:
    """Nothing that the former receiver taught is left: no mode, ceiling, outage or quota."""
    former = Periods()
    for succeeded, failed in [(50, 50), (10, 60), (99, 1), (40, 40), (100, 0), (0, 9), (0, 9)]:
        former.end(succeeded, failed, is_last=True)
    assert former.limiter.mode is not LimiterMode.NORMAL
    former.limiter.hold(former.now + 3600 * SECOND)
    former.limiter.restart(former.now)
    new = Periods()
    assert former.limiter.state == new.limiter.state
    for succeeded, failed in [(100, 0), (90, 10), (100, 0), (10, 40), (100, 0), (100, 0), (100, 0)]:
        mine = former.end(succeeded, failed, is_last=True).state
        fresh = new.end(succeeded, failed, is_last=True).state
        assert mine.mode == fresh.mode
        assert mine.rate == pytest.approx(fresh.rate)
        assert mine.ceiling == pytest.approx(fresh.ceiling)


@pytest.mark.parametrize(
    ("succeeded", "failed", "rate"),
    [
        (99, 1, 60.0),  # exactly 1 %: not more, so it climbs
        (98, 1, 50.0),
        (95, 5, 50.0),  # exactly 5 %: not more, so it stays
        (94, 5, 40.0),
        (50, 50, 40.0),  # exactly half: not more, so it decreases
        (49, 50, SLOW),
    ],
)
def test_thresholds_are_strict(succeeded: int, failed: int, rate: float) -> None:
    limiter = _at(50.0).end(succeeded, failed)
    assert limiter.rate == pytest.approx(rate)
    assert limiter.mode is (LimiterMode.SLOW if rate == SLOW else LimiterMode.NORMAL)


@pytest.mark.parametrize("mode", list(LimiterMode))
def test_a_period_without_an_answer_changes_nothing(mode: LimiterMode) -> None:
    periods = Periods(100.0, LearnedRate(mode, 50.0 if mode is LimiterMode.NORMAL else SLOW, 70.0))
    before = (periods.limiter.state, periods.limiter.rate)
    limiter = periods.end(0)
    assert (limiter.state, limiter.rate) == before


def test_one_attempt_alone_decreases_and_does_not_lead_to_slow_mode() -> None:
    limiter = _at(50.0).end(0, 1)
    assert (limiter.mode, limiter.rate) == (LimiterMode.NORMAL, 40.0)


def test_no_decrease_goes_below_the_slow_rate() -> None:
    periods = _at(0.05)
    for _ in range(10):
        periods.end(1, 1)
    assert periods.limiter.rate == SLOW
    assert periods.limiter.mode is LimiterMode.NORMAL


def test_slow_mode_is_left_up_after_successes_alone_and_down_after_more_than_half_failed() -> None:
    assert _in(LimiterMode.SLOW).end(1, 1).mode is LimiterMode.SLOW
    assert _in(LimiterMode.SLOW).end(2, 1).mode is LimiterMode.SLOW
    assert _in(LimiterMode.SLOW).end(1, 2).mode is LimiterMode.HEARTBEAT
    assert _in(LimiterMode.SLOW).end(0, 1).mode is LimiterMode.HEARTBEAT
    up = _in(LimiterMode.SLOW).end(1)
    assert up.mode is LimiterMode.NORMAL
    assert up.rate == pytest.approx(SLOW + 0.2 * (100 - SLOW))


def test_heartbeat_is_left_to_slow_mode_after_successes_alone() -> None:
    assert _in(LimiterMode.HEARTBEAT).end(1, 1).mode is LimiterMode.HEARTBEAT
    assert _in(LimiterMode.HEARTBEAT).end(99, 1).mode is LimiterMode.HEARTBEAT
    assert _in(LimiterMode.HEARTBEAT).end(1).mode is LimiterMode.SLOW


@pytest.mark.parametrize("mode", [LimiterMode.SLOW, LimiterMode.HEARTBEAT])
def test_an_operator_ends_slow_mode_and_a_pause_and_failures_before_that_do_not_count(
    mode: LimiterMode,
) -> None:
    periods = _in(mode, ceiling=50.0)
    limiter = periods.limiter
    for _ in range(10):
        limiter.failed(0)
    limiter.hold(PERIOD)
    limiter.resume(SECOND)
    limiter.check_invariants()
    expected = SLOW + 0.2 * (50 - SLOW)
    assert (limiter.mode, limiter.held_until_ns) == (LimiterMode.NORMAL, 0)
    assert limiter.rate == pytest.approx(expected)
    periods.now = SECOND
    assert periods.end(100).rate == pytest.approx(expected + 0.2 * (50 - expected))


def test_an_operator_who_resumes_a_sender_in_normal_mode_changes_no_rate() -> None:
    limiter = _at(30.0).limiter
    limiter.resume(SECOND)
    assert limiter.state == LearnedRate(LimiterMode.NORMAL, 30.0, None)


@pytest.mark.parametrize(("part", "rate"), [(0.6, 60.0), (1.0, 100.0), (None, 20.0)])
def test_a_limiter_begins_and_begins_anew_with_the_part_that_the_settings_say(
    part: float | None, rate: float
) -> None:
    limiter = Limiter(SETTINGS, 100.0, 0, None, part)
    assert limiter.rate == rate
    limiter.restart(SECOND, part)
    assert limiter.rate == rate


def test_slow_and_heartbeat_send_once_per_delay() -> None:
    settings = LimiterSettings(slow_delay_s=10)
    for mode in (LimiterMode.SLOW, LimiterMode.HEARTBEAT):
        limiter = Limiter(settings, 100.0, 0, LearnedRate(mode, 0.1, None))
        now = 0
        for turn in range(1, 4):
            now = limiter.next_ns(now)
            assert now == turn * 10 * SECOND
            limiter.attempted(now)


def test_a_fall_to_slow_mode_does_not_send_what_was_saved_before() -> None:
    limiter = Limiter(SETTINGS, 1_000.0, 0)
    limiter.attempted(29 * SECOND)
    for _ in range(2):
        limiter.failed(29 * SECOND)
    assert limiter.tick(PERIOD)
    assert limiter.mode is LimiterMode.SLOW
    assert limiter.next_ns(PERIOD) == pytest.approx(89 * SECOND, abs=1_000_000)


def test_a_decrease_measures_the_ceiling_and_climbing_ends_there() -> None:
    periods = _at(50.0)
    limiter = periods.end(80, 20)
    assert [limiter.rate, limiter.ceiling] == pytest.approx([40.0, 40.0])
    limiter = _at(50.0).end(60, 40)  # measured by what succeeded
    assert [limiter.rate, limiter.ceiling] == pytest.approx([40.0, 30.0])
    periods = _at(10.0, ceiling=20.0)
    assert periods.end(100).rate == pytest.approx(12.0)
    assert periods.end(100).rate == pytest.approx(13.6)
    assert periods.limiter.ceiling == 20.0


def test_clean_periods_near_the_ceiling_probe_by_1_2_4_8_and_16_percent() -> None:
    periods, expected = _at(10.0, ceiling=10.0), 10.0
    for step in (0.01, 0.02, 0.04, 0.08, 0.16, 0.16):
        expected *= 1 + step
        assert periods.end(100).rate == pytest.approx(expected)
    expected = periods.limiter.rate
    assert periods.end(98, 2).rate == expected  # something fails: it stays
    assert periods.end(100).rate == pytest.approx(expected * 1.01)  # and begins anew
    for _ in range(30):
        periods.end(100)
    assert periods.limiter.rate == 100.0


def test_a_sender_with_little_to_send_does_not_probe() -> None:
    limiter = Limiter(SETTINGS, 100.0, 0, LearnedRate(LimiterMode.NORMAL, 10.0, 10.0))
    now = 0
    for period in range(1, 10):
        for second in range(0, 30, 2):
            now = (period - 1) * PERIOD + second * SECOND + 1
            limiter.attempted(max(now, limiter.next_ns(now)))
            limiter.succeeded(now)
        limiter.tick(period * PERIOD)
    assert (limiter.rate, limiter.ceiling) == (10.0, 10.0)


def test_an_outage_says_nothing_about_the_ceiling() -> None:
    periods = _at(50.0, ceiling=60.0)
    limiter = periods.end(0, 500)
    assert (limiter.mode, limiter.ceiling) == (LimiterMode.SLOW, 60.0)
    assert periods.end(0, 1).mode is LimiterMode.HEARTBEAT
    assert periods.end(1).mode is LimiterMode.SLOW
    limiter = periods.end(1)
    assert (limiter.mode, limiter.ceiling) == (LimiterMode.NORMAL, 60.0)
    assert limiter.rate == pytest.approx(SLOW + 0.2 * (60 - SLOW))


def test_a_receiver_that_went_down_within_a_period_has_not_a_lower_ceiling() -> None:
    periods = _at(50.0)
    limiter = periods.end(30, 1_000, is_last=True)
    assert (limiter.mode, limiter.ceiling) == (LimiterMode.SLOW, None)
    periods.end(1)
    periods.end(100)
    limiter = periods.end(0, 100)  # again, and soon: it takes what succeeded in both periods
    assert limiter.ceiling == pytest.approx(10.0, rel=0.01)


def test_an_outage_that_goes_on_in_the_next_period_is_one_and_the_ceiling_stays() -> None:
    periods = _at(50.0)
    limiter = periods.end(900, 300, is_last=True)
    assert (limiter.mode, limiter.ceiling) == (LimiterMode.NORMAL, None)
    limiter = periods.end(0, 1_000)
    assert (limiter.mode, limiter.ceiling) == (LimiterMode.SLOW, None)


def test_an_outage_that_a_lower_rate_does_not_prevent_is_no_quota() -> None:
    periods = _at(50.0, ceiling=80.0)
    assert periods.end(1_100, 100, is_last=True).ceiling == 80.0
    periods.end(1_000)
    lowered = periods.end(1_100, 100, is_last=True).ceiling
    assert lowered is not None and 40 < lowered < 50
    periods.end(1_000)
    limiter = periods.end(1_000, 100, is_last=True)  # below what it was thought to take
    assert limiter.ceiling == 80.0


def test_of_few_failures_half_in_succession_are_an_outage_and_those_in_between_are_none() -> None:
    assert _at(50.0).end(20, 3, is_last=True).ceiling is None
    assert _at(50.0).end(20, 2, is_last=True).ceiling is not None
    assert _at(50.0).end(20, 6).ceiling is not None


def test_answers_to_what_was_under_way_at_a_fall_do_not_lead_to_heartbeat() -> None:
    periods = _at(50.0)
    limiter = periods.end(10, 90)
    for _ in range(20):
        limiter.failed(periods.now + 5 * SECOND, periods.now - 1)
    limiter.succeeded(periods.now + 6 * SECOND, periods.now + 5 * SECOND)
    assert periods.end(0).mode is LimiterMode.NORMAL


def test_a_probe_that_fails_has_no_lower_ceiling_than_the_rate_that_was_proved() -> None:
    periods = _at(10.0, ceiling=10.0)
    assert periods.end(100).rate == pytest.approx(10.1)
    limiter = periods.end(50, 50)
    assert [limiter.rate, limiter.ceiling] == pytest.approx([8.08, 10.0])
    limiter = periods.end(50, 50)  # what fails now was not a probe
    assert limiter.ceiling == pytest.approx(4.04)


def test_small_steps_wait_for_ten_successes_or_three_periods() -> None:
    periods = _at(0.1, ceiling=0.1)
    rates = [periods.end(3).rate for _ in range(6)]
    assert rates == pytest.approx([0.1, 0.1, 0.101, 0.101, 0.101, 0.101 * 1.02])


def test_a_maximum_is_in_force_immediately_and_what_was_learned_comes_back_with_it() -> None:
    limiter = _at(80.0).limiter
    limiter.set_maximum(30.0, 0)
    assert limiter.rate == 30.0
    limiter.set_maximum(0.0, 0)
    assert limiter.rate == 0
    assert limiter.next_ns(0) == NEVER_NS
    limiter.set_maximum(200.0, 0)
    assert limiter.rate == 80.0


def test_a_new_limiter_without_a_share_begins_with_the_share_that_it_gets() -> None:
    limiter = Limiter(SETTINGS, 0.0, 0)
    assert limiter.next_ns(0) == NEVER_NS
    limiter.set_maximum(10.0, SECOND)
    assert limiter.rate == pytest.approx(2.0)
    limiter.set_maximum(50.0, 2 * SECOND)
    assert limiter.rate == pytest.approx(10.0)


def test_a_newcomer_begins_with_the_part_that_others_have_learned() -> None:
    limiter = Limiter(SETTINGS, 0.0, 0, first_part=0.9)
    limiter.set_maximum(50.0, 0)
    assert limiter.rate == pytest.approx(45.0)
    assert Limiter(SETTINGS, 50.0, 0, first_part=0.0).rate == SLOW


@pytest.mark.parametrize("maximum", [-1.0, math.nan, math.inf])
def test_a_maximum_that_is_not_a_rate_is_refused(maximum: float) -> None:
    with pytest.raises(ValueError, match="maximum"):
        Limiter(SETTINGS, maximum, 0)


def test_a_waiter_wakes_earlier_when_the_rate_is_raised() -> None:
    limiter = Limiter(SETTINGS, 1.0, 0, LearnedRate(LimiterMode.NORMAL, 50.0, None))
    assert limiter.next_ns(0) == SECOND
    limiter.set_maximum(10.0, 0)
    assert limiter.next_ns(0) == SECOND // 10


def test_a_held_receiver_is_not_asked_before_its_time_and_the_rate_stays() -> None:
    limiter = _at(50.0).limiter
    limiter.hold(7 * SECOND)
    limiter.hold(3 * SECOND)
    assert limiter.next_ns(SECOND) == 7 * SECOND
    assert limiter.rate == 50.0
    limiter.release()
    assert limiter.next_ns(SECOND) == SECOND


def test_what_was_learned_survives_in_the_state() -> None:
    periods = _at(50.0)
    periods.end(80, 20)
    again = Limiter(SETTINGS, 100.0, 0, periods.limiter.state)
    assert again.rate == periods.limiter.rate
    assert again.state == periods.limiter.state
    fallen = _at(50.0)
    fallen.end(1, 9)
    again = Limiter(SETTINGS, 100.0, 0, fallen.limiter.state)
    assert again.mode is LimiterMode.SLOW
    assert [again.rate, again.ceiling] == pytest.approx([SLOW, 5.0])


def test_a_tick_says_whether_something_changed_and_is_due_at_the_next_interval() -> None:
    limiter = Limiter(SETTINGS, 100.0, 0)
    assert limiter.tick_due_ns == 15 * SECOND
    assert not limiter.tick(15 * SECOND)
    assert limiter.tick_due_ns == 30 * SECOND
    limiter.succeeded(16 * SECOND)
    assert limiter.tick(30 * SECOND)
    assert not limiter.tick(60 * SECOND)
    assert limiter.tick_due_ns > 60 * SECOND


def _use_after(rate: float, maximum: float, per_s: float, state: LearnedRate) -> float:
    """The use after two minutes of attempts that come every ``1 / per_s``, as the rate allows."""
    limiter, now = Limiter(SETTINGS, maximum, 0, state), 0
    wanted = 0
    while now < 120 * SECOND:
        wanted += round(SECOND / per_s)
        now = max(wanted, limiter.next_ns(now))
        while limiter.tick_due_ns <= now:
            limiter.tick(limiter.tick_due_ns)
        limiter.attempted(now)
    return limiter.use


def test_use_is_attempts_over_the_maximum() -> None:
    state = LearnedRate(LimiterMode.NORMAL, 100.0, None)
    assert Limiter(SETTINGS, 100.0, 0, state).use == USE_UNKNOWN
    assert _use_after(100.0, 100.0, 50.0, state) == pytest.approx(0.5, abs=0.02)
    assert _use_after(100.0, 100.0, 1_000.0, state) == pytest.approx(1.0)
    assert _use_after(100.0, 100.0, 1 / 7, state) == pytest.approx(0, abs=0.02)


def test_a_limiter_that_its_ceiling_holds_back_does_not_use_its_maximum() -> None:
    held = LearnedRate(LimiterMode.NORMAL, 30.0, 30.0)
    assert _use_after(30.0, 100.0, 1_000.0, held) == pytest.approx(0.3, abs=0.02)


def test_a_limiter_that_only_has_to_climb_uses_its_maximum() -> None:
    climbing = LearnedRate(LimiterMode.NORMAL, 30.0, None)
    assert _use_after(30.0, 100.0, 1_000.0, climbing) == pytest.approx(1.0)


def test_a_rate_of_few_attempts_per_interval_is_used_all_the_same() -> None:
    state = LearnedRate(LimiterMode.NORMAL, 0.25, None)
    assert _use_after(0.25, 0.25, 10.0, state) == pytest.approx(1.0)
    state = LearnedRate(LimiterMode.NORMAL, 1 / 60, None)
    assert _use_after(1 / 60, 1 / 60, 10.0, state) > 0.9


def test_a_sender_that_waits_for_its_permit_is_known_to_use_all_before_it_has_one() -> None:
    """At the least share a permit is a minute away, and a change of shares as far as its news."""
    limiter = Limiter(SETTINGS, 1 / 60, 0, LearnedRate(LimiterMode.NORMAL, 100.0, None))
    limiter.tick(15 * SECOND)
    assert limiter.use == USE_UNKNOWN
    limiter.wait(16 * SECOND)
    limiter.tick(30 * SECOND)
    assert limiter.use == pytest.approx(1.0)
    held = Limiter(SETTINGS, 1 / 60, 0, LearnedRate(LimiterMode.NORMAL, 100.0, None))
    held.hold(60 * SECOND)
    held.wait(SECOND)  # for the receiver, who asked for it
    held.tick(15 * SECOND)
    assert held.use == USE_UNKNOWN


class Intervals:
    """A limiter at 100 a second, interval by interval."""

    def __init__(self) -> None:
        self.limiter = Limiter(SETTINGS, 100.0, 0, LearnedRate(LimiterMode.NORMAL, 100.0, None))
        self._begin = 0

    def use(self, part: float) -> float:
        """The use after an interval in which so much of the permits was taken."""
        attempts = round(part * self.limiter.rate * 15)
        for number in range(attempts):
            self.limiter.attempted(self._begin + number * 15 * SECOND // attempts)
        self._begin += 15 * SECOND
        self.limiter.tick(self._begin)
        return self.limiter.use


def test_a_change_of_the_use_of_9_percent_or_less_is_not_told() -> None:
    intervals = Intervals()
    uses = [intervals.use(part) for part in (0.5, 0.57, 0.6, 0.63)]
    assert uses == pytest.approx([0.5, 0.5, 0.6, 0.6], abs=0.01)


def test_a_use_of_all_and_its_end_are_told_and_that_of_another_maximum() -> None:
    intervals = Intervals()
    uses = [intervals.use(part) for part in (0.94, 1.0, 0.94)]
    assert uses == pytest.approx([0.94, 1.0, 0.94], abs=0.005)
    intervals = Intervals()
    intervals.use(0.5)
    intervals.limiter.set_maximum(90.0, 15 * SECOND)
    assert intervals.use(0.55) == pytest.approx(0.55, abs=0.01)


class LimiterMachine(RuleBasedStateMachine):
    """A limiter with shares that change and a receiver that answers anything, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.maximum = 5.0
        self.highest = 5.0
        self.limiter = Limiter(SETTINGS, self.maximum, 0)
        self.times: list[int] = []
        self.under_way: list[int] = []

    @rule(maximum=st.sampled_from([0.0, 1 / 3_840, 1 / 60, 0.5, 5.0, 40.0]))
    def gets_a_share(self, maximum: float) -> None:
        self.limiter.set_maximum(maximum, self.now)
        self.maximum = maximum
        self.highest = max(self.highest, maximum)

    @rule(seconds=st.sampled_from([0.001, 1, 14, 29, 61]), is_sending=st.booleans())
    def time_passes(self, seconds: float, is_sending: bool) -> None:
        end = self.now + round(seconds * SECOND)
        while self.now < end:
            due = self.limiter.next_ns(self.now) if is_sending else NEVER_NS
            self.now = max(self.now, min(due, self.limiter.tick_due_ns, end))
            if self.now >= self.limiter.tick_due_ns:
                before = (self.limiter.mode, self.limiter.rate)
                changed = self.limiter.tick(self.now)
                assert changed == (before != (self.limiter.mode, self.limiter.rate))
                assert self.limiter.tick_due_ns > self.now
            if due <= self.now < end and len(self.times) < 2_000:
                self.limiter.attempted(self.now)
                self.times.append(self.now)
                self.under_way.append(self.now)

    @rule(share=st.sampled_from([0.0, 0.005, 0.03, 0.3, 0.8, 1.0]), seed=st.randoms())
    def answers(self, share: float, seed: Random) -> None:
        for began in self.under_way:
            report = self.limiter.failed if seed.random() < share else self.limiter.succeeded
            report(self.now, began)
        self.under_way.clear()

    @rule()
    def is_killed(self) -> None:
        self.under_way.clear()
        self.limiter = Limiter(SETTINGS, self.maximum, self.now, self.limiter.state)

    @rule(seconds=st.sampled_from([1, 40]))
    def is_held(self, seconds: int) -> None:
        self.limiter.hold(self.now + seconds * SECOND)
        assert self.limiter.next_ns(self.now) >= self.now + seconds * SECOND

    @invariant()
    def the_rate_is_within_the_maximum(self) -> None:
        self.limiter.check_invariants()
        assert self.limiter.rate <= self.maximum

    @invariant()
    def attempts_are_within_the_highest_maximum_in_any_time(self) -> None:
        bucket = max(1 + self.highest * LATE_S, self.highest * BURST_S)
        for count in (1, 2, 5, 50):
            for first, last in zip(self.times, self.times[count:], strict=False):
                assert count + 1 <= bucket + (last - first) / SECOND * self.highest + 1e-3


LimiterMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25)
TestLimiterMachine = LimiterMachine.TestCase


def test_settings_that_contradict_each_other_are_refused() -> None:
    for bad in (
        {"period_s": 0.0},
        {"slow_delay_s": math.inf},
        {"tolerance": 0.005},
        {"convergence_factor": 1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            LimiterSettings(**bad)


@pytest.mark.parametrize(("mode", "failed"), [*product(LimiterMode, Failed)])
def test_a_period_changes_the_mode_as_the_table_says_and_in_no_other_way(
    mode: LimiterMode, failed: Failed
) -> None:
    failures = {Failed.NONE: 0, Failed.SOME: 2, Failed.MOST: 3}[failed]
    periods = Periods(state=LearnedRate(mode, 10.0, None))
    assert periods.end(4 - failures, failures).mode is MODES.get((mode, failed), mode)
