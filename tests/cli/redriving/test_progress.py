"""What a cursor notes of the letters of an origin, whatever is finished first and whenever it is
killed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.redriving.progress import TAKEN_MAX, LetterProgress
from daemon.schemas.api import PARTITION_MAX


class Cursor:
    """A cursor of the daemon."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}

    def note(self, progress: LetterProgress) -> None:
        settings = progress.settings()
        for each in settings:
            assert each.expected in (None, self.positions.get(each.partition, 0))
            assert each.partition <= PARTITION_MAX
        self.positions.update((each.partition, each.seq) for each in settings)
        progress.noted(settings)


def test_what_is_finished_beyond_an_unfinished_letter_is_noted_too() -> None:
    cursor = Cursor()
    progress = LetterProgress(cursor.positions)
    assert all(progress.take(seq) for seq in (10, 20, 30, 40))
    progress.finish(30)
    cursor.note(progress)
    assert cursor.positions == {0: 0, 1: 30} and not progress.settings()
    progress.finish(10)
    cursor.note(progress)
    again = LetterProgress(cursor.positions)
    assert [again.is_done(seq) for seq in (10, 20, 30, 40)] == [True, False, True, False]
    assert [again.take(seq) for seq in (20, 30, 40)] == [True, False, True]
    again.finish(20)
    assert again.position == 30
    with pytest.raises(ValueError, match="was taken after"):
        again.take(40)


def test_no_more_letters_are_taken_than_a_cursor_can_note() -> None:
    cursor = Cursor()
    progress = LetterProgress({})
    seq = 0
    while progress.has_room:
        seq += 1
        progress.take(seq)
        if seq > 1:
            progress.finish(seq)
    assert seq == TAKEN_MAX and progress.position == 0
    cursor.note(progress)
    progress = LetterProgress(cursor.positions)
    assert progress.take(1) and not any(progress.take(each) for each in range(2, seq + 1))
    assert not progress.has_room
    progress.finish(1)
    assert progress.position == seq and progress.has_room


@given(st.data())
def test_no_letter_is_skipped_and_none_that_is_noted_is_done_again(data: st.DataObject) -> None:
    letters = sorted(data.draw(st.sets(st.integers(1, 99), min_size=1, max_size=12)))
    cursor, finished, noted = Cursor(), set[int](), set[int]()
    for _ in range(30):  # commands, each of which is killed but the last
        progress = LetterProgress(cursor.positions)
        waits = [seq for seq in letters if progress.take(seq)]
        assert not noted & set(waits), "what is noted is done"
        assert {*letters} - {*waits} <= finished, "what is not waited for was finished"
        if not waits:
            break
        for seq in data.draw(st.lists(st.sampled_from(waits), min_size=1, unique=True)):
            finished.add(seq)
            progress.finish(seq)
            if data.draw(st.booleans()):
                cursor.note(progress)
                noted |= {each for each in finished if progress.is_done(each)}
        cursor.note(progress) if data.draw(st.booleans()) else None
    else:
        return
    assert finished == {*letters}
