"""Limiters and balancer under a virtual clock: at receivers of any capacity, and with others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from delivery.push.rates.limiter import LimiterSettings
from shards.boards.pushboard import LimiterMode
from tools.push_model import SECOND, ModelSender, PushSample, Receiver, Sharing, follow

PERIOD_S = 30


def _served(samples: Sequence[PushSample]) -> float:
    return sum(each.taken for each in samples) / len(samples) / PERIOD_S


def _failed(samples: Sequence[PushSample]) -> float:
    return sum(each.failures for each in samples) / sum(each.attempts for each in samples)


def _is_settled(samples: Sequence[PushSample], capacity: float) -> bool:
    return _served(samples) >= 0.9 * capacity and _failed(samples) < 0.05


def _settles(samples: Sequence[PushSample], capacity: float, within: int) -> None:
    """After so long, it stays within 10 % of the capacity, and less than 5 % fail."""
    rest = samples[within:]
    assert len(rest) >= 40
    assert 0.9 * capacity <= _served(rest) <= 1.01 * capacity
    assert _failed(rest) < 0.05
    for first in range(0, len(rest) - 20, 20):
        assert _served(rest[first : first + 20]) >= 0.85 * capacity


@pytest.mark.parametrize("part", [0.001, 0.002, 0.005, 0.01, 0.03, 0.1, 0.25])
def test_a_sender_settles_within_a_tenth_of_a_capacity_far_below_the_maximum(part: float) -> None:
    capacity = 100 * part
    _settles(follow(lambda _: capacity, 100.0, 100), capacity, 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("maximum", "parts"),
    [
        (1.0, (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)),
        (10.0, (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)),
        (100.0, (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)),
        (1_000.0, (0.001, 0.003, 0.01, 0.03, 0.1)),
    ],
)
def test_a_sender_settles_within_a_tenth_of_any_capacity(
    maximum: float, parts: tuple[float, ...]
) -> None:
    # Where three attempts are a period; of fewer, one that fails is too many.
    for part in parts:
        capacity = maximum * part
        _settles(follow(_changing(capacity, periods=1), maximum, 120), capacity, 60)


@pytest.mark.parametrize("capacity", [3.0, 10.0])
def test_a_receiver_without_patience_for_bursts_is_served_nearly_as_well(capacity: float) -> None:
    rest = follow(lambda _: capacity, 100.0, 160, burst=1.0)[40:]
    assert _served(rest) >= 0.85 * capacity
    assert _failed(rest) < 0.05


def _changing(*capacities: float, periods: int) -> Callable[[float], float]:
    return lambda at_s: capacities[min(len(capacities) - 1, int(at_s / PERIOD_S / periods))]


def test_a_sender_follows_a_capacity_that_halves_and_doubles() -> None:
    samples = follow(_changing(10.0, 5.0, 10.0, periods=60), 100.0, 180)
    for part, capacity in enumerate((10.0, 5.0, 10.0)):
        after = samples[60 * part : 60 * (part + 1)]
        assert _is_settled(after[20:], capacity)


def test_a_sender_comes_back_after_an_outage() -> None:
    samples = follow(_changing(1e6, 0.0, 1e6, periods=20), 100.0, 60)
    down = samples[22:40]
    assert all(
        each.mode in (LimiterMode.SLOW, LimiterMode.HEARTBEAT) and each.attempts <= 1
        for each in down
    )
    assert _served(samples[-10:]) > 80


class _Quota(Receiver):
    """Takes a number of requests in each minute and then nothing."""

    def __init__(self, number: int, second: int = 0) -> None:
        super().__init__(lambda _: 0.0)
        self._number = number
        self._second = second
        self._minute = self._taken = 0

    def takes(self, now_ns: int) -> bool:
        minute = (now_ns + self._second * SECOND) // (60 * SECOND)
        if minute != self._minute:
            self._minute, self._taken = minute, 0
        self._taken += 1
        return self._taken <= self._number


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "second"),
    [(60, 0), (60, 5), (60, 22), *(pytest.param(600, at, marks=_SLOW) for at in (0, 5, 15, 22))],
)
def test_a_receiver_that_takes_a_number_in_a_minute_is_not_taken_for_one_that_is_down(
    number: int, second: int
) -> None:
    """Wherever in a period its minutes begin."""
    sender = ModelSender(LimiterSettings(), 100.0)
    sender.run(_Quota(number, second), 160 * PERIOD_S * SECOND)
    rest = sender.samples[60:]
    assert _served(rest) >= 0.8 * number / 60
    assert _failed(rest) < 0.1


@pytest.mark.parametrize(
    ("every_s", "down_s", "share"),
    [
        (60, 2, 0.22),
        pytest.param(120, 10, 0.5, marks=_SLOW),
        pytest.param(77, 5, 0.22, marks=_SLOW),
        pytest.param(301, 20, 0.4, marks=_SLOW),
    ],
)
def test_short_outages_again_and_again_do_not_bring_the_rate_down_for_good(
    every_s: int, down_s: int, share: float
) -> None:
    """As those of a receiver that is busy with something else for two seconds of each minute."""
    rate = 20.0
    samples = follow(lambda at_s: 0.0 if at_s % every_s < down_s else 1e6, rate, 160)
    assert _served(samples[60:]) >= share * rate


def test_attempts_never_exceed_the_maximum() -> None:
    for each in follow(_changing(1e6, 3.0, 0.0, 1e6, periods=10), 40.0, 60):
        assert each.attempts <= 40 * PERIOD_S + 2
        assert each.rate <= each.maximum


def test_maxima_add_up_to_no_more_than_the_rate_and_to_all_of_it_at_rest() -> None:
    sharing = Sharing(100.0)
    unlimited = Receiver(lambda _: math.inf)
    sharing.join(0)
    sharing.run(unlimited, 300)
    sharing.join(1)
    sharing.join(2, lambda _: 5.0)
    sharing.run(unlimited, 900)
    del sharing.senders[0]
    sharing.run(unlimited, 1_200)
    assert max(sharing.sums) <= 100 * (1 + 1e-9)
    assert min(sharing.sums[-100:]) >= 99


def test_a_newcomer_has_half_its_fair_share_within_a_period_and_sends_as_much() -> None:
    sharing = Sharing(100.0)
    unlimited = Receiver(lambda _: math.inf)
    first = sharing.join(0)
    sharing.run(unlimited, 900)
    second = sharing.join(1)
    sharing.run(unlimited, 930)
    assert second.limiter.maximum == pytest.approx(50)
    assert second.samples[0].attempts / PERIOD_S >= 25
    assert first.limiter.rate + second.limiter.rate >= 99


def test_a_sender_that_had_nothing_to_send_has_the_rate_soon_after_it_has() -> None:
    """An update interval, a balance interval and the step of each; the least share is a POST a
    minute."""
    sharing = Sharing(10.0)
    unlimited = Receiver(lambda _: math.inf)
    sharing.join(0, lambda at_s: 20.0 if at_s < 590 else 0.0)
    late = sharing.join(1, lambda at_s: 0.0 if at_s < 600 else 8.0)
    sharing.run(unlimited, 600)
    assert late.limiter.maximum < 0.1
    sharing.senders[0].waiting = 0.0
    sharing.run(unlimited, 650)
    assert late.limiter.maximum >= 9.9


@pytest.mark.slow
def test_at_rest_99_percent_of_the_rate_is_used_by_senders_of_different_demand() -> None:
    for demands in ((math.inf, math.inf), (math.inf, 20.0), (math.inf, 5.0, math.inf, 30.0)):
        sharing = Sharing(100.0)
        unlimited = Receiver(lambda _: math.inf)
        for number, demand in enumerate(demands):
            wants = None if demand == math.inf else (lambda _, demand=demand: demand)
            sharing.join(number, wants)
        sharing.run(unlimited, 3_600)
        rest = sum(
            each.attempts for sender in sharing.senders.values() for each in sender.samples[-40:]
        )
        assert rest / 40 / PERIOD_S >= 0.99 * 100


@pytest.mark.slow
def test_senders_that_share_a_receiver_far_below_the_rate_find_its_capacity_together() -> None:
    sharing = Sharing(100.0)
    receiver = Receiver(lambda _: 8.0)
    for number in range(4):
        sharing.join(number)
    sharing.run(receiver, 6_000)
    samples = [each for sender in sharing.senders.values() for each in sender.samples[-60:]]
    assert sum(each.taken for each in samples) / 60 / PERIOD_S >= 0.9 * 8
    assert _failed(samples) < 0.05
    assert sharing.now_ns == 6_000 * SECOND
