"""The checker finds each kind of contradiction, and none in a correct history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.history import Answered, Capped, Did, Line, Page, Place, Sent, load, save
from tests.chaos.known import COLD

T: Place = ("t", 0)
U: Place = ("t", 1)


def page(*records: tuple[int, str], reader: str = COLD, place: Place = T, start: int = 0,
         end: int | None = None, gap: tuple[int, int] | None = None) -> Page:  # fmt: skip
    last = max([start, *(seq for seq, _ in records)])
    return Page(reader, place, start, last if end is None else end, records, gap)


def good() -> list[Line]:
    """Two connections: answers, a lost one that was kept, a refusal, a repeated key, a gap."""
    return [
        Did("kill a shard", 5),
        Sent(1, 1, T, ("a", "b")),
        Sent(2, 1, T, ("c",)),
        Sent(3, 1, T, ("d",)),
        Sent(4, 2, T, ("k",), "key"),
        Answered(1, 200, 1),
        page((1, "a"), (2, "b"), reader="tail"),
        Answered(2, 429),
        Sent(5, 3, T, ("k",), "key"),
        Answered(5, 200, 4, deduped=True),
        Sent(6, 3, T, ("e",)),
        Answered(6, 200, 7),
        page((3, "d"), (4, "k"), reader="tail", start=2, end=6, gap=(5, 6)),
        page((1, "a"), (2, "b"), (3, "d"), (4, "k"), end=4),
        page((7, "e"), start=4, gap=(5, 6)),
    ]


def names(lines: list[Line]) -> set[str]:
    return {sentence.partition(":")[0] for sentence in check(lines)}


def changed(*pairs: tuple[Line, Line]) -> list[Line]:
    """The good history with some lines replaced."""
    lines = good()
    for old, new in pairs:
        lines[lines.index(old)] = new
    return lines


def test_a_correct_history_has_no_contradiction() -> None:
    assert check(good()) == []


def test_an_acknowledged_record_that_is_nowhere_is_lost() -> None:
    lines = changed((page((7, "e"), start=4, gap=(5, 6)), page(start=4, gap=(5, 7), end=7)))
    assert check(lines) == ["lost: e was acknowledged at (('t', 0), 7) (attempt 6)"]


def test_half_of_an_acknowledged_request_is_lost_and_torn() -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a", "b")), Answered(1, 200, 1), page((1, "a"))]
    assert names(lines) == {"lost", "torn"}


def test_a_record_at_another_offset_than_was_answered_has_moved() -> None:
    assert names(changed((Answered(6, 200, 7), Answered(6, 200, 8)))) == {"moved"}


def test_a_repeated_key_that_was_answered_with_other_offsets_has_moved() -> None:
    old = Answered(5, 200, 4, deduped=True)
    assert names(changed((old, Answered(5, 200, 3, deduped=True)))) == {"moved"}


@pytest.mark.parametrize("key", [None, "key"])
@pytest.mark.parametrize("answers", [[], [Answered(1, 200, 1)]])
def test_a_record_that_is_kept_twice_is_doubled(key: str | None, answers: list[Line]) -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a",), key), *answers, page((1, "a"), (2, "a"))]
    assert names(lines) == {"doubled"}


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_refused_request_must_not_be_kept(status: int) -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a",)), Answered(1, status), page((1, "a"))]
    assert names(lines) == {"refused"}


def test_a_request_that_was_refused_once_and_not_answered_once_may_be_kept() -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a",), "k"), Sent(2, 2, T, ("a",), "k")]
    assert check([*lines, Answered(2, 503), page((1, "a"))]) == []
    assert names([*lines, Answered(1, 429), Answered(2, 503), page((1, "a"))]) == {"refused"}


def test_what_nobody_sent_or_what_was_sent_elsewhere_is_foreign() -> None:
    assert names([page((1, "x"))]) == {"foreign"}
    assert names([Sent(1, 1, U, ("a",)), page((1, "a"))]) == {"foreign"}


def test_the_records_of_a_request_are_consecutive() -> None:
    sent: list[Line] = [Sent(1, 1, T, ("a", "b")), Sent(2, 2, T, ("c",))]
    assert names([*sent, page((1, "a"), (2, "c"), (3, "b"))]) == {"torn"}
    assert names([*sent, page((1, "b"), (2, "a"))]) == {"torn"}
    assert names([*sent, page((1, "c"), (2, "b"))]) == {"torn"}


@pytest.mark.parametrize("answered", [True, False])
def test_requests_of_one_connection_are_stored_in_the_order_sent(answered: bool) -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a",)), Sent(2, 1, T, ("b",))]
    if answered:
        lines += [Answered(1, 200, 2), Answered(2, 200, 1)]
    assert names([*lines, page((1, "b"), (2, "a"))]) == {"order"}


def test_requests_of_two_connections_or_partitions_are_in_any_order() -> None:
    two: list[Line] = [Sent(1, 1, T, ("a",)), Sent(2, 2, T, ("b",)), page((1, "b"), (2, "a"))]
    assert check(two) == []
    apart: list[Line] = [
        Sent(1, 1, T, ("x",)), Sent(2, 2, T, ("a",)), Sent(3, 2, U, ("b",)),
        page((1, "x"), (2, "a")), page((1, "b"), place=U),
    ]  # fmt: skip
    assert check(apart) == []


def test_of_attempts_with_one_key_the_one_that_was_kept_counts_for_the_order() -> None:
    def attempts(deduped: bool) -> list[Line]:
        return [
            Sent(1, 1, T, ("k",), "k"), Sent(2, 1, T, ("a",)), Sent(3, 1, T, ("k",), "k"),
            Answered(3, 200, 1, deduped=deduped), page((1, "k"), (2, "a")),
        ]  # fmt: skip

    assert check(attempts(deduped=True)) == []
    # Then the first attempt was not kept, and the second was sent after "a".
    assert names(attempts(deduped=False)) == {"order"}


def test_a_hole_between_offsets_must_be_declared() -> None:
    sent: list[Line] = [Sent(1, 1, T, ("a",)), Sent(2, 2, T, ("b",))]
    assert names([*sent, page((1, "a"), (3, "b"))]) == {"hole"}
    assert names([*sent, page((2, "a"), (3, "b"))]) == {"hole"}
    assert check([*sent, page((1, "a"), (3, "b")), page(reader="tail", gap=(2, 2))]) == []


def test_a_declared_gap_holds_nothing() -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a",)), page((1, "a"), gap=(1, 2), end=2)]
    assert names(lines) == {"hole"}


@pytest.mark.parametrize("reader", ["reader of t", "hot"])
def test_a_reader_that_saw_something_else_or_more_than_is_kept_contradicts(reader: str) -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a",)), Sent(2, 2, T, ("b",)), page((1, "a"))]
    assert names([*lines, page((1, "b"), reader=reader)]) == {"changed"}
    assert names([*lines, page((1, "a"), (2, "b"), reader=reader)]) == {"changed"}


def test_a_reader_is_not_led_past_a_kept_record() -> None:
    lines: list[Line] = [Sent(1, 1, T, ("a",)), Sent(2, 2, T, ("b",)), page((1, "a"), (2, "b"))]
    assert names([*lines, page((2, "b"), reader="tail")]) == {"skipped"}
    assert names([*lines, page((1, "a"), reader="tail", end=2)]) == {"skipped"}
    assert check([*lines, page((2, "b"), reader="tail", start=1)]) == []


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    save(tmp_path / "history.jsonl", good())
    assert load(tmp_path / "history.jsonl") == good()


def evicting() -> list[Line]:
    """A partition that keeps two records: of four requests the first is evicted, and one record
    of the second. A reader had seen one of them before."""
    return [
        Capped(U, 2),
        Sent(1, 1, U, ("a", "b")),
        Answered(1, 200, 1),
        page((1, "a"), reader="tail", place=U),
        Sent(2, 1, U, ("c", "d")),
        Answered(2, 200, 3),
        Sent(3, 1, U, ("e",)),
        Answered(3, 200, 5),
        Page("tail", U, 1, 5, ((4, "d"), (5, "e")), (2, 3), "cap"),
        Page(COLD, U, 0, 5, ((4, "d"), (5, "e")), (1, 3), "cap"),
    ]


def test_what_a_cap_evicts_is_neither_lost_nor_a_hole_nor_torn() -> None:
    assert check(evicting()) == []


def test_what_goes_beyond_the_cap_is_evicted_too_early() -> None:
    lines = evicting()
    lines[-1] = Page(COLD, U, 0, 5, ((5, "e"),), (1, 4), "cap")
    assert names(lines) == {"evicted"}


def test_a_reader_that_is_led_past_evicted_records_is_told() -> None:
    lines = evicting()
    lines.append(page((4, "d"), reader="whole", place=U))
    assert names(lines) == {"skipped"}, (
        "the record at 1, which another reader saw, and no tombstone"
    )


def test_records_of_one_request_around_an_eviction_keep_their_places() -> None:
    lines = evicting()
    lines[-1] = Page(COLD, U, 0, 5, ((4, "e"), (5, "d")), (1, 3), "cap")
    assert {"moved", "changed", "order"} & names(lines)


def test_damage_that_a_reader_is_told_of_is_a_contradiction() -> None:
    lines = evicting()
    lines.append(Page("tail", U, 5, 6, (), (6, 6), "quarantined"))
    assert "damaged" in names(lines)
