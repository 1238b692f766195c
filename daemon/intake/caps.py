"""Caps of topics with ``discard: "reject"``, as one shard knows them: when to refuse a request.

A *tracker* holds, for each partition of such a topic, how many records and bytes it has: what the
ledger held at some commit, plus the commits since, plus what this shard has accepted and not yet
seen committed (*in flight*). A request that would exceed a cap is refused with 422 ``topic_full``
before it reaches the ring; what was accepted is never dropped.

    made -> loaded from the ledger -> published, committed, ... -> stale -> loaded again

A shard does not know what other shards have in flight, nor the bytes that they have committed since
the last load. So a cap can be exceeded by what the others have in flight, at most
(shards - 1) x ring, and ``cap_bytes`` also by what they committed within RELOAD_NS; after that they
all refuse. With one shard a cap is never exceeded. Room that is made is seen immediately: an
eviction or a trim changes a shared word, and a tracker from before it is loaded again before it
refuses.

Other topics have no tracker, and cost one comparison with None. Trackers belong to the shard's
loop; they do no I/O.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping, MutableSequence, Sequence
from typing import Any

from msgspec.structs import replace

from daemon.schemas.errors import ApiError
from ledger.types import Commit, PartitionState, Topic, TopicConfig
from shards import layout as at

# Of topics that reject and are written to through one shard: their partitions, as which each topic
# counts four times. 10,000 topics with all partitions that a daemon may have by default.
TRACKED_MAX = 60_000
TRACKED_BYTES = 320
RELOAD_NS = 500_000_000  # a tracker in use is loaded again after this time

Payload = tuple[int, int, bytes, int, int]  # partition, records, bytes, first and last timestamp


class TopicFull(ApiError):
    """422 ``topic_full``. ``idempotency_key``: the request may repeat one that was stored."""

    def __init__(
        self, topic: str, partition: int, limit: str, cap: int, held: int, asked: int
    ) -> None:
        what = limit.removeprefix("cap_")
        super().__init__(
            422,
            "topic_full",
            f"partition {partition} of topic {topic!r} has {held} {what} of {limit} = {cap}, and"
            f" this request has {asked} more; nothing of it was stored. Trim the topic, raise"
            f" {limit}, or set discard to old",
            {"limit": limit, "max": cap, "held": held, "asked": asked, "partition": partition,
             "topic": topic},
        )  # fmt: skip
        self.idempotency_key: str | None = None


class _Partition:
    __slots__ = ("bytes", "head_seq", "in_flight_bytes", "in_flight_records", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.head_seq = 0
        self.in_flight_records = 0
        self.in_flight_bytes = 0


class CapTracker:
    """The partitions of one topic; it must be loaded before it is asked."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.loaded_ns = 0
        self.loads = 0  # under way
        self.version = -1  # of the shared word when it was loaded
        self._partitions: dict[int, _Partition] = {}
        self._in_flight: deque[tuple[int, int, int, int]] = deque()  # position, partition, sizes
        self._since: list[tuple[int, int, int]] = []  # commit, partition, bytes: while loading

    @property
    def idle(self) -> bool:
        """Nothing is in flight."""
        return not self._in_flight

    def check(self, payloads: Sequence[Payload]) -> None:
        """Raises TopicFull if a request would exceed a cap."""
        config = self.topic.config
        for partition, records, data, *_ in payloads:
            known = self._partition(partition)
            held = known.records + known.in_flight_records
            if config.cap_records is not None and held + records > config.cap_records:
                raise TopicFull(self.topic.name, partition, "cap_records", config.cap_records,
                                held, records)  # fmt: skip
            held = known.bytes + known.in_flight_bytes
            if config.cap_bytes is not None and held + len(data) > config.cap_bytes:
                raise TopicFull(self.topic.name, partition, "cap_bytes", config.cap_bytes, held,
                                len(data))  # fmt: skip

    def published(self, position: int, payloads: Sequence[Payload]) -> None:
        """A request to this topic was published in the ring."""
        for partition, records, data, *_ in payloads:
            known = self._partition(partition)
            known.in_flight_records += records
            known.in_flight_bytes += len(data)
            self._in_flight.append((position, partition, records, len(data)))

    def taken_back(self, positions: Container[int]) -> None:
        """The requests at these positions are no longer in flight.

        One pass for all of them, since a ring may hold very many requests to one topic.
        """
        left: deque[tuple[int, int, int, int]] = deque()
        for each in self._in_flight:
            position, partition, records, size = each
            if position not in positions:
                left.append(each)
                continue
            known = self._partition(partition)
            known.in_flight_records -= records
            known.in_flight_bytes -= size
        self._in_flight = left

    def committed(self, commit: Commit, end: int) -> None:
        """A commit that covers this shard's ring up to ``end``; 0 if it covers none of it."""
        while self._in_flight and self._in_flight[0][0] < end:
            _, partition, records, size = self._in_flight.popleft()
            known = self._partition(partition)
            known.in_flight_records -= records
            known.in_flight_bytes -= size
            known.bytes += size
            if self.loads:
                self._since.append((commit.number, partition, size))
        topic_id = self.topic.topic_id
        for head in commit.heads:
            if head.topic_id == topic_id:
                known = self._partition(head.partition)
                known.records += head.head_seq - known.head_seq
                known.head_seq = head.head_seq

    def load(
        self, number: int, states: Mapping[int, PartitionState], version: int, now_ns: int
    ) -> None:
        """Takes what the ledger held at commit ``number``; ``version`` of the word is older.

        The shard has followed that commit, so what is in flight comes after it.
        """
        for partition, state in states.items():
            known = self._partition(partition)
            followed = max(0, known.head_seq - state.head_seq)  # by later commits
            known.records = state.count + followed
            known.head_seq = state.head_seq + followed
            known.bytes = state.bytes
        for since, partition, size in self._since:
            if since > number:
                self._partition(partition).bytes += size
        self.version = version
        self.loaded_ns = now_ns

    def begin_load(self) -> None:
        """The ledger is about to be read."""
        self.loads += 1

    def end_load(self) -> None:
        """The ledger was read (and ``load`` called), or could not be."""
        self.loads -= 1
        if not self.loads:
            self._since.clear()

    def _partition(self, partition: int) -> _Partition:
        known = self._partitions.get(partition)
        if known is None:
            known = self._partitions[partition] = _Partition()
        return known


