"""``readStream.format("headgate")``: topics as a stream of batches that resumes at a checkpoint.

A stream's *position* is the next offset to read by topic and partition, and the ids of the topics:
``{"orders": {"0": 18, "1": 4}, "#ids": {"orders": 7}}``. No name of a topic begins with ``#``. A
topic that is deleted and created again begins at 1; without the id, the stream would silently skip
the first records of the new topic.

The offsets of a batch are decided once, in ``latestOffset``. Spark stores them, and reads the same
offsets again after a crash. New partitions and topics are read from their earliest offset. Each
batch has its own read lease, which ends when Spark has committed the batch, because a lease as old
as the stream would prevent all collection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from compaction.source.bounds import beyond, bounds, limited, lose
from compaction.source.errors import DataLoss, SourceError, TopicUnknown
from compaction.source.lease_keeper import LeaseKeeper
from compaction.source.options import Options
from compaction.source.partitions import FirstAtTime, partitions_of, planner_of, read_partition
from compaction.source.planner import TopicPartitions, plan
from compaction.source.schemas import Offsets, PlanRequest

if TYPE_CHECKING:
    import pyarrow as pa

IDS = "#ids"
Position = dict[str, dict[str, int]]
"""A stream's position as Spark stores it: JSON."""


class HeadgateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one stream, in the driver's Python worker; copies of it read tasks."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._planner = planner_of(options)
        self._target: tuple[Offsets, dict[str, int]] | None = None
        self._leases: dict[str, Position] = {}  # lease -> the end of its batch
        self._keeper: LeaseKeeper | None = None

    def initialOffset(self) -> Position:  # noqa: N802  # pyspark's
        options = self._options
        topics = {name: self._planner.state(name) for name in options.topics}
        at_time = FirstAtTime(options, self._planner).offset
        starts = bounds(
            "startingOffsets", options.starting, topics, at_time, fail=options.fail_on_data_loss
        )
        return position(starts, {name: topic.topic_id for name, topic in topics.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # pyspark's
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # pyspark's
        topics = self._topics({})
        self._target = (
            {name: {p.partition: p.next_seq for p in t.partitions} for name, t in topics.items()},
            {name: topic.topic_id for name, topic in topics.items()},
        )

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802  # pyspark's
        """The end of the next batch. Raises DataLoss if a topic was deleted or created again."""
        begins, ids = parsed(start)
        topics = self._topics(begins)
        self._check_ids(begins, ids, topics)
        ends: Offsets = {}
        for name, topic in topics.items():
            for state in topic.partitions:
                begin = begins.setdefault(name, {}).setdefault(state.partition, state.earliest_seq)
                end = state.next_seq
                if self._target is not None:
                    # Records and topics after the query began are left to the next query.
                    offsets, target_ids = self._target
                    if target_ids.get(name) != topic.topic_id:
                        continue
                    end = min(end, offsets[name].get(state.partition, begin))
                if end < begin:
                    what = f"the stream has read up to {begin - 1}"
                    lose(beyond(name, state, begin, what), fail=self._options.fail_on_data_loss)
                ends.setdefault(name, {})[state.partition] = max(begin, end)
        if isinstance(limit, ReadMaxRows):
            ends = limited(begins, ends, limit.max_rows)
        return position(ends, {name: topics[name].topic_id for name in ends})

    def reportLatestOffset(self) -> Position | None:  # noqa: N802  # pyspark's
        topics = self._topics({})
        return position(
            {name: {p.partition: p.next_seq for p in t.partitions} for name, t in topics.items()},
            {name: topic.topic_id for name, topic in topics.items()},
        )

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """The tasks of a batch [start, end)."""
        fail = self._options.fail_on_data_loss
        begins, begin_ids = parsed(start)
        ends, ids = parsed(end)
        starts: Offsets = {}
        stops: Offsets = {}
        found_ids: dict[str, int] = {}
        for name, partitions in ends.items():
            try:
                topic = self._planner.state(name)
            except TopicUnknown:
                self._gone(begins, name)
                continue
            if topic.topic_id != ids.get(name, topic.topic_id):
                self._gone(begins, name)
                continue
            found_ids[name] = topic.topic_id
            is_same = begin_ids.get(name, topic.topic_id) == topic.topic_id
            known = begins.get(name, {}) if is_same else {}
            for state in topic.partitions:
                stop = partitions.get(state.partition, state.next_seq)
                if state.partition not in partitions:
                    begin = stop  # created after this batch was decided
                else:
                    begin = known.get(state.partition, min(state.earliest_seq, stop))
                if stop > state.next_seq:
                    lose(beyond(name, state, stop, f"the batch goes up to {stop - 1}"), fail=fail)
                    stop = state.next_seq
                starts.setdefault(name, {})[state.partition] = min(begin, stop)
                stops.setdefault(name, {})[state.partition] = stop
        if starts == stops:
            return []
        pages = plan(self._planner, PlanRequest(list(starts), starts, stops), found_ids)
        self._hold(pages[0].plan, end)
        return list(partitions_of(self._options, pages))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

    def commit(self, end: Position) -> None:
        """Ends the lease of the batch that ends there."""
        for lease in [lease for lease, until in self._leases.items() if until == end]:
            self._drop(lease)

    def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        self._leases.clear()

    def _hold(self, lease: str, end: Position) -> None:
        if self._keeper is None:
            self._keeper = LeaseKeeper(self._planner)
        self._keeper.hold(lease)
        for other in [lease for lease, until in self._leases.items() if until != end]:
            self._drop(other)  # earlier batches are done
        self._leases[lease] = end

    def _drop(self, lease: str) -> None:
        del self._leases[lease]
        if self._keeper is not None:
            self._keeper.drop(lease)

    def _topics(self, begins: Offsets) -> dict[str, TopicPartitions]:
        topics: dict[str, TopicPartitions] = {}
        for name in self._options.topics:
            try:
                topics[name] = self._planner.state(name)
            except TopicUnknown:
                self._gone(begins, name)
        return topics

    def _check_ids(
        self, begins: Offsets, ids: dict[str, int], topics: dict[str, TopicPartitions]
    ) -> None:
        """If a topic was created again, fails, or reads it from its beginning."""
        for name, topic in topics.items():
            if ids.get(name, topic.topic_id) != topic.topic_id:
                self._gone(begins, name)

    def _gone(self, begins: Offsets, name: str) -> None:
        """A topic of the stream was deleted: records that were not read yet are lost."""
        reached = begins.pop(name, None)
        if reached is None:
            return
        if self._options.fail_on_data_loss:
            read = ", ".join(f"{p}: {o - 1}" for p, o in sorted(reached.items()))
            raise SourceError(
                f"topic {name!r} was deleted while a stream was reading it (up to partition:"
                f" offset {read}). With the option failOnDataLoss = false the stream continues"
                " without it, and with a new topic of this name from its beginning"
            )
        lose(DataLoss(name, 0, 1, 1, "the topic was deleted"), fail=False)

    def __getstate__(self) -> dict[str, Any]:
        """For executors: a reader without leases."""
        return {**self.__dict__, "_keeper": None, "_leases": {}}


def position(offsets: Offsets, ids: dict[str, int]) -> Position:
    """A stream's position; the same offsets always give the same JSON."""
    found = {
        name: {str(partition): offset for partition, offset in sorted(partitions.items())}
        for name, partitions in sorted(offsets.items())
    }
    return {**found, IDS: dict(sorted(ids.items()))}


def parsed(found: Position) -> tuple[Offsets, dict[str, int]]:
    """The inverse of position."""
    offsets = {
        name: {int(partition): offset for partition, offset in partitions.items()}
        for name, partitions in found.items()
        if name != IDS
    }
    return offsets, dict(found.get(IDS, {}))
