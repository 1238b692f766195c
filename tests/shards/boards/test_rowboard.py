"""The boards of subscriptions and routers: rows that any process reads."""

from __future__ import annotations

from msgspec import structs

from shards import layout as at
from shards.boards.figures import SubscriptionCounters
from shards.boards.rowboard import (
    Placed,
    RouterRow,
    RowPhase,
    SubscriptionRow,
    router_board,
    subscription_board,
)
from shards.layout import Layout
from tests.shards.conftest import MakeSegment

ROW = SubscriptionRow(
    "orders", "billing", RowPhase.HELD, "the store does not answer: 'ä'",
    "message 0:7 of the key 'k'", 2**53, 2**53 + 1, 2**53 + 2,
    **{name: 2**54 + place for place, name in enumerate(SubscriptionCounters.__struct_fields__)},
)  # fmt: skip


def test_a_row_is_read_as_it_was_written_and_only_by_its_id(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    board = subscription_board(segment)
    assert board.read(3, 9) is None
    board.write(3, 9, ROW)
    assert subscription_board(segment).read(3, 9) == ROW
    assert board.read(3, 8) is None
    assert board.read(4, 9) is None
    shorter = SubscriptionRow("a", "b")
    board.write(3, 9, shorter)
    assert board.read(3, 9) == shorter


def test_all_rows_are_read_by_slot_and_freed_ones_are_not(make_segment: MakeSegment) -> None:
    board = subscription_board(make_segment(Layout(1, 4096)))
    assert board.rows() == []
    last = at.SUBSCRIPTION_SLOTS - 1
    for slot, subscription_id in ((last, 5), (0, 7), (2, 6)):
        board.write(slot, subscription_id, structs.replace(ROW, lag=slot))
    assert [(each.slot, each.id, each.row.lag) for each in board.rows()] == [
        (0, 7, 0), (2, 6, 2), (last, 5, last),
    ]  # fmt: skip
    board.free(2, 6)
    board.free(0, 6)  # the former subscription of a slot that has another one now
    assert board.read(2, 6) is None
    assert [each.slot for each in board.rows()] == [0, last]


def test_names_of_the_largest_size_leave_the_rest_to_the_reason(make_segment: MakeSegment) -> None:
    board = subscription_board(make_segment(Layout(1, 4096)))
    board.write(1, 2, SubscriptionRow("next", "next"))
    long = SubscriptionRow("t" * 255, "s" * 255, reason="x" * 1000, stands="y" * 1000)
    board.write(0, 1, long)
    found = board.read(0, 1)
    assert found is not None
    assert (found.topic, found.subscription) == (long.topic, long.subscription)
    assert found.reason == "x" * 255
    assert found.stands == "y" * (at.B_TEXT_BYTES - 3 * 255) and len(found.stands) >= 500
    assert board.rows()[1] == Placed[SubscriptionRow](1, 2, SubscriptionRow("next", "next"))


def test_a_row_whose_writer_died_in_it_is_read_as_it_is(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    board = subscription_board(segment)
    board.write(0, 1, SubscriptionRow("t", "s", lag=5))
    segment.words[segment.layout.board("subscriptions") + at.B_VERSION] |= 1
    assert board.read(0, 1) == SubscriptionRow("t", "s", lag=5)
    board.write(0, 1, SubscriptionRow("t", "s", lag=6))
    assert segment.words[segment.layout.board("subscriptions") + at.B_VERSION] % 2 == 0
    assert board.read(0, 1) == SubscriptionRow("t", "s", lag=6)


def test_a_former_subscription_of_a_slot_does_not_write_over_a_later_one(
    make_segment: MakeSegment,
) -> None:
    board = subscription_board(make_segment(Layout(1, 4096)))
    board.write(0, 2, ROW)
    board.write(0, 1, structs.replace(ROW, lag=1))
    assert board.read(0, 2) == ROW and board.is_of(0, 2)
    board.free(0, 2)
    board.write(0, 1, ROW)  # two processes wrote at the same time, and the later one was first
    assert not board.is_of(0, 2)


def test_a_row_of_a_router_has_its_numbers_and_texts_wherever_they_are_declared(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, 4096))
    board = router_board(segment)
    row = RouterRow(
        RowPhase.HELD, "partition 0 of topic 'ä' is full", "r", "s", "d", 9, "at 0:9",
        copied=5, filtered=6, skipped=7, lag=8,
    )  # fmt: skip
    board.write(3, 9, row)
    assert router_board(segment).read(3, 9) == row
    assert [column[3] for column in board.phases()] == [9, RowPhase.HELD]
    assert [each.row for each in board.standing()] == [row]
    board.write(3, 9, RouterRow(copied=6))
    assert board.read(3, 9) == RouterRow(copied=6)
    assert board.standing() == [] and len(board.rows()) == 1
    assert subscription_board(segment).rows() == []
