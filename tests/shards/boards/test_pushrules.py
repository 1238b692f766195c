"""Whom push may call, from the supervisor to the shards."""

from __future__ import annotations

from shards.boards.pushrules import PushRules
from shards.layout import Layout
from tests.shards.conftest import MakeSegment


def test_lists_are_read_as_they_were_published_last(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    supervisor, shard = PushRules(segment), PushRules(segment)
    assert shard.number == 0
    for number in range(1, 6):
        supervisor.publish(([f"h{each}.example" for each in range(number)], ["own"]))
        assert shard.number == number
        assert shard.read(number) == ([f"h{each}.example" for each in range(number)], ["own"])


def test_lists_that_were_published_meanwhile_are_read_later(make_segment: MakeSegment) -> None:
    rules = PushRules(make_segment(Layout(1, 4096)))
    rules.publish((["a.example"], []))
    rules.publish((["b.example"], []))
    assert rules.read(1) is None
    assert rules.read(2) == (["b.example"], [])


def test_the_longest_lists_have_place(make_segment: MakeSegment) -> None:
    rules = PushRules(make_segment(Layout(1, 4096)))
    longest = [f"{number:04}" + "x" * 252 for number in range(1_000)]
    rules.publish((longest, longest))
    assert rules.read(1) == (longest, longest)
