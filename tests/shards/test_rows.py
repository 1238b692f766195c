"""Sums of rows are the sums of their columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shards.layout import Layout
from shards.rows import sum_of
from shards.segment import Segment


@given(rows=st.lists(st.lists(st.integers(0, 1 << 60), min_size=4, max_size=4), max_size=8))
def test_each_column_is_summed_for_itself(rows: list[list[int]]) -> None:
    segment = Segment.create(Layout(1, 4096))
    words = segment.words
    for index, row in enumerate(rows):
        for column, value in enumerate(row):
            words[100 + 10 * index + column] = value
    found = sum_of(segment, range(100, 100 + 10 * len(rows), 10), 4)
    assert found == [sum(row[column] for row in rows) for column in range(4)]
    segment.close()


def test_the_last_column_may_exceed_a_word() -> None:
    segment = Segment.create(Layout(1, 4096))
    for start in (100, 110):
        segment.words[start], segment.words[start + 1] = 3, (1 << 64) - 1
    assert sum_of(segment, (100, 110), 2) == [6, (1 << 65) - 2]
    segment.close()
