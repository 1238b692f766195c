"""Counts by name: slots are given once, in order of arrival, and nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.boards.namecounts import (
    TOKENS,
    TOPICS,
    NameCounts,
    TopicTally,
    counted,
    names,
    write_name,
)
from shards.layout import Layout
from shards.segment import Segment
from tests.shards.conftest import MakeSegment

SLOTS = 3
SHARDS = 2
FEW = msgspec.structs.replace(TOPICS, slots=SLOTS)


class Processes:
    """Shards with their counts, and a lock that a stopped process may hold."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.held = False
        self.shards = [self.start(shard) for shard in range(SHARDS)]
        # As pending requests have it: a topic's tally is asked for once.
        self.tallies: list[dict[str, TopicTally]] = [{} for _ in range(SHARDS)]
        self.unsaved: list[Counter[str]] = [Counter() for _ in range(SHARDS)]
        self.saved: Counter[str] = Counter()

    def start(self, shard: int) -> NameCounts[TopicTally]:
        return NameCounts(FEW, self.segment, shard, lambda: not self.held, lambda: None)

    def acknowledge(self, shard: int, name: str) -> None:
        tallies = self.tallies[shard]
        tally = tallies.get(name)
        if tally is None:
            tally = tallies[name] = self.shards[shard].tally_of(name)
        tally.records += 1
        tally.bytes += 10
        self.unsaved[shard][name] += 1

    def heartbeat(self, shard: int) -> None:
        self.shards[shard].store()
        if not self.held:  # what waits for a slot is stored when it has one
            self.saved += self.unsaved[shard]
            self.unsaved[shard].clear()

    def restart(self, shard: int) -> None:
        """What was not stored yet is lost with its process."""
        self.heartbeat(shard)
        if self.held:
            return
        self.shards[shard] = self.start(shard)
        self.tallies[shard].clear()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.integers(0, SHARDS - 1), st.sampled_from("abcdef")),
        st.tuples(st.just("heartbeat"), st.integers(0, SHARDS - 1), st.just("")),
        st.tuples(st.just("restart"), st.integers(0, SHARDS - 1), st.just("")),
        st.tuples(st.just("hold"), st.just(0), st.just("")),
        st.tuples(st.just("let go"), st.just(0), st.just("")),
    ),
    max_size=40,
)


@given(steps=steps)
def test_slots_are_first_come_and_the_sum_is_what_was_acknowledged(
    steps: list[tuple[str, int, str]],
) -> None:
    segment = Segment.create(Layout(SHARDS, 4096))
    world = Processes(segment)
    slots: list[str] = []
    for what, shard, name in steps:
        if what == "ack":
            world.acknowledge(shard, name)
        elif what == "heartbeat":
            world.heartbeat(shard)
        elif what == "restart":
            world.restart(shard)
        else:
            world.held = what == "hold"
        now = names(FEW, segment)
        assert now[: len(slots)] == slots, "a slot never changes"
        slots = now
        for counts in world.shards:
            counts.check_invariants()
    world.held = False
    for shard in range(SHARDS):
        world.heartbeat(shard)
    other, *named = counted(FEW, segment)
    assert len(named) == min(SLOTS, len(world.saved))
    for topic, tally in named:
        assert topic is not None and tally.records == world.saved.pop(topic)
        assert tally.bytes == 10 * tally.records
    assert (other[0], other[1].records) == (None, world.saved.total())
    segment.close()


def test_a_successor_continues_the_counts_of_topics_and_of_the_others(
    make_segment: MakeSegment,
) -> None:
    world = Processes(make_segment(Layout(SHARDS, 4096)))
    for _ in range(2):
        for name in "abcd":
            world.acknowledge(0, name)
        world.restart(0)
    found = {name: tally.records for name, tally in counted(FEW, world.segment)}
    assert found == {"a": 2, "b": 2, "c": 2, None: 2}


def test_a_topic_that_waits_for_its_slot_in_vain_is_counted_with_the_others(
    make_segment: MakeSegment,
) -> None:
    world = Processes(make_segment(Layout(SHARDS, 4096)))
    world.held = True
    world.acknowledge(0, "late")
    world.held = False
    for name in "abc":
        world.acknowledge(1, name)
    world.heartbeat(0)
    world.acknowledge(0, "late")
    world.heartbeat(0)
    found = {name: tally.records for name, tally in counted(FEW, world.segment)}
    assert found == {None: 2, "a": 0, "b": 0, "c": 0}


def test_topics_that_wait_are_bounded(
    make_segment: MakeSegment,
) -> None:
    world = Processes(make_segment(Layout(SHARDS, 4096)))
    world.held = True
    tallies = {id(world.shards[0].tally_of(name)) for name in "abcdef"}
    assert len(tallies) == SLOTS + 1, (
        "as many wait as there are slots, all others share the place of others"
    )


def test_a_slot_holds_the_longest_name_and_no_longer_one(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    longest = "x" * 255
    write_name(TOPICS, segment, 0, longest)
    assert names(TOPICS, segment) == [longest]
    with pytest.raises(ValueError, match="the name has 400 bytes; a slot holds 312"):
        write_name(TOPICS, segment, 1, "x" * 400)


def test_each_kind_has_its_own_names_and_counts(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(SHARDS, 4096))
    topics, tokens = (
        NameCounts(kind, segment, 1, lambda: True, lambda: None) for kind in (TOPICS, TOKENS)
    )
    topics.tally_of("t").bytes = 1
    traffic = tokens.tally_of("a")
    traffic.requests, traffic.bytes_in, traffic.bytes_out, traffic.refused = 2, 3, 4, 5
    for counts in (topics, tokens):
        counts.store()
    assert names(TOPICS, segment) == ["t"] and names(TOKENS, segment) == ["a"]
    assert TOKENS.read(dict(counted(TOKENS, segment))["a"]) == [2, 3, 4, 5]
    assert TOPICS.read(dict(counted(TOPICS, segment))["t"]) == [0, 1]
