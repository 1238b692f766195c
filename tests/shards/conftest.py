"""Segments that are closed with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shards.layout import Layout
from shards.segment import Segment

MakeSegment = Callable[[Layout], Segment]


@pytest.fixture
def make_segment() -> Iterator[MakeSegment]:
    made: list[Segment] = []

    def make(layout: Layout) -> Segment:
        made.append(Segment.create(layout))
        return made[-1]

    yield make
    for segment in made:
        segment.close()
