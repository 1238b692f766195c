"""What senders have learned, until a flush has written it."""

from __future__ import annotations

from delivery.push.rates.limiter import LearnedRates
from ledger.delivery.push_rates import LearnedRate
from shards.boards.pushboard import LimiterMode

FAST = LearnedRate(LimiterMode.NORMAL, 100.0, None)
SLOW = LearnedRate(LimiterMode.SLOW, 1 / 60, 12.5)


def test_the_last_of_each_sender_is_offered_once() -> None:
    rates = LearnedRates()
    assert rates.learned() == {}
    rates.note(7, 0, FAST)
    rates.note(7, 1, FAST)
    rates.note(7, 0, SLOW)
    assert rates.learned() == {(7, 0): SLOW, (7, 1): FAST}
    rates.kept(written=True)
    assert rates.learned() == {}


def test_what_could_not_be_written_is_offered_again_unless_there_is_something_newer() -> None:
    rates = LearnedRates()
    rates.note(7, 0, FAST)
    rates.note(8, 0, FAST)
    rates.learned()
    rates.note(7, 0, SLOW)
    rates.kept(written=False)
    assert rates.learned() == {(7, 0): SLOW, (8, 0): FAST}
    rates.kept(written=True)
    assert rates.learned() == {}
