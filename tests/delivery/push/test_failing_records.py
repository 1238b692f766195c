"""A failed attempt counts against its record if others show that the receiver was up."""

from __future__ import annotations

import random

import pytest

from delivery.push.posts.answers import TRIES_MAX, FailingRecords
from delivery.subscriptions.window.messages import Place

BAD: Place = (0, 1)


def others(count: int = 1, first: int = 100) -> list[Place]:
    return [(0, first + number) for number in range(count)]


def fails(them: FailingRecords, *places: Place) -> bool:
    return them.failed(places, may_be_theirs=True)


def test_a_record_that_fails_between_others_that_are_delivered_counts_when_it_fails_again() -> None:
    them = FailingRecords()
    them.delivered(others())
    assert not fails(them, BAD)
    them.delivered(others())
    for _ in range(3):
        assert fails(them, BAD)
        them.delivered(others())


@pytest.mark.parametrize("is_before", [True, False])
def test_a_delivery_on_one_side_only_proves_nothing(is_before: bool) -> None:
    them = FailingRecords()
    if is_before:
        them.delivered(others())
        assert not any(fails(them, BAD) for _ in range(20)), "nothing else is sent any more"
    else:
        assert not any(fails(them, BAD) for _ in range(20))
        them.delivered(others())
        assert not fails(them, BAD)


def test_two_new_records_that_fail_one_after_the_other_are_an_outage() -> None:
    them = FailingRecords()
    them.delivered(others())
    assert not fails(them, (0, 2)) and not fails(them, (0, 3))
    them.delivered(others())
    assert not fails(them, (0, 2)) and not fails(them, (0, 3))


def test_bad_records_that_come_again_together_do_not_hide_one_another() -> None:
    them = FailingRecords()
    bad = [(0, number) for number in range(5)]
    for each in bad:
        assert not fails(them, each)
    for _ in range(2):
        them.delivered(others())
        for each in bad:
            fails(them, each)
    them.delivered(others())
    assert all(fails(them, each) for each in bad)


def test_an_answer_about_the_receiver_never_counts_and_clears_those_before_it() -> None:
    them = FailingRecords()
    them.delivered(others())
    fails(them, BAD)
    assert not them.failed(((0, 2),), may_be_theirs=False)
    them.delivered(others())
    assert not fails(them, BAD)
    them.delivered(others())
    assert not them.failed((BAD,), may_be_theirs=False), "known, but this answer is a 429"
    assert fails(them, BAD)


def test_an_outage_counts_against_nobody_however_it_comes_and_goes() -> None:
    """Records that come again fail in it in any order, with two new ones at least."""
    for seed in range(300):
        rng = random.Random(seed)
        them, waiting, number, counted = FailingRecords(), set[Place](), 0, 0
        for _ in range(rng.randrange(2, 12)):
            again = rng.sample(sorted(waiting), rng.randrange(len(waiting) + 1))
            fresh = [(1, number + each) for each in range(rng.randrange(2, 6))]
            number += len(fresh)
            tried = again + fresh
            rng.shuffle(tried)
            for place in tried:
                counted += fails(them, place)
            waiting |= set(tried)
            for _ in range(rng.randrange(1, 5)):  # it is up
                number += 1
                is_again = waiting and rng.random() < 0.3
                delivered = rng.choice(sorted(waiting)) if is_again else (1, number)
                waiting.discard(delivered)
                them.delivered([delivered])
        assert counted == 0, seed


@pytest.mark.parametrize("bad_part", [0.01, 0.1, 0.5])
def test_bad_records_among_good_ones_are_found_whatever_part_they_are(bad_part: float) -> None:
    rng = random.Random(7)
    them, counts = FailingRecords(), dict[Place, int]()
    for number in range(2_000):
        if rng.random() < bad_part:
            place = (0, number) if rng.random() < 0.3 or not counts else rng.choice(list(counts))
            counts[place] = counts.get(place, 0) + fails(them, place)
        else:
            them.delivered([(1, number)])
    assert sum(counts.values()) > 0.1 * bad_part * 2_000


def test_of_several_records_the_halves_are_sent_and_one_alone_counts_if_others_went_meanwhile() -> (
    None
):
    them = FailingRecords()
    batch = [BAD, *others(3, first=2)]
    them.delivered(others())
    assert not fails(them, *batch)
    them.delivered(others())
    assert fails(them, *batch)
    assert fails(them, *batch[:2])
    assert not fails(them, BAD), "nothing was delivered since: it may be an outage by now"
    them.delivered(batch[2:])
    assert fails(them, BAD)


def test_a_delivered_record_is_forgotten_and_so_is_all_of_a_former_receiver() -> None:
    for forget in (lambda them: them.delivered([BAD]), FailingRecords.clear):
        them = FailingRecords()
        them.delivered(others())
        fails(them, BAD)
        them.delivered(others())
        forget(them)
        assert not fails(them, BAD)


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    them = FailingRecords()
    fails(them, BAD)
    for place in others(TRIES_MAX):
        fails(them, place)
    assert BAD not in them._tried
    assert len(them._tried) == TRIES_MAX and len(them._open) <= TRIES_MAX
