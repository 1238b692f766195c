"""Rows of watched topics: one writer each, sums over shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.ready import EntryView
from shards.boards.topicrows import TopicActivity, TopicRows, TopicRowsReader, set_of
from shards.layout import TOPIC_ROWS, TOPIC_SETS, TOPIC_WAYS, Layout
from shards.segment import Segment


@pytest.fixture(scope="module")
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(3, 4096))
    yield made
    made.close()


def rows_of(segment: Segment) -> tuple[list[TopicRows], TopicRowsReader]:
    """Fresh rows for each shard, and a reader."""
    words, layout = segment.words, segment.layout
    return [TopicRows(words, layout, n) for n in range(3)], TopicRowsReader(words, layout)


def refresh(rows: TopicRows, waits: dict[int, EntryView]) -> None:
    """A whole revolution."""
    for _ in range(8):
        rows.refresh(waits.get)


CHANGES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 3, 129, 257, 1000]), st.integers(0, 3))
)


@given(CHANGES)
def test_watchers_are_summed_over_shards(
    segment: Segment, changes: list[tuple[int, int, int]]
) -> None:
    shards, reader = rows_of(segment)
    expected: dict[tuple[int, int], int] = {}
    for shard, topic_id, watchers in changes:
        shards[shard].watched(topic_id, watchers, watchers // 2)
        expected[shard, topic_id] = watchers
    sums: dict[int, int] = {}
    for (_, topic_id), watchers in expected.items():
        sums[topic_id] = sums.get(topic_id, 0) + watchers
    found = reader.of_each([*sums, 77])
    assert {each: found[each].watchers for each in found} == {t: n for t, n in sums.items() if n}
    lagged = {t: sum(n // 2 for (_, each), n in expected.items() if each == t) for t in found}
    assert {each: found[each].lagged for each in found} == lagged
    for topic_id in sums:
        assert reader.of(topic_id) == found.get(topic_id, TopicActivity())


def test_the_push_that_has_waited_longest_is_shown(segment: Segment) -> None:
    shards, reader = rows_of(segment)
    for rows, band, since_ns in ((shards[0], 1, 500), (shards[2], 0, 400)):
        rows.watched(9, 1)
        refresh(rows, {9: EntryView(band, since_ns, False)})
    assert reader.of(9) == TopicActivity(2, 0, 0, 400)
    refresh(shards[2], {})
    assert reader.of(9) == TopicActivity(2, 0, 1, 500)
    refresh(shards[0], {})
    assert reader.of(9).band is None


def test_a_topic_that_takes_a_row_over_has_no_push_of_the_former_one(segment: Segment) -> None:
    shards, reader = rows_of(segment)
    shards[0].watched(1, 1)
    refresh(shards[0], {1: EntryView(3, 500, False)})
    shards[0].watched(1, 0)
    other = next(each for each in count(2) if set_of(each) == set_of(1))
    shards[0].watched(other, 1)
    assert reader.of(other) == TopicActivity(1)


def test_a_new_process_begins_with_no_rows(segment: Segment) -> None:
    shards, reader = rows_of(segment)
    shards[1].watched(5, 4)
    TopicRows(segment.words, segment.layout, 1)
    assert reader.of_each([5]) == {}


def test_every_row_can_be_taken_and_a_topic_without_one_is_not_shown(segment: Segment) -> None:
    shards, reader = rows_of(segment)
    ids = range(TOPIC_ROWS, 2 * TOPIC_ROWS)
    for topic_id in ids:
        shards[0].watched(topic_id, 1)
    assert len(reader.of_each(ids)) == TOPIC_ROWS
    one = ids[0]
    more = next(each for each in count(ids.stop) if set_of(each) == set_of(one))
    shards[0].watched(more, 1)
    assert reader.of(more) == TopicActivity()
    shards[0].watched(more, 0)
    shards[0].watched(one, 0)
    shards[0].watched(more, 2)
    assert (reader.of(more).watchers, reader.of(one).watchers) == (2, 0)


@pytest.mark.parametrize("step", [1, 2, 4, 8, 64])
def test_topics_are_spread_over_the_sets_also_if_a_shard_has_every_nth(step: int) -> None:
    held = Counter(set_of(topic_id) for topic_id in range(3, 3 + step * 256, step))
    assert max(held.values()) <= TOPIC_WAYS
    assert len(held) > TOPIC_SETS // 4
