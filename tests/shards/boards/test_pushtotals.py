"""The sums of senders: also of those that have left, and never of another subscription."""

from __future__ import annotations

import pytest

from ledger.delivery.push_rates import LearnedRate
from shards.boards.pushboard import PushBoard, PushOutcome, SenderWords
from shards.boards.pushgrants import SlotGrants
from shards.boards.pushtotals import PushTotal, together, totals
from shards.layout import Layout
from shards.segment import Segment
from tests.shards.conftest import MakeSegment


def send(words: SenderWords, outcome: PushOutcome, took_ns: int, records: int = 0) -> None:
    words.began()
    words.ended(outcome, took_ns, records)


def two_senders(segment: Segment) -> tuple[SenderWords, SenderWords]:
    """Subscription 9 in slot 3: a fast sender at shard 0, and a slow one at shard 2."""
    PushBoard(segment).offer(3, 9, 100, 2)
    fast, slow = SenderWords(segment, 0, 3), SenderWords(segment, 2, 3)
    grants = SlotGrants(segment, 3, 9)
    for words in (fast, slow):
        words.join(9)
    grants.look()
    for shard, words in ((0, fast), (2, slow)):
        grants.grant(shard, 50)
        words.follow()
    fast.tell(LearnedRate(0, 80.0, None), 1)
    slow.tell(LearnedRate(1, 1 / 60, 20.0), 1)
    fast.use(0.5)
    slow.tell_next(5, 77)
    return fast, slow


def test_a_total_is_the_sum_of_its_senders(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(4, 4096))
    fast, slow = two_senders(segment)
    for _ in range(3):
        send(fast, PushOutcome.DELIVERED, 1_000_000, records=10)
    send(slow, PushOutcome.TIMED_OUT, 2**63)
    send(slow, PushOutcome.TIMED_OUT, 2**62)
    send(slow, PushOutcome.HELD, 1_000)
    slow.began()
    (total,) = totals(segment)
    assert (total.slot, total.subscription_id, total.rate_max) == (3, 9, 100)
    assert (total.senders, total.granted, total.use, total.mode) == (2, 100, 0.25, 1)
    assert total.rate == pytest.approx(50 + 1 / 60)
    assert (total.in_flight, total.attempts, total.records, total.held_until_ns) == (1, 7, 30, 77)
    counts = dict(zip(PushOutcome, total.outcomes, strict=True))
    assert {outcome: count for outcome, count in counts.items() if count} == {
        PushOutcome.DELIVERED: 3, PushOutcome.TIMED_OUT: 2, PushOutcome.HELD: 1
    }  # fmt: skip
    assert total.failures == 2
    assert total.latency.sum_ns == 2**63 + 2**62 + 3_001_000
    assert total.latency.total == 6 and total.latency.buckets[-1] == 2


def test_what_a_sender_did_that_has_left_counts_and_its_rate_does_not(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(4, 4096))
    fast, slow = two_senders(segment)
    send(slow, PushOutcome.GONE, 1_000)
    slow.leave()
    (total,) = totals(segment)
    assert (total.senders, total.granted, total.mode, total.attempts) == (1, 50, 0, 1)
    SenderWords(segment, 2, 3).join(10)  # of a later subscription, that this board does not offer
    (total,) = totals(segment)
    assert (total.senders, total.attempts) == (1, 0)
    fast.leave()
    PushBoard(segment).withdraw(3, 9)
    assert list(totals(segment)) == []


def test_totals_are_added_and_the_slowest_mode_counts(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(4, 4096))
    fast, _ = two_senders(segment)
    send(fast, PushOutcome.DELIVERED, 1_000, records=2)
    PushBoard(segment).offer(7, 11, 10, 1)
    other = SenderWords(segment, 0, 7)
    other.join(11)
    send(other, PushOutcome.DELIVERED, 2_000, records=3)
    all_ = together(totals(segment))
    assert (all_.rate_max, all_.senders, all_.records, all_.mode) == (110, 3, 5, 1)
    assert all_.outcomes[0] == 2 and all_.latency.sum_ns == 3_000
    assert together([]) == PushTotal()
