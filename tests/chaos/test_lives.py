"""The judge of names that are deleted and created again, and how clients learn of their lives."""

from __future__ import annotations

import threading

from tests.chaos.checker import check
from tests.chaos.history import (
    Answered,
    Consuming,
    Drained,
    Ended,
    Handed,
    Harmed,
    Line,
    Message,
    Page,
    Place,
    Posted,
    Pushed,
    Pushes,
    Renewed,
    Replied,
    Routed,
    Sent,
    Settled,
    Settling,
    Subscribed,
    Trimmed,
)
from tests.chaos.known import COLD
from tests.chaos.lives import Lives
from tests.chaos.pushed import LINGERING_MS

T: Place = ("t", 0)
AGAIN: list[Line] = [Renewed("t"), Renewed("t", done=True)]
SUBSCRIBED = Subscribed("s", "t", "shared", "drop", 3, 8_000)
_FIRST = Message(0, 1, "1.1.0")
PUSHES = Pushes("p", "t", "shared", "drop", 3, 10.0, 1, 4, 4_000)


def page(*records: str) -> Page:
    return Page(COLD, T, 0, len(records), tuple(enumerate(records, 1)))


def names(lines: list[Line]) -> set[str]:
    return {sentence.partition(":")[0] for sentence in check(lines)}


def test_what_a_deleted_topic_held_is_not_in_its_namesake() -> None:
    lines: list[Line] = [Sent(1, 1, T, ("1.1.0",)), Answered(1, 200, 1), *AGAIN]
    assert names([*lines, page()]) == set()
    assert names([*lines, page("1.1.0")]) >= {"resurrected"}


def test_what_was_on_its_way_while_a_topic_was_deleted_is_in_its_namesake_or_not() -> None:
    lines: list[Line] = [Sent(1, 1, T, ("1.1.0",)), *AGAIN, Answered(1, 200, 7)]
    assert names([*lines, page()]) == names([*lines, page("1.1.0")]) == set()


def test_what_was_sent_after_a_topic_was_created_again_must_be_there() -> None:
    lines: list[Line] = [*AGAIN, Sent(1, 1, T, ("1.1.0",)), Answered(1, 200, 1)]
    assert names([*lines, page("1.1.0")]) == set()
    assert names([*lines, page()]) == {"lost"}


def test_only_the_last_life_of_a_subscription_has_to_serve_everything() -> None:
    last = Subscribed("s#2", "t", "shared", "drop", 3, 8_000)
    lines: list[Line] = [SUBSCRIBED, Ended("s", 1), Sent(1, 1, T, ("1.1.0",)), page("1.1.0")]
    assert names(lines) == set()
    assert names([*lines, last, Drained("s#2", 0)]) == {"unserved"}
    assert names([SUBSCRIBED, Ended("s", 1, with_topic=True), last, *lines[2:]]) == {"undrained"}


def test_each_life_may_store_a_dead_letter_of_what_it_could_not_deliver() -> None:
    rules = Subscribed("s", "t", "shared", "dead_letter", 1, 8_000, dead_letters="buried")
    sought = Subscribed("s#2", "t", "shared", "dead_letter", 1, 8_000, dead_letters="buried")

    def refused(name: str, epoch: int, *, failed: bool = True) -> list[Line]:
        return [
            Consuming(name, "a", epoch, 0), Handed(name, epoch, epoch, (_FIRST,), 1, 1),
            Settling(name, epoch, epoch, ((0, 1),), 0, failed=failed),
            Settled(name, epoch, ((0, 1),), 1),
        ]  # fmt: skip

    def lines(second: list[Line], letters: int) -> list[Line]:
        copies = tuple(enumerate(["1.1.0"] * letters, 1))
        return [
            Sent(1, 1, T, ("1.1.0",)), rules, *refused("s", 1), Ended("s", 1), sought, *second,
            Drained("s#2", 0), page("1.1.0"), Page(COLD, ("buried", 0), 0, letters, copies),
        ]  # fmt: skip

    both, accepted = refused("s#2", 2), refused("s#2", 2, failed=False)
    assert names(lines(both, 1)) == names(lines(both, 2)) == names(lines(accepted, 1)) == set()
    assert names(lines(both, 3)) == names(lines(accepted, 2)) == {"reburied"}
    assert names(lines([], 1)) == {"unserved"}, "a letter of a former life finished it"
    assert names([*lines(both, 0), *AGAIN]) == {"unserved"}
    assert names([*lines(both, 0), Renewed("buried", gone=True)]) == set()
    assert names([Renewed("buried", gone=True), *lines(both, 0)]) == {"unserved"}


def test_what_was_read_and_trimmed_counts_as_kept() -> None:
    seen = Page("operator", T, 0, 1, ((1, "1.1.0"),))
    lines: list[Line] = [Sent(1, 1, T, ("1.1.0", "1.1.1")), Answered(1, 200, 1), seen]
    rest = Page(COLD, T, 0, 2, ((2, "1.1.1"),))
    assert names([*lines, Trimmed(T, 1), rest]) == set()
    assert names([*lines, rest]) == {"hole", "changed", "lost", "torn"}


def test_nothing_is_pushed_for_long_after_a_deletion() -> None:
    def lines(at_ms: int, *harms: Line) -> list[Line]:
        return [
            PUSHES, Ended("p", 1), Sent(1, 1, T, ("1.1.0",)), *harms, page("1.1.0"),
            Posted("p", 1, (Pushed("id", "1.1.0"),), at_ms), Replied("p", 1, 200, at_ms),
        ]  # fmt: skip

    assert (
        names(lines(LINGERING_MS)) == names(lines(2 * LINGERING_MS, Harmed(LINGERING_MS))) == set()
    )
    assert names(lines(2 * LINGERING_MS)) == {"lingering"}


def test_each_life_of_a_router_copies_everything_in_order() -> None:
    def lines(lives: int, *copies: str) -> list[Line]:
        return [
            Sent(1, 1, T, ("1.1.0", "1.1.1")), page("1.1.0", "1.1.1"), Routed("t", "c", {}, lives),
            Page(COLD, ("c", 0), 0, len(copies), tuple(enumerate(copies, 1))),
        ]  # fmt: skip

    twice = ("1.1.0", "1.1.1", "1.1.0", "1.1.1")
    assert names(lines(2, *twice)) == set()
    assert names(lines(1, *twice)) == {"recopied", "reordered"}
    assert names(lines(2, "1.1.1", "1.1.0", "1.1.1", "1.1.0")) == {"reordered"}


def test_nothing_is_deleted_while_a_client_connects() -> None:
    lives = Lives(ends=True)
    ended = threading.Event()

    def renew() -> None:
        with lives.renewed("s") as former:
            assert former == "s"
            ended.set()

    with lives.present("s") as judged:
        assert judged == "s"
        renewing = threading.Thread(target=renew)
        renewing.start()
        with lives.present("other"):
            assert not ended.is_set()
    renewing.join()
    with lives.present("s") as judged:
        assert judged == "s#2"
