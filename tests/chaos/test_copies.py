"""The checker finds each kind of contradiction in what routers copied."""

from __future__ import annotations

from tests.chaos.checker import check
from tests.chaos.history import Line, Page, Place, Routed, Sent
from tests.chaos.known import COLD

T: Place = ("t", 0)
U: Place = ("u", 0)
COPIES: Place = ("copies", 0)
OF_T = ("1.1.0", "1.2.0", "1.3.0", "1.4.0")
OF_U = ("2.1.0", "2.2.0")


def history(*copies: str, place: Place = COPIES, more: tuple[str, ...] = ()) -> list[Line]:
    """Two sources, and what is in their destination; its second partition holds ``more``."""
    return [
        Routed("t", "copies", {"tag": "tag-*"}),
        Routed("u", "copies"),
        Sent(1, 1, T, OF_T),
        Sent(2, 2, U, OF_U),
        Page(COLD, T, 0, len(OF_T), tuple(enumerate(OF_T, 1))),
        Page(COLD, U, 0, len(OF_U), tuple(enumerate(OF_U, 1))),
        Page(COLD, place, 0, len(copies), tuple(enumerate(copies, 1))),
        Page(COLD, ("copies", 1), 0, len(more), tuple(enumerate(more, 1))),
    ]


def names(lines: list[Line]) -> set[str]:
    return {sentence.partition(":")[0] for sentence in check(lines)}


def test_sources_may_interleave_and_partitions_share_the_copies() -> None:
    assert check(history("1.1.0", "2.1.0", "1.2.0", "1.4.0", "2.2.0")) == []
    assert check(history("1.2.0", "2.1.0", more=("1.1.0", "2.2.0", "1.4.0"))) == []


def test_a_record_that_is_not_copied_is_named() -> None:
    assert check(history("1.1.0", "2.1.0", "1.4.0", "2.2.0")) == [
        "uncopied: 1.2.0 at (('t', 0), 2) is not in copies"
    ]


def test_a_record_that_is_copied_twice_is_named() -> None:
    whole = ("1.1.0", "2.1.0", "1.2.0", "1.4.0", "2.2.0")
    assert names(history(*whole, "2.2.0")) == {"recopied"}
    assert names(history(*whole, more=("1.1.0",))) == {"recopied"}


def test_what_the_filter_refuses_or_nobody_sent_is_not_in_the_destination() -> None:
    whole = ("1.1.0", "2.1.0", "1.2.0", "1.4.0", "2.2.0")
    assert names(history(*whole, "1.3.0")) == {"miscopied"}
    assert names(history(*whole, "9.9.9")) == {"miscopied"}


def test_copies_of_one_partition_keep_their_order() -> None:
    assert names(history("1.2.0", "2.1.0", "1.1.0", "1.4.0", "2.2.0")) == {"reordered"}
    assert names(history("1.1.0", "2.2.0", "1.2.0", "1.4.0", "2.1.0")) == {"reordered"}


def test_a_destination_may_be_a_source() -> None:
    chain: list[Line] = [
        *history("1.1.0", "2.1.0", "1.2.0", "1.4.0", "2.2.0"),
        Routed("copies", "second", {"node": "producer-2"}),
    ]
    good = Page(COLD, ("second", 0), 0, 2, ((1, "2.1.0"), (2, "2.2.0")))
    assert check([*chain, good]) == []
    assert names([*chain, Page(COLD, ("second", 0), 0, 1, ((1, "2.1.0"),))]) == {"uncopied"}
