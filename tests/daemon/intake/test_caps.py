"""Caps of a topic that rejects: one shard never exceeds a cap, several only by what they
cannot know of each other."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.intake.caps import CapTracker, CapTrackers, Payload, TopicFull
from ledger.types import (
    Commit,
    ExtentRun,
    LeasedRange,
    LeaseId,
    PartitionHead,
    PartitionState,
    Topic,
    TopicConfig,
)
from shards import layout as at
from tests.long import examples

TOPIC_ID = 7
RECORD_BYTES = 10


def topic(**settings: object) -> Topic:
    return Topic(TOPIC_ID, "t", TopicConfig(**settings), 1)  # type: ignore[arg-type]


def payload(records: int, partition: int = 0) -> Payload:
    return partition, records, b"x" * (RECORD_BYTES * records), 1, 1


def state(head_seq: int, count: int, partition: int = 0) -> PartitionState:
    earliest = head_seq + 1 - count
    return PartitionState(partition, head_seq, earliest, head_seq + 1, count, RECORD_BYTES * count)


def loaded(tracker: CapTracker, head_seq: int, count: int, number: int = 0) -> None:
    tracker.begin_load()
    tracker.load(number, {0: state(head_seq, count)}, 0, 1)
    tracker.end_load()


class World:
    """A partition's ledger, and the trackers of shards that follow its commits late."""

    def __init__(self, shards: int, config: TopicConfig) -> None:
        self.trackers = [CapTracker(Topic(TOPIC_ID, "t", config, 1)) for _ in range(shards)]
        self.cap = config.cap_records or (config.cap_bytes or 0) // RECORD_BYTES
        self.in_flight: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]
        self.ends = [0] * shards
        self.head_seq = 0
        self.commits: list[Commit] = []
        self.followed = [0] * shards
        self.looks: list[deque[tuple[int, PartitionState]]] = [deque() for _ in range(shards)]
        for tracker in self.trackers:
            loaded(tracker, 0, 0)

    @property
    def stored(self) -> int:
        return self.head_seq

    def unseen(self, shard: int) -> int:
        """Records that this shard cannot know of: in flight elsewhere, or not followed yet."""
        others = sum(
            count for one, some in enumerate(self.in_flight) if one != shard for _, count in some
        )
        head = (
            self.commits[self.followed[shard] - 1].heads[0].head_seq if self.followed[shard] else 0
        )
        return others + self.head_seq - head

    def do(self, action: str, shard: int, number: int) -> None:
        tracker, in_flight = self.trackers[shard], self.in_flight[shard]
        if action == "produce":
            try:
                tracker.check([payload(number)])
            except TopicFull:
                if len(self.trackers) == 1:
                    flown = sum(count for _, count in in_flight)
                    assert self.stored + flown + number > self.cap, "there is room"
                return
            position = self.ends[shard]
            self.ends[shard] += 8
            tracker.published(position, [payload(number)])
            in_flight.append((position, number))
        elif action == "commit" and in_flight:
            # Up to `number` requests of the shard in one object, as a pull takes them.
            some = [in_flight.popleft() for _ in range(min(number, len(in_flight)))]
            count = sum(records for _, records in some)
            run = ExtentRun(shard, TOPIC_ID, 0, self.head_seq + 1, count)
            self.head_seq += count
            source = LeasedRange(shard, some[0][0], some[-1][0] + 8)
            self.commits.append(
                Commit(len(self.commits) + 1, LeaseId(1, 1, shard, len(self.commits)), (source,),
                       (run,), (PartitionHead(TOPIC_ID, 0, self.head_seq),))
            )  # fmt: skip
        elif action == "follow" and self.followed[shard] < len(self.commits):
            commit = self.commits[self.followed[shard]]
            self.followed[shard] += 1
            end = commit.ranges[0].end if commit.ranges[0].shard == shard else 0
            tracker.committed(commit, end)
        elif action == "ask":
            tracker.begin_load()
            self.looks[shard].append((len(self.commits), state(self.head_seq, self.head_seq)))
        elif (
            action == "answer"
            and self.looks[shard]
            and self.looks[shard][0][0] <= self.followed[shard]
        ):
            commits, there = self.looks[shard].popleft()
            tracker.load(commits, {0: there}, 0, 1)
            tracker.end_load()


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("produce", "produce", "commit", "follow", "follow", "ask", "answer")),
        st.integers(0, 1),
        st.integers(1, 4),
    ),
    min_size=12,
    max_size=60,
)


@settings(deadline=None, max_examples=examples(400))
@given(actions=ACTIONS, cap=st.integers(1, 15), by_bytes=st.booleans())
def test_one_shard_never_passes_a_cap(
    actions: list[tuple[str, int, int]], cap: int, by_bytes: bool
) -> None:
    config = (
        TopicConfig(discard="reject", cap_bytes=cap * RECORD_BYTES)
        if by_bytes
        else TopicConfig(discard="reject", cap_records=cap)
    )
    world = World(1, config)
    for action, _, number in actions:
        world.do(action, 0, number)
        assert world.stored + sum(count for _, count in world.in_flight[0]) <= cap
    while world.in_flight[0]:
        world.do("commit", 0, 4)
    while world.followed[0] < len(world.commits):
        world.do("follow", 0, 1)
    # What is free can be used, all of it.
    with_room = cap - world.stored
    if with_room:
        world.trackers[0].check([payload(with_room)])
    with pytest.raises(TopicFull):
        world.trackers[0].check([payload(with_room + 1)])


