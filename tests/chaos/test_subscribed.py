"""The checker finds each kind of contradiction in what a subscription sent, and none in what it may
send."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos.checker import check
from tests.chaos.history import (
    Capped,
    Consuming,
    Drained,
    Handed,
    Harmed,
    Line,
    Message,
    Missed,
    Page,
    Parted,
    Place,
    Sent,
    Settled,
    Settling,
    Spot,
    Subscribed,
)
from tests.chaos.known import COLD
from tests.chaos.subscribed import FLUSHED_MS, HELD_MS

T: Place = ("t", 0)
U: Place = ("t", 1)
BURIED: Place = ("buried", 0)
# Producer 1 has keys: the first three records and the one of U have the same, the fourth another.
RECORDS = ("1.1.0", "1.1.1", "1.1.2", "1.2.0")
OTHERS = ("1.1.9",)
ACK_TIMEOUT_MS = 4 * HELD_MS
RULES = Subscribed("s", "t", "key_shared", "dead_letter", 3, ACK_TIMEOUT_MS, dead_letters="buried")
A, B = 1, 2  # connections


def world(*lines: Line, rules: Subscribed = RULES, buried: tuple[str, ...] = ()) -> list[Line]:
    """Two partitions, two consumers, and what happened between them."""
    return [
        rules,
        Sent(1, 1, T, RECORDS),
        Sent(2, 2, U, OTHERS),
        Consuming("s", "a", A, 0),
        Consuming("s", "b", B, 0),
        *lines,
        Page(COLD, T, 0, len(RECORDS), tuple(enumerate(RECORDS, 1))),
        Page(COLD, U, 0, len(OTHERS), tuple(enumerate(OTHERS, 1))),
        Page(COLD, BURIED, 0, len(buried), tuple(enumerate(buried, 1))),
    ]


def got(
    connection: int, epoch: int, *seqs: int, at_ms: int = 100_000, partition: int = 0,
    attempt: int = 1,
) -> Handed:  # fmt: skip
    records = (RECORDS, OTHERS)[partition]
    messages = tuple(Message(partition, seq, records[seq - 1], attempt) for seq in seqs)
    return Handed("s", connection, epoch, messages, at_ms, at_ms)


numbers = itertools.count(1)


def said(epoch: int, *seqs: int, partition: int = 0, era: int = 0, accepted: bool = True,
         failed: bool = False, at_ms: int = 100_000) -> list[Line]:  # fmt: skip
    spots: tuple[Spot, ...] = tuple((partition, seq) for seq in seqs)
    number = next(numbers)
    lines: list[Line] = [Settling("s", number, epoch, spots, era, failed)]
    return [*lines, Settled("s", number, spots, at_ms)] if accepted else lines


def served(connection: int, epoch: int, seq: int, partition: int = 0) -> list[Line]:
    """Sent and acknowledged."""
    return [
        got(connection, epoch, seq, partition=partition),
        *said(epoch, seq, partition=partition),
    ]


REST: list[Line] = [*served(A, 90, 4), *served(A, 91, 1, partition=1), Drained("s", 0)]
GOOD: list[Line] = [*served(A, 1, 1), *served(B, 2, 2), *served(A, 3, 3), *REST]


def names(lines: list[Line]) -> set[str]:
    return {sentence.partition(":")[0] for sentence in check(lines)}


def test_each_message_once_and_in_the_order_of_its_key_is_right() -> None:
    assert check(world(*GOOD)) == []


def test_a_message_that_nobody_acknowledged_is_unserved() -> None:
    assert names(world(*served(A, 1, 1), *served(A, 2, 2), *REST)) == {"unserved"}
    lines = [*served(A, 1, 1), *served(A, 2, 2), *REST[:-1], got(A, 95, 3), Drained("s", 0)]
    assert check(world(*lines)) == [
        "unserved: 1.1.2 at (0, 3) was never acknowledged to s, and was sent 1 times"
    ]


def test_a_subscription_that_keeps_a_lag_is_undrained() -> None:
    assert names(world(*GOOD[:-1])) == {"undrained"}
    assert names(world(*GOOD[:-1], Drained("s", 2))) == {"undrained"}


def test_an_evicted_message_is_not_missed() -> None:
    gap = Page("r", T, 0, 1, (), (1, 1), "cap")
    lines = [Capped(T, 3), gap, Missed("s", T, (1, 1), "cap"), *GOOD[3:]]
    assert check(world(*lines)) == []
    assert names(world(*lines[2:])) == {"damaged", "early", "unserved"}
    assert names(world(*GOOD, Missed("s", T, (1, 1), "damaged"))) == {"damaged"}


def test_what_was_accepted_is_not_sent_again() -> None:
    assert "redone" in names(world(*GOOD, got(B, 95, 3)))
    kill = Harmed(100_000)
    assert "redone" in names(world(*GOOD, kill, got(B, 95, 3))), "one shard's death is not a reason"


def test_a_batch_that_is_read_late_was_not_sent_again() -> None:
    """It was made before the one that was acknowledged."""
    assert check(world(Parted("s", B), *GOOD, got(B, 0, 4))) == []


def test_the_death_of_everything_forgives_what_came_since_the_last_flush() -> None:
    again: list[Line] = [Consuming("s", "b", 5, 1), got(5, 95, 3, at_ms=200_000)]
    dead = Harmed(150_000, whole=True)
    young, old = 100_000 + FLUSHED_MS - 1, 100_000 + FLUSHED_MS
    assert check(world(*GOOD, dead, *again)) == [], "nobody knows how long its owner lived"
    for sent_ms, said_ms, found in ((young, young, set()), (young, old, {"redone"}),
                                    (old, 100_000, {"redone"})):  # fmt: skip
        last = [got(A, 91, 1, partition=1, at_ms=sent_ms), *said(91, 1, partition=1, at_ms=said_ms)]
        lines = [*GOOD[: -len(REST)], *served(A, 90, 4), *last, Drained("s", 0)]
        assert names(world(*lines, dead, *again)) == found


def test_a_message_is_sent_again_only_for_a_reason() -> None:
    later: list[Line] = [got(B, 3, 4, attempt=2), *said(3, 4)]
    tail = [got(A, 80, 1), *said(80, 1), *served(A, 81, 2), *served(A, 82, 3)]
    tail += [*served(A, 91, 1, partition=1), Drained("s", 0)]
    first = got(A, 1, 4)
    assert names(world(first, *later, *tail)) == {"unreasoned"}
    assert check(world(first, *said(1, 4, failed=True), *later, *tail)) == []
    assert names(world(first, *later, *said(1, 4, failed=True), *tail)) == {"unreasoned"}
    assert check(world(first, Parted("s", A), *later, *tail)) == []
    assert check(world(first, Harmed(99_000), *later, *tail)) == []
    assert names(world(first, Harmed(100_000 - HELD_MS - 1), *later, *tail)) == {"unreasoned"}
    late = [got(B, 3, 4, attempt=2, at_ms=100_000 + ACK_TIMEOUT_MS), *said(3, 4)]
    assert check(world(first, *late, *tail)) == []
    gone = [*served(B, 80, 1), *served(B, 81, 2), *served(B, 82, 3)]
    gone += [*served(B, 91, 1, partition=1), Drained("s", 0)]
    assert check(world(first, *later, *gone)) == [], "its connection got nothing any more"


def test_a_message_before_the_one_ahead_of_it_is_early() -> None:
    lines = [got(A, 1, 1), got(B, 2, 2), *said(1, 1), *said(2, 2), *served(A, 3, 3), *REST]
    assert names(world(*lines)) == {"early", "locked"}


def test_an_acknowledgment_without_an_answer_is_enough_for_the_next_message() -> None:
    lines = [got(A, 1, 1), *said(1, 1, accepted=False), *GOOD[3:]]
    assert check(world(*lines)) == []


def test_a_refused_message_keeps_its_key() -> None:
    lines = [got(A, 1, 1), *said(1, 1, failed=True), *served(B, 2, 2), got(A, 4, 1, attempt=2)]
    assert names(world(*lines, *said(4, 1), *served(A, 5, 3), *REST)) == {
        "early", "locked", "reordered"
    }  # fmt: skip


def test_keys_are_locked_across_partitions() -> None:
    lines = [got(A, 1, 1, partition=1), *served(B, 2, 1), *said(1, 1, partition=1)]
    rest = [*served(B, 3, 2), *served(A, 4, 3), *served(A, 90, 4), Drained("s", 0)]
    assert names(world(*lines, *rest)) == {"locked"}
    assert check(world(Harmed(100_000), *lines, *rest)) == [], "the next owner cannot know"
    gap = Page("r", U, 0, 1, (), (1, 1), "ttl")
    assert names(world(gap, *lines, *rest)) == {"evicted"}, "an evicted one is given up"


def test_a_node_counts_as_a_key_if_the_subscription_says_so() -> None:
    records = ("2.1.0", "2.1.1")  # producer 2 has no keys

    def judged(key_fallback: str, *filters: str) -> set[str]:
        rules = Subscribed("s", "t", "key_shared", "drop", 3, ACK_TIMEOUT_MS,
                           key_fallback=key_fallback)  # fmt: skip

        def sent(epoch: int, seq: int) -> Handed:
            message = Message(0, seq, records[seq - 1])
            return Handed("s", A, epoch, (message,), 100_000, 100_000)

        lines = [rules, Sent(1, 1, T, records), Consuming("s", "a", A, 0, filters), sent(1, 1),
                 sent(2, 2), *said(1, 1), *said(2, 2), Drained("s", 0)]  # fmt: skip
        return names([*lines, Page(COLD, T, 0, 2, tuple(enumerate(records, 1)))])

    assert judged("none") == set()
    assert judged("node") == {"early", "locked"}
    assert judged("none", "producer-*") == {"unwanted"}
    assert judged("node", "producer-*") == {"early", "locked"}
    assert judged("node", "key-*") == {"early", "locked", "unwanted"}


def test_what_a_filter_leaves_out_is_not_sent_and_need_not_be() -> None:
    rules = Subscribed("s", "t", "key_shared", "drop", 3, ACK_TIMEOUT_MS, only={"tag": "tag-1-0"})
    records = ("2.1.0", "2.1.1")
    kept = Page(COLD, T, 0, 2, tuple(enumerate(records, 1)))

    def judged(*seqs: int) -> set[str]:
        lines: list[Line] = [rules, Sent(1, 1, T, records), Consuming("s", "a", A, 0)]
        for epoch, seq in enumerate(seqs, 1):
            message = Message(0, seq, records[seq - 1])
            lines.append(Handed("s", A, epoch, (message,), 100_000, 100_000))
            lines.extend(said(epoch, seq))
        return names([*lines, Drained("s", 0), kept])

    assert judged() == {"unserved"}
    assert judged(1) == set()
    assert judged(1, 2) == {"unwanted"}


def test_other_modes_do_not_order_keys() -> None:
    lines = [got(A, 1, 2, 1), *said(1, 1, 2), *served(A, 3, 3), *REST]
    shared = Subscribed("s", "t", "shared", "drop", 3, ACK_TIMEOUT_MS)
    assert check(world(*lines, rules=shared)) == []
    assert names(world(*lines)) >= {"early"}


def test_an_exclusive_subscription_sends_in_order_first() -> None:
    exclusive = Subscribed("s", "t", "exclusive", "drop", 3, ACK_TIMEOUT_MS)
    rest = [*served(A, 91, 1, partition=1), Drained("s", 0)]
    good = [got(A, 1, 1, 2, 3), *said(1, 2, failed=True), *said(1, 1), got(A, 2, 2, 3, attempt=2)]
    again = [Parted("s", A), *good, *said(2, 2, 3), *served(B, 3, 4), *rest]
    assert "reordered" not in names(world(*again, rules=exclusive))
    fresh = [*good, *said(2, 2, 3), *served(A, 3, 4), *rest]
    assert check(world(*fresh, rules=exclusive)) == [], "what follows a refusal comes back"
    assert "unreasoned" in names(world(*fresh, rules=RULES))
    wrong = [got(A, 1, 1, 3, 2), *said(1, 1, 2, 3), *served(A, 3, 4), *rest]
    assert names(world(*wrong, rules=exclusive)) == {"reordered"}


def test_what_follows_a_message_that_timed_out_comes_again_in_an_exclusive_subscription() -> None:
    exclusive = Subscribed("s", "t", "exclusive", "drop", 3, ACK_TIMEOUT_MS)
    rest = [*served(A, 91, 1, partition=1), Drained("s", 0)]
    late_ms = 100_000 + ACK_TIMEOUT_MS
    first, second = got(A, 1, 1), got(A, 2, 2, at_ms=late_ms - HELD_MS)
    again = [got(A, 3, 1, 2, at_ms=late_ms, attempt=2), *said(3, 1, 2), *served(A, 4, 3)]
    rest = [*served(A, 5, 4), *rest]
    assert check(world(first, second, *again, *rest, rules=exclusive)) == []
    dealt = [first, *said(1, 1), second, got(A, 3, 2, at_ms=late_ms), *said(3, 2)]
    assert names(world(*dealt, *served(A, 4, 3), *rest, rules=exclusive)) == {"unreasoned"}


def failures(times: int, seq: int = 1) -> list[Line]:
    return [
        line
        for attempt in range(1, times + 1)
        for line in (
            got(A, attempt, seq, attempt=attempt),
            *said(attempt, seq, failed=True),
        )
    ]


def test_dead_letters_come_after_enough_failures() -> None:
    rest = [*served(B, 12, 2), *served(A, 13, 3), *REST]
    assert check(world(*failures(3), *rest, buried=("1.1.0",))) == []
    assert names(world(*failures(2), *rest, buried=("1.1.0",))) == {"misburied", "early", "locked"}
    assert names(world(*failures(3), *rest, buried=("1.1.0", "1.1.0"))) == {"reburied"}
    assert names(world(*failures(3), *rest)) == {"unserved"}
    assert names(world(*failures(3), *rest, buried=("1.1.0", "9.9.9"))) == {"misburied"}


def test_what_was_acknowledged_is_not_a_dead_letter() -> None:
    lines = [*failures(2), got(A, 3, 1, attempt=3), *said(3, 1)]
    lines += [*served(B, 12, 2), *served(A, 13, 3), *REST]
    assert names(world(*lines, buried=("1.1.0",))) == {"misburied"}


def test_nothing_is_tried_more_often_than_it_may_fail() -> None:
    lines = [*failures(3), got(A, 4, 1, attempt=4), *said(4, 1), *served(B, 12, 2)]
    assert names(world(*lines, *served(A, 13, 3), *REST)) == {"overtried"}


def test_dropping_needs_enough_failures() -> None:
    drop = Subscribed("s", "t", "key_shared", "drop", 3, ACK_TIMEOUT_MS)
    rest = [*served(B, 12, 2), *served(A, 13, 3), *REST]
    assert check(world(*failures(3), *rest, rules=drop)) == []
    assert names(world(*failures(2), *rest, rules=drop)) == {"unserved", "early", "locked"}


def test_a_blocked_key_waits_for_its_operator() -> None:
    block = Subscribed("s", "t", "key_shared", "block", 3, ACK_TIMEOUT_MS)
    rest = [*served(B, 12, 2), *served(A, 13, 3), *REST]
    assert names(world(*failures(3), *rest, rules=block)) == {"unserved", "early", "locked"}
    assert check(world(*failures(3), *said(0, 1), *rest, rules=block)) == []


def test_messages_are_what_is_kept() -> None:
    other = Handed("s", A, 70, (Message(0, 4, "1.3.0"),), 1, 1)
    assert "mistold" in names(world(*GOOD[:-1], other, Drained("s", 0)))


@pytest.mark.parametrize(("filters", "bad"), [(("key-1", "x*"), False), (("key-2",), True)])
def test_a_consumer_gets_only_keys_that_its_filters_accept(
    filters: tuple[str, ...], bad: bool
) -> None:
    lines = [Consuming("s", "c", 7, 0, filters), *served(7, 1, 1), *GOOD[3:]]
    assert names(world(*lines)) == ({"unwanted"} if bad else set())


def test_an_epoch_names_one_batch() -> None:
    assert names(world(*GOOD, got(B, 1, 4))) >= {"twice"}
    assert names(world(got(A, 1, 1, 1), *said(1, 1), *GOOD[3:])) == {"twice"}


def test_without_reliability_messages_may_be_missing_but_keep_the_order_of_their_key() -> None:
    loose = Subscribed("s", "t", "key_shared", "drop", 3, ACK_TIMEOUT_MS, reliable=False)
    assert check(world(got(A, 1, 1), got(A, 2, 3), rules=loose)) == []
    assert names(world(got(A, 1, 2), got(A, 2, 1), rules=loose)) == {"unsteady"}
    assert names(world(got(A, 1, 2), got(A, 2, 2), rules=loose)) == {"unsteady"}
