"""How much room topics that reject have left, as one shard knows it: why 422 ``topic_full``.

Vocabulary: a topic *rejects* when its ``discard`` says so and it has a cap. Its *room* is, by
partition, what the ledger held at a commit, plus what the commit log has told since, plus what this
shard has accepted and not seen committed (*in flight*). A request that would pass a cap is refused
before it reaches the ring; what was accepted is never dropped.

What this shard cannot know is what the other shards have in flight, nor the bytes that they
committed since the last look. So a cap may be passed by what the other shards have in flight, at
most (shards - 1) x ring, and ``cap_bytes`` by what they committed within LOOK_NS more; then all of
them refuse. One shard alone never passes a cap. In the other direction nothing is late: an eviction
or a trim changes a shared word, and a room from before it is looked up again before it refuses.

    room made -> loaded from the ledger -> published, committed, ... -> stale -> loaded again

Other topics have no room (None at their entry in the catalog) and pay one look at that. Rooms
belong to the shard's loop; they ask nothing themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping, MutableSequence, Sequence
from typing import Any

from daemon.api.errors import ApiError
from ledger.types import Commit, PartitionState, Topic, TopicConfig
from shards import layout as at

ROOMS_MAX = 10_000  # topics that reject and are written to through one shard; about 1 KB each
LOOK_NS = 500_000_000  # a room in use is loaded again behind this time

Payload = tuple[int, int, bytes, int, int]  # partition, records, bytes, first and last timestamp


class RoomFull(ApiError):
    """422 ``topic_full``. ``idempotency_key``: the request may repeat one that was stored."""

    def __init__(
        self, topic: str, partition: int, limit: str, cap: int, held: int, asked: int
    ) -> None:
        what = limit.removeprefix("cap_")
        super().__init__(
            422,
            "topic_full",
            f"partition {partition} of topic {topic!r} has {held} {what}, {limit} is {cap}, and"
            f" this request brings {asked}; nothing of it was stored. Trim the topic, raise"
            f" {limit}, or set discard to old",
            {"limit": limit, "max": cap, "held": held, "asked": asked, "partition": partition,
             "topic": topic},
        )  # fmt: skip
        self.idempotency_key: str | None = None


class _Partition:
    __slots__ = ("bytes", "in_flight_bytes", "in_flight_records", "head_seq", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.head_seq = 0
        self.in_flight_records = 0
        self.in_flight_bytes = 0


class Room:
    """One topic's; made before it is loaded."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.loaded_ns = 0
        self.loads = 0  # under way
        self.version = -1  # of the word ``evicted`` when it was loaded
        self._partitions: dict[int, _Partition] = {}
        self._in_flight: deque[tuple[int, int, int, int]] = deque()  # position, partition, sizes
        self._since: list[tuple[int, int, int]] = []  # commit, partition, bytes: while loading

    @property
    def idle(self) -> bool:
        """Nothing is in flight."""
        return not self._in_flight

    def check(self, payloads: Sequence[Payload]) -> None:
        """Raises RoomFull when a request would pass a cap."""
        config = self.topic.config
        for partition, records, data, *_ in payloads:
            there = self._partition(partition)
            held = there.records + there.in_flight_records
            if config.cap_records is not None and held + records > config.cap_records:
                raise RoomFull(self.topic.name, partition, "cap_records", config.cap_records, held,
                               records)  # fmt: skip
            held = there.bytes + there.in_flight_bytes
            if config.cap_bytes is not None and held + len(data) > config.cap_bytes:
                raise RoomFull(self.topic.name, partition, "cap_bytes", config.cap_bytes, held,
                               len(data))  # fmt: skip

    def published(self, position: int, payloads: Sequence[Payload]) -> None:
        """A request of this topic stands in the ring."""
        for partition, records, data, *_ in payloads:
            there = self._partition(partition)
            there.in_flight_records += records
            there.in_flight_bytes += len(data)
            self._in_flight.append((position, partition, records, len(data)))

    def voided(self, positions: Container[int]) -> None:
        """The requests there were taken back: they are not in flight any more.

        One pass for all of them: a ring may hold very many of one topic.
        """
        left: deque[tuple[int, int, int, int]] = deque()
        for each in self._in_flight:
            position, partition, records, size = each
            if position not in positions:
                left.append(each)
                continue
            there = self._partition(partition)
            there.in_flight_records -= records
            there.in_flight_bytes -= size
        self._in_flight = left

    def committed(self, commit: Commit, end: int) -> None:
        """A commit that holds this shard's ring up to ``end``, 0 for none of it."""
        while self._in_flight and self._in_flight[0][0] < end:
            _, partition, records, size = self._in_flight.popleft()
            there = self._partition(partition)
            there.in_flight_records -= records
            there.in_flight_bytes -= size
            there.bytes += size
            if self.loads:
                self._since.append((commit.number, partition, size))
        topic_id = self.topic.topic_id
        for head in commit.heads:
            if head.topic_id == topic_id:
                there = self._partition(head.partition)
                there.records += head.head_seq - there.head_seq
                there.head_seq = head.head_seq

    def load(
        self, number: int, states: Mapping[int, PartitionState], version: int, now_ns: int
    ) -> None:
        """What the ledger held as of commit ``number``, asked at ``version`` of the word.

        The shard has followed that commit: what is in flight comes behind it.
        """
        for partition, state in states.items():
            there = self._partition(partition)
            told = max(0, there.head_seq - state.head_seq)  # of commits behind that one
            there.records = state.count + told
            there.head_seq = state.head_seq + told
            there.bytes = state.bytes
        for since, partition, size in self._since:
            if since > number:
                self._partition(partition).bytes += size
        self.version = version
        self.loaded_ns = now_ns

    def begin_load(self) -> None:
        """The ledger is about to be asked."""
        self.loads += 1

    def end_load(self) -> None:
        """It answered, which was told to ``load``, or failed."""
        self.loads -= 1
        if not self.loads:
            self._since.clear()

    def _partition(self, partition: int) -> _Partition:
        there = self._partitions.get(partition)
        if there is None:
            there = self._partitions[partition] = _Partition()
        return there