class CapTrackers:
    """The trackers of one shard."""

    def __init__(
        self,
        words: MutableSequence[int] | memoryview[Any],
        shard: int,
        seen: Callable[[], int] = lambda: 0,
    ) -> None:
        self._words = words
        self._shard = shard
        self._seen = seen  # the last commit that the shard has followed
        self._trackers: dict[int, CapTracker] = {}
        self._tracked = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # at most one per connection

    async def followed(self, number: int) -> None:
        """Returns when the shard has followed a commit that the ledger has."""
        if self._seen() < number:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((number, future))
            await future

    def tracker(self, topic: Topic) -> CapTracker | None:
        """The tracker of a topic that rejects; None for any other."""
        config = topic.config
        if not rejects(config):
            return None
        # Names of columns may take 40 KB, and outlive those of the cache here.
        bare = replace(topic, config=replace(config, columns={})) if config.columns else topic
        tracker = self._trackers.get(topic.topic_id)
        if tracker is None:
            if self._tracked + _tracked(bare) > TRACKED_MAX:
                self._trackers = {k: one for k, one in self._trackers.items() if not one.idle}
                self._tracked = sum(_tracked(one.topic) for one in self._trackers.values())
            tracker = self._trackers[topic.topic_id] = CapTracker(bare)
            self._tracked += _tracked(bare)
        else:
            self._tracked += _tracked(bare) - _tracked(tracker.topic)
            tracker.topic = bare  # its settings may have changed
        return tracker

    def evicted(self, topic_id: int) -> int:
        """A number that each eviction and trim of a topic changes. So does a shard's death, since
        a shard may die between a trim and the word that tells of it."""
        return int(self._words[at.evicted(topic_id)]) + int(self._words[at.G_DEATHS])

    def is_stale(self, tracker: CapTracker) -> bool:
        """Whether the tracker is from before an eviction, or was never loaded."""
        return tracker.version != self.evicted(tracker.topic.topic_id)

    def committed(self, commit: Commit) -> None:
        """Takes a commit from the log, in order."""
        if not self._trackers:
            return
        end = next((s.end for s in commit.ranges if s.shard == self._shard), 0)
        topics = {head.topic_id for head in commit.heads}
        for topic_id, tracker in self._trackers.items():
            if topic_id in topics or (end and not tracker.idle):
                tracker.committed(commit, end)
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for number, future in waiting:
                if number > commit.number:
                    self._waiting.append((number, future))
                elif not future.done():
                    future.set_result(None)


def _tracked(topic: Topic) -> int:
    """What a topic counts of TRACKED_MAX."""
    return 4 + topic.config.partitions


def rejects(config: TopicConfig) -> bool:
    """Whether a produce request may be refused because of a cap."""
    capped = config.cap_records is not None or config.cap_bytes is not None
    return capped and config.discard == "reject"