@settings(deadline=None)
@given(actions=ACTIONS, cap=st.integers(1, 15))
def test_two_shards_pass_a_cap_by_what_they_do_not_know_of_each_other_at_most(
    actions: list[tuple[str, int, int]], cap: int
) -> None:
    world = World(2, TopicConfig(discard="reject", cap_records=cap))
    for action, shard, number in actions:
        before = sum(count for some in world.in_flight for _, count in some)
        unseen = world.unseen(shard)
        world.do(action, shard, number)
        now = sum(count for some in world.in_flight for _, count in some)
        if action == "produce" and now > before:
            assert world.stored + now <= cap + unseen


def test_a_refusal_says_which_limit_and_how_much_is_there() -> None:
    tracker = CapTracker(topic(discard="reject", cap_records=5, cap_bytes=1_000))
    loaded(tracker, 9, 4)
    tracker.check([payload(1)])
    with pytest.raises(TopicFull, match="has 4 records of cap_records = 5") as refused:
        tracker.check([payload(2)])
    assert (refused.value.status, refused.value.code) == (422, "topic_full")
    assert refused.value.detail == {
        "limit": "cap_records", "max": 5, "held": 4, "asked": 2, "partition": 0, "topic": "t",
    }  # fmt: skip


def test_a_request_over_several_partitions_needs_room_in_each() -> None:
    tracker = CapTracker(topic(discard="reject", cap_records=5, partitions=2))
    tracker.load(0, {0: state(4, 4, 0), 1: state(5, 5, 1)}, 0, 1)
    tracker.check([payload(1, 0)])
    with pytest.raises(TopicFull, match="partition 1"):
        tracker.check([payload(1, 0), payload(1, 1)])


def test_only_topics_that_reject_have_a_tracker_and_keep_it() -> None:
    trackers = CapTrackers([0] * at.GLOBAL_WORDS, 0)
    assert trackers.tracker(topic(cap_records=5)) is None
    assert trackers.tracker(topic(discard="reject", ttl_ms=5)) is None
    tracker = trackers.tracker(topic(discard="reject", cap_records=5))
    assert tracker is not None
    tracker.published(0, [payload(3)])
    again = trackers.tracker(topic(discard="reject", cap_records=4))
    assert again is tracker, "what is in flight is not forgotten when settings change"
    with pytest.raises(TopicFull, match="cap_records = 4"):
        tracker.check([payload(2)])


def test_a_room_is_stale_until_it_is_loaded_and_after_each_eviction() -> None:
    words = [0] * at.GLOBAL_WORDS
    trackers = CapTrackers(words, 0)
    tracker = trackers.tracker(topic(discard="reject", cap_bytes=5))
    assert tracker is not None and trackers.is_stale(tracker)
    tracker.load(0, {}, trackers.evicted(tracker.topic.topic_id), 1)
    assert not trackers.is_stale(tracker)
    words[at.evicted(tracker.topic.topic_id + 1)] = 12
    assert not trackers.is_stale(tracker), "another topic was evicted"
    words[at.evicted(tracker.topic.topic_id)] = 12
    assert trackers.is_stale(tracker)


def test_rooms_that_nobody_uses_are_forgotten_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("daemon.intake.caps.TRACKED_MAX", 10)
    trackers = CapTrackers([0] * at.GLOBAL_WORDS, 0)

    def tracker(topic_id: int) -> CapTracker:
        config = TopicConfig(discard="reject", cap_records=9)
        found = trackers.tracker(Topic(topic_id, "t", config, 1))
        assert found is not None
        return found

    busy, idle = tracker(1), tracker(2)
    busy.published(0, [payload(1)])
    tracker(3)
    assert tracker(1) is busy and tracker(2) is not idle


def test_partitions_count_for_the_limit_and_columns_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("daemon.intake.caps.TRACKED_MAX", 20)
    trackers = CapTrackers([0] * at.GLOBAL_WORDS, 0)

    def tracker(topic_id: int, partitions: int) -> CapTracker:
        config = TopicConfig(
            discard="reject", cap_records=9, partitions=partitions, columns={"a": "long"}
        )
        found = trackers.tracker(Topic(topic_id, "t", config, 1))
        assert found is not None
        return found

    first, second = tracker(1, 1), tracker(2, 1)
    assert tracker(1, 11) is first and first.topic.config.partitions == 11
    assert first.topic.config.columns == {}
    tracker(3, 1)
    assert tracker(1, 11) is not first and tracker(2, 1) is not second, "they were forgotten"


async def test_a_look_at_the_ledger_counts_when_its_commit_was_followed() -> None:
    seen = 4
    trackers = CapTrackers([0] * at.GLOBAL_WORDS, 0, lambda: seen)
    assert trackers.tracker(topic(discard="reject", cap_records=5)) is not None
    await trackers.followed(4)
    waiting = [asyncio.create_task(trackers.followed(number)) for number in (6, 5)]
    await asyncio.sleep(0)
    for seen in (5, 6):
        trackers.committed(Commit(seen, LeaseId(1, 1, 0, seen), (), (), ()))
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [seen == 6, True]