class Rooms:
    """The rooms of one shard."""

    def __init__(
        self,
        words: MutableSequence[int] | memoryview[Any],
        shard: int,
        seen: Callable[[], int] = lambda: 0,
    ) -> None:
        self._words = words
        self._shard = shard
        self._seen = seen  # the last commit that the shard has followed
        self._rooms: dict[int, Room] = {}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # one per connection at most

    async def followed(self, number: int) -> None:
        """Returns when the shard has followed a commit that the ledger has."""
        if self._seen() < number:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((number, future))
            await future

    def room(self, topic: Topic) -> Room | None:
        """The room of a topic that rejects; None for any other."""
        config = topic.config
        if not rejects(config):
            return None
        room = self._rooms.get(topic.topic_id)
        if room is None:
            if len(self._rooms) >= ROOMS_MAX:
                self._rooms = {key: one for key, one in self._rooms.items() if not one.idle}
            room = self._rooms[topic.topic_id] = Room(topic)
        room.topic = topic  # its settings may be others now
        return room

    def evicted(self) -> int:
        """The shared word's value: another after each eviction and trim. Deaths count, for a shard
        may die between a trim and the word that tells of it."""
        return int(self._words[at.G_EVICTED]) + int(self._words[at.G_DEATHS])

    def is_stale(self, room: Room) -> bool:
        """Whether the room is from before an eviction, or was never loaded."""
        return room.version != self.evicted()

    def committed(self, commit: Commit) -> None:
        """Takes a commit from the log, in order."""
        if not self._rooms:
            return
        end = next((s.end for s in commit.sources if s.shard == self._shard), 0)
        topics = {head.topic_id for head in commit.heads}
        for topic_id, room in self._rooms.items():
            if topic_id in topics or (end and not room.idle):
                room.committed(commit, end)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for number, future in waiting:
                if number > commit.number:
                    self._waiting.append((number, future))
                elif not future.done():
                    future.set_result(None)


def rejects(config: TopicConfig) -> bool:
    """Whether a produce request may be refused for a cap."""
    capped = config.cap_records is not None or config.cap_bytes is not None
    return capped and config.discard == "reject"
