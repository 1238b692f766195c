"""The checker finds each kind of contradiction in what watchers saw."""

from __future__ import annotations

import pytest

from tests.chaos.checker import check
from tests.chaos.history import Line, Lossy, Page, Place, Sent, Watching
from tests.chaos.known import COLD

T: Place = ("t", 0)
KEPT = ("1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0")
RECORDS = tuple(enumerate(KEPT, 1))
TAG_1 = {"tag": "tag-1-?"}  # of the records at 1 and 4


def history(*pages: Page, filters: dict[str, str] | None = None, tail: bool = False) -> list[Line]:
    """Five kept records and what one watcher saw of them."""
    return [
        Watching("w", (T,), filters or {}, tail),
        Sent(1, 1, T, KEPT),
        *pages,
        Page(COLD, T, 0, 5, RECORDS),
    ]


def saw(
    start: int, end: int, *seqs: int, settled: bool = True, gap: tuple[int, int] | None = None,
    reason: str = "",
) -> Page:  # fmt: skip
    return Page("w", T, start, end, tuple(RECORDS[seq - 1] for seq in seqs), gap, reason, settled)


def names(lines: list[Line]) -> set[str]:
    return {sentence.partition(":")[0] for sentence in check(lines)}


def test_a_watcher_that_loses_its_connection_and_resumes_contradicts_nothing() -> None:
    lost = saw(2, 4, 3, 4, settled=False)
    assert check(history(saw(0, 2, 1, 2), lost, saw(2, 4, 3, 4), saw(4, 5, 5))) == []


def test_a_tombstone_stands_for_the_records_that_it_covers() -> None:
    told = [saw(0, 1, 1), saw(1, 3, gap=(2, 3), reason="lagged"), saw(3, 5, 4, 5)]
    assert check([Lossy("t"), *history(*told)]) == []


def test_only_watchers_of_a_lossy_topic_may_lag() -> None:
    told = [saw(0, 1, 1), saw(1, 3, gap=(2, 3), reason="lagged"), saw(3, 5, 4, 5)]
    assert names(history(*told)) == {"lagged"}


@pytest.mark.parametrize("seqs", [(1, 2, 2, 3, 4, 5), (1, 3, 2, 4, 5)])
def test_a_record_that_comes_twice_or_too_late_is_seen_again(seqs: tuple[int, ...]) -> None:
    assert names(history(saw(0, 5, *seqs))) == {"again"}


def test_a_resume_that_begins_before_the_position_shows_a_record_again() -> None:
    assert names(history(saw(0, 2, 1, 2), saw(2, 5, 2, 3, 4, 5))) == {"again"}


def test_a_resume_that_skips_is_found() -> None:
    assert names(history(saw(0, 2, 1, 2), saw(2, 5, 4, 5))) == {"skipped"}


def test_a_record_that_is_left_out_before_a_lost_connection_is_found() -> None:
    lost = saw(2, 4, 4, settled=False)
    assert names(history(saw(0, 2, 1, 2), lost, saw(2, 5, 3, 4, 5))) == {"skipped"}


def test_a_position_beyond_what_was_sent_skips() -> None:
    assert names(history(saw(0, 3, 1, 2), saw(3, 5, 4, 5))) == {"skipped"}


def test_a_tombstone_that_covers_less_than_is_missing_skips() -> None:
    told = [saw(0, 1, 1), saw(1, 4, gap=(2, 3), reason="lagged"), saw(4, 5, 5)]
    assert names([Lossy("t"), *history(*told)]) == {"skipped"}


def test_a_watcher_continues_where_its_settled_position_is() -> None:
    lost = saw(2, 4, 3, 4, settled=False)
    assert "jumped" in names(history(saw(0, 2, 1, 2), lost, saw(3, 5, 4, 5)))
    assert names(history(saw(1, 5, 2, 3, 4, 5))) == {"jumped"}


def test_a_position_does_not_go_back() -> None:
    back = Page("w", T, 3, 1, (), None, "")
    assert names(history(saw(0, 3, 1, 2, 3), back, saw(1, 5, 2, 3, 4, 5))) == {"jumped"}


def test_a_position_beyond_the_head_is_ahead() -> None:
    assert names(history(saw(0, 5, 1, 2, 3, 4, 5), saw(5, 6))) == {"ahead"}


def test_a_watcher_sees_no_record_that_is_not_kept() -> None:
    other = Page("w", T, 0, 2, ((1, "1.1.0"), (2, "2.2.0")), None, "")
    assert names(history(other, saw(2, 5, 3, 4, 5))) == {"changed"}


def test_a_filter_lets_through_what_matches_and_nothing_else() -> None:
    assert check(history(saw(0, 5, 1, 4), filters=TAG_1)) == []
    assert names(history(saw(0, 5, 1, 2, 4), filters=TAG_1)) == {"unwanted"}
    assert names(history(saw(0, 5, 1, 3, 4), filters=TAG_1)) == {"unwanted"}
    assert names(history(saw(0, 5, 4), filters=TAG_1)) == {"skipped"}


def test_a_watcher_that_ends_before_the_last_record_has_unseen_ones() -> None:
    assert names(history(saw(0, 4, 1, 2, 3, 4))) == {"unseen"}
    assert names(history(saw(0, 3, 1, 2, 3), saw(3, 5, 4, 5, settled=False))) == {"unseen"}
    assert names(history()) == {"unseen"}


def test_a_tail_begins_anywhere_and_skips_nothing_from_there() -> None:
    assert check(history(saw(2, 5, 3, 4, 5), tail=True)) == []
    assert names(history(saw(2, 3, 3), saw(3, 5, 5), tail=True)) == {"skipped"}
