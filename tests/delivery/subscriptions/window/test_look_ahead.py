"""What a look-ahead takes follows what is unfinished, whatever lies between."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest

from delivery.subscriptions.window.look_ahead import SEGMENT_BYTES, LookAhead, Tally
from ledger.delivery.progress import ROW_OFFSETS

GAP = 1_000_000_000


def peak_bytes(do: Callable[[], object]) -> int:
    """The most that something takes meanwhile."""
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_billion_offsets_that_hold_nothing_take_nothing_wherever_they_are() -> None:
    look_ahead = LookAhead(0, 0)

    def gaps() -> None:
        look_ahead.add_done(GAP)
        look_ahead.add_loose(1)
        look_ahead.add_done(GAP)
        first = look_ahead.add_keyed(1)
        look_ahead.add_done(GAP)
        look_ahead.link(first, look_ahead.add_keyed(1))
        look_ahead.add_done(5 * GAP)
        look_ahead.link(
            look_ahead.end - 5 * GAP, look_ahead.add_keyed(1)
        )  # further than four bytes tell
        look_ahead.add_done(GAP)

    assert peak_bytes(gaps) < 100_000
    look_ahead.check_invariants()
    places = [GAP + 1, 2 * GAP + 2, 3 * GAP + 3, 8 * GAP + 4]
    assert (look_ahead.floor, look_ahead.end, look_ahead.unfinished) == (GAP, 9 * GAP + 4, 4)
    assert look_ahead.next_loose() == places[0] and look_ahead.take_loose(9) == [places[0]]
    assert look_ahead.following(places[1]) == places[2]
    assert look_ahead.finish_all(places[2:3]) == [places[3]]
    assert look_ahead.finish_all([places[0]]) == [0] and look_ahead.floor == places[1] - 1
    assert len(look_ahead.changed_rows) == 1, "no row for what was never there"
    assert look_ahead.finish_all([places[3], places[1]]) == [0, places[2]]
    assert look_ahead.floor == look_ahead.end
    look_ahead.check_invariants()


def test_two_million_finished_messages_after_a_blocked_one_leave_room_and_memory() -> None:
    """K11."""
    tally = Tally()
    look_ahead = LookAhead(0, 0, tally)
    look_ahead.add_keyed(1)
    for _ in range(2_200_000 // ROW_OFFSETS):
        first = look_ahead.add_keyed(ROW_OFFSETS)
        look_ahead.finish_all(range(first, first + ROW_OFFSETS))
    assert (look_ahead.floor, look_ahead.unfinished) == (0, 1) and look_ahead.end > 2_000_000
    assert look_ahead.room >= 1_900_000
    assert tally.bytes < 50_000
    look_ahead.finish_all([1])
    assert look_ahead.floor == look_ahead.end and tally.bytes == 0


@pytest.mark.parametrize("kept", [2, 5, 20, 100])
def test_what_waits_among_finished_messages_takes_little(kept: int) -> None:
    """K21, of one message in each ``kept``."""
    tally = Tally()
    look_ahead = LookAhead(0, 0, tally)
    first = look_ahead.add_keyed(20 * ROW_OFFSETS)
    done = [offset for offset in range(first, look_ahead.end + 1) if offset % kept]
    random.Random(kept).shuffle(done)
    look_ahead.finish_all(done)
    look_ahead.check_invariants()
    assert look_ahead.unfinished == 20 * ROW_OFFSETS // kept
    assert tally.bytes <= 32 * look_ahead.unfinished
    for offset in (kept, 3 * ROW_OFFSETS // kept * kept):
        look_ahead.link(offset, offset + kept)
        assert look_ahead.following(offset) == offset + kept
        assert not look_ahead.is_done(offset) and look_ahead.is_done(offset + 1)
    left = list(range(kept, look_ahead.end + 1, kept))
    look_ahead.finish_all(left)
    assert (look_ahead.floor, tally.bytes) == (look_ahead.end, 0)


def test_the_bytes_of_segments_are_counted_as_they_are() -> None:
    tally = Tally()
    look_ahead = LookAhead(0, 0, tally)

    def fill() -> None:
        look_ahead.add_loose(20 * ROW_OFFSETS)
        look_ahead.finish_all([o for o in range(1, look_ahead.end + 1) if o % 200])

    tracemalloc.start()
    try:
        fill()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 * taken <= tally.bytes <= 2 * taken
    assert tally.bytes >= 20 * SEGMENT_BYTES


def test_a_look_ahead_of_another_mode_takes_over_what_is_finished_as_it_is() -> None:
    former = LookAhead(0, 0)
    former.restore(300_000, b"\1" * 512)
    former.add_loose(3)
    former.add_done(GAP)
    former.add_loose(2)
    former.finish_all(former.take_loose(9)[1:4])
    look_ahead = LookAhead(0, former.floor)
    assert peak_bytes(lambda: look_ahead.take_over(former)) < 100_000
    assert (look_ahead.finished_next, look_ahead.finished_ahead) == (0, GAP + 3 + 512)
    look_ahead.add_loose(1)
    assert look_ahead.finished_next == GAP + 3
    look_ahead.add_done(look_ahead.finished_next)
    assert (look_ahead.end, look_ahead.finished_next) == (former.end - 1, 0)
    look_ahead.add_loose(1)
    assert look_ahead.finished_ahead == 512
