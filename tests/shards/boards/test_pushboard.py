"""The board of push subscriptions: offers, grants and what senders tell."""

from __future__ import annotations

import os

import pytest

from ledger.delivery.push_rates import LearnedRate
from shards import layout as at
from shards.boards.pushboard import (
    NOTHING_LEARNED,
    USE_UNKNOWN,
    PushBoard,
    PushOffer,
    PushOutcome,
    SenderWords,
    grant_word,
    is_for,
    latency_ms,
    rate_granted,
    sender_number,
    units_granted,
    units_of,
)
from shards.layout import Layout
from shards.segment import Segment
from tests.shards.conftest import MakeSegment

LEARNED = LearnedRate(1, 12.5, 80.25)


def grant(segment: Segment, shard: int, slot: int, rate: float, number: int = 1) -> int:
    """As the balancer would: for the join that is there."""
    index = segment.layout.share(slot, shard)
    word = grant_word(units_of(rate), number, segment.sparse[index + at.V_JOINS])
    segment.sparse[index + at.V_GRANTED] = word
    return word


def in_use(segment: Segment, shard: int, slot: int) -> float:
    return rate_granted(segment.sparse[segment.layout.share(slot, shard) + at.V_IN_USE])


def test_an_offer_is_read_as_it_was_written_and_only_by_its_id(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(2, 4096))
    board = PushBoard(segment)
    assert board.offers() == []
    last = at.SUBSCRIPTION_SLOTS - 1
    board.offer(last, 7, 100.0, 2)
    board.offer(3, 9, 1 / 60, 1)
    board.offer(3, 9, 0.5, 4)
    assert PushBoard(segment).offers() == [PushOffer(3, 9, 0.5, 4), PushOffer(last, 7, 100.0, 2)]
    assert board.offer_of(3, 9) == PushOffer(3, 9, 0.5, 4)
    assert board.offer_of(3, 7) is None
    board.withdraw(3, 7)  # the former subscription of the slot
    assert len(board.offers()) == 2
    board.withdraw(3, 9)
    assert board.offers() == [PushOffer(last, 7, 100.0, 2)]


@pytest.mark.parametrize("rate", [0.0, 1 / 60, 1.0, 33.333_333_5, 66.666_666_6, 100_000.0])
def test_a_rate_is_rounded_down_to_a_millionth_and_survives_its_word(rate: float) -> None:
    word = grant_word(units_of(rate), 0xFFFF_FFFF, 0xFFFF_FFFF)
    assert word < 1 << 64
    assert rate - 1e-6 < rate_granted(word) <= rate + 1e-9
    assert units_of(rate_granted(word)) == units_granted(word) == units_of(rate)
    assert is_for(word, 0xFFFF_FFFF) and not is_for(word, 0xFFFF_FFFE)


def test_a_sender_obeys_a_grant_for_its_join_and_notes_it_before_it_may_use_it(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(2, 4096))
    words = SenderWords(segment, 1, 5)
    assert words.follow() == 0
    assert words.join(9) is None
    assert words.follow() == 0 and in_use(segment, 1, 5) == 0
    grant(segment, 1, 5, 40)
    assert words.follow() == 40 and in_use(segment, 1, 5) == 40
    grant(segment, 1, 5, 10, number=2)
    assert in_use(segment, 1, 5) == 40
    assert words.follow() == 10 == in_use(segment, 1, 5)
    words.leave()
    words.leave()
    assert words.follow() == 0 == in_use(segment, 1, 5)


@pytest.mark.parametrize("has_left", [True, False])
def test_a_sender_that_joins_again_never_uses_what_it_was_granted_before(
    make_segment: MakeSegment, has_left: bool
) -> None:
    segment = make_segment(Layout(1, 4096))
    words = SenderWords(segment, 0, 0)
    words.join(9)
    grant(segment, 0, 0, 40)
    assert words.follow() == 40
    if has_left:
        words.leave()
    again = SenderWords(segment, 0, 0)
    again.join(9)
    assert again.follow() == 0 == in_use(segment, 0, 0)
    grant(segment, 0, 0, 5, number=2)
    assert again.follow() == 5


