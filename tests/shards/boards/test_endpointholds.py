"""Endpoints whose receivers asked for a pause."""

from __future__ import annotations

import pytest

from shards import layout as at
from shards.boards.endpointholds import MS, EndpointHolds, HoldPlace
from shards.layout import Layout
from shards.segment import Segment
from tests.shards.conftest import MakeSegment

NOW = 5_000 * MS
URL = "https://example.com/hook"


@pytest.fixture
def segment(make_segment: MakeSegment) -> Segment:
    return make_segment(Layout(2, 4096))


def test_a_pause_is_read_by_all_to_the_next_millisecond_and_holds_no_other_endpoint(
    segment: Segment,
) -> None:
    asked, other = EndpointHolds(segment), EndpointHolds(segment)
    place = asked.place(URL)
    assert other.place(URL) == place and other.until_ns(place) == 0
    asked.hold(place, NOW + 10 * MS + 1, NOW)
    assert other.until_ns(place) == NOW + 11 * MS
    assert other.until_ns(other.place(URL + "/")) == 0


def test_of_several_pauses_the_longest_counts_and_a_release_ends_it(segment: Segment) -> None:
    holds = EndpointHolds(segment)
    place = holds.place(URL)
    for until_ns in (NOW + 20 * MS, NOW + 10 * MS, NOW + 30 * MS):
        holds.hold(place, until_ns, NOW)
    assert holds.until_ns(place) == NOW + 30 * MS
    holds.release(place)
    assert holds.until_ns(place) == 0


def test_eight_endpoints_share_a_line_and_the_shortest_of_more_is_forgotten(
    segment: Segment,
) -> None:
    holds = EndpointHolds(segment)
    places = [HoldPlace(0, tag) for tag in range(1, 11)]
    for number, place in enumerate(places[:8]):
        holds.hold(place, NOW + (100 + number) * MS, NOW)
    assert all(holds.until_ns(place) for place in places[:8])
    holds.hold(places[8], NOW + 500 * MS, NOW)
    assert [holds.until_ns(place) > 0 for place in places] == [False, *[True] * 8, False]
    holds.hold(places[9], NOW + 50 * MS, NOW)  # is the shortest itself
    assert holds.until_ns(places[9]) == 0
    later = NOW + 102 * MS  # one of them is over, and its word is free
    holds.hold(places[9], later + MS, later)
    assert holds.until_ns(places[9]) == later + MS and holds.until_ns(places[2]) >= later


def test_endpoints_spread_over_all_lines_by_a_hash_that_differs_between_daemons(
    make_segment: MakeSegment,
) -> None:
    first, second = (make_segment(Layout(1, 4096)) for _ in range(2))
    second.words[at.G_STARTED_NS] = 1
    places = [[EndpointHolds(each).place(f"{URL}/{n}") for n in range(5_000)]
              for each in (first, second)]  # fmt: skip
    assert len({place.first for place in places[0]}) == at.HOLD_LINES
    assert len(set(places[0])) == 5_000 and not set(places[0]) & set(places[1])
