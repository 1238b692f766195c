"""The board of routers: rows that any process reads."""

from __future__ import annotations

from shards import layout as at
from shards.layout import Layout
from shards.routerboard import RouterBoard, RouterPhase, RouterRow
from tests.shards.conftest import MakeSegment


def test_a_row_is_read_as_it_was_written_and_only_by_its_id(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    board = RouterBoard(segment)
    row = RouterRow(
        RouterPhase.HELD, 5, 6, 7, "partition 0 of topic 'ä' is full", "r", "s", "d", 8, 9, "at 0:9"
    )
    assert board.read(3, 9) is None
    board.write(3, 9, row)
    assert RouterBoard(segment).read(3, 9) == row
    assert board.read(3, 8) is None
    assert board.read(4, 9) is None
    shorter = RouterRow(RouterPhase.RUNNING, 6, 6, 7, "")
    board.write(3, 9, shorter)
    assert board.read(3, 9) == shorter


def test_a_long_reason_is_cut_and_the_next_row_is_untouched(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    board = RouterBoard(segment)
    board.write(1, 2, RouterRow(reason="next"))
    board.write(0, 1, RouterRow(router="r" * 255, reason="x" * 1000, stands="y" * 2000))
    found = board.read(0, 1)
    assert found is not None
    assert (found.router, found.reason) == ("r" * 255, "x" * 255)
    assert found.stands == "y" * (at.B_TEXT_BYTES - 510)
    assert board.read(1, 2) == RouterRow(reason="next")


def test_a_row_whose_writer_died_in_it_is_read_as_it_is(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    board = RouterBoard(segment)
    board.write(0, 1, RouterRow(copied=5))
    segment.words[segment.layout.router(0) + at.B_VERSION] |= 1
    assert board.read(0, 1) == RouterRow(copied=5)
    board.write(0, 1, RouterRow(copied=6))
    assert segment.words[segment.layout.router(0) + at.B_VERSION] % 2 == 0
    assert board.read(0, 1) == RouterRow(copied=6)


def test_a_former_router_of_a_slot_does_not_write_over_a_later_one(
    make_segment: MakeSegment,
) -> None:
    board = RouterBoard(make_segment(Layout(1, 4096)))
    board.write(0, 2, RouterRow(copied=5))
    board.write(0, 1, RouterRow(copied=6))
    assert board.read(0, 2) == RouterRow(copied=5)