def test_a_successor_goes_on_with_what_was_learned_and_counted(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    words = SenderWords(segment, 0, 0)
    words.join(9)
    words.tell(LEARNED, 123)
    words.began()
    words.ended(PushOutcome.DELIVERED, 3_000_000, records=4)
    words.began()  # and dies
    segment.sparse[segment.layout.figures(0, 0) + at.F_VERSION] |= 1
    successor = SenderWords(segment, 0, 0)
    assert successor.join(9) == LEARNED
    successor.began()
    PushBoard(segment).offer(0, 9, 100, 1)
    (row,) = PushBoard(segment).senders(0, 9)
    assert (row.attempts, row.records, row.in_flight, row.state) == (3, 4, 1, LEARNED)
    assert segment.sparse[segment.layout.figures(0, 0) + at.F_VERSION] % 2 == 0


def test_a_predecessor_that_told_nothing_leaves_nothing(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    assert SenderWords(segment, 0, 0).join(9) is None
    assert SenderWords(segment, 0, 0).join(9) is None


def test_another_subscription_in_the_slot_begins_with_nothing(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    words = SenderWords(segment, 0, 0)
    words.join(9)
    words.tell(LEARNED, 123)
    words.began()
    words.ended(PushOutcome.TIMED_OUT, 1)
    assert SenderWords(segment, 0, 0).join(10) is None
    PushBoard(segment).offer(0, 10, 100, 1)
    (row,) = PushBoard(segment).senders(0, 10)
    assert (row.attempts, row.state, row.changed_ns) == (0, NOTHING_LEARNED, 0)
    assert not any((*row.outcomes, *row.latencies, row.latency_sum_ns))
    assert PushBoard(segment).senders(0, 9) == []


def test_a_row_tells_all_that_its_sender_does(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(3, 4096))
    board = PushBoard(segment)
    board.offer(7, 9, 100, 2)
    words = SenderWords(segment, 2, 7)
    words.join(9)
    grant(segment, 2, 7, 50)
    words.follow()
    grant(segment, 2, 7, 25, number=2)
    assert board.senders(7, 9)[0].use == USE_UNKNOWN
    words.use(0.75)
    words.tell(LearnedRate(2, 1 / 60, None), 77)
    words.tell_next(1_000, 2_000)
    for outcome in PushOutcome:
        words.began()
        words.ended(outcome, 1_000_000)
    (row,) = board.senders(7, 9)
    assert (row.shard, row.is_present, row.granted, row.in_use, row.use) == (2, True, 25, 50, 0.75)
    assert row.state == LearnedRate(2, 1 / 60, None)
    assert (row.changed_ns, row.next_ns, row.held_until_ns) == (77, 1_000, 2_000)
    assert row.outcomes == (1,) * len(PushOutcome)
    assert (row.attempts, row.in_flight, row.failures) == (13, 0, 11)
    words.leave()
    (row,) = board.senders(7, 9)
    assert (row.is_present, row.granted, row.in_use, row.attempts) == (False, 0, 0, 13)


@pytest.mark.parametrize(
    ("took_ns", "below_ms"),
    [(-5, 0.125), (0, 0.125), (124_999, 0.125), (125_000, 0.25), (1_000_000, 2.0),
     (10_000_000_000, 16_384.0), (300_000_000_000, 524_288.0), (10**15, 1_048_576.0)],
)  # fmt: skip
def test_a_latency_is_in_the_bucket_that_ends_above_it(
    make_segment: MakeSegment, took_ns: int, below_ms: float
) -> None:
    segment = make_segment(Layout(1, 4096))
    PushBoard(segment).offer(0, 1, 1, 1)
    words = SenderWords(segment, 0, 0)
    words.join(1)
    words.began()
    words.ended(PushOutcome.DELIVERED, took_ns)
    (row,) = PushBoard(segment).senders(0, 1)
    assert latency_ms(row.latencies, 0.5) == below_ms
    assert row.latency_sum_ns == max(0, took_ns)


def test_no_latency_is_told_before_the_first_attempt() -> None:
    assert latency_ms([0] * at.PUSH_LATENCIES, 0.5) is None


def test_senders_are_on_consecutive_shards_and_one_a_shard_at_most() -> None:
    assert [sender_number(7, shard, 4) for shard in (3, 0, 1, 2)] == [0, 1, 2, 3]


def test_words_of_senders_take_memory_only_where_they_are_used(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(64, 4096))
    board = PushBoard(segment)

    def allocated_bytes() -> int:
        return os.fstat(segment.fd).st_blocks * 512

    before = allocated_bytes()
    assert before < segment.layout.sparse + at.PAGE_BYTES
    board.offer(500, 9, 100, 2)
    for shard in (9, 10):
        SenderWords(segment, shard, 500).join(9)
    assert len(board.senders(500, 9)) == 2
    assert board.senders(501, 9) == []
    assert board.offers()
    assert allocated_bytes() - before <= 5 * at.PAGE_BYTES


def test_a_former_subscription_of_a_slot_changes_nothing_of_a_later_one(
    make_segment: MakeSegment,
) -> None:
    """Its sender has a POST under way while the other one joins, and ends it after that."""
    segment = make_segment(Layout(1, 4096))
    board = PushBoard(segment)
    board.offer(0, 6, 100, 1)
    board.offer(0, 5, 50, 3)
    assert board.offer_of(0, 6) is not None, "an owner that knows it late"
    former, later = SenderWords(segment, 0, 0), SenderWords(segment, 0, 0)
    former.join(5)
    former.began()
    later.join(6)
    later.tell(LearnedRate(0, 5.0, None), 7)
    later.began()
    (before,) = board.senders(0, 6)
    assert before.is_present and before.in_flight == 1
    former.ended(PushOutcome.SERVER_ERROR, 1_000)
    former.tell(LearnedRate(2, 1.0, 2.0), 8)
    former.tell_next(9, 9)
    former.use(1.0)
    former.leave()
    assert board.senders(0, 6) == [before]
    assert former.follow() == 0.0
