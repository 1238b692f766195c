"""A bucket of permits: how many attempts begin in any time, while the rate changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.push.rates.pacer import BURST_S, LATE_S, NEVER_NS, Pacer
from tests.long import examples

SECOND = 1_000_000_000


def _sent_until(pacer: Pacer, now: int, end: int) -> list[int]:
    """Takes every permit as soon as it comes."""
    times = []
    while (due := pacer.next_ns(now)) <= end:
        now = max(now, due)
        pacer.take(now)
        times.append(now)
    pacer.catch_up(end)
    return times


def test_permits_come_evenly_and_the_first_after_one_interval() -> None:
    times = _sent_until(Pacer(4.0, 0), 0, SECOND)
    assert times == [SECOND // 4, SECOND // 2, 3 * SECOND // 4, SECOND]


def test_a_burst_after_idleness_is_50_ms_of_the_rate() -> None:
    pacer = Pacer(1_000.0, 0)
    assert pacer.bucket == 50
    times = _sent_until(pacer, 10 * SECOND, 10 * SECOND)
    assert times == [10 * SECOND] * 50


def test_one_permit_always_waits_for_whoever_is_late() -> None:
    pacer = Pacer(0.1, 0)
    assert pacer.next_ns(60 * SECOND) == 60 * SECOND
    pacer.take(60 * SECOND)
    assert pacer.next_ns(60 * SECOND) == pytest.approx(70 * SECOND, abs=SECOND // 100)


@pytest.mark.parametrize("rate", [0.5, 10.0, 19.0, 200.0])
def test_a_timer_that_is_always_late_by_milliseconds_costs_nothing(rate: float) -> None:
    pacer, now = Pacer(rate, 0), 0
    for _ in range(100):
        now = max(now, pacer.next_ns(now)) + 3_000_000
        pacer.take(now)
    assert now == pytest.approx(100 / rate * SECOND, abs=5_000_000)


def test_a_rate_of_0_has_no_permits_and_one_that_grew_from_it_none_saved() -> None:
    pacer = Pacer(0.0, 0)
    assert pacer.next_ns(0) == NEVER_NS
    pacer.set_rate(2.0, 100 * SECOND)
    assert pacer.next_ns(100 * SECOND) == 100 * SECOND + SECOND // 2
    pacer.next_ns(200 * SECOND)
    pacer.set_rate(0.0, 200 * SECOND)
    pacer.set_rate(2.0, 200 * SECOND)
    assert pacer.next_ns(200 * SECOND) == 200 * SECOND + SECOND // 2


def test_a_waiter_has_an_earlier_time_after_the_rate_was_raised() -> None:
    pacer = Pacer(1 / 60, 0)
    assert pacer.next_ns(30 * SECOND) == 60 * SECOND
    pacer.set_rate(1.0, 30 * SECOND)
    assert pacer.next_ns(30 * SECOND) == 30 * SECOND + SECOND // 2  # half a permit was there


def test_after_the_rate_fell_the_next_attempt_is_an_interval_after_the_last() -> None:
    pacer = Pacer(10.0, 0)
    pacer.take(pacer.next_ns(0))  # at 0.1 s
    pacer.next_ns(3 * SECOND)  # a permit waits
    pacer.set_rate(1 / 60, 3 * SECOND)
    assert abs(pacer.next_ns(3 * SECOND) - (60 * SECOND + SECOND // 10)) <= 1_000_000


def test_a_rate_that_is_raised_again_and_again_starves_nobody() -> None:
    pacer, now, sent = Pacer(0.01, 0), 0, 0
    for step in range(3_000):  # every 100 ms
        now += SECOND // 10
        pacer.set_rate(0.01 + step / 1e6, now)
        if pacer.next_ns(now) <= now:
            pacer.take(now)
            sent += 1
    assert sent >= 3


def test_an_attempt_without_a_permit_is_owed() -> None:
    pacer = Pacer(1.0, 0)
    pacer.take(0)
    assert pacer.next_ns(0) == 2 * SECOND


_STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 999, 10**6, 10**7, 10**8, 10**9, 7 * 10**9]),  # idle, ns
        st.sampled_from([0, 10**6, 3 * 10**8, 2 * 10**9]),  # sending, ns
        st.sampled_from([0.0, 1 / 60, 0.3, 1.0, 7.0, 40.0, 200.0]),  # then the rate
    ),
    max_size=12,
)


@given(_STEPS)
@settings(max_examples=examples(60))
def test_in_any_time_there_are_at_most_a_bucket_of_attempts_more_than_the_rates_allow(
    steps: list[tuple[int, int, float]],
) -> None:
    pacer, now, rate = Pacer(7.0, 0), 0, 7.0
    times: list[int] = []
    spans: list[tuple[int, int, float]] = []
    for idle, sending, new_rate in steps:
        end = now + idle + sending
        times += _sent_until(pacer, now + idle, end)
        spans.append((now, end, rate))
        now, rate = end, new_rate
        pacer.set_rate(rate, now)
        pacer.check_invariants()
    starts = [at for index, at in enumerate(times) if index % 7 == 0]
    for begin in starts:
        bucket = max(
            max(1 + rate * LATE_S, rate * BURST_S) for start, end, rate in spans if end >= begin
        )
        allowed, seen = 0.0, 0
        for start, end, span_rate in spans:
            if end < begin:
                continue
            seen += sum(max(start, begin) <= at <= end and at > start for at in times)
            allowed += (end - max(start, begin)) / 1e9 * span_rate
            assert seen <= allowed + bucket + 1e-3, (begin, end)
