"""The room of a topic that rejects: one shard never passes a cap, several only by what they
cannot know of each other."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.intake.caps import Payload, Room, RoomFull, Rooms
from ledger.types import Commit, Head, LeaseId, PartitionState, Run, SourceRange, Topic, TopicConfig
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


def loaded(room: Room, head_seq: int, count: int, number: int = 0) -> None:
    room.begin_load()
    room.load(number, {0: state(head_seq, count)}, 0, 1)
    room.end_load()


class World:
    """A partition's ledger, and the rooms of shards that follow its commits late."""

    def __init__(self, shards: int, config: TopicConfig) -> None:
        self.rooms = [Room(Topic(TOPIC_ID, "t", config, 1)) for _ in range(shards)]
        self.cap = config.cap_records or (config.cap_bytes or 0) // RECORD_BYTES
        self.in_flight: list[deque[tuple[int, int]]] = [deque() for _ in range(shards)]
        self.ends = [0] * shards
        self.head_seq = 0
        self.commits: list[Commit] = []
        self.followed = [0] * shards
        self.looks: list[deque[tuple[int, PartitionState]]] = [deque() for _ in range(shards)]
        for room in self.rooms:
            loaded(room, 0, 0)

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
        room, in_flight = self.rooms[shard], self.in_flight[shard]
        if action == "produce":
            try:
                room.check([payload(number)])
            except RoomFull:
                if len(self.rooms) == 1:
                    flown = sum(count for _, count in in_flight)
                    assert self.stored + flown + number > self.cap, "there is room"
                return
            position = self.ends[shard]
            self.ends[shard] += 8
            room.published(position, [payload(number)])
            in_flight.append((position, number))
        elif action == "commit" and in_flight:
            # Up to `number` requests of the shard in one object, as a pull takes them.
            some = [in_flight.popleft() for _ in range(min(number, len(in_flight)))]
            count = sum(records for _, records in some)
            run = Run(shard, TOPIC_ID, 0, self.head_seq + 1, count)
            self.head_seq += count
            source = SourceRange(shard, some[0][0], some[-1][0] + 8)
            self.commits.append(
                Commit(len(self.commits) + 1, LeaseId(1, 1, shard, len(self.commits)), (source,),
                       (run,), (Head(TOPIC_ID, 0, self.head_seq),))
            )  # fmt: skip
        elif action == "follow" and self.followed[shard] < len(self.commits):
            commit = self.commits[self.followed[shard]]
            self.followed[shard] += 1
            end = commit.sources[0].end if commit.sources[0].shard == shard else 0
            room.committed(commit, end)
        elif action == "ask":
            room.begin_load()
            self.looks[shard].append((len(self.commits), state(self.head_seq, self.head_seq)))
        elif (
            action == "answer"
            and self.looks[shard]
            and self.looks[shard][0][0] <= self.followed[shard]
        ):
            commits, there = self.looks[shard].popleft()
            room.load(commits, {0: there}, 0, 1)
            room.end_load()


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
        world.rooms[0].check([payload(with_room)])
    with pytest.raises(RoomFull):
        world.rooms[0].check([payload(with_room + 1)])


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
    room = Room(topic(discard="reject", cap_records=5, cap_bytes=1_000))
    loaded(room, 9, 4)
    room.check([payload(1)])
    with pytest.raises(RoomFull, match="has 4 records, cap_records is 5") as refused:
        room.check([payload(2)])
    assert (refused.value.status, refused.value.code) == (422, "topic_full")
    assert refused.value.detail == {
        "limit": "cap_records", "max": 5, "held": 4, "asked": 2, "partition": 0, "topic": "t",
    }  # fmt: skip


def test_a_request_over_several_partitions_needs_room_in_each() -> None:
    room = Room(topic(discard="reject", cap_records=5, partitions=2))
    room.load(0, {0: state(4, 4, 0), 1: state(5, 5, 1)}, 0, 1)
    room.check([payload(1, 0)])
    with pytest.raises(RoomFull, match="partition 1"):
        room.check([payload(1, 0), payload(1, 1)])


def test_only_topics_that_reject_have_a_room_and_keep_it() -> None:
    rooms = Rooms([0] * at.GLOBAL_WORDS, 0)
    assert rooms.room(topic(cap_records=5)) is None
    assert rooms.room(topic(discard="reject", ttl_ms=5)) is None
    room = rooms.room(topic(discard="reject", cap_records=5))
    assert room is not None
    room.published(0, [payload(3)])
    again = rooms.room(topic(discard="reject", cap_records=4))
    assert again is room, "what is in flight is not forgotten when settings change"
    with pytest.raises(RoomFull, match="cap_records is 4"):
        room.check([payload(2)])


def test_a_room_is_stale_until_it_is_loaded_and_after_each_eviction() -> None:
    words = [0] * at.GLOBAL_WORDS
    rooms = Rooms(words, 0)
    room = rooms.room(topic(discard="reject", cap_bytes=5))
    assert room is not None and rooms.is_stale(room)
    room.load(0, {}, rooms.evicted(), 1)
    assert not rooms.is_stale(room)
    words[at.G_EVICTED] = 12
    assert rooms.is_stale(room)


def test_rooms_that_nobody_uses_are_forgotten_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("daemon.intake.caps.ROOMS_MAX", 2)
    rooms = Rooms([0] * at.GLOBAL_WORDS, 0)

    def room(topic_id: int) -> Room:
        config = TopicConfig(discard="reject", cap_records=9)
        found = rooms.room(Topic(topic_id, "t", config, 1))
        assert found is not None
        return found

    busy, idle = room(1), room(2)
    busy.published(0, [payload(1)])
    room(3)
    assert room(1) is busy and room(2) is not idle


def test_a_look_at_the_ledger_counts_when_its_commit_was_followed() -> None:
    async def go() -> None:
        seen = 4
        rooms = Rooms([0] * at.GLOBAL_WORDS, 0, lambda: seen)
        assert rooms.room(topic(discard="reject", cap_records=5)) is not None
        await rooms.followed(4)
        waiting = [asyncio.create_task(rooms.followed(number)) for number in (6, 5)]
        await asyncio.sleep(0)
        for seen in (5, 6):
            rooms.committed(Commit(seen, LeaseId(1, 1, 0, seen), (), (), ()))
            await asyncio.sleep(0)
            assert [task.done() for task in waiting] == [seen == 6, True]

    asyncio.run(go())
