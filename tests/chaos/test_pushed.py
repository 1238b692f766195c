"""The checker finds each kind of contradiction in what the receiver of a push subscription got, and
none in what it may get."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from tests.chaos.checker import check
from tests.chaos.history import (
    Drained,
    Floors,
    Harmed,
    Line,
    Page,
    Place,
    Posted,
    Pushed,
    Pushes,
    Replied,
    Sent,
    TakenOver,
    Unheard,
)
from tests.chaos.known import COLD
from tests.chaos.pushed import FLUSHED_MS, HELD_MS

T: Place = ("t", 0)
BURIED: Place = ("buried", 0)
# Producer 1 has keys: the first three records have the same, the fourth another.
RECORDS = ("1.1.0", "1.1.1", "1.1.2", "1.2.0")
TIMEOUT_MS = 4_000
RULES = Pushes("p", "t", "key_shared", "dead_letter", 3, 10.0, 1, 4, TIMEOUT_MS, "buried")
AT_MS = 100_000
numbers = itertools.count(1)


def world(*lines: Line, rules: Pushes = RULES, buried: tuple[str, ...] = ()) -> list[Line]:
    """A partition, its receiver, and what it got."""
    return [
        rules,
        Sent(1, 1, T, RECORDS),
        *lines,
        Page(COLD, T, 0, len(RECORDS), tuple(enumerate(RECORDS, 1))),
        Page(COLD, BURIED, 0, len(buried), tuple(enumerate(buried, 1))),
    ]


def posted(*seqs: int, status: int = 200, at_ms: int = AT_MS, whole: bool = True,
           ms: int = 1, connection: int = 1) -> list[Line]:  # fmt: skip
    """One POST of these records, and its answer."""
    number = next(numbers)
    pushed = tuple(Pushed(f"id-0-{seq}", RECORDS[seq - 1]) for seq in seqs)
    return [Posted("p", number, pushed, at_ms, connection),
            Replied("p", number, status, at_ms + ms, whole)]  # fmt: skip


REST: list[Line] = [*posted(4), Drained("p", 0)]
GOOD: list[Line] = [*posted(1), *posted(2), *posted(3), *REST]


def names(lines: list[Line]) -> set[str]:
    return {sentence.partition(":")[0] for sentence in check(lines)}


def test_each_record_once_and_in_the_order_of_its_key_is_right() -> None:
    assert check(world(*GOOD)) == []


def test_a_record_that_did_not_come_is_undelivered() -> None:
    assert check(world(*posted(1), *posted(2), *REST)) == [
        "undelivered: 1.1.2 at (0, 3) of p was never answered 2xx, but []"
    ]


def test_a_node_counts_as_a_key_if_the_subscription_says_so() -> None:
    records = ("2.1.0", "2.1.1")  # producer 2 has no keys
    for key_fallback, found in (("none", set()), ("node", {"outrun"})):
        lines: list[Line] = [replace(RULES, key_fallback=key_fallback), Sent(1, 1, T, records)]
        for number, record in reversed([*enumerate(records, 1)]):
            pushed = (Pushed(f"id-{number}", record),)
            lines += [Posted("p", number, pushed, AT_MS), Replied("p", number, 200, AT_MS + 1)]
        page = Page(COLD, T, 0, len(records), tuple(enumerate(records, 1)))
        assert names([*lines, Drained("p", 0), page]) == found


def test_failures_of_the_receiver_end_nothing() -> None:
    lines = [*posted(1), *posted(2), *(line for _ in range(9) for line in posted(3, status=503))]
    assert names(world(*lines, *REST)) == {"undelivered"}
    assert check(world(*lines, *posted(3), *REST)) == []


def test_failures_of_a_record_between_which_others_were_taken_may_end_it() -> None:
    dropping = replace(RULES, poison="drop", dead_letters="")
    failures = [line for _ in range(3) for line in [*posted(3, status=500), *posted(4)]]
    last = posted(3, status=500)
    lines = [*posted(1), *posted(2), *failures, Drained("p", 0)]
    shared = replace(dropping, mode="shared")
    assert names(world(*lines, rules=shared)) == {"undelivered", "repeated"}
    assert names(world(*lines[:-1], *last, lines[-1], rules=shared)) == {"repeated"}
    busy = [line for _ in range(5) for line in [*posted(3, status=429), *posted(4)]]
    assert "undelivered" in names(world(*lines[:4], *busy, lines[-1], rules=shared))


@pytest.mark.parametrize("status", [200, 204])
def test_an_answer_that_did_not_come_whole_is_no_success(status: int) -> None:
    lines = [*posted(1), *posted(2), *posted(3, status=status, whole=False)]
    assert names(world(*lines, *REST)) == {"undelivered"}
    assert check(world(*lines, *posted(3), *REST)) == []


def test_a_subscription_that_keeps_a_lag_is_undrained() -> None:
    assert names(world(*GOOD[:-1])) == {"undrained"}
    assert names(world(*GOOD[:-1], Drained("p", 2))) == {"undrained"}


def test_a_refused_record_goes_the_way_of_its_policy() -> None:
    refused = [line for _ in range(3) for line in posted(3, status=400)]
    lines = [*posted(1), *posted(2), *refused, *REST]
    assert check(world(*lines, buried=(RECORDS[2],))) == []
    assert names(world(*lines)) == {"undelivered"}
    assert check(world(*lines, rules=replace(RULES, poison="drop", dead_letters=""))) == []
    assert names(world(*lines, rules=replace(RULES, poison="block", dead_letters=""))) == {
        "undelivered"
    }
    assert names(world(*lines[2:], *posted(1), buried=(RECORDS[2],))) == {"outrun"}


def test_a_dead_letter_comes_after_enough_refusals_and_once() -> None:
    lines = [*posted(1), *posted(2), *posted(3, status=400), *posted(3, status=400), *REST]
    assert names(world(*lines, buried=(RECORDS[2],))) == {"misburied"}
    assert names(world(*GOOD, buried=(RECORDS[2],))) == {"misburied"}
    lines = [*lines[:-1], *posted(3, status=400), lines[-1]]
    assert names(world(*lines, buried=(RECORDS[2], RECORDS[2]))) == {"reburied"}


def test_a_refusal_counts_against_a_record_that_was_alone() -> None:
    together = [line for _ in range(3) for line in posted(3, 4, status=400)]
    lines = [*posted(1), *posted(2), *together, *REST]
    assert names(world(*lines, buried=(RECORDS[2],))) == {"misburied"}


def test_no_record_comes_again_after_its_last_permitted_refusal() -> None:
    refused = [line for _ in range(4) for line in posted(3, status=400)]
    lines = [*posted(1), *posted(2), *refused, *REST]
    assert names(world(*lines, buried=(RECORDS[2],))) == {"overtried"}
    harmed = [*lines[:6], Harmed(AT_MS), *lines[6:]]
    assert check(world(*harmed, buried=(RECORDS[2],))) == []


def test_a_record_waits_for_the_one_before_it_of_its_key() -> None:
    assert names(world(*posted(2), *posted(1), *posted(3), *REST)) == {"outrun"}
    first, second = posted(1), posted(2)
    under_way = [first[0], *second, first[1]]
    assert names(world(*under_way, *posted(3), *REST)) == {"outrun"}
    failed = [*posted(1, status=503), *posted(2), *posted(1), *posted(3)]
    assert names(world(*failed, *REST)) == {"outrun"}
    unknown = [*posted(1, whole=False), *posted(2), *posted(1), *posted(3)]
    assert names(world(*unknown, *REST)) == {"outrun"}


def test_other_keys_do_not_wait() -> None:
    assert check(world(*posted(4), *GOOD[:6], GOOD[-1])) == []
    lines = [*posted(4), *posted(1), *posted(2), *posted(3), Drained("p", 0)]
    exclusive = replace(RULES, mode="exclusive")
    assert names(world(*lines, rules=exclusive)) == {"outrun"}
    assert check(world(*GOOD, rules=exclusive)) == []
    shared = replace(RULES, mode="shared")
    assert check(world(*posted(2), *posted(1), *posted(3), *REST, rules=shared)) == []


def test_a_batch_has_the_records_of_a_key_in_their_order() -> None:
    assert check(world(*posted(1, 4, 2, 3), Drained("p", 0))) == []
    assert names(world(*posted(2, 1, 4, 3), Drained("p", 0))) == {"outrun"}
    assert names(world(*posted(1, 2, 2, 3, 4), Drained("p", 0))) == {"repeated"}


def test_what_was_answered_does_not_come_again_without_a_reason() -> None:
    assert names(world(*GOOD, *posted(1, at_ms=AT_MS + 10))) == {"repeated"}
    near, far = AT_MS - HELD_MS, AT_MS + FLUSHED_MS
    again = posted(1, at_ms=AT_MS + 2 * FLUSHED_MS)
    for harm in (Harmed(near), Harmed(far), Harmed(far, whole=True), Unheard(far)):
        assert check(world(*GOOD, harm, *again)) == []
    for harm in (Harmed(near - 1), Harmed(AT_MS + 2 * FLUSHED_MS + 1)):
        assert names(world(*GOOD, harm, *again)) == {"repeated"}
    late = [*posted(1, ms=TIMEOUT_MS - 1), *posted(1), *GOOD[2:]]
    assert check(world(*late)) == []


def test_an_owner_that_had_to_know_that_a_record_was_delivered_does_not_send_it_again() -> None:
    """A machine may be slow to tell the owner, or the owner may be on its way."""
    told_ms = AT_MS + FLUSHED_MS
    again = posted(1, at_ms=AT_MS + 4 * FLUSHED_MS)
    # It was asked before the sender knew; later; and has it: what the owner has is in its journal.
    before = Floors("p", (0,), AT_MS - 1, AT_MS + 1)
    later = Floors("p", (0,), AT_MS, told_ms - HELD_MS)
    done = Floors("p", (1,), AT_MS - 1, told_ms)
    for floors, may in ((before, True), (later, False), (done, False)):
        assert check(world(*GOOD, floors, Harmed(told_ms), *again)) == []
        found = set() if may else {"repeated"}
        assert names(world(*GOOD, floors, Harmed(told_ms + 1), *again)) == found
        whole = Harmed(told_ms + FLUSHED_MS - 1, whole=True)
        assert check(world(*GOOD, floors, whole, *again)) == []
        late = Harmed(told_ms + FLUSHED_MS, whole=True)
        assert names(world(*GOOD, floors, late, *again)) == found


def test_what_a_take_over_forgot_is_finished_when_it_is_told_again() -> None:
    """Its owner had finished it, then another one, which was superseded too."""
    done, step = Floors("p", (1,), AT_MS - 1, AT_MS + 1), 4 * FLUSHED_MS
    lost = [TakenOver(at - 1, at + 9, at + 9) for at in (AT_MS, AT_MS + step, AT_MS + 2 * step)]
    again = [posted(1, at_ms=AT_MS + more) for more in (step, 2 * step, 3 * step)]
    assert check(world(*GOOD, done, lost[0], *again[0], lost[1], *again[1])) == []
    assert names(world(*GOOD, done, lost[0], *again[0], *again[1])) == {"repeated"}


def test_an_answer_may_come_to_a_sender_that_waits_no_longer() -> None:
    """It has closed the connection; the receiver, which was slow, learns of that later."""
    other = [*posted(1, connection=2), *GOOD, Drained("p", 0)]
    assert check(world(*other)) == []
    heard = [*posted(1, connection=2), *GOOD, *posted(4, connection=2, status=503)]
    assert names(world(*heard)) == {"repeated"}
    refused = [line for _ in range(3) for line in posted(3, status=400)]
    lines = [*posted(1), *posted(2), *posted(3, status=400, connection=2), *refused, *REST]
    assert check(world(*lines, buried=(RECORDS[2],))) == []


def test_all_posts_of_a_record_have_its_own_id() -> None:
    other = Posted("p", 900, (Pushed("id-other", RECORDS[3]),), AT_MS)
    assert names(world(*posted(4, status=503), other, *GOOD)) == {"renamed"}
    same = Posted("p", 900, (Pushed("id-0-1", RECORDS[3]),), AT_MS)
    lines = [*GOOD[:6], same, Replied("p", 900, 200, AT_MS), Drained("p", 0)]
    assert names(world(*lines)) == {"confused"}
    without = Posted("p", 900, (Pushed("", RECORDS[3]),), AT_MS)
    lines = [*GOOD[:6], without, Replied("p", 900, 200, AT_MS), Drained("p", 0)]
    assert names(world(*lines)) == {"confused"}


def test_only_records_of_the_topic_are_sent() -> None:
    other = Posted("p", 900, (Pushed("id-other", "7.7.7"),), AT_MS)
    assert names(world(*GOOD, other)) == {"mistold"}


def test_no_window_has_more_posts_than_the_rate_allows() -> None:
    """10 a second, and 5 of one sender may have been held up."""
    shared = replace(RULES, mode="shared")
    most = [line for n in range(14) for line in posted(4, status=503, at_ms=AT_MS + n)]
    rest = [line for seq in (1, 2, 3, 4) for line in posted(seq, at_ms=AT_MS + 20_000)]
    end: list[Line] = [*rest, Drained("p", 0)]
    assert check(world(*most, *posted(4, status=503, at_ms=AT_MS + 999), *end, rules=shared)) == []
    more = [*most, *posted(4, status=503, at_ms=AT_MS + 998)]
    more += posted(4, status=503, at_ms=AT_MS + 999)
    assert names(world(*more, *end, rules=shared)) == {"overstepped"}
    steady = [line for n in range(120) for line in posted(4, status=503, at_ms=AT_MS + n * 80)]
    late = [line for seq in (1, 2, 3, 4) for line in posted(seq, at_ms=AT_MS + 60_000)]
    assert names(world(*steady, *late, end[-1], rules=shared)) == {"overstepped"}


def test_a_window_may_begin_with_a_burst() -> None:
    """100 a second, 5 of a burst, and 5 that may have been held up."""
    quick = replace(RULES, mode="shared", rate_max=100)
    burst = [line for n in range(110) for line in posted(4, status=503, at_ms=AT_MS + n)]
    rest = [line for seq in (1, 2, 3, 4) for line in posted(seq, at_ms=AT_MS + 20_000)]
    end: list[Line] = [*rest, Drained("p", 0)]
    assert check(world(*burst, *end, rules=quick)) == []
    more = [*burst, *posted(4, status=503, at_ms=AT_MS + 200)]
    assert names(world(*more, *end, rules=quick)) == {"overstepped"}
